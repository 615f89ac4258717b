//! The relay (on) in the place of the proxy that one would have otherwise (off).

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use lab::peer::{Peer, Proxy, installed};
use lab::traffic::{BulkOptions, BulkSession, RrOptions, RrSession};
use trial::Better;

use super::stage::Stage;
use super::{Entry, Mechanism, SetUp};
use crate::bench::exchanges::check;
use crate::bench::relay::bulk::carried;
use crate::bench::relay::exchange::CONNECTIONS;
use crate::bench::relay::targets::EXCHANGE;
use crate::bench::relay_process::RelayProcess;

/// How much one bulk stream carries for the CPU time of the whole machine.
pub(super) const PER_CPU: Entry = Entry {
    mechanism: "relay",
    measure: "per CPU-second",
    unit: "B",
    better: Better::Higher,
    set_up: set_up_bulk,
};

/// How long the slowest in a hundred of small exchanges take.
pub(super) const LATENCY: Entry = Entry {
    mechanism: "relay",
    measure: "p99 latency",
    unit: "s",
    better: Better::Lower,
    set_up: set_up_exchanges,
};

/// The proxies, the likeliest first: the first that is installed is off.
const PROXIES: [(&str, Proxy); 2] = [
    ("HAProxy with splicing", Proxy::Haproxy { splice: true }),
    ("nginx with a buffer of 256 KiB", Proxy::Nginx { buffer: Some(256 << 10) }),
];

fn set_up_bulk(stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    let Some((name, proxy)) = proxy() else { return Ok(no_proxy()) };
    let ways = Ways::start(stage, proxy, stage.bulk_server().address())?;
    let arms = format!(
        "bytes of one bulk stream for a second of CPU time of the whole machine, its sender and \
         receiver included; off: through {name}; on: through cachelane relay."
    );
    let mechanism = Box::new(Bulk { stage, ways, session: None });
    Ok(SetUp::Ready { mechanism, arms })
}

fn set_up_exchanges(stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    let Some((name, proxy)) = proxy() else { return Ok(no_proxy()) };
    let ways = Ways::start(stage, proxy, stage.echo_server())?;
    let arms = format!(
        "{EXCHANGE}-byte requests and responses on {CONNECTIONS} connections; off: through \
         {name}; on: through cachelane relay."
    );
    let mechanism = Box::new(Exchanges { stage, ways, name: "the proxy", session: None });
    Ok(SetUp::Ready { mechanism, arms })
}

fn proxy() -> Option<(&'static str, Proxy)> {
    PROXIES.into_iter().find(|(_, proxy)| installed(proxy.program()).is_some())
}

fn no_proxy() -> SetUp<'static> {
    let reason = "neither HAProxy nor nginx is installed to compare with (Debian package haproxy)";
    SetUp::LeftOut(reason.into())
}

/// The two ways to one server.
struct Ways {
    off: Peer,
    on: RelayProcess,
}

impl Ways {
    fn start(stage: &Stage, proxy: Proxy, to: SocketAddr) -> anyhow::Result<Ways> {
        let on = stage.relay(to, &["--engine", "auto"])?;
        Ok(Ways { off: stage.proxy(proxy, to)?, on })
    }

    fn choose(&self, on: bool) -> SocketAddr {
        if on { self.on.addr() } else { self.off.listen() }
    }
}

struct Bulk<'a> {
    stage: &'a Stage,
    ways: Ways,
    session: Option<BulkSession>,
}

impl Mechanism for Bulk<'_> {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        // The old stream is reset first, so that its queues are empty.
        self.session = None;
        let (host, options) = (self.stage.host(), BulkOptions::default());
        self.session = Some(BulkSession::start(host, self.ways.choose(on), &options)?);
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let session = self.session.as_ref().context("no stream")?;
        Ok(carried(session, self.stage.bulk_server(), window)?.per_cpu)
    }
}

struct Exchanges<'a> {
    stage: &'a Stage,
    ways: Ways,
    /// The way of the present window, for messages.
    name: &'static str,
    session: Option<RrSession>,
}

impl Mechanism for Exchanges<'_> {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        self.session = None;
        let options =
            RrOptions { connections: CONNECTIONS, request: EXCHANGE, ..RrOptions::default() };
        self.name = if on { "the relay" } else { "the proxy" };
        let target = self.ways.choose(on);
        self.session = Some(RrSession::start(self.stage.host(), target, &options)?);
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let session = self.session.as_ref().context("no connections")?;
        let seen = session.measure(window);
        if seen.exchanges == 0 && seen.errors == 0 {
            // On a host that is too busy to finish one, all have waited for that long at least.
            return Ok(seen.longest_pending.max(window).as_secs_f64());
        }
        Ok(check(seen, self.name)?.latency.p99().as_secs_f64())
    }
}
