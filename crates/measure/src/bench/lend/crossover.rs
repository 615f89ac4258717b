//! Where copying is the better choice: by the size of packets, and by how many there are. What is
//! compared is how many packets reach four workers and, where both get all of them, the machine's
//! CPU time for each.

use trial::bench::Bar;

use super::Ground;
use super::delivered::{Receivers, Who};
use super::wire::{Delivered, Pace, Traffic, WORKERS};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// Bytes of a packet with its check sequence.
const SIZES: [usize; 4] = [64, 256, 1024, 1500];
/// Packets a second, of the smallest and the largest.
pub(super) const RATES: [u64; 3] = [1_000, 10_000, 100_000];

/// Where both get all packets, lending costs hardly more.
const CPU_TIME: Bar = Bar::AtMost(1.2);

pub(super) fn part() -> Part<Ground> {
    let claim = |traffic: Traffic| {
        let (what, ..) = figures(traffic);
        let [of, to] = [Who::Lend, Who::AfPacket].map(|who| case(what, traffic, who));
        let name = format!("{what}, {}: lend / af_packet", title(traffic));
        Claim::ratio(name, of, to).bar(matches!(traffic.pace, Pace::Rate(_)).then_some(CPU_TIME))
    };
    let time = Time { once: 2.0, steps: 2 * traffic().len(), windows: 1.0, more: 1.3 };
    Part::new("crossover", "Where copying is better: sizes and rates (needs root)", time)
        .claims(traffic().into_iter().map(claim))
        .stage(|ground: &Ground, found| {
            let receivers = Receivers::build(ground, found)?;
            let with = |who: Who| traffic().into_iter().map(move |traffic| (traffic, who));
            let cases = receivers.who().into_iter().flat_map(with);
            let step = |(traffic, who): &(Traffic, Who)| {
                let (what, unit, _) = figures(*traffic);
                Step::of(case(what, *traffic, *who), unit)
            };
            Ok(Measure::new(cases, step, move |(traffic, who), now| {
                let (_, _, read) = figures(*traffic);
                Ok(vec![read(&receivers.measure(*who, WORKERS, *traffic, now.window)?)])
            }))
        })
}

/// Each size as often as can be, and the smallest and the largest at each rate.
fn traffic() -> Vec<Traffic> {
    let of = |size: usize, pace| Traffic { size: size - 4, pace };
    let flood = SIZES.map(|size| of(size, Pace::Driver));
    let few = [SIZES[0], SIZES[SIZES.len() - 1]];
    let few = few.into_iter().flat_map(|size| RATES.map(|rate| of(size, Pace::Rate(rate))));
    flood.into_iter().chain(few).collect()
}

type Read = fn(&Delivered) -> f64;

/// What counts: at full rate how many arrive, at a fixed rate what each costs.
fn figures(traffic: Traffic) -> (&'static str, &'static str, Read) {
    match traffic.pace {
        Pace::Driver | Pace::Socket => ("delivered pps", "pps", |delivered| delivered.pps),
        Pace::Rate(_) | Pace::Stamped(_) => ("cpu time per packet", "s", |delivered| delivered.cpu),
    }
}

fn case(what: &str, traffic: Traffic, who: Who) -> String {
    format!("{what}, {}, {}", title(traffic), who.name())
}

fn title(Traffic { size, pace }: Traffic) -> String {
    let size = size + 4;
    match pace {
        Pace::Driver | Pace::Socket => format!("{size} bytes"),
        Pace::Rate(rate) | Pace::Stamped(rate) => format!("{size} bytes at {} kpps", rate / 1000),
    }
}
