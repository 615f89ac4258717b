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

use std::time::Duration;

use anyhow::ensure;
use frames::Accounting;
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::books::Locking;
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

/// Measurements of a round.
pub(super) const STEPS: usize = WHO.len() * FEEDS.len();

/// Both feeds, every arm by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for (feed, source, has_bar) in FEEDS {
        let net = match feed::Net::build(feed, bench.places.near()) {
            Ok(net) => net,
            Err(reason) => {
                bench.output.absent.push(format!("worker idle, {source}: {reason:#}"));
                continue;
            }
        };
        let (mut rate, held) = (net.too_much(), format!("rate that the ledger holds, {source}"));
        for (_, name) in WHO {
            bench.series.expect(&case(name, source), "%");
        }
        let mut order = WHO;
        for _ in 0..bench.plan.rounds {
            rate = just_held(bench, &net, source, rate)?;
            bench.series.add(&held, "pps", rate);
            order.shuffle(&mut bench.rng);
            for (who, name) in order {
                bench.step(&case(name, source))?;
                let outcome = net.measure(who, rate, bench.plan.window)?;
                bench.series.add(&case(name, source), "%", 100.0 * outcome.idle);
                bench.series.add(&format!("naps, {name}, {source}"), "1/s", outcome.naps);
                let lost = format!("lost, {name}, {source}");
                bench.series.add(&lost, "%", 100.0 * outcome.lost());
            }
            rate = (rate * RAISE).min(net.too_much());
        }
        for (_, name) in &WHO[1..] {
            let bar = (has_bar && *name == "ledger").then_some(Bar::AtLeast(13.0));
            let title = match has_bar {
                true => format!("worker idle points: counters - {name}"),
                false => format!("worker idle points, {source}: counters - {name}"),
            };
            let cases = (case("counters", source), case(name, source));
            bench.series.difference(&mut bench.output, &title, (&cases.0, &cases.1), bar)?;
        }
    }
    Ok(())
}

fn case(who: &str, source: &str) -> String {
    format!("worker idle, {who}, {source}")
}

/// The first rate that the ledger holds, from this one downwards.
fn just_held(
    bench: &Bench<'_>,
    net: &feed::Net,
    source: &str,
    mut rate: f64,
) -> anyhow::Result<f64> {
    let window = bench.plan.window.min(Duration::from_millis(200));
    loop {
        bench.stop.check()?;
        let outcome = net.measure(Who::Ledger(Locking::Each), rate, window)?;
        tracing::debug!("{source}: {rate:.0} pps: {outcome:?}");
        if outcome.lost() < LOSS {
            return Ok(rate);
        }
        rate *= LOWER;
        ensure!(rate > 1000.0, "the ledger holds no rate, not even {rate:.0} packets a second");
    }
}

impl Outcome {
    /// Of what was offered, the share that did not arrive.
    fn lost(&self) -> f64 {
        1.0 - self.delivered as f64 / self.offered.max(1) as f64
    }
}
