//! How long a packet takes from its sender to its reader, where few come: lent to borrowers that sleep,
//! or copied into AF_PACKET rings, with the same four readers, rates and sender as in `crossover`.
//!
//! The sender writes into each packet when it was made, by the clock that all processes share. A block of
//! an AF_PACKET ring is handed over when it is full or 10 milliseconds old, which says how long its
//! packets wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use lend::{Borrower, BorrowerOptions, Loan};
use rustix::time::{ClockId, clock_gettime};

use super::Ground;
use super::crossover::RATES;
use super::delivered::{Receivers, Who};
use super::wire::{Pace, SEQ_SIZE, Traffic, WORKERS};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};

/// What is told of the delays.
pub(super) const QUANTILES: [(&str, f64); 2] = [("median", 0.5), ("99th percentile", 0.99)];

/// Where the time is, in the packets of `xsk send --pattern seq`: behind the headers of Ethernet, IPv4
/// and UDP, and eight bytes more: the lower 48 bits of the monotonic clock.
const STAMP: usize = 14 + 20 + 8 + 8;

pub(super) fn part() -> Part<Ground> {
    let claims = QUANTILES.into_iter().flat_map(|(quantile, _)| {
        RATES.map(|rate| {
            let [of, to] = [Who::Lend, Who::AfPacket].map(|who| case(quantile, rate, who));
            let name = format!("{quantile} delay at {} kpps: lend / af_packet", rate / 1000);
            Claim::ratio(name, of, to)
        })
    });
    let time = Time { once: 2.0, steps: 2 * RATES.len(), windows: 1.0, more: 1.3 };
    Part::new("delays", "How long packets take to readers that sleep (needs root)", time)
        .claims(claims)
        .stage(|ground: &Ground, found| {
            let receivers = Receivers::build(ground, found)?;
            let with = |who: Who| RATES.map(|rate| (rate, who));
            let cases: Vec<_> = receivers.who().into_iter().flat_map(with).collect();
            let step = |(rate, who): &(u64, Who)| Step {
                name: format!("delay at {} kpps, {}", rate / 1000, who.name()),
                gives: QUANTILES.map(|(name, _)| (case(name, *rate, *who), "s")).to_vec(),
            };
            Ok(Measure::new(cases, step, move |(rate, who), now| {
                delays(&receivers, *rate, *who, now.window)
            }))
        })
}

fn case(quantile: &str, rate: u64, who: Who) -> String {
    format!("{quantile} delay at {} kpps, {}", rate / 1000, who.name())
}

/// The delays at these quantiles, in seconds.
fn delays(
    receivers: &Receivers,
    rate: u64,
    who: Who,
    window: Duration,
) -> anyhow::Result<Vec<f64>> {
    let traffic = Traffic { size: SEQ_SIZE, pace: Pace::Stamped(rate) };
    if who == Who::AfPacket {
        let mut peer = receivers.peer(WORKERS)?;
        let sender = receivers.wire.send(traffic)?;
        // The second is asked of what the first has measured.
        let measured =
            ["median", "p99"].map(|quantile| peer.run(quantile, WORKERS, window)).into_iter();
        let measured = measured.collect();
        sender.end()?;
        return measured;
    }
    let lending = receivers.wire.lend(WORKERS, "")?;
    let connect = |number| {
        let options = BorrowerOptions::default().name(format!("worker-{number}"));
        Borrower::connect(&lending.socket, &options)
    };
    let borrowers = (0..WORKERS).map(connect).collect::<Result<Vec<_>, _>>()?;
    let sender = receivers.wire.send(traffic)?;
    let measured = read(borrowers, receivers.wire.cpus[1], window);
    sender.end()?;
    lending.end()?;
    let mut all = measured?;
    ensure!(!all.is_empty(), Absent("nothing was lent".into()));
    all.sort_unstable();
    let at = |quantile: f64| all[(quantile * (all.len() - 1) as f64) as usize] as f64 / 1e9;
    Ok(QUANTILES.map(|(_, quantile)| at(quantile)).to_vec())
}

/// Has each borrower read in a thread of its own on this CPU; the delays, in nanoseconds.
fn read(borrowers: Vec<Borrower>, cpu: usize, window: Duration) -> anyhow::Result<Vec<u64>> {
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = |borrower| scope.spawn(move || reader(borrower, cpu, is_over));
        let readers: Vec<_> = borrowers.into_iter().map(reader).collect();
        thread::sleep(window);
        is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for reader in readers {
            all.extend(reader.join().map_err(|_| anyhow!("a reader panicked"))??);
        }
        Ok(all)
    })
}

/// Sleeps whenever there is nothing, as `cachelane borrow` does at such rates.
fn reader(mut borrower: Borrower, cpu: usize, is_over: &AtomicBool) -> anyhow::Result<Vec<u64>> {
    const LOOK: Duration = Duration::from_millis(20);
    lanes::pin(cpu)?;
    let (mut loans, mut delays): (Vec<Loan>, Vec<u64>) = (Vec::new(), Vec::new());
    let since = now();
    while !is_over.load(Ordering::Relaxed) {
        borrower.wait(Some(LOOK))?;
        borrower.receive(&mut loans, 256)?;
        let now = now();
        for loan in &loans {
            let sent = sent(borrower.bytes(loan))?;
            // What came before does not count.
            if sent >= since {
                delays.push(now.saturating_sub(sent));
            }
        }
        borrower.give_back(loans.drain(..));
    }
    Ok(delays)
}

/// When a packet was made.
pub(super) fn sent(packet: &[u8]) -> anyhow::Result<u64> {
    const LOW: u64 = (1 << 48) - 1;
    let stamp = packet.get(STAMP..).and_then(|rest| rest.first_chunk::<6>());
    let stamp = stamp.context("a packet without a stamp")?;
    let low = stamp.iter().fold(0, |time, byte| time << 8 | u64::from(*byte));
    // The latest time until now that ends so; long ago, where something else than a time is there.
    let now = now();
    Ok(now.saturating_sub(now.wrapping_sub(low) & LOW))
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
