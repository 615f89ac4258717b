//! TCP between two hosts behind a bridge: one bulk stream, and request and response.

use std::time::Duration;

use anyhow::Context as _;
use lab::traffic::{
    BulkOptions, BulkServer, BulkSession, EchoOptions, EchoServer, ExchangeWindow, RrOptions,
    RrSession,
};
use trial::bench::Bar;

use super::Ground;
use super::net::{ARMS, Net};
use crate::bench::claim::Claim;
use crate::bench::exchanges::{add, check};
use crate::bench::experiment::{Measure, Now, Part, Step, Time};

/// Slices of a measurement, of both arms together.
const SLICES: usize = 16;
/// Before each slice.
const WARM: Duration = Duration::from_millis(20);

/// What flows, the name of its cases, and what is claimed of it.
///
/// Exchanges are claimed of a busy host, on many connections: with one, nearly all of the time goes
/// into waking a CPU that sleeps.
const KINDS: [(&str, Kind, Option<f64>); 4] = [
    ("tcp stream", Kind::Stream { cut: false }, Some(0.99)),
    ("tcp stream in 1500-byte packets", Kind::Stream { cut: true }, Some(1.2)),
    ("tcp rr", Kind::Rr(32), Some(1.05)),
    ("tcp rr, 1 connection", Kind::Rr(1), None),
];

#[derive(Clone, Copy)]
enum Kind {
    /// As fast as it goes; in GSO packets or cut to size by the sender.
    Stream { cut: bool },
    /// One byte each way, on so many connections at once.
    Rr(usize),
}

/// Servers on one of the hosts.
pub(crate) struct Servers {
    bulk: BulkServer,
    echo: EchoServer,
}

pub(super) fn part() -> Part<Ground> {
    let claim = |(name, _, bar): (&str, _, Option<f64>)| {
        let [of, to] = ["cachelane", "linux bridge"].map(|who| format!("{name} {who}"));
        let name = format!("{name}: cachelane / linux bridge");
        Claim::ratio(name, of, to).bar(bar.map(Bar::AtLeast))
    };
    let more = WARM.as_secs_f64() * SLICES as f64 + 0.2;
    let time = Time { once: 1.0, steps: KINDS.len(), windows: 2.0, more };
    Part::new("tcp", "TCP between two hosts: a bulk stream, and request and response", time)
        .claims(KINDS.map(claim))
        .stage(|ground, _| measure(ground))
}

/// Two bridges, one whose members cut packets to size, and servers behind both. On each the bridge
/// and the fast path forward by turns, under the same connections.
fn measure(ground: &Ground) -> anyhow::Result<Measure<'_>> {
    let (net, cutting) = (Net::build(&ground.lab)?, Net::build(&ground.lab)?);
    cutting.cut_packets()?;
    let (servers, cut_servers) = (Servers::start(&net)?, Servers::start(&cutting)?);
    let step = |(name, kind, _): &(&str, Kind, _)| {
        let gives = ARMS.iter().flat_map(|(who, _)| {
            let case = format!("{name} {who}");
            let p99 = (format!("{case}, p99"), "s");
            match kind {
                Kind::Stream { .. } => vec![(case, "B/s")],
                Kind::Rr(_) => vec![(case, "1/s"), p99],
            }
        });
        Step { name: (*name).into(), gives: gives.collect() }
    };
    let measure = Measure::new(KINDS, step, move |(_, kind, _), now| match kind {
        Kind::Stream { cut: false } => stream(now, &net, &servers),
        Kind::Stream { cut: true } => stream(now, &cutting, &cut_servers),
        Kind::Rr(connections) => exchanges(now, &net, &servers, *connections),
    });
    Ok(measure.note(format!(
        "A TCP measurement is the sum of {} slices under the same connections, between which the \
         other arm had its own.",
        SLICES / ARMS.len()
    )))
}

fn stream(now: &Now<'_>, net: &Net, servers: &Servers) -> anyhow::Result<Vec<f64>> {
    let target = servers.bulk.address();
    let session = BulkSession::start(&net.a().host, target, &BulkOptions::default())?;
    let mut rates = [0.0; 2];
    by_turns(now, net, |arm, slice| {
        rates[arm] += session.measure(&servers.bulk, slice)?.rate();
        Ok(())
    })?;
    Ok(rates.map(|sum| sum * ARMS.len() as f64 / SLICES as f64).into())
}

fn exchanges(
    now: &Now<'_>,
    net: &Net,
    servers: &Servers,
    connections: usize,
) -> anyhow::Result<Vec<f64>> {
    let session = servers.exchange(net, connections)?;
    let mut windows: [Option<ExchangeWindow>; 2] = [None, None];
    by_turns(now, net, |arm, slice| {
        // What happened while the arms were changed belongs to neither.
        session.take_window();
        add(&mut windows[arm], session.measure(slice));
        Ok(())
    })?;
    let mut values = Vec::new();
    for ((who, _), window) in ARMS.iter().zip(windows) {
        let window = check(window.context("nothing was measured")?, who)?;
        values.extend([window.rate(), window.latency.p99().as_secs_f64()]);
    }
    Ok(values)
}

/// Measures slices of both arms, in blocks of ABBA: the threads stay where they are, and a slow
/// stretch of the machine falls on both.
fn by_turns(
    now: &Now<'_>,
    net: &Net,
    mut measure: impl FnMut(usize, Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let slice = now.window * ARMS.len() as u32 / SLICES as u32;
    for number in 0..SLICES {
        now.stop.check()?;
        let arm = [0, 1, 1, 0][number % 4];
        net.set(ARMS[arm].1)?;
        std::thread::sleep(WARM);
        measure(arm, slice)?;
    }
    Ok(())
}

impl Servers {
    /// Starts them on the second member.
    pub(crate) fn start(net: &Net) -> anyhow::Result<Servers> {
        let (host, any_port) = (&net.b().host, net.b().socket(0));
        let bulk = BulkServer::start(host, any_port, &BulkOptions::default())?;
        let echo = EchoServer::start(host, any_port, EchoOptions::default())?;
        Ok(Servers { bulk, echo })
    }

    /// Requests and responses of one byte, from the first member.
    pub(crate) fn exchange(&self, net: &Net, connections: usize) -> anyhow::Result<RrSession> {
        let options = RrOptions { connections, ..RrOptions::default() };
        Ok(RrSession::start(&net.a().host, self.echo.address(), &options)?)
    }
}
