//! Where copying is the better choice: by the size of packets, and by how many there are. What is
//! compared is how many packets reach four workers and, where both get all of them, the machine's
//! CPU time for each.

use anyhow::Context as _;
use rand::seq::SliceRandom as _;

use super::Bench;
use super::delivered::{Receivers, Who};
use super::wire::{Delivered, Pace, Traffic};

/// Bytes of a packet with its check sequence.
const SIZES: [usize; 4] = [64, 256, 1024, 1500];
/// Packets a second, of the smallest and the largest.
const RATES: [u64; 3] = [1_000, 10_000, 100_000];

/// Measurements of a round, if nothing is absent.
pub(super) const STEPS: usize = 2 * (SIZES.len() + 2 * RATES.len());

/// Each size at each rate, by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let Some(receivers) = Receivers::build(bench)? else { return Ok(()) };
    let of = |size: usize, pace| Traffic { size: size - 4, pace };
    let flood = SIZES.map(|size| of(size, Pace::Driver));
    let few = [SIZES[0], SIZES[SIZES.len() - 1]];
    let few = few.into_iter().flat_map(|size| RATES.map(|rate| of(size, Pace::Rate(rate))));
    let traffic: Vec<Traffic> = flood.into_iter().chain(few).collect();
    let with = |who: Who| traffic.iter().map(move |traffic| (*traffic, who));
    let mut order: Vec<(Traffic, Who)> = receivers.who().into_iter().flat_map(with).collect();
    for traffic in &traffic {
        for who in receivers.who() {
            let (what, unit, _) = figures(*traffic);
            bench.series.expect(&case(what, *traffic, who), unit);
        }
    }
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for (traffic, who) in &order {
            let (what, unit, read) = figures(*traffic);
            let case = case(what, *traffic, *who);
            bench.step(&case)?;
            let delivered = receivers.measure(*who, *traffic, bench.plan.window);
            let delivered = delivered.with_context(|| case.clone())?;
            bench.series.add(&case, unit, read(&delivered));
        }
    }
    for traffic in traffic {
        let (what, ..) = figures(traffic);
        let cases = [Who::Lend, Who::AfPacket].map(|who| case(what, traffic, who));
        let name = format!("{what}, {}: lend / af_packet", title(traffic));
        bench.series.ratio(&mut bench.output, &name, (&cases[0], &cases[1]), None)?;
    }
    Ok(())
}

type Read = fn(&Delivered) -> f64;

/// What counts: at full rate how many arrive, at a fixed rate what each costs.
fn figures(traffic: Traffic) -> (&'static str, &'static str, Read) {
    match traffic.pace {
        Pace::Driver | Pace::Socket => ("delivered pps", "pps", |delivered| delivered.pps),
        Pace::Rate(_) => ("cpu time per packet", "s", |delivered| delivered.cpu),
    }
}

fn case(what: &str, traffic: Traffic, who: Who) -> String {
    format!("{what}, {}, {}", title(traffic), who.name())
}

fn title(Traffic { size, pace }: Traffic) -> String {
    let size = size + 4;
    match pace {
        Pace::Driver | Pace::Socket => format!("{size} bytes"),
        Pace::Rate(rate) => format!("{size} bytes at {} kpps", rate / 1000),
    }
}
