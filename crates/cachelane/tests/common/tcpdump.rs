//! tcpdump at the other end of a link.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use lab::End;
use lab::testing::comes_true;

use super::text;
use super::xsk::Scene;

/// tcpdump on a device, until it has seen so many packets.
pub(crate) struct Tcpdump(Child, PathBuf);

impl Tcpdump {
    /// Starts it, and waits until it listens.
    pub(crate) fn start(scene: &Scene, end: &End, packets: u64, filter: &str) -> Tcpdump {
        let file = scene.place.path().join("seen.pcap");
        let count = packets.to_string();
        let mut command = Command::new("tcpdump");
        command.args(["-i", &end.device, "--immediate-mode", "-Z", "root", "-c", &count]);
        // What comes while it has no CPU waits, and the file has all that it has seen.
        command.args(["-B", "65536", "-U"]);
        command.arg("-w").arg(&file).arg(filter).stderr(Stdio::piped());
        let mut child =
            end.host.run(move || command.spawn()).expect("the host").expect("tcpdump starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        assert!(log.by_ref().map_while(Result::ok).any(|line| line.contains("listening on")));
        std::thread::spawn(move || log.for_each(drop));
        Tcpdump(child, file)
    }

    /// The file, once it has seen them.
    pub(crate) fn file(mut self) -> PathBuf {
        assert!(comes_true(|| self.0.try_wait().expect("it is ours").is_some()), "too few packets");
        self.1.clone()
    }

    /// What it tells of each packet, without times.
    pub(crate) fn lines(self) -> Vec<String> {
        lines(&self.file(), &["-e"])
    }
}

impl Drop for Tcpdump {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What tcpdump reads in a file.
pub(crate) fn lines(file: &PathBuf, args: &[&str]) -> Vec<String> {
    let read = Command::new("tcpdump").args(["-nn", "-t"]).args(args).arg("-r").arg(file).output();
    let read = read.expect("tcpdump runs");
    assert!(read.status.success(), "{read:?}");
    text(&read.stdout).lines().map(str::to_owned).collect()
}
