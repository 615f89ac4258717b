//! A rule of netfilter's that stops what is forwarded, set while all CPUs are busy: how long frames
//! still pass once the command has returned.

use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use lab::traffic::{PacedFrames, Rule, Spinners};
use trial::bench::Bar;

use super::Ground;
use super::net::{ARMS, Arm, Net};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};

/// Programs that spin for each CPU.
const SPINNERS: usize = 3;
/// Times that each rule is set in a round, by each arm.
const TIMES: usize = 4;
/// Between two frames.
const PACE: Duration = Duration::from_micros(200);
/// How long frames flow before a rule, and after it.
const STRETCH: Duration = Duration::from_millis(150);

pub(super) fn part() -> Part<Ground> {
    let title = "filter rule to effect, busy machine: cachelane - linux bridge";
    let claim = Claim::difference(title, case("cachelane"), case("linux bridge"));
    let time = Time { once: 1.0, steps: ARMS.len(), windows: 0.0, more: 5.2 };
    Part::new("rules", "A rule of netfilter's, set while all CPUs are busy", time)
        .claims([claim.bar(Bar::AtMost(5.0))])
        .stage(|ground, _| measure(ground))
}

fn case(arm: &str) -> String {
    format!("filter rule to effect, busy machine: {arm}")
}

/// A bridge on a machine that is busy. A value is the worst of a round's times, over all rules.
fn measure(ground: &Ground) -> anyhow::Result<Measure<'_>> {
    let net = Net::build(&ground.lab)?;
    let cpus = thread::available_parallelism().context("the number of CPUs")?.get();
    for rule in Rule::ALL {
        rule.prepare(&net.bridge)?;
    }
    let spinners = SPINNERS * cpus;
    let busy = Spinners::start(spinners)?;
    let step = |(arm, _): &(&str, Arm)| Step::of(case(arm), "ms");
    let measure = Measure::new(ARMS, step, move |(_, arm), now| {
        let _busy = &busy;
        let mut worst = Duration::ZERO;
        for rule in Rule::ALL {
            for _ in 0..TIMES {
                now.stop.check()?;
                worst = worst.max(late(&net, *arm, rule)?);
            }
        }
        Ok(vec![worst.as_secs_f64() * 1e3])
    });
    Ok(measure.note(format!(
        "A rule ({}) takes effect with the first frame that does not arrive; its time is from the \
         return of the command that sets it to when the last frame was sent that arrived, \
         {spinners} programs spin, and each run is the worst of {}.",
        Rule::ALL.map(Rule::name).join(", "),
        TIMES * Rule::ALL.len(),
    )))
}

/// How long after a rule was set frames still passed.
fn late(net: &Net, arm: Arm, rule: Rule) -> anyhow::Result<Duration> {
    net.set(arm)?;
    let frames = PacedFrames::start(net.a(), net.b(), PACE)?;
    thread::sleep(STRETCH);
    net.settle(arm)?;
    let in_effect = rule.set(&net.bridge)?;
    thread::sleep(STRETCH);
    let last = frames.last();
    rule.clear(&net.bridge)?;
    let last = last?.ok_or_else(|| Absent(format!("no frame arrived before {}", rule.name())))?;
    Ok(last.saturating_duration_since(in_effect))
}
