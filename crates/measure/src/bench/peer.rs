//! Peers in C: built when the bench runs, from sources that this program carries, with the
//! compiler and the libraries of the host. One that cannot be built or started is absent, with the
//! reason.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use lab::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::experiment::Absent;

/// How much longer than asked a measurement may take, before the peer is taken for stuck. Threads
/// that spin while the one that they wait for has no CPU can take very long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the sources include.
const HEADERS: [(&str, &str); 4] = [
    ("cachelane_lend.h", include_str!("../../../../clients/c/cachelane_lend.h")),
    ("peer.h", include_str!("frames/peers/peer.h")),
    ("patterns.h", include_str!("frames/peers/patterns.h")),
    ("spsc.h", include_str!("frames/peers/spsc.h")),
];

/// A program: its name, its source, and what the compiler is told besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    name: &'static str,
    source: &'static str,
    flags: &'static [&'static str],
    /// Whether it is built with DPDK.
    dpdk: bool,
}

impl Program {
    const fn new(name: &'static str, source: &'static str) -> Program {
        Program { name, source, flags: &[], dpdk: false }
    }
}

/// DPDK's mempool.
pub(super) const MEMPOOL: Program = Program {
    dpdk: true,
    ..Program::new("dpdk_mempool", include_str!("frames/peers/dpdk_mempool.c"))
};
/// The same, whose objects pass between threads by a ring like ours, not by rte_ring.
pub(super) const MEMPOOL_EQUAL_RING: Program =
    Program { name: "dpdk_mempool_equal_ring", flags: &["-DSPSC"], ..MEMPOOL };
pub(super) const MIMALLOC: Program = Program {
    flags: &["-lmimalloc"],
    ..Program::new("mimalloc", include_str!("frames/peers/mimalloc.c"))
};
/// A plain AF_XDP loop.
pub(super) const XDP_PLAIN: Program =
    Program::new("xdp_plain", include_str!("frames/peers/xdp_plain.c"));
/// AF_PACKET rings.
pub(super) const AF_PACKET: Program =
    Program::new("af_packet", include_str!("lend/peers/af_packet.c"));
/// The least program that relays by splice(2).
pub(super) const LEAST_SPLICE: Program =
    Program::new("least_splice", include_str!("relay/peers/least_splice.c"));
/// A borrower that reads every byte.
pub(super) const LEND_READER: Program =
    Program::new("lend_reader", include_str!("lend/peers/lend_reader.c"));

/// A folder in which programs are built.
#[derive(Debug)]
pub(super) struct Builder(Lab);

/// A peer that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Peer {
    name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// As DPDK's documentation says to build a program.
fn dpdk_flags() -> Result<Vec<String>, String> {
    let output = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output();
    let output =
        output.map_err(|error| format!("pkg-config cannot be run: {error} (make peers)"))?;
    if !output.status.success() {
        return Err("libdpdk is not installed (make peers)".into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(Into::into).collect())
}

impl Builder {
    /// A new folder, which is gone with this; that of a process that was killed goes when there is
    /// another lab.
    pub(super) fn new() -> anyhow::Result<Builder> {
        let lab = Lab::new("peers").context("cannot make a temporary folder")?;
        for (name, text) in HEADERS {
            let path = lab.dir().join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Builder(lab))
    }

    /// Builds a program, or says why not.
    pub(super) fn build(&self, program: &Program) -> Result<PathBuf, String> {
        let dpdk = if program.dpdk { dpdk_flags()? } else { Vec::new() };
        let binary = self.0.dir().join(program.name);
        let source = binary.with_extension("c");
        fs::write(&source, program.source)
            .map_err(|error| format!("cannot write {}: {error}", source.display()))?;
        let output = Command::new("cc")
            .args(["-O3", "-pthread", "-o"])
            .args([&binary, &source])
            .args(dpdk)
            .args(program.flags)
            .output()
            .map_err(|error| format!("the C compiler, cc, cannot be run: {error} (make peers)"))?;
        if output.status.success() { Ok(binary) } else { Err(compiler_said(&output)) }
    }
}

/// Why a program cannot be built: the first error.
fn compiler_said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let error = text.lines().find_map(|line| line.split_once("error: "));
    let error = error.map_or_else(|| text.lines().last().unwrap_or(""), |(_, error)| error);
    format!("it cannot be built: {} (make peers)", error.trim())
}

impl Peer {
    /// Starts a program, or says why it does not start.
    pub(super) fn start(binary: &Path, args: &[String]) -> Result<Peer, String> {
        let name = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut child = Command::new(binary)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} cannot be run: {error}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{name} has no pipes"));
        };
        let answers = BufReader::new(answers);
        let mut peer = Peer { name, child, requests, answers };
        match peer.answer(PATIENCE) {
            Ok(line) if line == "ready" => Ok(peer),
            _ => Err(format!("it does not start: {}", peer.last_words())),
        }
    }

    /// Has it measure: seconds an object or a packet.
    pub(super) fn run(
        &mut self,
        pattern: &str,
        threads: usize,
        window: Duration,
    ) -> anyhow::Result<f64> {
        let milliseconds = window.as_millis().max(1);
        writeln!(self.requests, "run {pattern} {threads} {milliseconds}")
            .with_context(|| format!("{} has ended", self.name))?;
        let line = self.answer(window + PATIENCE)?;
        let nanoseconds = line.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
        match nanoseconds {
            Some(nanoseconds) if nanoseconds > 0.0 => Ok(nanoseconds / 1e9),
            _ => {
                let why = line.strip_prefix("error ").unwrap_or(&line);
                Err(Absent(format!("{}: {why}", self.name)).into())
            }
        }
    }

    /// The next line. It writes one for each request, so that none waits in the buffer.
    fn answer(&mut self, limit: Duration) -> anyhow::Result<String> {
        let limit_of_poll = Timespec::try_from(limit).context("the time is too long")?;
        let mut ready = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
        let ready = poll(&mut ready, Some(&limit_of_poll)).context("poll")?;
        if ready == 0 {
            bail!("{} has not answered in {limit:?}", self.name);
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).with_context(|| format!("{}'s answer", self.name))?;
        if line.is_empty() {
            bail!("{} has ended", self.name);
        }
        Ok(line.trim().to_owned())
    }

    /// What it said last on standard error, once it has ended.
    fn last_words(&mut self) -> String {
        let _ = self.child.kill();
        let Some(stderr) = self.child.stderr.take() else { return "it says nothing".into() };
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.last().unwrap_or_else(|| "it says nothing".into())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lab::LinkOptions;

    use super::*;

    /// A peer that is not installed is no defect; one that is, and cannot be built, is.
    fn built(builder: &Builder, program: &Program) -> Option<PathBuf> {
        match builder.build(program) {
            Ok(binary) => Some(binary),
            Err(reason) if reason.contains("cannot be run") || reason.contains("installed") => {
                eprintln!("skipped: {}: {reason}", program.name);
                None
            }
            Err(reason) => panic!("{}: {reason}", program.name),
        }
    }

    #[test]
    fn a_peer_answers_each_request_and_refuses_what_it_cannot_do() {
        let builder = Builder::new().unwrap();
        let window = Duration::from_millis(5);
        for program in [MEMPOOL, MEMPOOL_EQUAL_RING] {
            let Some(binary) = built(&builder, &program) else { continue };
            let args = ["ring_mp_mc", "8192", "0"].map(String::from);
            let mut peer = Peer::start(&binary, &args).unwrap();
            for (pattern, threads) in [("single", 1), ("bulk32", 2), ("alien", 2), ("all", 4)] {
                assert!(peer.run(pattern, threads, window).unwrap() > 0.0, "{pattern}");
            }
            let error = peer.run("alien", 1, window).unwrap_err().to_string();
            assert!(error.ends_with("needs pairs of threads"), "{error}");
            assert!(peer.run("single", 1, window).is_ok());
            let args = ["no_such_handler", "8192", "0"].map(String::from);
            let why = Peer::start(&binary, &args).unwrap_err();
            assert!(why.contains("no_such_handler: "), "{why}");
        }
    }

    #[test]
    fn root_what_a_plain_xdp_loop_sends_another_drops() {
        const NAME: &str = "root_what_a_plain_xdp_loop_sends_another_drops";
        if !lab::testing::root(NAME) {
            return;
        }
        let builder = Builder::new().unwrap();
        let Some(binary) = built(&builder, &XDP_PLAIN) else { return };
        let lab = Lab::new("plain-xdp").unwrap();
        let hosts = [lab.host("a").unwrap(), lab.host("b").unwrap()];
        let link = lab.link(&hosts[0], &hosts[1], LinkOptions::default()).unwrap();
        let start = |end: &lab::End, mode: &str| {
            let args = [&end.device, "0", mode, "0"].map(String::from);
            end.host.run(|| Peer::start(&binary, &args)).unwrap().unwrap()
        };
        let mut sender = start(&link.a, "none");
        for mode in ["skb", "native"] {
            let mut receiver = start(&link.b, mode);
            let window = Duration::from_millis(200);
            std::thread::scope(|scope| {
                let sent = scope.spawn(|| sender.run("tx", 1, 5 * window));
                assert!(receiver.run("rx", 1, 3 * window).unwrap() > 0.0, "{mode}");
                assert!(sent.join().unwrap().unwrap() > 0.0, "{mode}");
            });
        }
    }
}
