//! How long the programs run, by the kernel's statistics, against programs that do nothing: what
//! those take is the clock's.

use anyhow::Context as _;
use bpf::Statistics;
use trial::bench::Bar;

use super::RATE;
use super::events::{Events, KINDS, Kind};
use super::programs::{ARMS, Arm, Case, Programs};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};

pub(super) fn part() -> Part<()> {
    let claims = KINDS.map(|(_, kind)| {
        let name = format!("run time, cpu share, {kind}: watching - empty programs");
        let claim = Claim::difference(name, case(kind, "watching"), case(kind, "empty programs"));
        claim.bar(Bar::AtMost(0.01))
    });
    let steps = (ARMS.len() - 1) * KINDS.len();
    let time = Time { once: 0.1, steps, windows: 1.0, more: 0.1 };
    let about = "How long the programs run, against programs that do nothing";
    Part::new("runtime", about, time).claims(claims).stage(|(), _| measure())
}

fn measure() -> anyhow::Result<Measure<'static>> {
    let mut events = Events::new()?;
    let statistics = Statistics::enable()
        .map_err(|error| Absent(format!("the statistics of BPF programs: {error}")))?;
    let arms = ARMS.into_iter().filter(|(arm, _)| *arm != Arm::Nothing);
    let cases: Vec<_> = arms.flat_map(|arm| KINDS.map(|kind| (kind, arm))).collect();
    let step = |((_, kind), (_, arm)): &Case| Step::of(case(kind, arm), "CPU");
    let measure = Measure::new(cases, step, move |((kind, _), (arm, _)), now: &mut Now<'_>| {
        let _statistics = &statistics;
        let programs = Programs::attach(*arm)?;
        events.go(*kind, now.window, &mut Vec::new())?;
        let [receives, frees] = programs.run_times().context("the statistics of BPF programs")?;
        let of = if *kind == Kind::Receives { receives } else { frees };
        let mean = of.mean().ok_or_else(|| Absent("the programs saw no event".into()))?;
        Ok(vec![mean / 1e9 * RATE])
    });
    Ok(measure.note(format!(
        "runtime: a CPU's share at {RATE} runs a second, by the kernel's statistics of BPF programs. \
         What a program that does nothing takes there is reading the clock, which nothing does where \
         the statistics are off."
    )))
}

fn case(kind: &str, arm: &str) -> String {
    format!("run time, cpu share, {kind}, {arm}")
}
