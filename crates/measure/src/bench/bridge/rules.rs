//! A rule of netfilter's that stops what is forwarded, set while all CPUs are busy: how long frames
//! still pass once the command has returned.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bridge::Table;
use lab::traffic::{PacedFrames, Rule, Spinners};
use trial::bench::Bar;

use super::Ground;
use super::net::{Arm, Net};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};

const ARMS: [(&str, Arm); 2] =
    [("linux bridge", Arm::Linux), ("cachelane", Arm::Cachelane(Table::Split))];
/// Programs that spin for each CPU.
const SPINNERS: usize = 3;
/// Times that each rule is set in a round, by each arm.
const TIMES: usize = 4;
/// Between two frames.
const PACE: Duration = Duration::from_micros(200);
/// How long frames flow before a rule, and after it.
const STRETCH: Duration = Duration::from_millis(150);
/// How long the fast path may take to forward.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn part() -> Part<Ground> {
    let title = "filter rule to effect, busy machine: cachelane - linux bridge";
    let claim = Claim::difference(title, case("cachelane"), case("linux bridge"));
    let time = Time { once: 1.0, steps: ARMS.len(), windows: 0.0, more: 5.2 };
    Part::new("rules", "A rule of netfilter's, set while all CPUs are busy", time)
        .claims([claim.bar(Bar::AtMost(5.0))])
        .stage(|ground, _| Ok(Box::new(Rules::build(ground)?)))
}

fn case(arm: &str) -> String {
    format!("filter rule to effect, busy machine: {arm}")
}

/// A bridge on a machine that is busy.
struct Rules {
    net: Net,
    spinners: usize,
    _busy: Spinners,
}

impl Rules {
    fn build(ground: &Ground) -> anyhow::Result<Rules> {
        let net = Net::build(&ground.lab)?;
        let cpus = thread::available_parallelism().context("the number of CPUs")?.get();
        let spinners = SPINNERS * cpus;
        for rule in Rule::ALL {
            rule.prepare(net.bridge())?;
        }
        Ok(Rules { net, spinners, _busy: Spinners::start(spinners)? })
    }
}

impl Measure for Rules {
    fn steps(&self) -> Vec<Step> {
        ARMS.into_iter().map(|(arm, _)| Step::of(case(arm), "ms")).collect()
    }

    /// The worst of a round's times, over all rules.
    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        let (_, arm) = ARMS[step];
        let mut worst = Duration::ZERO;
        for rule in Rule::ALL {
            for _ in 0..TIMES {
                now.stop.check()?;
                worst = worst.max(late(&self.net, arm, rule)?);
            }
        }
        Ok(vec![worst.as_secs_f64() * 1e3])
    }

    fn notes(&self) -> Vec<String> {
        let rules: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        vec![format!(
            "A rule ({}) takes effect with the first frame that does not arrive; its time is from \
             the return of the command that sets it to when the last frame was sent that arrived, \
             {} programs spin, and each run is the worst of {}.",
            rules.join(", "),
            self.spinners,
            TIMES * Rule::ALL.len(),
        )]
    }
}

/// How long after a rule was set frames still passed.
fn late(net: &Net, arm: Arm, rule: Rule) -> anyhow::Result<Duration> {
    net.set(arm)?;
    let frames = PacedFrames::start(net.a(), net.b(), PACE)?;
    let (begin, forwarded) =
        (Instant::now(), || net.fast().and_then(|fast| Ok(fast.counters()?.forwarded())));
    let before = forwarded()?;
    thread::sleep(STRETCH);
    while arm != Arm::Linux && forwarded()? == before {
        let forwards_nothing = || Absent("the fast path forwards nothing".into());
        ensure!(begin.elapsed() < PATIENCE, forwards_nothing());
        thread::sleep(Duration::from_millis(1));
    }
    let in_effect = rule.set(net.bridge())?;
    thread::sleep(STRETCH);
    let last = frames.last();
    rule.clear(net.bridge())?;
    let last = last?.ok_or_else(|| Absent(format!("no frame arrived before {}", rule.name())))?;
    Ok(last.saturating_duration_since(in_effect))
}
