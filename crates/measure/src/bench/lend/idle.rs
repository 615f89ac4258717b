//! How idle the workers are at a fixed rate: four flows to four workers, who sleep when there is
//! nothing. The rate is what the ledger just holds, without losing more than one packet of a
//! thousand: it is looked for in every round, since the speed of shared machines changes.
//!
//! A data thread on one CPU hands packets to the workers, who are on the other, or on both, and look
//! at each packet's headers.
//!
//! - *counters*: it lends them, and keeps account; the workers are borrowers: the real thing;
//! - *ledger*: the same, and each worker takes an id for each packet, as the receiving system call
//!   of a kernel does, and returns it, as the returning call does: in its own context, under the
//!   lock that all share. Nothing is charged for the two system calls themselves, and packets
//!   travel in the same way, so that the arms differ in who keeps account and in nothing else.
//!
//! The packets are made in *memory*, which is as a device that writes them at any rate; or they
//! come through *AF_XDP* from a sender over a veth, which shares the CPU of the data thread.

mod feed;
mod worker;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use frames::Accounting;
use trial::Better;
use trial::bench::Bar;

use super::Ground;
use super::books::Locking;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};
use feed::Feed;
use worker::Outcome;

/// Workers, and flows.
const WORKERS: usize = 4;
/// What may be lost at the rate that an arm holds.
const LOSS: f64 = 0.001;
/// By how much a rate is lowered that is not held, and raised for the next round's first try.
const LOWER: f64 = 0.93;
const RAISE: f64 = 1.3;

/// Who keeps account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Lend(Accounting),
    Ledger(Locking),
}

const WHO: [(Who, &str); 4] = [
    (Who::Lend(Accounting::Counters), "counters"),
    (Who::Lend(Accounting::Ledgers), "ledger of each borrower"),
    (Who::Ledger(Locking::Each), "ledger"),
    (Who::Ledger(Locking::Batch), "ledger, a lock a batch"),
];
/// Where packets come from, and whether the bar is on it.
const FEEDS: [(Feed, &str, bool); 3] = [
    (Feed::Memory, "packets in memory", true),
    (Feed::MemorySpread, "packets in memory, workers on both CPUs", false),
    (Feed::Veth, "packets over a veth", false),
];

pub(super) fn part() -> Part<Ground> {
    let claim = |(_, source, has_bar): (Feed, &str, bool), name: &str| {
        let bar = (has_bar && name == "ledger").then_some(Bar::AtLeast(13.0));
        let title = match has_bar {
            true => format!("worker idle points: counters - {name}"),
            false => format!("worker idle points, {source}: counters - {name}"),
        };
        Claim::difference(title, case("counters", source), case(name, source))
            .better(Better::Higher)
            .bar(bar)
    };
    let claims = FEEDS.map(|feed| WHO[1..].iter().map(move |(_, name)| claim(feed, name)));
    // The rate that the ledger holds is looked for in some fifty windows first, and then in five.
    let time = Time { once: 75.0, steps: WHO.len() * FEEDS.len(), windows: 1.0, more: 0.9 };
    let part = Part::new("idle", "How idle workers are at a fixed rate", time);
    FEEDS.into_iter().fold(part.claims(claims.into_iter().flatten()), |part, (feed, source, _)| {
        part.stage(move |ground, found| {
            let net = match feed::Net::build(feed, ground.places.near()) {
                Ok(net) => net,
                Err(reason) => {
                    found.absent(&format!("worker idle, {source}"), format!("{reason:#}"));
                    bail!(Absent(format!("{reason:#}")));
                }
            };
            Ok(measure(net, source))
        })
    })
}

/// Every arm with packets from one source, at a rate that a round begins with looking for.
fn measure(net: feed::Net, source: &'static str) -> Measure<'static> {
    let (net, rate) = (Rc::new(net), Rc::new(Cell::new(None)));
    let (offered, measured) = (Rc::clone(&rate), Rc::clone(&net));
    let begin = move |now: &mut Now<'_>| {
        let first = rate.get().map_or(f64::MAX, |rate: f64| rate * RAISE);
        let held = just_held(&net, first.min(net.too_much()), source, now)?;
        rate.set(Some(held));
        Ok(vec![(format!("rate that the ledger holds, {source}"), "pps", held)])
    };
    let step = |(_, name): &(Who, &str)| Step {
        name: case(name, source),
        gives: vec![
            (case(name, source), "%"),
            (format!("naps, {name}, {source}"), "1/s"),
            (format!("lost, {name}, {source}"), "%"),
        ],
    };
    let measure = Measure::new(WHO, step, move |(who, _), now| {
        let rate = offered.get().context("no rate was found")?;
        let outcome = measured.measure(*who, rate, now.window)?;
        Ok(vec![100.0 * outcome.idle, outcome.naps, 100.0 * outcome.lost()])
    });
    Measure { begin: Some(Box::new(begin)), ..measure }
}

/// The first rate that the ledger holds, from this one downwards.
fn just_held(net: &feed::Net, mut rate: f64, source: &str, now: &Now<'_>) -> anyhow::Result<f64> {
    let window = now.window.min(Duration::from_millis(200));
    loop {
        now.stop.check()?;
        let outcome = net.measure(Who::Ledger(Locking::Each), rate, window)?;
        tracing::debug!("{source}: {rate:.0} pps: {outcome:?}");
        if outcome.lost() < LOSS {
            return Ok(rate);
        }
        rate *= LOWER;
        let none = || Absent(format!("the ledger holds no rate, not even {rate:.0} pps"));
        ensure!(rate > 1000.0, none());
    }
}

fn case(who: &str, source: &str) -> String {
    format!("worker idle, {who}, {source}")
}

impl Outcome {
    /// Of what was offered, the share that did not arrive.
    fn lost(&self) -> f64 {
        1.0 - self.delivered as f64 / self.offered.max(1) as f64
    }
}
