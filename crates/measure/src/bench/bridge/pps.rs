//! Small frames that one CPU forwards.

use bridge::Table;
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{End, Lab, LinkOptions, Mac};
use trial::bench::Bar;

use super::Ground;
use super::net::{Arm, Flow, Net};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Now, Part, Step, Time};

/// A station behind the second member: its frames leave by the port's queue.
const BEHIND: Mac = Mac([0x02, 0x63, 0xff, 0, 0, 1]);

/// What is measured: by name, who forwards and to whom.
#[derive(Clone, Copy)]
enum Case {
    /// To the member itself.
    Member(Arm),
    /// To a station behind the member.
    Behind(Arm),
    /// Nobody forwards: what making and dropping a frame costs.
    Alone,
}

const SPLIT: Arm = Arm::Cachelane(Table::Split);
const CASES: [(&str, Case); 4] = [
    ("linux bridge", Case::Member(Arm::Linux)),
    ("cachelane", Case::Member(SPLIT)),
    ("cachelane, by the port's queue", Case::Behind(SPLIT)),
    ("frames alone", Case::Alone),
];

pub(super) fn part() -> Part<Ground> {
    let claim = |(of, bar): (&str, _)| {
        Claim::ratio(format!("pps: {of} / linux bridge"), format!("pps {of}"), "pps linux bridge")
            .bar(bar)
    };
    let claims = [
        ("cachelane", Some(Bar::AtLeast(1.5))),
        ("cachelane, by the port's queue", None),
        ("frames alone", None),
    ];
    let time = Time { once: 0.5, steps: CASES.len(), windows: 1.0, more: 0.35 };
    Part::new("pps", "Small frames, forwarded by one CPU", time)
        .claims(claims.map(claim))
        .stage(|ground, _| Ok(Box::new(Pps::build(ground)?)))
}

/// The bridge and the fast path, and nobody.
struct Pps<'a> {
    ground: &'a Ground,
    net: Net,
    sink: FrameSink,
    to_member: FrameGenerator,
    to_behind: FrameGenerator,
    alone: Alone,
    cpus: Vec<Option<usize>>,
}

impl Pps<'_> {
    fn build(ground: &Ground) -> anyhow::Result<Pps<'_>> {
        let net = Net::build(&ground.lab)?;
        net.teach("p1", BEHIND.into())?;
        let (from, member) = (net.a().mac, net.b().mac);
        Ok(Pps {
            sink: FrameSink::attach(net.b())?,
            to_member: net.generator(from, member)?,
            to_behind: net.generator(from, BEHIND)?,
            alone: Alone::build(&ground.lab)?,
            cpus: vec![last_cpu()?],
            ground,
            net,
        })
    }
}

impl Measure for Pps<'_> {
    fn steps(&self) -> Vec<Step> {
        let step = |(name, _)| self.ground.step(format!("small frames, {name}"), name);
        CASES.into_iter().map(step).collect()
    }

    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        let (net, sink, alone) = (&self.net, &self.sink, &self.alone);
        let flow = |generator, sink| Flow { generator, sink, cpus: self.cpus.clone() };
        let (window, pmu) = (now.window, self.ground.pmu.as_ref());
        let rate = match CASES[step].1 {
            Case::Member(arm) => net.measure(arm, &flow(&self.to_member, sink), window, pmu)?,
            Case::Behind(arm) => net.measure(arm, &flow(&self.to_behind, sink), window, pmu)?,
            Case::Alone => flow(&alone.generator, &alone.sink).measure(window, pmu)?,
        };
        Ok(rate.values())
    }
}

/// A device that receives frames and drops them itself.
struct Alone {
    generator: FrameGenerator,
    sink: FrameSink,
}

impl Alone {
    fn build(lab: &Lab) -> anyhow::Result<Alone> {
        let (host, peer) = (lab.host("host")?, lab.host("peer")?);
        let link = lab.link(&host, &peer, LinkOptions::default())?;
        let End { host, device, mac, .. } = &link.a;
        let generator = FrameGenerator::new(host, device, link.b.mac, Stations::from(*mac))?;
        Ok(Alone { generator, sink: FrameSink::attach(&link.a)? })
    }
}

/// The CPU that makes the frames: the last one, as the first has more interrupts to handle.
pub(super) fn last_cpu() -> anyhow::Result<Option<usize>> {
    Ok(lanes::LaneMap::detect()?.allowed().iter().last())
}
