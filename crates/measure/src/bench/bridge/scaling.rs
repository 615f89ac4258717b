//! Small frames between the same two stations, from one CPU and from more at once: who writes what
//! the others read gets slower with each.

use bridge::Table;
use lab::traffic::FrameSink;
use trial::bench::Bar;

use super::Ground;
use super::net::{Arm, Flow, Net};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Time};
use crate::bench::found::Found;

/// What cases are called that need the CPUs' counters.
pub(super) const FILLS: &str = "fills/packet";
/// The arms, by the name of their cases.
const ARMS: [(&str, Arm); 3] = [
    ("split", Arm::Cachelane(Table::Split)),
    ("shared", Arm::Cachelane(Table::Shared)),
    ("linux bridge", Arm::Linux),
];

pub(super) fn part() -> Part<Ground> {
    let counts = counts();
    let time = Time { once: 0.5, steps: ARMS.len() * counts.len(), windows: 1.0, more: 0.35 };
    let fills = ["split", "shared"].map(|arm| format!("{FILLS} {}", case(arm, 2)));
    let [of, to] = fills;
    let fills = Claim::ratio("cache-to-cache fills per packet: split / shared", of, to);
    // Two are claimed of, also where there are not as many.
    let many = std::iter::once(2).chain(counts.into_iter().filter(|count| *count > 2));
    Part::new(
        "scaling",
        "Small frames between two stations, forwarded by one CPU and by more",
        time,
    )
    .claims(many.flat_map(|cpus| ARMS.map(|(arm, _)| faster(arm, cpus))))
    .claims([fills.bar(Bar::AtMost(0.1))])
    .stage(measure)
}

/// How much more several CPUs forward than one.
fn faster(arm: &str, cpus: usize) -> Claim {
    let plain = format!("pps: {cpus} cpus / 1 cpu");
    // The claim is about the table that is in use.
    let (name, bar) = match arm {
        "split" => (plain, (cpus == 2).then_some(Bar::AtLeast(1.9))),
        _ => (format!("{plain}, {arm}"), None),
    };
    let [of, to] = [cpus, 1].map(|cpus| format!("pps {}", case(arm, cpus)));
    Claim::ratio(name, of, to).bar(bar)
}

/// How many CPUs make frames: one, two, and all.
fn counts() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = vec![1, 2, all];
    counts.retain(|count| *count <= all);
    counts.dedup();
    counts
}

fn case(arm: &str, cpus: usize) -> String {
    format!("{arm}, {cpus} cpu{}", if cpus == 1 { "" } else { "s" })
}

/// Every arm with every number of CPUs.
fn measure<'a>(ground: &'a Ground, found: &mut Found) -> anyhow::Result<Measure<'a>> {
    let net = Net::build(&ground.lab)?;
    let (sink, generator) = (FrameSink::attach(net.b())?, net.generator(net.a().mac, net.b().mac)?);
    let counts = counts();
    if !counts.contains(&2) {
        found.lacks("2 cpus", "there is one CPU");
    }
    let arm = |(name, arm)| counts.iter().map(move |count| (name, arm, *count));
    let step = |(arm, _, cpus): &(&str, Arm, usize)| {
        let case = case(arm, *cpus);
        ground.step(format!("small frames, {case}"), &case)
    };
    Ok(Measure::new(ARMS.into_iter().flat_map(arm), step, move |(_, arm, cpus), now| {
        // Nothing is pinned: the scheduler spreads threads that never sleep.
        let flow = Flow { generator: &generator, sink: &sink, cpus: vec![None; *cpus] };
        net.measure(*arm, &flow, now.window, ground.pmu.as_ref())
    }))
}
