//! Small frames that one CPU forwards.

use bridge::Table;
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{End, Lab, LinkOptions, Mac};
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::net::{Arm, Flow, Net};

/// Measurements of a round.
pub(super) const CASES: usize = 4;
/// A station behind the second member: its frames leave by the port's queue.
pub(super) const BEHIND: Mac = Mac([0x02, 0x63, 0xff, 0, 0, 1]);

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

/// The bridge and the fast path, by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let net = Net::build(&bench.lab)?;
    net.teach("p1", BEHIND.into())?;
    let sink = FrameSink::attach(net.b())?;
    let (from, member) = (net.a().mac, net.b().mac);
    let [to_member, to_behind] = [net.generator(from, member)?, net.generator(from, BEHIND)?];
    let alone = Alone::build(&bench.lab)?;
    let cpus = vec![last_cpu()?];
    let split = Arm::Cachelane(Table::Split);
    let mut order: [(&str, Case); CASES] = [
        ("linux bridge", Case::Member(Arm::Linux)),
        ("cachelane", Case::Member(split)),
        ("cachelane, by the port's queue", Case::Behind(split)),
        ("frames alone", Case::Alone),
    ];
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for (name, case) in order {
            bench.step(&format!("small frames, {name}"))?;
            let (window, pmu) = (bench.plan.window, bench.pmu.as_ref().ok());
            let flow = |generator, sink| Flow { generator, sink, cpus: cpus.clone() };
            let rate = match case {
                Case::Member(arm) => net.measure(arm, &flow(&to_member, &sink), window, pmu)?,
                Case::Behind(arm) => net.measure(arm, &flow(&to_behind, &sink), window, pmu)?,
                Case::Alone => flow(&alone.generator, &alone.sink).measure(window, pmu)?,
            };
            bench.add(name, &rate);
        }
    }
    for (of, bar) in [
        ("cachelane", Some(Bar::AtLeast(1.5))),
        ("cachelane, by the port's queue", None),
        ("frames alone", None),
    ] {
        let name = format!("pps: {of} / linux bridge");
        let cases = (format!("pps {of}"), "pps linux bridge");
        bench.series.ratio(&mut bench.output, &name, (&cases.0, cases.1), bar)?;
    }
    Ok(())
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
