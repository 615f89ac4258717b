//! Two ends that write before they read fill every queue between them, in both directions. Once they
//! read, everything arrives: however the queues were filled, and as it does without a relay.
//!
//! Small segments take more of a receive buffer's memory than the kernel offered a window for. It
//! then drops what comes, and takes the window back; the sender's acknowledgements, which come from
//! beyond the window, are dropped with it (Linux: `tcp_sequence`). A relay that then waits for its
//! targets before it reads from its sources waits for ever.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cachelane_relay::{Config, Engine};
use common::pattern::{Pattern, Rng};
use common::*;
use rustix::event::PollFlags;

on_every_engine! {
    ends_that_write_before_they_read_get_everything,
    ends_that_begin_to_read_late_get_more_soon,
}

/// Connections at a time.
const CROWD: usize = 10;

/// The longest write: most are so small that they take many times their size of memory.
const LONGEST: usize = 3000;

/// What the kernel is told to hold for each end, so that it runs out there too.
const ENDS_BUFFER: usize = 16 * 1024;

/// How long all queues must have been full.
const FULL: Duration = Duration::from_millis(300);

fn ends_that_write_before_they_read_get_everything(engine: Engine) {
    jam(engine, 1 << 20, 1);
}

/// An end drops what it has no memory for. By the time that it reads, the kernel has sent that again
/// several times, and unless the timeouts are linear the next time is seconds away.
fn ends_that_begin_to_read_late_get_more_soon(engine: Engine) {
    const LATE: Duration = Duration::from_secs(2);
    /// With timeouts that double each time: 2.6 s and more.
    const SOON: Duration = Duration::from_secs(2);
    /// More than the ends hold themselves.
    const MORE: u64 = 160 * 1024;
    let rig = Rig::with(engine, |config| config.budget = Config::DEFAULT_BUDGET);
    let pairs = rig.warm_pairs(&[Warmth::Up, Warmth::Down, Warmth::Up, Warmth::Down]);
    std::thread::scope(|scope| {
        for (pair, seed) in pairs.into_iter().zip(0..) {
            let name = move || format!("{engine}, seed {seed}");
            scope.spawn(move || {
                let mut ends = ends(pair, seed);
                // What is sent again may let a little more in each time.
                fill(&mut ends, seed, LATE);
                std::thread::sleep(LATE);
                let pause = read(&mut ends, MORE, &name);
                assert!(pause < SOON, "{}: nothing came for {pause:?}", name());
            });
        }
    });
}

#[test]
#[ignore = "slow: minutes"]
fn ends_that_write_before_they_read_get_everything_each_time() {
    let test = "ends_that_write_before_they_read_get_everything_each_time";
    for engine in Engine::ALL.into_iter().filter(|&engine| may_use(engine, test)) {
        for (budget, rounds) in [(Config::MIN_BUDGET, 5), (1 << 20, 5), (Config::DEFAULT_BUDGET, 1)]
        {
            jam(engine, budget, rounds);
        }
    }
}

fn jam(engine: Engine, budget: usize, rounds: usize) {
    let rig = Rig::with(engine, |config| config.budget = budget);
    for round in 0..rounds {
        // Bulk came before: the kernel then takes what comes for large segments, and promises more.
        let states: Vec<_> = (0..CROWD).map(|n| [Warmth::Up, Warmth::Down][n % 2]).collect();
        let pairs = rig.warm_pairs(&states);
        std::thread::scope(|scope| {
            for (n, pair) in pairs.into_iter().enumerate() {
                let seed = (round * CROWD + n) as u64;
                let relay = &rig.relay;
                let name =
                    move || format!("{engine}, budget {budget}, seed {seed}, {:?}", relay.stats());
                scope.spawn(move || {
                    let mut ends = ends(pair, seed);
                    fill(&mut ends, seed, PATIENCE);
                    read(&mut ends, u64::MAX, &name);
                });
            }
        });
    }
}

fn ends(pair: Pair, seed: u64) -> [End; 2] {
    [(pair.client, 2 * seed), (pair.backend, 2 * seed + 1)].map(|(stream, seed)| {
        stream.set_nonblocking(true).unwrap();
        shrink_buffers(&stream, ENDS_BUFFER);
        End { stream, pattern: Pattern::new(seed), sent: 0, received: 0 }
    })
}

/// Writes from both ends until nothing more is taken for a while, or for this long.
fn fill(ends: &mut [End; 2], seed: u64, most: Duration) {
    let mut rng = Rng::new(seed);
    let begun = Instant::now();
    let mut last = begun;
    while last.elapsed() < FULL && begun.elapsed() < most {
        let writer = &mut ends[usize::from(rng.one_in(2))];
        if writer.write(rng.size(LONGEST)) {
            last = Instant::now();
        }
    }
}

/// Reads at both ends until they have `most` bytes together, or all that there are. Returns for how long
/// nothing came, at most.
fn read([one, other]: &mut [End; 2], most: u64, name: &dyn Fn() -> String) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    let all = most.min(one.sent + other.sent);
    while one.received + other.received < all {
        if one.read(other.pattern) | other.read(one.pattern) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(last.elapsed() < PATIENCE, "nothing moves: {one:?}, {other:?}; {}", name());
    }
    longest
}

#[derive(Debug)]
struct End {
    stream: TcpStream,
    pattern: Pattern,
    sent: u64,
    received: u64,
}

impl End {
    /// Whether anything was taken.
    fn write(&mut self, length: usize) -> bool {
        match self.stream.write(self.pattern.at(self.sent, length)) {
            Ok(n) => {
                self.sent += n as u64;
                true
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                ready(&self.stream, PollFlags::OUT, Duration::from_millis(5));
                false
            }
            Err(e) => panic!("a write failed: {e}"),
        }
    }

    /// Whether anything has come.
    fn read(&mut self, pattern: Pattern) -> bool {
        let mut bytes = vec![0; 64 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the stream ended"),
            Ok(n) => {
                pattern.check(self.received, &bytes[..n]);
                self.received += n as u64;
                true
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => false,
            Err(e) => panic!("a read failed: {e}"),
        }
    }
}
