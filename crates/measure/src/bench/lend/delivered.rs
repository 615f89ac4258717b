//! Packets that reach workers: lent to borrowers, or copied into an AF_PACKET ring for each
//! (`peers/af_packet.c`), from the same sender. And borrowers in other languages.
//!
//! Workers read every byte. Of what is lent, that counts which was returned.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use lab::usage::CpuUse;
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::clients::{Client, clients};
use super::wire::{Delivered, Lending, Pace, Traffic, WORKERS, Wire, build_rings};

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Lend,
    /// With copies, in an area of each borrower's own.
    Private,
    AfPacket,
}

impl Who {
    pub(super) fn name(self) -> &'static str {
        match self {
            Who::Lend => "lend",
            Who::Private => "lend --private",
            Who::AfPacket => "af_packet",
        }
    }
}

/// Measurements of a round, if nothing is absent.
pub(super) const STEPS: usize = 6 + 3;

/// Small packets, as many as can be.
const fn flood(pace: Pace) -> Traffic {
    Traffic { size: 60, pace }
}

/// All, and each language, by turns.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let Some(receivers) = Receivers::build(bench)? else { return Ok(()) };
    let clients = clients(&bench.builder, receivers.wire.dir());
    let paces = [Pace::Driver, Pace::Socket];
    let both = |who| paces.map(|pace| Case::Workers(who, pace));
    let who = receivers.who().into_iter().chain([Who::Private]);
    let mut order: Vec<Case<'_>> = who.flat_map(both).collect();
    for (name, client) in &clients {
        match client {
            Ok(client) => order.push(Case::Alone(name, client)),
            Err(reason) => bench.output.absent.push(format!("borrower in {name}: {reason}")),
        }
    }
    for case in &order {
        bench.series.expect(&case.name(), "pps");
    }
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for case in &order {
            bench.step(&case.name())?;
            let window = bench.plan.window;
            let delivered = match case {
                Case::Workers(who, pace) => receivers.measure(*who, flood(*pace), window),
                Case::Alone(_, client) => receivers.alone(client, window),
            };
            let delivered = delivered.with_context(|| case.name())?;
            bench.series.add(&case.name(), "pps", delivered.pps);
        }
    }
    for (whose, pace, bar) in [
        ([Who::Lend, Who::AfPacket], Pace::Driver, Some(Bar::AtLeast(2.0))),
        ([Who::Lend, Who::AfPacket], Pace::Socket, None),
        ([Who::Private, Who::Lend], Pace::Driver, None),
        ([Who::Private, Who::AfPacket], Pace::Driver, None),
        ([Who::Private, Who::Lend], Pace::Socket, None),
        ([Who::Private, Who::AfPacket], Pace::Socket, None),
    ] {
        let from = if pace == Pace::Socket { ", from a socket" } else { "" };
        let name = format!("delivered pps{from}: {} / {}", whose[0].name(), whose[1].name());
        let names = whose.map(|who| Case::Workers(who, pace).name());
        let cases = (names[0].as_str(), names[1].as_str());
        bench.series.ratio(&mut bench.output, &name, cases, bar)?;
    }
    for language in ["c", "python"] {
        let name = format!("delivered pps: {language} / rust");
        let cases = (format!("delivered, {language}"), "delivered, rust");
        bench.series.ratio(&mut bench.output, &name, (&cases.0, cases.1), None)?;
    }
    Ok(())
}

/// What is measured.
#[derive(Clone, Copy)]
enum Case<'a> {
    /// Four workers.
    Workers(Who, Pace),
    /// One borrower in a language.
    Alone(&'a str, &'a Client),
}

impl Case<'_> {
    fn name(&self) -> String {
        match self {
            Case::Workers(who, pace) => {
                let from = if *pace == Pace::Socket { ", from a socket" } else { "" };
                format!("delivered, {WORKERS} workers, {}{from}", who.name())
            }
            Case::Alone(language, _) => format!("delivered, {language}"),
        }
    }
}

/// A wire, and the ways of receiving at its end.
pub(super) struct Receivers {
    wire: Wire,
    /// The program of the AF_PACKET rings, if there is one.
    rings: Option<PathBuf>,
}

impl Receivers {
    /// Builds them; none where that needs root. What is absent is said.
    pub(super) fn build(bench: &mut Bench<'_>) -> anyhow::Result<Option<Receivers>> {
        if !rustix::process::geteuid().is_root() {
            let reason = "delivered packets: AF_XDP on test hosts needs root".to_owned();
            if !bench.output.absent.contains(&reason) {
                bench.output.absent.push(reason);
            }
            return Ok(None);
        }
        let wire = Wire::build(bench.places.near())?;
        let rings = build_rings(&bench.builder);
        if let Err(reason) = &rings {
            let said = format!("af_packet: {reason}");
            if !bench.output.absent.contains(&said) {
                bench.output.absent.push(said);
            }
        }
        Ok(Some(Receivers { wire, rings: rings.ok() }))
    }

    /// Who is there.
    pub(super) fn who(&self) -> Vec<Who> {
        let rings = self.rings.is_some().then_some(Who::AfPacket);
        [Who::Lend].into_iter().chain(rings).collect()
    }

    /// What reaches the workers.
    pub(super) fn measure(
        &self,
        who: Who,
        traffic: Traffic,
        window: Duration,
    ) -> anyhow::Result<Delivered> {
        match who {
            Who::AfPacket => {
                let binary: &Path = self.rings.as_deref().context("no AF_PACKET rings")?;
                let mut peer = self.wire.rings(binary).map_err(anyhow::Error::msg)?;
                let sender = self.wire.send(traffic)?;
                let measured = costs(|| Ok(1.0 / peer.run("rx", WORKERS, window)?), window);
                sender.end()?;
                measured
            }
            Who::Lend | Who::Private => {
                let command = |wire: &Wire, lending: &_| wire.workers(lending, WORKERS);
                let more = if who == Who::Private { " --private" } else { "" };
                self.lent(more, command, WORKERS, traffic, window)
            }
        }
    }

    /// What reaches one borrower of this kind.
    fn alone(&self, client: &Client, window: Duration) -> anyhow::Result<Delivered> {
        let command = |wire: &Wire, lending: &Lending| match client {
            Client::Rust => wire.workers(lending, 1),
            Client::Program(args) => {
                let mut command = Command::new(&args[0]);
                command.args(&args[1..]).arg(&lending.socket);
                command
            }
        };
        self.lent("", command, 1, flood(Pace::Driver), window)
    }

    /// What reaches borrowers of a lender with these options.
    fn lent(
        &self,
        more: &str,
        command: impl FnOnce(&Wire, &Lending) -> Command,
        borrowers: usize,
        traffic: Traffic,
        window: Duration,
    ) -> anyhow::Result<Delivered> {
        let mut lending = self.wire.lend(more)?;
        let there = self.wire.borrow(command(&self.wire, &lending))?;
        lending.await_borrowers(borrowers)?;
        let sender = self.wire.send(traffic)?;
        let measured = costs(|| lending.returned_in(window), window);
        sender.end()?;
        drop(there);
        lending.end()?;
        measured
    }
}

/// Measures packets a second, and the machine's CPU time for each.
fn costs(
    measure: impl FnOnce() -> anyhow::Result<f64>,
    window: Duration,
) -> anyhow::Result<Delivered> {
    let before = lab::usage::SystemCpu::now()?;
    let pps = measure()?;
    let CpuUse { busy, elapsed, .. } = lab::usage::SystemCpu::now()?.since(&before);
    let busy = busy.as_secs_f64() / elapsed.as_secs_f64().max(window.as_secs_f64());
    Ok(Delivered { pps, cpu: busy / pps })
}
