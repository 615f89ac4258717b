//! How many requests are answered as there are more and more connections: the relay against HAProxy.

use lab::peer::{Peer, Program, Proxy, ProxyOptions, installed};
use lab::traffic::{RrOptions, RrSession};
use trial::Better;

use super::exchange::WARM;
use super::idle::{OPENING, echo_server};
use super::targets::{EXCHANGE, Targets, peer_options};
use crate::bench::exchanges::check;
use crate::bench::experiment::{Measure, Part, Step, Time};
use crate::bench::growth::Growth;
use crate::bench::relay_process::RelayProcess;

const RELAY: ([u8; 4], u16) = ([127, 0, 0, 1], 920);
const HAPROXY: ([u8; 4], u16) = ([127, 0, 0, 1], 921);
const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 922);

/// Up to so many connections, which is what the idle part has: a proxy needs two open files for each.
pub(super) fn part(most: usize) -> Part<Targets> {
    let growth = growth(most);
    let steps = growth.cases().len();
    let time = Time { once: 0.5, steps, windows: 1.0, more: 1.0 };
    Part::new("growth", "Requests and responses, as there are more connections", time)
        .growth(&growth)
        .rounds(|rounds| rounds.min(6))
        .stage(move |targets: &Targets, _| {
            let Targets { lab, host, .. } = targets;
            let server = echo_server(host, SERVER.into())?;
            let limit = format!("--max-connections {most}");
            let relay = RelayProcess::start(lab, host, RELAY.into(), SERVER.into(), &limit)?;
            let start = |_| {
                let options = peer_options(HAPROXY.into(), SERVER.into());
                let options = ProxyOptions { connections: most, ..options };
                Peer::proxy(lab, host, Proxy::Haproxy { splice: false }, &options)
            };
            // Where it is not installed, the ground has said so.
            let haproxy = installed(Program::Haproxy).map(start).transpose()?;
            let addr = |arm: &str| match (arm, &haproxy) {
                ("relay", _) => Some(relay.addr),
                (_, haproxy) => haproxy.as_ref().map(Peer::listen),
            };
            let cases = growth.cases().into_iter().filter_map(|(arm, connections)| {
                Some((addr(arm)?, connections, growth.case(arm, connections)))
            });
            let cases: Vec<_> = cases.collect();
            let step = |(.., case): &(_, usize, String)| Step::of(case.clone(), "1/s");
            let there = (server, relay, haproxy);
            Ok(Measure::new(cases, step, move |(addr, connections, case), now| {
                let _there = &there;
                let options = RrOptions {
                    connections: *connections,
                    request: EXCHANGE,
                    connect_limit: OPENING,
                    ..RrOptions::default()
                };
                let session = RrSession::start(host, *addr, &options)?;
                session.measure(WARM);
                Ok(vec![check(session.measure(now.window), case)?.rate()])
            }))
        })
}

fn growth(most: usize) -> Growth {
    let counts = [10, 100, 1000].into_iter().filter(|count| *count < most).chain([most]);
    Growth {
        figure: "requests a second",
        along: "connections",
        arms: vec!["relay", "haproxy"],
        counts: counts.collect(),
        better: Better::Higher,
    }
}
