//! How the rate of small frames changes as a bridge has more ports, knows more stations, and is told
//! of more changes: the fast path against the bridge.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bridge::Table;
use lab::traffic::FrameSink;
use lab::{Host, Mac};
use trial::Better;

use super::Ground;
use super::entries::Known;
use super::net::{Arm, Flow, Net};
use super::pps::last_cpu;
use crate::bench::experiment::{Measure, Part, Time};
use crate::bench::growth::Growth;

const ARMS: [(&str, Arm); 2] =
    [("cachelane", Arm::Cachelane(Table::Split)), ("linux bridge", Arm::Linux)];
const PORTS: [usize; 4] = [2, 20, 100, 500];
/// And as many as the large bridge of the entries part has.
const STATIONS: [usize; 3] = [3, 1000, 10_000];
/// Changes a second.
const CHANGES: [usize; 4] = [1, 10, 100, 1000];

pub(super) fn part(most: u32) -> Part<Ground> {
    let most = most as usize;
    let ports = growth("ports", PORTS.into());
    let fewer = STATIONS.into_iter().filter(|count| *count < most);
    let stations = growth("stations", fewer.chain([most]).collect());
    let changes = growth("changes a second", CHANGES.into());
    let counts = ports.counts.len() + stations.counts.len() + changes.counts.len();
    // Most of the set-up makes ports and teaches stations.
    let time = Time { once: 35.0, steps: counts * ARMS.len(), windows: 1.0, more: 0.6 };
    let about = "Small frames, as there are more ports, stations and changes";
    let part = Part::new("growth", about, time).rounds(|rounds| rounds.min(6));
    let part = part.growth(&ports).growth(&stations).growth(&changes);
    part.stage(move |ground, _| by_ports(ground, ports.clone()))
        .stage(move |ground, _| by_stations(ground, stations.clone()))
        .stage(move |ground, _| by_changes(ground, changes.clone()))
}

fn growth(along: &'static str, counts: Vec<usize>) -> Growth {
    let arms = ARMS.map(|(name, _)| name).into();
    Growth { figure: "pps", along, arms, counts, better: Better::Higher }
}

/// An arm, and which of the numbers.
type Case = (Arm, usize, String);

fn cases(growth: &Growth) -> Vec<Case> {
    let number = |(number, count): (usize, &usize)| {
        ARMS.map(|(name, arm)| (arm, number, growth.case(name, *count)))
    };
    growth.counts.iter().enumerate().flat_map(number).collect()
}

/// Two of so many ports have traffic.
fn by_ports(ground: &Ground, growth: Growth) -> anyhow::Result<Measure<'_>> {
    let build = |count: &usize| -> anyhow::Result<_> {
        let mut net = Net::build(&ground.lab)?;
        net.widen(&ground.lab.host("crowd")?, count - 2)?;
        net.restart()?;
        let generator = net.generator(net.a().mac, net.b().mac)?;
        let sink = FrameSink::attach(net.b())?;
        Ok((net, generator, sink))
    };
    let nets = growth.counts.iter().map(build).collect::<Result<Vec<_>, _>>()?;
    let cpus = vec![last_cpu()?];
    let step = |(.., case): &Case| ground.step_called(case.clone());
    Ok(Measure::new(cases(&growth), step, move |(arm, number, _), now| {
        let (net, generator, sink) = &nets[*number];
        let flow = Flow { generator, sink, cpus: cpus.clone() };
        net.measure(*arm, &flow, now.window, ground.pmu.as_ref())
    }))
}

/// One station sends to all the others by turns.
fn by_stations(ground: &Ground, growth: Growth) -> anyhow::Result<Measure<'_>> {
    let known = |count: &usize| {
        let count = u32::try_from(*count)?;
        Known::build(&ground.lab, (count.to_string(), count, 1))
    };
    let known = growth.counts.iter().map(known).collect::<anyhow::Result<Vec<Known>>>()?;
    let cpus = vec![last_cpu()?];
    let step = |(.., case): &Case| ground.step_called(case.clone());
    Ok(Measure::new(cases(&growth), step, move |(arm, number, _), now| {
        let Known { generator, sink, net, .. } = &known[*number];
        let flow = Flow { generator, sink, cpus: cpus.clone() };
        net.measure(*arm, &flow, now.window, ground.pmu.as_ref())
    }))
}

/// Stations that have nothing to do with the traffic are learned and forgotten, so often.
fn by_changes(ground: &Ground, growth: Growth) -> anyhow::Result<Measure<'_>> {
    let net = Net::build(&ground.lab)?;
    let (generator, sink) = (net.generator(net.a().mac, net.b().mac)?, FrameSink::attach(net.b())?);
    let cpus = vec![last_cpu()?];
    let step = |(.., case): &Case| ground.step_called(case.clone());
    let counts = growth.counts.clone();
    let measure = Measure::new(cases(&growth), step, move |(arm, number, _), now| {
        let flow = Flow { generator: &generator, sink: &sink, cpus: cpus.clone() };
        // It starts with the fast path as it is to be.
        net.set(*arm)?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let changes = scope.spawn(|| changes(net.host(), counts[*number], &over));
            let measured = net.measure(*arm, &flow, now.window, ground.pmu.as_ref());
            // Relaxed: it stands for itself.
            over.store(true, Relaxed);
            changes.join().expect("no panic")?;
            measured
        })
    });
    Ok(measure.note(
        "A change of the growth part is a station that 'bridge fdb' adds to the second port, or \
         takes away; the process that does so has its share of the CPUs.",
    ))
}

/// Makes so many changes a second until it is over.
fn changes(host: &Host, a_second: usize, over: &AtomicBool) -> anyhow::Result<()> {
    let (input, mut lines) = std::io::pipe().context("a pipe to bridge")?;
    let process = host.command("bridge").args(["-batch", "-"]).stdin(input).spawn()?;
    let pause = Duration::from_secs(1) / u32::try_from(a_second)?;
    let begun = Instant::now();
    let mut done = 0;
    while !over.load(Relaxed) {
        let mac = Mac([0x02, 0x63, 0xc4, 0, 0, (done / 2 % 200) as u8]);
        let verb = if done % 2 == 0 { "replace" } else { "del" };
        let kind = if done % 2 == 0 { " dynamic" } else { "" };
        writeln!(lines, "fdb {verb} {mac} dev p1 master{kind}").context("bridge")?;
        done += 1;
        // As many as there should be by now, also where one took long.
        let due = pause * done;
        while begun.elapsed() < due && !over.load(Relaxed) {
            thread::sleep((due.saturating_sub(begun.elapsed())).min(Duration::from_millis(10)));
        }
    }
    drop(lines);
    drop(process);
    Ok(())
}
