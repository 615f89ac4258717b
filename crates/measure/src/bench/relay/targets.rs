//! What clients connect to: the server itself, relays with each engine, and the peers. All of
//! them run from the start, and cost nothing while they idle.

use std::net::SocketAddr;

use lab::peer::{Peer, Program, Proxy, ProxyOptions, installed};
use lab::traffic::{BulkOptions, BulkServer, EchoOptions, EchoServer};
use lab::{Host, Lab};

use crate::bench::found::Found;
use crate::bench::peer::{self, Builder};
use crate::bench::relay_process::RelayProcess;

/// Bytes of a request and of its response.
pub(crate) const EXCHANGE: usize = 256;

/// The least program that splices, and what its pipes hold, in bytes.
pub(super) const LEAST: &str = "least-splice";
const LEAST_PIPE: usize = 256 << 10;

/// One thing to connect to, for one sort of traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) addr: SocketAddr,
}

/// The test host and everything in it.
pub struct Targets {
    pub(super) bulk_server: BulkServer,
    /// Targets of bulk streams.
    pub(super) bulk: Vec<Target>,
    /// Targets of exchanges: the relay as users get it, not each engine, and the peers.
    pub(super) exchange: Vec<Target>,
    _there: (EchoServer, Vec<RelayProcess>, Vec<Peer>, Option<LeastSplice>),
    pub(super) host: Host,
    pub(super) lab: Lab,
}

/// The relay as users get it, and HAProxy, with an access log in a file.
pub(super) const LOGGED: [&str; 2] = ["relay-log", "haproxy-log"];

/// The relay's own cases: name, engine.
const RELAYS: [(&str, &str); 4] = [
    ("relay", "auto"),
    ("relay-copy", "copy"),
    ("relay-splice", "splice"),
    ("relay-sockmap", "sockmap"),
];

/// The peers: name, what they are.
const PEERS: [(&str, Proxy); 4] = [
    ("haproxy", Proxy::Haproxy { splice: false }),
    ("haproxy-splice", Proxy::Haproxy { splice: true }),
    ("nginx", Proxy::Nginx { buffer: None }),
    ("nginx-256k", Proxy::Nginx { buffer: Some(256 << 10) }),
];

impl Targets {
    pub(super) fn start(lab: Lab, host: Host, found: &mut Found) -> anyhow::Result<Targets> {
        let mut port = 1000;
        let mut next = || {
            port += 1;
            SocketAddr::from(([127, 0, 0, 1], port))
        };
        let bulk_server = BulkServer::start(&host, next(), &BulkOptions::default())?;
        let echo = EchoOptions { request: EXCHANGE, ..EchoOptions::default() };
        let echo_server = EchoServer::start(&host, next(), echo)?;
        let mut bulk = vec![Target { name: "direct", addr: bulk_server.address() }];
        let mut exchange = vec![Target { name: "direct", addr: echo_server.address() }];
        let (mut relays, mut peers) = (Vec::new(), Vec::new());
        let mut lists =
            [(bulk_server.address(), &mut bulk), (echo_server.address(), &mut exchange)];
        for (name, engine) in RELAYS {
            let more = format!("--engine {engine}");
            for (to, list) in &mut lists {
                let relay = RelayProcess::start(&lab, &host, next(), *to, &more)?;
                list.push(Target { name, addr: relay.addr });
                relays.push(relay);
            }
        }
        let log = lab.dir().join("access.log");
        let more = format!("--access-log {}", log.display());
        let logged = RelayProcess::start(&lab, &host, next(), echo_server.address(), &more)?;
        lists[1].1.push(Target { name: LOGGED[0], addr: logged.addr });
        relays.push(logged);
        if installed(Program::Haproxy).is_some() {
            let options = peer_options(next(), echo_server.address());
            let options = ProxyOptions { log: true, ..options };
            lists[1].1.push(Target { name: LOGGED[1], addr: options.listen });
            peers.push(Peer::proxy(&lab, &host, Proxy::Haproxy { splice: false }, &options)?);
        }
        for (name, proxy) in PEERS {
            if installed(proxy.program()).is_none() {
                let program = proxy.program().name();
                found.absent(name, format!("{program} is not installed (make peers)"));
                continue;
            }
            for (to, list) in &mut lists {
                let addr = next();
                peers.push(Peer::proxy(&lab, &host, proxy, &peer_options(addr, *to))?);
                list.push(Target { name, addr });
            }
        }
        let least = match least_splice(&host, next(), bulk_server.address()) {
            Ok((program, addr)) => {
                bulk.push(Target { name: LEAST, addr });
                Some(program)
            }
            Err(reason) => {
                found.absent(LEAST, reason);
                None
            }
        };
        exchange.retain(|target| {
            ["direct", "relay", "haproxy", "nginx"].contains(&target.name)
                || LOGGED.contains(&target.name)
        });
        let there = (echo_server, relays, peers, least);
        Ok(Targets { bulk_server, bulk, exchange, _there: there, host, lab })
    }
}

/// The least program that splices, and the folder that it was built in.
type LeastSplice = (Builder, peer::Peer);

/// Starts it. The error is why it is absent.
fn least_splice(
    host: &Host,
    addr: SocketAddr,
    to: SocketAddr,
) -> Result<(LeastSplice, SocketAddr), String> {
    let builder = Builder::new().map_err(|error| error.to_string())?;
    let binary = builder.build(&peer::LEAST_SPLICE)?;
    let args = [addr, to].map(|addr| [addr.ip().to_string(), addr.port().to_string()]);
    let args = [args.concat(), vec![LEAST_PIPE.to_string()]].concat();
    let started = host.run(|| peer::Peer::start(&binary, &args)).map_err(|e| e.to_string())?;
    Ok(((builder, started?), addr))
}

/// As many threads as CPUs, which is what both programs' documentation advises, and they choose.
pub(crate) fn peer_options(listen: SocketAddr, to: SocketAddr) -> ProxyOptions {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    ProxyOptions { threads, ..ProxyOptions::new(listen, to) }
}
