//! Small frames on a bridge that looks at VLANs, forwarded by one CPU.

use anyhow::bail;
use bridge::Table;
use lab::traffic::FrameSink;
use trial::bench::Bar;

use super::Ground;
use super::net::{Arm, Flow, Net};
use super::pps::last_cpu;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Time};

const SPLIT: Arm = Arm::Cachelane(Table::Split);
/// By name: who forwards, and what `bridge vlan add` says of the second port. All is in VLAN 1.
const CASES: [(&str, Arm, &str); 4] = [
    ("linux bridge, access to access", Arm::Linux, "pvid untagged"),
    ("cachelane, access to access", SPLIT, "pvid untagged"),
    ("linux bridge, access to trunk", Arm::Linux, "pvid"),
    ("cachelane, access to trunk", SPLIT, "pvid"),
];

pub(super) fn part() -> Part<Ground> {
    let claim = |to: &str| {
        let of = |arm: &str| format!("{arm}, access to {to}");
        let (ours, theirs) = (of("cachelane"), of("linux bridge"));
        Claim::ratio(
            format!("pps: {ours} / {theirs}"),
            format!("pps {ours}"),
            format!("pps {theirs}"),
        )
        .bar(Some(Bar::AtLeast(1.5)))
    };
    let time = Time { once: 0.5, steps: CASES.len(), windows: 1.0, more: 0.35 };
    Part::new("vlans", "Small frames in a VLAN, forwarded by one CPU", time)
        .claims(["access", "trunk"].map(claim))
        .stage(|ground, _| measure(ground))
}

/// The bridge and the fast path, with and without a tag to put on.
fn measure(ground: &Ground) -> anyhow::Result<Measure<'_>> {
    let net = Net::build(&ground.lab)?;
    let host = net.host().clone();
    if let Err(error) = host.ip("link set br0 type bridge vlan_filtering 1".split(' ')) {
        bail!(Absent(format!("this kernel's bridges know no VLANs: {error}")));
    }
    for (port, member) in [("p0", net.a()), ("p1", net.b())] {
        net.teach(port, member.mac.into())?;
    }
    let sink = FrameSink::attach(net.b())?;
    let generator = net.generator(net.a().mac, net.b().mac)?;
    let cpus = vec![last_cpu()?];
    let step = |(name, ..): &(&str, Arm, &str)| ground.step(format!("small frames, {name}"), name);
    Ok(Measure::new(CASES, step, move |(_, arm, how), now| {
        let vlan = format!("vlan add dev p1 vid 1 {how}");
        host.command("bridge").args(vlan.split(' ')).run()?;
        let flow = Flow { generator: &generator, sink: &sink, cpus: cpus.clone() };
        net.measure(*arm, &flow, now.window, ground.pmu.as_ref())
    }))
}
