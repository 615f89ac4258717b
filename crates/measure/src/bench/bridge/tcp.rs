//! TCP between two hosts behind a bridge: one bulk stream, and request and response.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bridge::Table;
use lab::traffic::{
    BulkOptions, BulkServer, BulkSession, EchoOptions, EchoServer, ExchangeWindow, RrOptions,
    RrSession,
};
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::net::{Arm, Net};
use crate::bench::relay::exchange::check;

/// Steps of a round.
pub(super) const CASES: usize = KINDS.len();
/// Slices of a measurement, of both arms together.
const SLICES: usize = 16;
/// Before each slice.
const WARM: Duration = Duration::from_millis(20);
const ARMS: [(&str, Arm); 2] =
    [("linux bridge", Arm::Linux), ("cachelane", Arm::Cachelane(Table::Split))];

/// What flows, the name of its cases, and what is claimed of it.
///
/// Exchanges are claimed of a busy host, on many connections: with one, nearly all of the time goes
/// into waking a CPU that sleeps.
const KINDS: [(&str, Kind, Option<f64>); 4] = [
    ("tcp stream", Kind::Stream { cut: false }, Some(1.03)),
    ("tcp stream in 1500-byte packets", Kind::Stream { cut: true }, None),
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

/// The bridge and the fast path, by turns, under the same connections.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let (net, cutting) = (Net::build(&bench.lab)?, Net::build(&bench.lab)?);
    cutting.cut_packets()?;
    let (servers, cut_servers) = (Servers::start(&net)?, Servers::start(&cutting)?);
    let mut kinds = KINDS;
    for _ in 0..bench.plan.rounds {
        kinds.shuffle(&mut bench.rng);
        for (name, kind, _) in kinds {
            bench.step(name)?;
            match kind {
                Kind::Stream { cut: false } => stream(bench, name, &net, &servers)?,
                Kind::Stream { cut: true } => stream(bench, name, &cutting, &cut_servers)?,
                Kind::Rr(connections) => exchanges(bench, name, &net, &servers, connections)?,
            }
        }
    }
    for (name, _, bar) in KINDS {
        let (of, to) = (format!("{name} cachelane"), format!("{name} linux bridge"));
        let name = format!("{name}: cachelane / linux bridge");
        bench.series.ratio(&mut bench.output, &name, (&of, &to), bar.map(Bar::AtLeast))?;
    }
    let slices = SLICES / ARMS.len();
    bench.output.notes.push(format!(
        "A TCP measurement is the sum of {slices} slices under the same connections, between which \
         the other arm had its own."
    ));
    Ok(())
}

fn stream(bench: &mut Bench<'_>, name: &str, net: &Net, servers: &Servers) -> anyhow::Result<()> {
    let target = servers.bulk.address();
    let session = BulkSession::start(&net.a().host, target, &BulkOptions::default())?;
    let mut rates = [0.0; 2];
    by_turns(bench, net, |arm, slice| {
        rates[arm] += session.measure(&servers.bulk, slice)?.rate();
        Ok(())
    })?;
    for ((who, _), sum) in ARMS.iter().zip(rates) {
        let rate = sum * ARMS.len() as f64 / SLICES as f64;
        bench.series.add(&format!("{name} {who}"), "B/s", rate);
    }
    Ok(())
}

fn exchanges(
    bench: &mut Bench<'_>,
    name: &str,
    net: &Net,
    servers: &Servers,
    connections: usize,
) -> anyhow::Result<()> {
    let session = servers.exchange(net, connections)?;
    let mut windows: [Option<ExchangeWindow>; 2] = [None, None];
    by_turns(bench, net, |arm, slice| {
        // What happened while the arms were changed belongs to neither.
        session.take_window();
        let one = check(session.measure(slice), ARMS[arm].0)?;
        match &mut windows[arm] {
            None => windows[arm] = Some(one),
            Some(sum) => {
                sum.elapsed += one.elapsed;
                sum.exchanges += one.exchanges;
                sum.latency.merge(&one.latency);
            }
        }
        Ok(())
    })?;
    for ((who, _), window) in ARMS.iter().zip(windows) {
        let window = window.context("nothing was measured")?;
        add(bench, &format!("{name} {who}"), &window);
    }
    Ok(())
}

/// Measures slices of both arms, in blocks of ABBA: the threads stay where they are, and a slow
/// stretch of the machine falls on both.
fn by_turns(
    bench: &Bench<'_>,
    net: &Net,
    mut measure: impl FnMut(usize, Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let slice = bench.plan.window * ARMS.len() as u32 / SLICES as u32;
    for number in 0..SLICES {
        bench.stop.check()?;
        let arm = [0, 1, 1, 0][number % 4];
        net.set(ARMS[arm].1)?;
        std::thread::sleep(WARM);
        measure(arm, slice)?;
    }
    Ok(())
}

fn add(bench: &mut Bench<'_>, case: &str, window: &ExchangeWindow) {
    bench.series.add(case, "1/s", window.rate());
    bench.series.add(&format!("{case}, p99"), "s", window.latency.p99().as_secs_f64());
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
        let target: SocketAddr = self.echo.address();
        Ok(RrSession::start(&net.a().host, target, &options)?)
    }
}
