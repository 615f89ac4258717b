//! A fast sender and a slow reader, and what the relay between them holds.
//!
//! Memory is read from `/proc/meminfo`, because what sockmap queues is in no socket's account. The
//! rest of the host goes on meanwhile, so what counts as held is what both came when the sender
//! began and went when the reader caught up, and a test that finds too much looks again.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cachelane_relay::Relay;
use parking_lot::Mutex;
use rustix::event::PollFlags;
use rustix::net::sockopt;

use super::pattern::Pattern;
use super::{ready, shrink_buffers};

/// What the reader takes each second, in units of what the sender offers at once.
const RATE: f64 = 16.0;

/// What the ends' sockets are told to hold; the kernel doubles it.
const ENDS_BUFFER: usize = 128 * 1024;

/// What the rest of the host may take and give back meanwhile without the test looking again.
const DISTURBANCE: i64 = 32 << 20;

/// How often it looks before it believes that too much memory is held.
const LOOKS: usize = 3;

/// A piece of bulk.
pub const BULK: usize = 64 * 1024;

/// Checks that no more than `budget` is held between the (sender, reader) that `ends` gives, while the
/// sender offers all it can, in pieces of `piece` bytes, to a reader at [`RATE`], for `time`.
pub fn expect_bound(
    name: &str,
    budget: usize,
    piece: usize,
    time: Duration,
    ends: impl Fn() -> (TcpStream, TcpStream),
    relay: &Relay,
) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let mut seen = Vec::new();
    while seen.len() < LOOKS {
        let (from, to) = ends();
        shrink_buffers(&from, ENDS_BUFFER);
        shrink_buffers(&to, ENDS_BUFFER);
        let ends = sockopt::socket_send_buffer_size(&from).unwrap()
            + sockopt::socket_recv_buffer_size(&to).unwrap();
        let held = Race::new(from, to, piece).run(time);
        // Sockets may overshoot by a packet each, as the kernel's own limits do.
        let limit = (budget + ends + 4 * 64 * 1024) as i64;
        println!("{name}: {held:?}");
        assert!(held.bytes <= limit, "{name}: {held:?}, more than {limit} bytes");
        if held.memory <= (budget + ends) as i64 + DISTURBANCE {
            return;
        }
        seen.push(held);
    }
    panic!("{name}: {seen:?}; {:?}", relay.stats());
}

/// A fast sender and a slow reader.
struct Race {
    from: TcpStream,
    to: TcpStream,
    pattern: Pattern,
    piece: usize,
    sent: u64,
    received: u64,
}

/// The most that was under way at a time.
#[derive(Debug)]
struct Held {
    /// Bytes that the sender got rid of and the reader has not read.
    bytes: i64,
    /// Bytes of the host's memory that came and went with them.
    memory: i64,
}

impl Race {
    fn new(from: TcpStream, to: TcpStream, piece: usize) -> Race {
        from.set_nonblocking(true).unwrap();
        Race { from, to, pattern: Pattern::new(11), piece, sent: 0, received: 0 }
    }

    fn run(mut self, time: Duration) -> Held {
        let before = used_memory();
        let mut bytes = 0;
        let start = Instant::now();
        while start.elapsed() < time {
            self.send();
            if self.received as f64 <= start.elapsed().as_secs_f64() * RATE * self.piece as f64 {
                self.receive();
            }
            bytes = bytes.max((self.sent - self.received) as i64);
        }
        let full = used_memory();
        // Then at full speed: what was accepted arrives, all of it.
        self.piece = BULK;
        while self.received < self.sent {
            self.receive();
        }
        let after = used_memory();
        Held { bytes, memory: (full - before).min(full - after) }
    }

    /// Sends until the kernel takes no more, for a moment at most.
    fn send(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {
            match self.from.write(self.pattern.at(self.sent, self.piece)) {
                Ok(n) => self.sent += n as u64,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    ready(&self.from, PollFlags::OUT, Duration::from_millis(1));
                    return;
                }
                Err(e) => panic!("a write failed: {e}"),
            }
        }
    }

    fn receive(&mut self) {
        let mut bytes = vec![0; self.piece];
        let n = self.to.read(&mut bytes).expect("what was sent arrives");
        assert!(n > 0, "the stream ended");
        self.pattern.check(self.received, &bytes[..n]);
        self.received += n as u64;
    }
}

/// Bytes of the host's memory in use, without caches and free lists.
fn used_memory() -> i64 {
    lab::usage::system_memory().unwrap() as i64
}
