//! Packets that reach workers: lent to borrowers, or copied into an AF_PACKET ring for each
//! (`peers/af_packet.c`), from the same sender. And borrowers in other languages.
//!
//! Workers read every byte. Of what is lent, that counts which was returned.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use lab::usage::CpuUse;
use trial::bench::Bar;

use super::Ground;
use super::clients::{Client, clients};
use super::wire::{Delivered, Pace, Traffic, WORKERS, Wire};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time, ensure_root};
use crate::bench::found::Found;
use crate::bench::peer::{AF_PACKET, Peer, XDP_PLAIN};

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Lend,
    /// With copies, in an area of each borrower's own.
    Private,
    AfPacket,
    /// A plain AF_XDP loop, alone (`frames/peers/xdp_plain.c`): the least that reading by such a
    /// socket takes.
    Plain,
}

impl Who {
    pub(super) fn name(self) -> &'static str {
        match self {
            Who::Lend => "lend",
            Who::Private => "lend --private",
            Who::AfPacket => "af_packet",
            Who::Plain => "plain af_xdp",
        }
    }
}

/// Small packets, as many as can be.
pub(super) const fn flood(pace: Pace) -> Traffic {
    Traffic { size: 60, pace }
}

pub(super) fn part() -> Part<Ground> {
    let workers = |(whose, pace, bar): ([Who; 2], Pace, Option<Bar>)| {
        let (from, [a, b]) = (from(pace), whose.map(Who::name));
        let name = format!("delivered pps{from}: {a} / {b}");
        let [of, to] = whose.map(|who| Case::Workers(who, pace).name());
        Claim::ratio(name, of, to).bar(bar)
    };
    let claims = [
        ([Who::Lend, Who::AfPacket], Pace::Driver, Some(Bar::AtLeast(2.0))),
        ([Who::Lend, Who::AfPacket], Pace::Socket, None),
        ([Who::Private, Who::Lend], Pace::Driver, None),
        ([Who::Private, Who::AfPacket], Pace::Driver, None),
        ([Who::Private, Who::Lend], Pace::Socket, None),
        ([Who::Private, Who::AfPacket], Pace::Socket, None),
    ];
    let languages = ["c", "python"].map(|language| {
        let name = format!("delivered pps: {language} / rust");
        Claim::ratio(name, format!("delivered, {language}"), "delivered, rust")
    });
    let time = Time { once: 2.0, steps: 6 + 3, windows: 1.0, more: 1.8 };
    let about = "Packets that reach workers, against AF_PACKET rings, and borrowers in C and \
                 Python (needs root)";
    Part::new("delivered", about, time).claims(claims.map(workers)).claims(languages).stage(all)
}

/// All ways of receiving, and each language.
fn all<'a>(ground: &'a Ground, found: &mut Found) -> anyhow::Result<Measure<'a>> {
    let receivers = Receivers::build(ground, found)?;
    let both = |who| [Pace::Driver, Pace::Socket].map(|pace| Case::Workers(who, pace));
    let who = receivers.who().into_iter().chain([Who::Private]);
    let mut cases: Vec<Case> = who.flat_map(both).collect();
    for (name, client) in clients(&ground.builder, receivers.wire.lab.dir()) {
        match client {
            Ok(client) => cases.push(Case::Alone(name, client)),
            Err(reason) => {
                found.absent(&format!("borrower in {name}"), &reason);
                found.lacks(&format!("delivered, {name}"), reason);
            }
        }
    }
    let step = |case: &Case| Step::of(case.name(), "pps");
    Ok(Measure::new(cases, step, move |case, now| {
        let delivered = match case {
            Case::Workers(who, pace) => receivers.measure(*who, WORKERS, flood(*pace), now.window),
            Case::Alone(_, client) => {
                receivers.lent("", client, 1, flood(Pace::Driver), now.window)
            }
        };
        Ok(vec![delivered?.pps])
    }))
}

/// What is measured.
enum Case {
    /// Four workers.
    Workers(Who, Pace),
    /// One borrower in a language.
    Alone(&'static str, Client),
}

impl Case {
    fn name(&self) -> String {
        match self {
            Case::Workers(who, pace) => {
                format!("delivered, {WORKERS} workers, {}{}", who.name(), from(*pace))
            }
            Case::Alone(language, _) => format!("delivered, {language}"),
        }
    }
}

fn from(pace: Pace) -> &'static str {
    if pace == Pace::Socket { ", from a socket" } else { "" }
}

/// A wire, and the ways of receiving at its end.
pub(super) struct Receivers {
    pub(super) wire: Wire,
    /// The program of the AF_PACKET rings, if there is one.
    rings: Option<PathBuf>,
    /// The program with the plain loop, if there is one.
    plain: Option<PathBuf>,
}

impl Receivers {
    /// Builds them, where this user may.
    pub(super) fn build(ground: &Ground, found: &mut Found) -> anyhow::Result<Receivers> {
        ensure_root()?;
        let wire = Wire::build(ground.places.two())?;
        let mut build = |who: Who, program| {
            let built = ground.builder.build(program);
            built.map_err(|reason| found.absent(who.name(), reason)).ok()
        };
        let rings = build(Who::AfPacket, &AF_PACKET);
        let plain = build(Who::Plain, &XDP_PLAIN);
        Ok(Receivers { wire, rings, plain })
    }

    /// Who is there, and has workers.
    pub(super) fn who(&self) -> Vec<Who> {
        let rings = self.rings.is_some().then_some(Who::AfPacket);
        [Who::Lend].into_iter().chain(rings).collect()
    }

    /// The plain loop, if it is there.
    pub(super) fn plain(&self) -> Option<Who> {
        self.plain.is_some().then_some(Who::Plain)
    }

    /// The program of the AF_PACKET rings, for so many workers.
    pub(super) fn peer(&self, workers: usize) -> anyhow::Result<Peer> {
        let binary: &Path = self.rings.as_deref().context("no AF_PACKET rings")?;
        self.wire.rings(binary, workers).map_err(anyhow::Error::msg)
    }

    /// What reaches the workers.
    pub(super) fn measure(
        &self,
        who: Who,
        workers: usize,
        traffic: Traffic,
        window: Duration,
    ) -> anyhow::Result<Delivered> {
        match who {
            Who::AfPacket => {
                let mut peer = self.peer(workers)?;
                let sender = self.wire.send(traffic)?;
                let measured = costs(|| Ok(1.0 / peer.run("rx", workers, window)?), window);
                sender.end()?;
                measured
            }
            Who::Plain => {
                let binary = self.plain.as_deref().context("no plain loop")?;
                let mut peer = self.wire.plain(binary).map_err(anyhow::Error::msg)?;
                let sender = self.wire.send(traffic)?;
                let measured = costs(|| Ok(1.0 / peer.run("nap", 1, window)?), window);
                sender.end()?;
                measured
            }
            Who::Lend | Who::Private => {
                let more = if who == Who::Private { " --private" } else { "" };
                self.lent(more, &Client::Rust, workers, traffic, window)
            }
        }
    }

    /// What reaches borrowers of a lender with these options.
    fn lent(
        &self,
        more: &str,
        client: &Client,
        borrowers: usize,
        traffic: Traffic,
        window: Duration,
    ) -> anyhow::Result<Delivered> {
        let mut lending = self.wire.lend(borrowers, more)?;
        let there = self.wire.borrow(client.command(&lending.socket, borrowers)?)?;
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
pub(super) fn costs(
    measure: impl FnOnce() -> anyhow::Result<f64>,
    window: Duration,
) -> anyhow::Result<Delivered> {
    let before = lab::usage::SystemCpu::now()?;
    let pps = measure()?;
    let CpuUse { busy, elapsed, .. } = lab::usage::SystemCpu::now()?.since(&before);
    let busy = busy.as_secs_f64() / elapsed.as_secs_f64().max(window.as_secs_f64());
    Ok(Delivered { pps, cpu: busy / pps })
}
