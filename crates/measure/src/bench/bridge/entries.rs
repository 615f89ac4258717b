//! A bridge that knows many stations against one that knows three: frames from one of them to
//! random others and, harder on caches, from random ones to random ones. All stations are behind
//! the members, so that their frames leave by the ports' queues on every bridge.

use bridge::Table;
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{Lab, Mac};
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::net::{Arm, Flow, Net};
use super::pps::last_cpu;

/// Measurements of a round.
pub(super) const CASES: usize = ARMS.len() * 3;
const ARMS: [(&str, Arm); 2] =
    [("cachelane", Arm::Cachelane(Table::Split)), ("linux bridge", Arm::Linux)];
/// Stations of the small bridge, its members left out.
const FEW: u32 = 3;

/// A bridge, and frames between the stations that it knows.
struct Known {
    /// As the cases name it.
    name: String,
    generator: FrameGenerator,
    sink: FrameSink,
    net: Net,
}

/// Each bridge with the fast path and without.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let many = bench.plan.entries;
    let (few_name, many_name) = (format!("{FEW} entries"), format!("{many} entries"));
    let random_name = format!("{many} entries, random sources");
    let mut known = [
        Known::build(&bench.lab, &few_name, FEW, 1)?,
        Known::build(&bench.lab, &many_name, many, 1)?,
        Known::build(&bench.lab, &random_name, many, many / 2)?,
    ];
    let cpus = vec![last_cpu()?];
    let mut order: Vec<_> =
        (0..known.len()).flat_map(|which| ARMS.map(|(name, arm)| (which, name, arm))).collect();
    for _ in 0..bench.plan.rounds {
        known[0].mirror(bench, FEW)?;
        known[1].mirror(bench, many)?;
        order.shuffle(&mut bench.rng);
        for (which, name, arm) in &order {
            let Known { name: entries, generator, sink, net } = &known[*which];
            let case = format!("{name}, {entries}");
            bench.step(&case)?;
            let flow = Flow { generator, sink, cpus: cpus.clone() };
            let (window, pmu) = (bench.plan.window, bench.pmu.as_ref().ok());
            let rate = net.measure(*arm, &flow, window, pmu)?;
            bench.add(&case, &rate);
        }
    }
    let mut ratio = |name: &str, of: String, to: String, bar| {
        let (of, to) = (format!("pps {of}"), format!("pps {to}"));
        bench.series.ratio(&mut bench.output, name, (&of, &to), bar)
    };
    for (entries, bar) in [(&many_name, Some(Bar::AtLeast(0.8))), (&random_name, None)] {
        for (arm, bar) in [("cachelane", bar), ("linux bridge", None)] {
            let whose = if arm == "cachelane" { String::new() } else { format!(", {arm}") };
            let name = format!("pps: {entries} / {few_name}{whose}");
            ratio(&name, format!("{arm}, {entries}"), format!("{arm}, {few_name}"), bar)?;
        }
        let name = format!("pps, {entries}: cachelane / linux bridge");
        ratio(&name, format!("cachelane, {entries}"), format!("linux bridge, {entries}"), None)?;
    }
    Ok(())
}

impl Known {
    /// A bridge that knows so many stations, some of which send to all the others.
    fn build(lab: &Lab, name: &str, entries: u32, sources: u32) -> anyhow::Result<Known> {
        let mut net = Net::build(lab)?;
        let from = Stations { first: Mac([0x02, 0x63, 1, 0, 0, 0]), count: sources };
        let to = Stations { first: Mac([0x02, 0x63, 2, 0, 0, 0]), count: entries - sources };
        net.teach("p0", from)?;
        net.teach("p1", to)?;
        // It has room for a multiple of what it finds at its start.
        net.restart()?;
        let (generator, sink) = (net.generator(from, to)?, FrameSink::attach(net.b())?);
        Ok(Known { name: name.into(), generator, sink, net })
    }

    /// Has the fast path read the whole table anew.
    fn mirror(&mut self, bench: &mut Bench<'_>, entries: u32) -> anyhow::Result<()> {
        self.net.restart()?;
        let fast = self.net.fast()?;
        fast.sync()?;
        let stations = fast.stats().stations;
        anyhow::ensure!(
            stations >= u64::from(entries),
            "the fast path knows {stations} of {entries} stations"
        );
        let time = fast.mirror_time().as_secs_f64();
        bench.series.add(&format!("time to mirror, {}", self.name), "s", time);
        let memory = fast.table_memory()? as f64;
        bench.series.add(&format!("table memory, {}", self.name), "B", memory);
        Ok(())
    }
}
