//! Request and response, on connections that stay and on connections that come and go.

use std::net::SocketAddr;
use std::time::Duration;

use lab::Host;
use lab::traffic::{RrOptions, RrSession, Then};
use trial::bench::Bar;

use super::targets::{EXCHANGE, LOGGED, Target, Targets};
use crate::bench::claim::Claim;
use crate::bench::exchanges::check;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// Before each measurement.
pub(super) const WARM: Duration = Duration::from_millis(200);
/// Connections with a request in flight.
pub(crate) const CONNECTIONS: usize = 32;
const TIME: Time = Time { once: 0.0, steps: 6, windows: 1.0, more: 0.25 };

/// What the relay is compared with.
const PEERS: [&str; 3] = ["haproxy", "nginx", "direct"];

/// Latency and rate of 256-byte exchanges.
pub(super) fn rr_part() -> Part<Targets> {
    let claims = PEERS.map(|peer| {
        let bar = (peer == "haproxy").then_some(Bar::AtMost(0.8));
        [compare("rr p99", "rr p99", peer).bar(bar), compare("rr rate", "rr rate", peer)]
    });
    let logged = logged("rr p99").bar(Bar::AtMost(0.8));
    Part::new("rr", "Request and response of 256 bytes", TIME)
        .claims(claims.into_iter().flatten().chain([logged]))
        .stage(|targets: &Targets, _| {
            let figures = [("p50", "s"), ("p99", "s"), ("p99.9", "s"), ("rate", "1/s")];
            let step = |Target { name, .. }: &Target| Step {
                name: format!("request/response {name}"),
                gives: figures.map(|(what, unit)| (format!("rr {what} {name}"), unit)).into(),
            };
            Ok(Measure::new(targets.exchange.clone(), step, |to, now| {
                let session = requests(&targets.host, to.addr)?;
                session.measure(WARM);
                let window = check(session.measure(now.window), to.name)?;
                let latency = &window.latency;
                let latencies = [latency.p50(), latency.p99(), latency.p999()];
                let latencies = latencies.iter().map(Duration::as_secs_f64);
                Ok(latencies.chain([window.rate()]).collect())
            }))
        })
}

/// Connections a second, each with one exchange.
pub(super) fn connect_part() -> Part<Targets> {
    let claims = PEERS.map(|peer| {
        let bar = (peer == "haproxy").then_some(Bar::AtLeast(1.0));
        compare("connections per second", "connect", peer).bar(bar)
    });
    let of_log = Claim::ratio(
        "connections per second: log on / off",
        format!("connect {}", LOGGED[0]),
        "connect relay",
    );
    let logged = logged("connect").bar(Bar::AtLeast(1.0));
    let claims = claims.into_iter().chain([of_log, logged]);
    Part::new("connect", "Short connections", TIME).claims(claims).stage(|targets: &Targets, _| {
        let step = |target: &Target| Step::of(format!("connect {}", target.name), "1/s");
        Ok(Measure::new(targets.exchange.clone(), step, |to, now| {
            let session = exchanges(&targets.host, to.addr, Then::Reopen)?;
            session.measure(WARM);
            Ok(vec![check(session.measure(now.window), to.name)?.rate()])
        }))
    })
}

/// The relay's case against a peer's, under the name that the claim has.
pub(super) fn compare(claim: &str, case: &str, peer: &str) -> Claim {
    let name = format!("{claim}: relay / {peer}");
    Claim::ratio(name, format!("{case} relay"), format!("{case} {peer}"))
}

/// The relay's case against HAProxy's, where both write an access log.
fn logged(case: &str) -> Claim {
    let [relay, haproxy] = LOGGED.map(|name| format!("{case} {name}"));
    Claim::ratio(format!("{case}, both with a log: relay / haproxy"), relay, haproxy)
}

/// Requests and responses to this address, on all connections.
pub(crate) fn requests(host: &Host, to: SocketAddr) -> lab::Result<RrSession> {
    exchanges(host, to, Then::Again)
}

pub(super) fn exchanges(host: &Host, to: SocketAddr, then: Then) -> lab::Result<RrSession> {
    let options =
        RrOptions { connections: CONNECTIONS, request: EXCHANGE, then, ..RrOptions::default() };
    RrSession::start(host, to, &options)
}
