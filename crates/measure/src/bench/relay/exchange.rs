//! Request and response, on connections that stay and on connections that come and go.

use std::time::Duration;

use lab::traffic::{Close, ConnectOptions, ConnectSession, ExchangeWindow, RrOptions, RrSession};
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Bench;
use super::targets::EXCHANGE;

/// Before each measurement.
const WARM: Duration = Duration::from_millis(200);
/// Connections with a request in flight.
pub(crate) const CONNECTIONS: usize = 32;

/// Latency and rate of 256-byte exchanges.
pub(super) fn rr(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut order = bench.targets.exchange();
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for target in &order {
            bench.step(&format!("request/response {}", target.name))?;
            let options = RrOptions {
                connections: CONNECTIONS,
                request: EXCHANGE,
                response: EXCHANGE,
                ..RrOptions::default()
            };
            let session = RrSession::start(&bench.targets.host, target.addr, &options)?;
            session.measure(WARM);
            let window = check(session.measure(bench.plan.window), target.name)?;
            let latency = &window.latency;
            let mut add = |what: &str, unit, value| {
                bench.series.add(&format!("rr {what} {}", target.name), unit, value);
            };
            add("p50", "s", latency.p50().as_secs_f64());
            add("p99", "s", latency.p99().as_secs_f64());
            add("p99.9", "s", latency.p999().as_secs_f64());
            add("rate", "1/s", window.rate());
        }
    }
    for peer in ["haproxy", "nginx", "direct"] {
        let bar = (peer == "haproxy").then_some(Bar::AtMost(1.0));
        compare(bench, "rr p99", "rr p99", peer, bar)?;
        compare(bench, "rr rate", "rr rate", peer, None)?;
    }
    Ok(())
}

/// Connections a second, each with one exchange.
pub(super) fn connect(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut order = bench.targets.exchange();
    for _ in 0..bench.plan.rounds {
        order.shuffle(&mut bench.rng);
        for target in &order {
            bench.step(&format!("short connections {}", target.name))?;
            let options = ConnectOptions {
                concurrent: CONNECTIONS,
                request: EXCHANGE,
                response: EXCHANGE,
                close: Close::Client,
                ..ConnectOptions::default()
            };
            let session = ConnectSession::start(&bench.targets.host, target.addr, &options)?;
            session.measure(WARM);
            let window = check(session.measure(bench.plan.window), target.name)?;
            let case = format!("connect {}", target.name);
            bench.series.add(&case, "1/s", window.rate());
        }
    }
    for peer in ["haproxy", "nginx", "direct"] {
        let bar = (peer == "haproxy").then_some(Bar::AtLeast(1.0));
        compare(bench, "connections per second", "connect", peer, bar)?;
    }
    Ok(())
}

/// The relay's case against a peer's, under the name that the claim has.
fn compare(
    bench: &mut Bench<'_>,
    claim: &str,
    case: &str,
    peer: &str,
    bar: Option<Bar>,
) -> anyhow::Result<()> {
    let name = format!("{claim}: relay / {peer}");
    let (of, to) = (format!("{case} relay"), format!("{case} {peer}"));
    bench.series.ratio(&mut bench.output, &name, (&of, &to), bar)
}

/// A window with errors says nothing about speed.
pub(crate) fn check(window: ExchangeWindow, target: &str) -> anyhow::Result<ExchangeWindow> {
    if window.errors > 0 || window.exchanges == 0 {
        let error = window.last_error.as_deref().unwrap_or("no exchange completed");
        anyhow::bail!("{} exchanges through {target} failed: {error}", window.errors);
    }
    Ok(window)
}
