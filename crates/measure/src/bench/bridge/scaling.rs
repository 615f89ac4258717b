//! Small frames between the same two stations, from one CPU and from more at once: who writes what
//! the others read gets slower with each.

use bridge::Table;
use lab::traffic::FrameSink;
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::net::{Arm, Flow, Net};

/// The arms, by the name of their cases.
const ARMS: [(&str, Arm); 3] = [
    ("split", Arm::Cachelane(Table::Split)),
    ("shared", Arm::Cachelane(Table::Shared)),
    ("linux bridge", Arm::Linux),
];

/// Every case: an arm, and how many CPUs make frames.
pub(super) fn cases() -> Vec<(&'static str, Arm, usize)> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = vec![1, 2, all];
    counts.retain(|count| *count <= all);
    counts.dedup();
    let arm = |(name, arm)| counts.iter().map(move |count| (name, arm, *count));
    ARMS.into_iter().flat_map(arm).collect()
}

/// Every arm, on one CPU, on two, and on all.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let net = Net::build(&bench.lab)?;
    let sink = FrameSink::attach(net.b())?;
    let generator = net.generator(net.a().mac, net.b().mac)?;
    let mut order = cases();
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for (name, arm, cpus) in &order {
            let case = case(name, *cpus);
            bench.step(&format!("small frames, {case}"))?;
            // Nothing is pinned: the scheduler spreads threads that never sleep.
            let flow = Flow { generator: &generator, sink: &sink, cpus: vec![None; *cpus] };
            let (window, pmu) = (bench.plan.window, bench.pmu.as_ref().ok());
            let rate = net.measure(*arm, &flow, window, pmu)?;
            bench.add(&case, &rate);
        }
    }
    scaling(bench, &order)?;
    fills(bench)
}

/// How much more several CPUs forward than one.
fn scaling(bench: &mut Bench<'_>, cases: &[(&str, Arm, usize)]) -> anyhow::Result<()> {
    let counts: std::collections::BTreeSet<_> = cases.iter().map(|(_, _, cpus)| *cpus).collect();
    if !counts.contains(&2) {
        bench.output.absent.push("pps: 2 cpus / 1 cpu: there is one CPU".into());
    }
    for cpus in counts.into_iter().filter(|cpus| *cpus > 1) {
        for (arm, _) in ARMS {
            let plain = format!("pps: {cpus} cpus / 1 cpu");
            // The claim is about the table that is in use.
            let (name, bar) = match arm {
                "split" => (plain, (cpus == 2).then_some(Bar::AtLeast(1.9))),
                _ => (format!("{plain}, {arm}"), None),
            };
            let [of, to] = [cpus, 1].map(|cpus| format!("pps {}", case(arm, cpus)));
            bench.series.ratio(&mut bench.output, &name, (&of, &to), bar)?;
        }
    }
    Ok(())
}

/// How many cache lines come from another CPU for each packet.
fn fills(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    const NAME: &str = "cache-to-cache fills per packet: split / shared";
    let [of, to] = ["split", "shared"].map(|arm| format!("fills/packet {}", case(arm, 2)));
    match &bench.pmu {
        Err(reason) => bench.output.absent.push(format!("{NAME}: {reason}")),
        Ok(_) if bench.series.runs(&of).is_empty() => {
            bench.output.absent.push(format!("{NAME}: there is one CPU"));
        }
        Ok(_) => {
            let bar = Some(Bar::AtMost(0.1));
            bench.series.ratio(&mut bench.output, NAME, (&of, &to), bar)?;
        }
    }
    Ok(())
}

fn case(arm: &str, cpus: usize) -> String {
    format!("{arm}, {cpus} cpu{}", if cpus == 1 { "" } else { "s" })
}
