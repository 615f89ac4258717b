//! Small frames that one CPU forwards.

use bridge::Table;
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{End, LinkOptions, Mac};
use trial::bench::Bar;

use super::Ground;
use super::bare::Bare;
use super::net::{Arm, Flow, Net};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Time};

/// A station behind the second member: its frames leave by the port's queue.
const BEHIND: Mac = Mac([0x02, 0x63, 0xff, 0, 0, 1]);

/// What is measured: by name, who forwards and to whom.
#[derive(Clone, Copy)]
enum Case {
    /// To the member itself.
    Member(Arm),
    /// To a station behind the member.
    Behind(Arm),
    /// To another host, by a program that redirects and nothing else.
    Bare,
    /// Nobody forwards: what making and dropping a frame costs.
    Alone,
}

const SPLIT: Arm = Arm::Cachelane(Table::Split);
const BARE: &str = "bare redirect";
const CASES: [(&str, Case); 5] = [
    ("linux bridge", Case::Member(Arm::Linux)),
    ("cachelane", Case::Member(SPLIT)),
    ("cachelane, by the port's queue", Case::Behind(SPLIT)),
    (BARE, Case::Bare),
    ("frames alone", Case::Alone),
];

pub(super) fn part() -> Part<Ground> {
    let claim = |(of, bar): (&str, _)| {
        Claim::ratio(format!("pps: {of} / linux bridge"), format!("pps {of}"), "pps linux bridge")
            .bar(bar)
    };
    let claims = [
        ("cachelane", Some(Bar::AtLeast(1.7))),
        ("cachelane, by the port's queue", None),
        (BARE, None),
        ("frames alone", None),
    ];
    let to_bare =
        Claim::ratio(format!("pps: cachelane / {BARE}"), "pps cachelane", format!("pps {BARE}"))
            .bar(Bar::AtLeast(0.9));
    let time = Time { once: 0.5, steps: CASES.len(), windows: 1.0, more: 0.35 };
    Part::new("pps", "Small frames, forwarded by one CPU", time)
        .claims(claims.map(claim))
        .claims([to_bare])
        .stage(|ground, _| measure(ground))
}

/// The bridge and the fast path, and nobody.
fn measure(ground: &Ground) -> anyhow::Result<Measure<'_>> {
    let net = Net::build(&ground.lab)?;
    net.teach("p1", BEHIND.into())?;
    let (from, member) = (net.a().mac, net.b().mac);
    let sink = FrameSink::attach(net.b())?;
    let (to_member, to_behind) = (net.generator(from, member)?, net.generator(from, BEHIND)?);
    // A device that receives frames and drops them itself.
    let (host, peer) = (ground.lab.host("host")?, ground.lab.host("peer")?);
    let link = ground.lab.link(&host, &peer, LinkOptions::default())?;
    let End { host, device, mac, .. } = &link.a;
    let alone = FrameGenerator::new(host, device, link.b.mac, Stations::from(*mac))?;
    let alone_sink = FrameSink::attach(&link.a)?;
    let bare = Bare::build(&ground.lab)?;
    let cpus = vec![last_cpu()?];
    let step = |(name, _): &(&str, _)| ground.step(format!("small frames, {name}"), name);
    Ok(Measure::new(CASES, step, move |(_, case), now| {
        let flow = |generator, sink| Flow { generator, sink, cpus: cpus.clone() };
        let (window, pmu) = (now.window, ground.pmu.as_ref());
        match case {
            Case::Member(arm) => net.measure(*arm, &flow(&to_member, &sink), window, pmu),
            Case::Behind(arm) => net.measure(*arm, &flow(&to_behind, &sink), window, pmu),
            Case::Bare => bare.flow(cpus.clone()).measure(window, pmu),
            Case::Alone => flow(&alone, &alone_sink).measure(window, pmu),
        }
    }))
}

/// The CPU that makes the frames: the last one, as the first has more interrupts to handle.
pub(super) fn last_cpu() -> anyhow::Result<Option<usize>> {
    Ok(lanes::LaneMap::detect()?.allowed().iter().last())
}
