//! Request and response, on connections that stay and on connections that come and go.

use std::time::Duration;

use lab::traffic::{RrOptions, RrSession, Then};
use trial::bench::Bar;

use super::targets::{EXCHANGE, Target, Targets};
use crate::bench::claim::Claim;
use crate::bench::exchanges::check;
use crate::bench::experiment::{Measure, Now, Part, Step, Time};

/// Before each measurement.
const WARM: Duration = Duration::from_millis(200);
/// Connections with a request in flight.
pub(crate) const CONNECTIONS: usize = 32;
const TIME: Time = Time { once: 0.0, steps: 4, windows: 1.0, more: 0.25 };

/// What the relay is compared with.
const PEERS: [&str; 3] = ["haproxy", "nginx", "direct"];

/// Latency and rate of 256-byte exchanges.
pub(super) fn rr_part() -> Part<Targets> {
    let claims = PEERS.map(|peer| {
        let bar = (peer == "haproxy").then_some(Bar::AtMost(1.0));
        [compare("rr p99", "rr p99", peer).bar(bar), compare("rr rate", "rr rate", peer)]
    });
    Part::new("rr", "Request and response of 256 bytes", TIME)
        .claims(claims.into_iter().flatten())
        .stage(|targets, _| Ok(Box::new(Rr { targets, to: targets.exchange() })))
}

/// Connections a second, each with one exchange.
pub(super) fn connect_part() -> Part<Targets> {
    let claims = PEERS.map(|peer| {
        let bar = (peer == "haproxy").then_some(Bar::AtLeast(1.0));
        compare("connections per second", "connect", peer).bar(bar)
    });
    Part::new("connect", "Short connections", TIME)
        .claims(claims)
        .stage(|targets, _| Ok(Box::new(Connect { targets, to: targets.exchange() })))
}

/// The relay's case against a peer's, under the name that the claim has.
fn compare(claim: &str, case: &str, peer: &str) -> Claim {
    let name = format!("{claim}: relay / {peer}");
    Claim::ratio(name, format!("{case} relay"), format!("{case} {peer}"))
}

struct Rr<'a> {
    targets: &'a Targets,
    to: Vec<Target>,
}

impl Measure for Rr<'_> {
    fn steps(&self) -> Vec<Step> {
        let figures = [("p50", "s"), ("p99", "s"), ("p99.9", "s"), ("rate", "1/s")];
        let step = |Target { name, .. }: &Target| Step {
            name: format!("request/response {name}"),
            gives: figures.map(|(what, unit)| (format!("rr {what} {name}"), unit)).into(),
        };
        self.to.iter().map(step).collect()
    }

    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        let options =
            RrOptions { connections: CONNECTIONS, request: EXCHANGE, ..RrOptions::default() };
        let Target { name, addr } = self.to[step];
        let session = RrSession::start(&self.targets.host, addr, &options)?;
        session.measure(WARM);
        let window = check(session.measure(now.window), name)?;
        let latency = &window.latency;
        let latencies = [latency.p50(), latency.p99(), latency.p999()].map(|l| l.as_secs_f64());
        Ok(latencies.into_iter().chain([window.rate()]).collect())
    }
}

struct Connect<'a> {
    targets: &'a Targets,
    to: Vec<Target>,
}

impl Measure for Connect<'_> {
    fn steps(&self) -> Vec<Step> {
        self.to.iter().map(|target| Step::of(format!("connect {}", target.name), "1/s")).collect()
    }

    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        let options = RrOptions {
            connections: CONNECTIONS,
            request: EXCHANGE,
            then: Then::Reopen,
            ..RrOptions::default()
        };
        let Target { name, addr } = self.to[step];
        let session = RrSession::start(&self.targets.host, addr, &options)?;
        session.measure(WARM);
        Ok(vec![check(session.measure(now.window), name)?.rate()])
    }
}
