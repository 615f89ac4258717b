//! Memory of idle connections: the relay's process against HAProxy's, with the same number of
//! connections, each of which has carried a byte both ways.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use lab::peer::{Peer, Program, Proxy, ProxyOptions, installed};
use lab::traffic::{RrOptions, RrSession, Then};
use lab::usage::process_memory;
use lab::{Host, Process};
use trial::bench::Bar;

use super::targets::{Targets, peer_options};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};
use crate::bench::relay_process::RelayProcess;

const CASES: [&str; 2] = ["idle memory relay", "idle memory haproxy"];
const RELAY: ([u8; 4], u16) = ([127, 0, 0, 1], 910);
const HAPROXY: ([u8; 4], u16) = ([127, 0, 0, 1], 911);
const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 912);
/// How long opening all of them may take.
pub(super) const OPENING: Duration = Duration::from_secs(60);

pub(super) fn part(connections: usize) -> Part<Targets> {
    let claim = Claim::ratio("idle memory: relay / haproxy", CASES[0], CASES[1]);
    let time = Time { once: 0.2, steps: 2, windows: 0.0, more: connections as f64 * 5e-4 };
    Part::new("idle", "Memory of idle connections", time)
        .claims([claim.bar(Bar::AtMost(0.2))])
        .rounds(|_| 1)
        .stage(move |targets: &Targets, _| {
            let there = 1 + usize::from(installed(Program::Haproxy).is_some());
            let server = echo_server(&targets.host, SERVER.into())?;
            let step = |case: &&str| Step::of(*case, "B");
            let measure = Measure::new(CASES.into_iter().take(there), step, move |case, _| {
                let _server = &server;
                let relayed = *case == CASES[0];
                Ok(vec![memory(targets, relayed, connections)? as f64])
            });
            Ok(measure
                .note(format!("Idle memory: PSS of the process with {connections} connections.")))
        })
}

/// The memory of a relay, or of HAProxy, that is full of idle connections.
fn memory(targets: &Targets, relayed: bool, connections: usize) -> anyhow::Result<u64> {
    let Targets { lab, host, .. } = targets;
    let options = RrOptions { request: 1, connect_limit: OPENING, ..RrOptions::default() };
    let options = RrOptions { connections, then: Then::Rest, ..options };
    let open = |to| RrSession::start(host, to, &options);
    if relayed {
        // It would keep some of its open files for pipes.
        let limit = format!("--max-connections {connections}");
        let relay = RelayProcess::start(lab, host, RELAY.into(), SERVER.into(), &limit)?;
        let _session = open(relay.addr)?;
        return Ok(process_memory(relay.pid())?);
    }
    let options = ProxyOptions { connections, ..peer_options(HAPROXY.into(), SERVER.into()) };
    let haproxy = Peer::proxy(lab, host, Proxy::Haproxy { splice: false }, &options)?;
    let _session = open(haproxy.listen())?;
    Ok(haproxy.memory()?)
}

/// The far end is a process of its own: both ends in this one would need twice the open files.
pub(super) fn echo_server(host: &Host, addr: SocketAddr) -> anyhow::Result<Process> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let server = host.command(program).args(["bench", "echo-server", &addr.to_string()]).spawn()?;
    let listens = || host.run(|| std::net::TcpStream::connect(addr).is_ok());
    for _ in 0..1000 {
        if listens()? {
            return Ok(server);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("the echo server on {addr} did not start")
}
