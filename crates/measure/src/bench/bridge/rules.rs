//! A rule of netfilter's that stops what is forwarded, set while all CPUs are busy: how long frames
//! still pass once the command has returned.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bridge::Table;
use lab::traffic::{PacedFrames, Rule, Spinners};
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::net::{Arm, Net};

/// Steps of a round.
pub(super) const CASES: usize = ARMS.len() * Rule::ALL.len();
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

/// Each run is the worst of a round's times, over all rules.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let net = Net::build(&bench.lab)?;
    let cpus = thread::available_parallelism().context("the number of CPUs")?.get();
    let _busy = Spinners::start(SPINNERS * cpus)?;
    for rule in Rule::ALL {
        rule.prepare(net.bridge())?;
    }
    let mut arms = ARMS;
    let name = |arm: &str| format!("filter rule to effect, busy machine: {arm}");
    for _ in 0..bench.plan.rounds {
        arms.shuffle(&mut bench.rng);
        for (arm, which) in arms {
            let mut worst = Duration::ZERO;
            for rule in Rule::ALL {
                bench.step(&format!("{arm}, {}", rule.name()))?;
                for _ in 0..TIMES {
                    worst = worst.max(late(&net, which, rule)?);
                }
            }
            bench.series.add(&name(arm), "ms", worst.as_secs_f64() * 1e3);
        }
    }
    let title = "filter rule to effect, busy machine: cachelane - linux bridge";
    let (of, less) = (name("cachelane"), name("linux bridge"));
    let bar = Some(Bar::AtMost(5.0));
    bench.series.difference(&mut bench.output, title, (&of, &less), bar)?;
    let rules: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    bench.output.notes.push(format!(
        "A rule ({}) takes effect with the first frame that does not arrive; its time is from the \
         return of the command that sets it to when the last frame was sent that arrived, {} \
         programs spin, and each run is the worst of {}.",
        rules.join(", "),
        SPINNERS * cpus,
        TIMES * Rule::ALL.len(),
    ));
    Ok(())
}

/// How long after a rule was set frames still passed.
fn late(net: &Net, arm: Arm, rule: Rule) -> anyhow::Result<Duration> {
    net.set(arm)?;
    let frames = PacedFrames::start(net.a(), net.b(), PACE)?;
    let (begin, forwarded) = (Instant::now(), || net.fast().map(|fast| fast.stats().forwarded()));
    let before = forwarded()?;
    thread::sleep(STRETCH);
    while arm != Arm::Linux && forwarded()? == before {
        ensure!(begin.elapsed() < PATIENCE, "the fast path forwards nothing");
        thread::sleep(Duration::from_millis(1));
    }
    let in_effect = rule.set(net.bridge())?;
    thread::sleep(STRETCH);
    let last = frames.last();
    rule.clear(net.bridge())?;
    let last = last?.with_context(|| format!("no frame arrived before {}", rule.name()))?;
    Ok(last.saturating_duration_since(in_effect))
}
