//! A bridge that knows many stations against one that knows three: frames from one of them to
//! random others and, harder on caches, from random ones to random ones. All stations are behind
//! the members, so that their frames leave by the ports' queues on every bridge.

use bridge::Table;
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{Lab, Mac};
use trial::bench::Bar;

use super::Ground;
use super::net::{Arm, Flow, Net};
use super::pps::last_cpu;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

const ARMS: [(&str, Arm); 2] =
    [("cachelane", Arm::Cachelane(Table::Split)), ("linux bridge", Arm::Linux)];
/// Stations of the small bridge, its members left out.
const FEW: u32 = 3;

pub(super) fn part(many: u32) -> Part<Ground> {
    let ratio = |name: String, of: String, to: String| {
        Claim::ratio(name, format!("pps {of}"), format!("pps {to}"))
    };
    let [(few, ..), (plain, ..), (random, ..)] = bridges(many);
    let mut claims = Vec::new();
    for (entries, bar) in [(&plain, Some(Bar::AtLeast(0.8))), (&random, None)] {
        for (arm, bar, whose) in [("cachelane", bar, ""), ("linux bridge", None, ", linux bridge")]
        {
            let [of, to] = [entries, &few].map(|entries| format!("{arm}, {entries}"));
            claims.push(ratio(format!("pps: {entries} / {few}{whose}"), of, to).bar(bar));
        }
        let [of, to] = ARMS.map(|(arm, _)| format!("{arm}, {entries}"));
        claims.push(ratio(format!("pps, {entries}: cachelane / linux bridge"), of, to));
    }
    // Teaching a bridge and reading its table take their time with every station.
    let stations = f64::from(many);
    let (once, more) = (1.5 + stations * 1.2e-4, 0.45 + stations * 1.2e-5);
    let time = Time { once, steps: 3 * ARMS.len() + 2, windows: 0.75, more };
    Part::new("entries", "A bridge that knows many stations", time)
        .claims(claims)
        .stage(move |ground, _| measure(ground, many))
}

/// What the bridges are called, how many stations each knows, and how many of them send.
fn bridges(many: u32) -> [(String, u32, u32); 3] {
    [
        (format!("{FEW} entries"), FEW, 1),
        (format!("{many} entries"), many, 1),
        (format!("{many} entries, random sources"), many, many / 2),
    ]
}

/// What is measured, of the bridge of this number.
#[derive(Clone, Copy)]
enum Case {
    Pps(usize, &'static str, Arm),
    /// The fast path reads the whole table anew.
    Mirror(usize),
}

/// A bridge, and frames between the stations that it knows.
pub(super) struct Known {
    /// As the cases name it.
    name: String,
    entries: u32,
    pub(super) generator: FrameGenerator,
    pub(super) sink: FrameSink,
    pub(super) net: Net,
}

fn measure(ground: &Ground, many: u32) -> anyhow::Result<Measure<'_>> {
    let [few, plain, random] = bridges(many).map(|bridge| Known::build(&ground.lab, bridge));
    let mut known = [few?, plain?, random?];
    let names = known.each_ref().map(|known| known.name.clone());
    let pps = (0..known.len()).flat_map(|of| ARMS.map(|(name, arm)| Case::Pps(of, name, arm)));
    let cases = pps.chain([Case::Mirror(0), Case::Mirror(1)]);
    let step = |case: &Case| match *case {
        Case::Pps(of, arm, _) => {
            let case = format!("{arm}, {}", names[of]);
            ground.step(&case, &case)
        }
        Case::Mirror(of) => {
            let time = format!("time to mirror, {}", names[of]);
            let memory = (format!("table memory, {}", names[of]), "B");
            Step { gives: vec![(time.clone(), "s"), memory], name: time }
        }
    };
    let cpus = vec![last_cpu()?];
    Ok(Measure::new(cases, step, move |case, now| match *case {
        Case::Mirror(of) => known[of].mirror(),
        Case::Pps(of, _, arm) => {
            let Known { generator, sink, net, .. } = &known[of];
            let flow = Flow { generator, sink, cpus: cpus.clone() };
            net.measure(arm, &flow, now.window, ground.pmu.as_ref())
        }
    }))
}

impl Known {
    /// A bridge that knows so many stations, some of which send to all the others.
    pub(super) fn build(
        lab: &Lab,
        (name, entries, sources): (String, u32, u32),
    ) -> anyhow::Result<Known> {
        let mut net = Net::build(lab)?;
        let from = Stations { first: Mac([0x02, 0x63, 1, 0, 0, 0]), count: sources };
        let to = Stations { first: Mac([0x02, 0x63, 2, 0, 0, 0]), count: entries - sources };
        net.teach("p0", from)?;
        net.teach("p1", to)?;
        // It has room for a multiple of what it finds at its start.
        net.restart()?;
        let (generator, sink) = (net.generator(from, to)?, FrameSink::attach(net.b())?);
        Ok(Known { name, entries, generator, sink, net })
    }

    /// Has the fast path read the whole table anew: how long that takes, and how large it is.
    fn mirror(&mut self) -> anyhow::Result<Vec<f64>> {
        self.net.restart()?;
        let (entries, fast) = (self.entries, self.net.fast()?);
        fast.sync()?;
        let stations = fast.stations();
        anyhow::ensure!(
            stations >= u64::from(entries),
            "the fast path knows {stations} of {entries} stations"
        );
        Ok(vec![fast.mirror_time().as_secs_f64(), fast.table_memory()? as f64])
    }
}
