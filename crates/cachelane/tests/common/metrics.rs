//! What the tests of `cachelane metrics` share: processes in a place of their own, and a client that
//! shows every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Place, ends_within};

/// How long a busy machine may take.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Processes that know only each other.
pub(crate) struct Scene(pub(crate) Place);

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene(Place::new())
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.env("CACHELANE_RUNTIME_DIR", self.0.path().join("run")).env("NO_COLOR", "1");
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    /// Starts it, and reads on until its log says this.
    pub(crate) fn start(&self, args: &[&str], says: &str) -> Running {
        Running::start(&mut self.command(args), says)
    }

    /// A relay to whoever echoes.
    pub(crate) fn relay(&self, to: SocketAddr, more: &[&str]) -> Running {
        let to = to.to_string();
        let args = ["relay", "--listen", "127.0.0.1:0", "--to", &to, "--engine", "copy"];
        self.start(&[&args[..], more].concat(), "relaying ")
    }

    /// The server of metrics, on a port of its own.
    pub(crate) fn metrics(&self) -> Running {
        self.start(&["metrics", "--listen", "127.0.0.1:0"], "serving http://")
    }

    /// What a command that ends by itself has printed, and how it ended.
    pub(crate) fn output(&self, args: &[&str]) -> Output {
        ends_within(self.command(args).spawn().expect("it starts"), SOON)
    }

    /// What `cachelane knob list --counters` says of each process.
    pub(crate) fn listed(&self) -> Vec<Value> {
        let listed = self.output(&["knob", "list", "--counters", "--json"]).stdout;
        let listed: Value = serde_json::from_slice(&listed).expect("JSON");
        listed["processes"].as_array().expect("processes").clone()
    }
}

/// A process while it runs; killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    log: Option<BufReader<ChildStderr>>,
    /// What it said at last.
    pub(crate) said: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command, says: &str) -> Running {
        let mut child = command.spawn().expect("it starts");
        let log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut running = Running { child, log: Some(log), said: String::new() };
        running.await_line(says);
        running
    }

    /// Reads on until there is a line with these words.
    pub(crate) fn await_line(&mut self, words: &str) {
        let log = self.log.as_mut().expect("it is not read by others");
        let mut before = Vec::new();
        loop {
            self.said.clear();
            let length = log.read_line(&mut self.said).expect("text");
            assert!(length > 0, "no line with {words:?}: {before:?}");
            if self.said.contains(words) {
                return;
            }
            before.push(self.said.clone());
        }
    }

    /// Has all that it says from now on read and forgotten.
    pub(crate) fn drain(&mut self) {
        let log = self.log.take().expect("it is not read by others");
        std::thread::spawn(move || log.lines().for_each(drop));
    }

    /// Where it listens, as it said.
    pub(crate) fn addr(&self) -> SocketAddr {
        let words = self.said.split([' ', '/']).map(|word| word.trim_end_matches(','));
        words.filter_map(|word| word.parse().ok()).next().expect("an address")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// A field of /proc/PID/status that is a number.
    pub(crate) fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {field} in {status}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Somebody who sends back what he gets, until the process ends.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    addr
}

/// Sends so many bytes there and back over a connection, which ends.
pub(crate) fn exchange(addr: SocketAddr, bytes: usize) {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream.write_all(&vec![7; bytes]).expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("it is there");
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("it answers");
    assert_eq!(back.len(), bytes);
}

/// An answer: its first line, its headers in lowercase, and its body.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Reads one, of which only the head comes if it answers `HEAD`.
    pub(crate) fn read(stream: &mut impl std::io::BufRead, head: bool) -> Response {
        let mut line = || {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a line");
            line.trim_end().to_owned()
        };
        let first = line();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{first:?}"));
        let mut headers = BTreeMap::new();
        while let Some((name, value)) = line().split_once(": ") {
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let length = headers["content-length"].parse().expect("a number");
        let mut body = vec![0; if head { 0 } else { length }];
        stream.read_exact(&mut body).expect("a body");
        Response { status, headers, body }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

/// A connection on which nothing was sent.
pub(crate) fn client(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream.set_write_timeout(Some(SOON)).expect("a timeout");
    stream
}

/// The answer to a request, of which `|` ends lines, on a connection of its own.
pub(crate) fn ask(addr: SocketAddr, request: &str) -> Response {
    let mut stream = client(addr);
    let text = format!("{request}||").replace('|', "\r\n");
    stream.write_all(text.as_bytes()).expect("it reads");
    Response::read(&mut BufReader::new(stream), request.starts_with("HEAD"))
}

/// A path, as most clients ask for it.
pub(crate) fn get(addr: SocketAddr, path: &str) -> Response {
    ask(addr, &format!("GET {path} HTTP/1.1|Host: x|Connection: close"))
}

/// The metrics: each series and its value.
pub(crate) fn scrape(addr: SocketAddr) -> BTreeMap<String, f64> {
    let response = get(addr, "/metrics");
    assert_eq!(response.status, 200, "{}", response.text());
    series(response.text())
}

/// Each series of a text, once, and its value.
pub(crate) fn series(text: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let value = value.parse().expect("a number");
        assert_eq!(all.insert(series.to_owned(), value), None, "{series} is there twice");
    }
    all
}

/// The families of some series.
pub(crate) fn families(all: &BTreeMap<String, f64>) -> BTreeSet<String> {
    let name = |series: &String| series.split('{').next().unwrap_or(series).to_owned();
    all.keys().map(name).collect()
}

/// The value of the one series of this family that has all of these labels.
pub(crate) fn value(all: &BTreeMap<String, f64>, family: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |series: &str| {
        series.split('{').next() == Some(family)
            && labels.iter().all(|(name, value)| series.contains(&format!("{name}=\"{value}\"")))
    };
    let found: Vec<_> = all.iter().filter(|(series, _)| has(series)).collect();
    assert_eq!(found.len(), 1, "{family} {labels:?} in {all:#?}");
    *found[0].1
}
