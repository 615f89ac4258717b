//! The relay (on) in the place of the proxy that one would have otherwise (off).

use std::net::SocketAddr;

use lab::peer::{Peer, Proxy, installed};
use lab::traffic::{BulkOptions, BulkSession};

use super::Ready;
use super::stage::Stage;
use crate::bench::Absent;
use crate::bench::exchanges::unbroken;
use crate::bench::relay::bulk::carried;
use crate::bench::relay::exchange::{CONNECTIONS, requests};
use crate::bench::relay::targets::EXCHANGE;
use crate::bench::relay_process::RelayProcess;

/// The proxies, the likeliest first: the first that is installed is off.
const PROXIES: [(&str, Proxy); 2] = [
    ("HAProxy with splicing", Proxy::Haproxy { splice: true }),
    ("nginx with a buffer of 256 KiB", Proxy::Nginx { buffer: Some(256 << 10) }),
];

/// How much one bulk stream carries for the CPU time of the whole machine.
pub(super) fn set_up_bulk(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    let ways = Ways::start(stage, stage.bulk.address())?;
    let arms = format!(
        "bytes of one bulk stream for a second of CPU time of the whole machine, its sender and \
         receiver included; off: through {}; on: through cachelane relay.",
        ways.name
    );
    // The old stream is reset first, so that its queues are empty.
    let start =
        move |on| Ok(BulkSession::start(&stage.host, ways.choose(on), &BulkOptions::default())?);
    Ok(Ready::anew(arms, start, |session, window| {
        let [_, per_cpu] = carried(session, &stage.bulk, window)?;
        Ok(per_cpu)
    }))
}

/// How long the slowest in a hundred of small exchanges take.
pub(super) fn set_up_exchanges(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    let ways = Ways::start(stage, stage.echo.address())?;
    let arms = format!(
        "{EXCHANGE}-byte requests and responses on {CONNECTIONS} connections; off: through {}; \
         on: through cachelane relay.",
        ways.name
    );
    let start = move |on| {
        let name = if on { "the relay" } else { "the proxy" };
        Ok((name, requests(&stage.host, ways.choose(on))?))
    };
    Ok(Ready::anew(arms, start, |(name, session), window| {
        let seen = unbroken(session.measure(window), name)?;
        if seen.exchanges == 0 {
            // On a host that is too busy to finish one, all have waited for that long at least.
            return Ok(seen.longest_pending.max(window).as_secs_f64());
        }
        Ok(seen.latency.p99().as_secs_f64())
    }))
}

/// The two ways to one server.
struct Ways {
    /// The proxy's, for people.
    name: &'static str,
    off: Peer,
    on: RelayProcess,
}

impl Ways {
    fn start(stage: &Stage, to: SocketAddr) -> anyhow::Result<Ways> {
        let proxy = PROXIES.into_iter().find(|(_, proxy)| installed(proxy.program()).is_some());
        let none =
            "neither HAProxy nor nginx is installed to compare with (Debian package haproxy)";
        let (name, proxy) = proxy.ok_or_else(|| Absent(none.into()))?;
        let on = stage.relay(to, "--engine auto")?;
        Ok(Ways { name, off: stage.proxy(proxy, to)?, on })
    }

    fn choose(&self, on: bool) -> SocketAddr {
        if on { self.on.addr } else { self.off.listen() }
    }
}
