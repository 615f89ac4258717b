//! Processes that play a part: the test program run again.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};

/// Says that a process is to play a part, and which.
const PART: &str = "CACHELANE_LEND_TEST_PART";
const SOCKET: &str = "CACHELANE_LEND_TEST_SOCKET";

/// A process that plays a part, killed when it is dropped.
pub struct Part(Child);

impl Part {
    /// Runs this program's `play_a_part`, and waits until it says that it is where it should be.
    pub fn play(part: &str, socket: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "play_a_part", "--nocapture", "--test-threads=1"]);
        command.env(PART, part).env(SOCKET, socket);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let line = lines.next().expect("a line").unwrap();
        let rest = || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n");
        assert!(line == "ready", "{part} says: {line}\n{}", rest());
        Self(child)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Which part this process plays, and at which socket; none if it is the test itself.
pub fn playing() -> Option<(String, PathBuf)> {
    let (part, socket) = (env::var(PART).ok()?, env::var_os(SOCKET)?);
    std::thread::spawn(|| {
        // Until the test is gone, however it ends: nothing is ever written here.
        let _ = stdin().read(&mut [0]);
        exit(1)
    });
    Some((part, socket.into()))
}

/// Says that it is where it should be, and stays there.
pub fn ready_for_ever() -> ! {
    eprintln!("ready");
    loop {
        std::thread::park();
    }
}
