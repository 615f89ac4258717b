//! One end of a connection that writes a stream and checks another, at a pace and with an end
//! that its plan says. One thread for both directions, so that it can die at any point.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use sha2::{Digest, Sha256};

use crate::common::pattern::{Pattern, Rng};
use crate::common::{PATIENCE, ready, set_abrupt, shrink_buffers};

/// The longest write, and the longest read.
const LONGEST: usize = 300 * 1024;

/// How an end behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    seed: u64,
    /// Bytes to write before it ends its stream.
    length: u64,
    write_up_to: usize,
    read_up_to: usize,
    /// A pause once in so many steps; 0: never.
    write_pauses: u64,
    read_pauses: u64,
    /// Size of the socket's buffers, if not as the kernel likes.
    buffers: Option<usize>,
    death: Option<Death>,
}

/// How and when an end goes without having been asked.
#[derive(Clone, Copy, Debug)]
struct Death {
    /// After this many bytes, read and written.
    after: u64,
    /// With `SO_LINGER` 0. Otherwise by close(2), whatever has not been read.
    abrupt: bool,
}

/// How a stream ended for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Clean,
    Error(ErrorKind),
}

/// What an end did and saw.
#[derive(Debug)]
pub(crate) struct Report {
    /// Bytes that the kernel took from it.
    pub sent: u64,
    /// It ended its stream by a FIN, which is right behind those bytes.
    pub ended_well: bool,
    pub received: u64,
    /// `None`: it died before.
    pub read_end: Option<End>,
    pub died: bool,
    /// The longest that it waited for its socket to take or to give something: for `soak.rs`.
    #[allow(dead_code)]
    pub longest_wait: Duration,
    /// Of the bytes sent, and of those received.
    pub sent_digest: [u8; 32],
    pub received_digest: [u8; 32],
}

pub(crate) struct Endpoint {
    stream: TcpStream,
    name: String,
    plan: Plan,
    rng: Rng,
    writes: Pattern,
    reads: Pattern,
    sent: u64,
    sending: bool,
    ended_well: bool,
    received: u64,
    read_end: Option<End>,
    /// A write met a reset, and took the error that a read would have shown.
    write_error: Option<ErrorKind>,
    longest_wait: Duration,
    buffer: Vec<u8>,
    digests: [Sha256; 2],
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, kills: bool) -> Plan {
        let pauses = |rng: &mut Rng| if rng.one_in(2) { 0 } else { 20 + rng.below(200) };
        let length = if rng.one_in(8) { 0 } else { rng.size(24 << 20) as u64 };
        // With packets of 64 KiB, as on loopback, small buffers let one through a timer's tick.
        let buffers = rng.one_in(3).then(|| 65_536 << rng.below(5));
        let length = if buffers.is_some_and(|b| b < 256 * 1024) { length / 16 } else { length };
        // Mostly single bytes would take for ever to become megabytes.
        let write_up_to = rng.size(LONGEST).max(length as usize / 500).max(1);
        let death = (kills && rng.one_in(2))
            .then(|| Death { after: rng.below(length * 2 + 100_000), abrupt: rng.one_in(2) });
        Plan {
            seed: rng.next(),
            length,
            write_up_to,
            read_up_to: (16 << 10) + rng.size(LONGEST),
            write_pauses: pauses(rng),
            read_pauses: pauses(rng),
            buffers,
            death,
        }
    }

    pub(crate) fn dies(&self) -> bool {
        self.death.is_some()
    }
}

impl Endpoint {
    /// An end that writes the stream of seed `writes` and expects that of seed `reads`.
    pub(crate) fn new(
        stream: TcpStream,
        name: String,
        plan: Plan,
        writes: u64,
        reads: u64,
    ) -> Endpoint {
        stream.set_nonblocking(true).unwrap();
        if let Some(bytes) = plan.buffers {
            shrink_buffers(&stream, bytes);
        }
        Endpoint {
            stream,
            name,
            plan,
            rng: Rng::new(plan.seed),
            writes: Pattern::new(writes),
            reads: Pattern::new(reads),
            sent: 0,
            sending: true,
            ended_well: false,
            received: 0,
            read_end: None,
            write_error: None,
            longest_wait: Duration::ZERO,
            buffer: vec![0; plan.read_up_to],
            digests: [Sha256::new(), Sha256::new()],
        }
    }

    /// Writes and reads until both streams have ended, or it dies. Panics, with `stats`, if it
    /// waits in vain or reads a wrong byte.
    pub(crate) fn run(mut self, stats: &dyn Fn() -> String) -> Report {
        while self.sending || self.read_end.is_none() {
            if self.plan.death.is_some_and(|d| self.sent + self.received >= d.after) {
                return self.die();
            }
            self.await_event(stats);
            if self.sending {
                self.write();
            }
            if self.read_end.is_none() {
                self.read().unwrap_or_else(|wrong| {
                    panic!("{}: {wrong}; {:?}; {}", self.name, self.plan, stats())
                });
            }
        }
        self.report(false)
    }

    fn await_event(&mut self, stats: &dyn Fn() -> String) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, self.sending);
        flags.set(PollFlags::IN, self.read_end.is_none());
        let start = Instant::now();
        if !ready(&self.stream, flags, PATIENCE) {
            panic!(
                "{}: nothing happened for {PATIENCE:?}; sent {} of {}, received {}, {:?}; {}; {:?}\n{}",
                self.name,
                self.sent,
                self.plan.length,
                self.received,
                self.read_end,
                stats(),
                (self.stream.local_addr(), self.stream.peer_addr()),
                sockets()
            );
        }
        self.longest_wait = self.longest_wait.max(start.elapsed());
    }

    fn write(&mut self) {
        if self.sent == self.plan.length {
            self.sending = false;
            self.ended_well = self.stream.shutdown(Shutdown::Write).is_ok();
            return;
        }
        let left = self.plan.length - self.sent;
        let length = (self.rng.size(self.plan.write_up_to) as u64).min(left) as usize;
        let piece = self.writes.at(self.sent, length);
        match self.stream.write(piece) {
            Ok(n) => {
                self.digests[0].update(&piece[..n]);
                self.sent += n as u64;
                self.pause(self.plan.write_pauses);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => {
                self.sending = false;
                self.write_error = Some(e.kind());
            }
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let length = self.rng.size(self.plan.read_up_to);
        let buffer = &mut self.buffer[..length];
        match self.stream.read(buffer) {
            Ok(0) => self.read_end = Some(self.write_error.map_or(End::Clean, End::Error)),
            Ok(n) => {
                self.reads.verify(self.received, &buffer[..n])?;
                self.digests[1].update(&buffer[..n]);
                self.received += n as u64;
                self.pause(self.plan.read_pauses);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => self.read_end = Some(End::Error(e.kind())),
        }
        Ok(())
    }

    fn pause(&mut self, one_in: u64) {
        if one_in == 0 || !self.rng.one_in(one_in) {
            return;
        }
        // Now and then long enough for queues to fill up, or to run dry.
        let longest = if self.rng.one_in(20) { 40_000 } else { 1000 };
        std::thread::sleep(Duration::from_micros(self.rng.below(longest)));
    }

    fn die(mut self) -> Report {
        let abrupt = self.plan.death.is_some_and(|death| death.abrupt);
        // Closed without a linger of 0, it ends its stream well if it has read all there was.
        self.ended_well |= !abrupt;
        if abrupt {
            set_abrupt(&self.stream);
        }
        self.report(true)
    }

    fn report(self, died: bool) -> Report {
        let [sent, received] = self.digests.map(|digest| digest.finalize().into());
        Report {
            sent: self.sent,
            ended_well: self.ended_well,
            received: self.received,
            read_end: self.read_end,
            died,
            longest_wait: self.longest_wait,
            sent_digest: sent,
            received_digest: received,
        }
    }
}

/// `RELAY_INTEGRITY_SEED`, or a new one.
pub(crate) fn seed() -> u64 {
    std::env::var("RELAY_INTEGRITY_SEED").map_or_else(|_| fresh_seed(), |v| v.parse().unwrap())
}

fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 & 0xFFFF_FFFF
}

/// Whether what `reader` saw is what it may see of what `writer` did.
///
/// `may_reset`: somebody had reason to reset the connection.
#[track_caller]
pub(crate) fn judge(writer: &Report, reader: &Report, may_reset: bool, name: &str) {
    let said = || format!("{name}:\nwriter {writer:?}\nreader {reader:?}");
    if reader.read_end == Some(End::Clean) {
        assert!(writer.ended_well, "a clean end that nobody sent; {}", said());
        assert_eq!(reader.received, writer.sent, "a clean end after lost bytes; {}", said());
        assert_eq!(reader.received_digest, writer.sent_digest, "{}", said());
    } else {
        assert!(reader.read_end.is_some() || reader.died, "a reader without an end; {}", said());
        assert!(may_reset, "a reset that nobody asked for; {}", said());
    }
    assert!(reader.received <= writer.sent, "more arrived than was sent; {}", said());
}

/// Which connections there are here, and where bytes wait.
fn sockets() -> String {
    let shown = std::process::Command::new("ss").args(["-tanpie"]).output();
    shown.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).into_owned())
}
