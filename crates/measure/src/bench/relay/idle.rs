//! Memory of idle connections: the relay's process against HAProxy's, with the same number of
//! connections, each of which has carried a byte both ways.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use lab::Process;
use lab::peer::{Peer, Program, Proxy, ProxyOptions};
use lab::traffic::IdleSession;
use lab::usage::process_memory;
use trial::bench::Bar;

use super::Bench;
use super::targets::peer_options;
use crate::bench::relay_process::RelayProcess;

const RELAY: ([u8; 4], u16) = ([127, 0, 0, 1], 910);
const HAPROXY: ([u8; 4], u16) = ([127, 0, 0, 1], 911);
const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 912);
/// How long opening all of them may take.
const OPENING: Duration = Duration::from_secs(60);

/// One relay and one HAProxy, full of idle connections.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let count = bench.plan.idle;
    let to = SocketAddr::from(SERVER);
    let _server = echo_server(bench, to)?;
    bench.step("idle connections, relay")?;
    let (lab, host) = (&bench.targets.lab, &bench.targets.host);
    let relay = RelayProcess::start(lab, host, RELAY.into(), to, &[])?;
    let session = IdleSession::open(host, relay.addr(), count, OPENING)?;
    let memory = process_memory(relay.pid())?;
    drop(session);
    bench.series.add("idle memory relay", "B", memory.pss as f64);
    bench.step("idle connections, haproxy")?;
    if bench.targets.has(Program::Haproxy) {
        let (lab, host) = (&bench.targets.lab, &bench.targets.host);
        let options = ProxyOptions { connections: count, ..peer_options(HAPROXY.into(), to) };
        let haproxy = Peer::proxy(lab, host, Proxy::Haproxy { splice: false }, &options)?;
        let session = IdleSession::open(host, haproxy.listen(), count, OPENING)?;
        let memory = haproxy.memory()?;
        drop(session);
        bench.series.add("idle memory haproxy", "B", memory.pss as f64);
    }
    let name = "idle memory: relay / haproxy";
    let cases = ("idle memory relay", "idle memory haproxy");
    bench.series.ratio(&mut bench.output, name, cases, Some(Bar::AtMost(1.0)))?;
    bench.output.notes.push(format!("Idle memory: PSS of the process with {count} connections."));
    Ok(())
}

/// The far end is a process of its own: both ends in this one would need twice the open files.
fn echo_server(bench: &Bench<'_>, addr: SocketAddr) -> anyhow::Result<Process> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let host = &bench.targets.host;
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
