//! How much later than it was made a packet came by the time of its loan: by that of its batch, or by its
//! own (`cachelane lend --timestamps`).
//!
//! The sender writes into each packet when it was made. Between that and the kernel's receiving lies the
//! sender's system call, so that no time can be exact.

use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use lend::{Borrower, BorrowerOptions, Loan};
use rustix::time::{ClockId, clock_gettime};
use trial::bench::Bar;

use super::Ground;
use super::crossover::RATES;
use super::delays::{QUANTILES, sent};
use super::wire::{Pace, SEQ_SIZE, Traffic, Wire};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time, ensure_root};

/// Whose time a loan has.
const KINDS: [&str; 2] = ["software", "batch"];

pub(super) fn part() -> Part<Ground> {
    let claims = QUANTILES.into_iter().flat_map(|(quantile, _)| {
        RATES.map(|rate| {
            let [of, to] = KINDS.map(|kind| case(quantile, rate, kind));
            let name = format!("{quantile} lateness at {} kpps: software / batch", rate / 1000);
            Claim::ratio(name, of, to).bar(Bar::AtMost(0.1))
        })
    });
    let time = Time { once: 1.0, steps: 2 * RATES.len(), windows: 1.0, more: 1.3 };
    Part::new("times", "How late the times of loans are (needs root)", time).claims(claims).stage(
        |ground: &Ground, _| {
            ensure_root()?;
            let wire = Wire::build(ground.places.two())?;
            let with = |kind| RATES.map(|rate| (rate, kind));
            let cases: Vec<_> = KINDS.into_iter().flat_map(with).collect();
            let step = |(rate, kind): &(u64, &str)| Step {
                name: format!("lateness at {} kpps, {kind}", rate / 1000),
                gives: QUANTILES.map(|(name, _)| (case(name, *rate, kind), "s")).to_vec(),
            };
            Ok(Measure::new(cases, step, move |(rate, kind), now| {
                lateness(&wire, *rate, kind, now.window)
            }))
        },
    )
}

fn case(quantile: &str, rate: u64, kind: &str) -> String {
    format!("{quantile} lateness at {} kpps, {kind}", rate / 1000)
}

/// How late times are at these quantiles, in seconds.
fn lateness(wire: &Wire, rate: u64, kind: &str, window: Duration) -> anyhow::Result<Vec<f64>> {
    let lending = wire.lend(1, &format!(" --timestamps {kind}"))?;
    let borrower = Borrower::connect(&lending.socket, &BorrowerOptions::default())?;
    let sender = wire.send(Traffic { size: SEQ_SIZE, pace: Pace::Stamped(rate) })?;
    let measured = read(borrower, wire.cpus[1], window);
    sender.end()?;
    lending.end()?;
    let mut all = measured?;
    ensure!(!all.is_empty(), Absent("nothing was lent".into()));
    all.sort_unstable();
    let at = |quantile: f64| all[(quantile * (all.len() - 1) as f64) as usize] as f64 / 1e9;
    Ok(QUANTILES.map(|(_, quantile)| at(quantile)).to_vec())
}

/// How much later the loans of that time say that packets came, in nanoseconds.
fn read(mut borrower: Borrower, cpu: usize, window: Duration) -> anyhow::Result<Vec<u64>> {
    const LOOK: Duration = Duration::from_millis(20);
    lanes::pin(cpu)?;
    let (ahead, until) = (real_ahead(), Instant::now() + window);
    let (mut loans, mut all): (Vec<Loan>, Vec<u64>) = (Vec::new(), Vec::new());
    while Instant::now() < until {
        borrower.wait(Some(LOOK))?;
        borrower.receive(&mut loans, 256)?;
        for loan in &loans {
            let said = loan.time().duration_since(UNIX_EPOCH).context("a time before 1970")?;
            let made = sent(borrower.bytes(loan))?;
            all.push((said.as_nanos() as u64).saturating_sub(made.wrapping_add(ahead)));
        }
        borrower.give_back(loans.drain(..));
    }
    Ok(all)
}

/// By how much `CLOCK_REALTIME` is ahead of the senders' clock, in nanoseconds.
fn real_ahead() -> u64 {
    let now = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
    };
    let reading = || {
        let before = now(ClockId::Monotonic);
        let real = now(ClockId::Realtime);
        let took = now(ClockId::Monotonic) - before;
        (took, real - before - took / 2)
    };
    // That of the readings between which the least time passed.
    (0..64).map(|_| reading()).min().map_or(0, |(_, ahead)| ahead)
}
