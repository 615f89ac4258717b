//! Where copying is the better choice: by the size of packets, and by how many there are. What is
//! compared is how many packets reach four workers and, where both get all of them, the machine's
//! CPU time for each; beside them a plain AF_XDP loop that naps and reads all packets itself, which is the
//! floor of whatever gets them by AF_XDP.

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
    let claim = |traffic: Traffic, whose: [Who; 2], bar: Option<Bar>| {
        let (what, ..) = figures(traffic);
        let [of, to] = whose.map(|who| case(what, traffic, who));
        let [a, b] = whose.map(Who::name);
        Claim::ratio(format!("{what}, {}: {a} / {b}", title(traffic)), of, to).bar(bar)
    };
    let claims = traffic().into_iter().map(|traffic| {
        claim(traffic, [Who::Lend, Who::AfPacket], is_rate(&traffic).then_some(CPU_TIME))
    });
    let floors = traffic().into_iter().filter(is_rate).flat_map(|traffic| {
        let over = [[Who::Lend, Who::Plain], [Who::Plain, Who::AfPacket]];
        over.map(|whose| claim(traffic, whose, None))
    });
    let steps = 2 * traffic().len() + traffic().iter().filter(|one| is_rate(one)).count();
    let time = Time { once: 2.0, steps, windows: 1.0, more: 1.3 };
    Part::new("crossover", "Where copying is better: sizes and rates (needs root)", time)
        .claims(claims.chain(floors))
        .stage(|ground: &Ground, found| {
            let receivers = Receivers::build(ground, found)?;
            let with = |who: Who| traffic().into_iter().map(move |traffic| (traffic, who));
            let floor =
                receivers.plain().into_iter().flat_map(with).filter(|(one, _)| is_rate(one));
            let cases = receivers.who().into_iter().flat_map(with).chain(floor);
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

fn is_rate(traffic: &Traffic) -> bool {
    matches!(traffic.pace, Pace::Rate(_))
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
