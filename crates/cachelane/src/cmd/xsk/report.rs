//! What came of it, as text and as JSON.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::live::{Rates, Sample, rate_over, si};
use super::meter::{DROPS, RINGS, Totals};
use super::session::Outcome;
use crate::cmd::frames_knob::{COUNTERS, PLACES};
use crate::describe;
use crate::exit::Exit;

/// Prints the outcome and says how the command ends. `more` is what the command adds: lines for
/// people, fields for programs.
///
/// # Errors
/// What ended it, if something failed; that it cannot be printed.
pub(in crate::cmd) fn finish(outcome: Outcome, json: bool, more: &More) -> anyhow::Result<Exit> {
    let text = match json {
        true => format!("{}\n", object(&outcome, more)),
        false => summary(&outcome, more),
    };
    let printed = io::stdout().write_all(text.as_bytes()).context("cannot print the summary");
    if let Some((_, leak)) = &outcome.leak {
        tracing::error!("{leak}");
    }
    if let Some(error) = outcome.error {
        return Err(error);
    }
    printed?;
    Ok(if outcome.leak.is_some() || more.findings { Exit::Failed } else { Exit::Ok })
}

/// What a command adds to the outcome.
#[derive(Debug, Default)]
pub(in crate::cmd) struct More {
    pub(in crate::cmd) lines: Vec<String>,
    pub(in crate::cmd) fields: Map<String, Value>,
    /// Something was found that should not be.
    pub(in crate::cmd) findings: bool,
}

/// One interval.
pub(in crate::cmd) fn sample(command: &str, sample: &Sample, more: Map<String, Value>) -> Value {
    let Rates { rx_pps, rx_bits, tx_pps, tx_bits } = sample.rates();
    let frames = PLACES.iter().map(|(name, _, read)| (*name, read(&sample.census)));
    let mut object = json!({
        "schema": 1,
        "command": command,
        "event": "interval",
        "seconds": sample.seconds.as_secs_f64(),
        "rx": traffic(sample.totals.rx_packets, sample.totals.rx_bytes, Some(rx_pps), Some(rx_bits)),
        "tx": traffic(sample.totals.tx_packets, sample.totals.tx_bytes, Some(tx_pps), Some(tx_bits)),
        "drops": drops(&sample.totals),
        "frames": frames.map(|(name, n)| (name.to_owned(), n.into())).collect::<Map<_, Value>>(),
        "rings": rings(&sample.totals),
    });
    more.into_iter().for_each(|(name, value)| object[name] = value);
    object
}

fn object(outcome: &Outcome, more: &More) -> Value {
    let totals = &outcome.totals;
    let [rx, tx] = [(totals.rx_packets, totals.rx_bytes), (totals.tx_packets, totals.tx_bytes)]
        .map(|(packets, bytes)| {
            traffic(packets, bytes, rate(totals, packets), rate(totals, bytes * 8))
        });
    let pool =
        COUNTERS.iter().map(|(name, _, _, read)| ((*name).to_owned(), read(&outcome.pool).into()));
    let mut object = json!({
        "schema": 1,
        "command": outcome.command,
        "event": "end",
        "interfaces": outcome.interfaces,
        "ended_by": outcome.ended.name(),
        "seconds": outcome.seconds,
        "active_seconds": totals.seconds(),
        "rx": rx,
        "tx": tx,
        "drops": drops(totals),
        "alien_free": outcome.alien_free.name(),
        "pool": pool.collect::<Map<_, Value>>(),
        "frames": {"total": outcome.frames, "leaked": outcome.leak.as_ref().map_or(0, |leak| leak.0)},
    });
    if let Some(error) = &outcome.error {
        object["error"] = describe(error).into();
    }
    if let Some(program) = &outcome.program {
        object["program"] = json!({
            "redirected": program.redirected,
            "not_chosen": program.not_chosen,
            "no_socket": program.no_socket,
            "unattended": program.unattended,
            "malformed": program.malformed,
            "fragment": program.fragment,
        });
    }
    for (name, value) in &more.fields {
        object[name] = value.clone();
    }
    object
}

fn summary(outcome: &Outcome, more: &More) -> String {
    let totals = &outcome.totals;
    let mut lines = Vec::new();
    for (what, packets, bytes) in [
        ("received", totals.rx_packets, totals.rx_bytes),
        ("sent", totals.tx_packets, totals.tx_bytes),
    ] {
        if packets > 0 {
            let so_many = format!("{what} {packets} packets, {bytes} bytes");
            lines.push(match (rate(totals, packets), rate(totals, bytes * 8)) {
                (Some(pps), Some(bits)) => format!(
                    "{so_many} in {:.2} s: {}pps, {}bit/s",
                    totals.seconds(),
                    si(pps),
                    si(bits)
                ),
                _ => so_many,
            });
        }
    }
    if lines.is_empty() {
        lines.push(format!("no packets in {:.2} s", outcome.seconds));
    }
    lines.extend(more.lines.iter().cloned());
    let dropped = DROPS.iter().map(|(name, _, read)| (name, read(&totals.statistics)));
    let dropped: Vec<String> =
        dropped.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    lines.push(match dropped.is_empty() {
        true => "no drops".into(),
        false => format!("drops: {}", dropped.join(", ")),
    });
    if let Some(program) = outcome.program {
        let left = [
            ("not chosen", program.not_chosen),
            ("without a socket", program.no_socket),
            ("while nobody looked at their socket", program.unattended),
            ("malformed", program.malformed),
            ("fragments", program.fragment),
        ];
        let left: Vec<String> =
            left.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
        if !left.is_empty() {
            lines.push(format!("left to the kernel: {}", left.join(", ")));
        }
    }
    lines.push(match &outcome.leak {
        None => format!("all {} frames came back", outcome.frames),
        Some((frames, _)) => format!("{frames} of {} frames did not come back", outcome.frames),
    });
    lines.join("\n") + "\n"
}

/// A second, from the first to the latest packet; none where they came at once.
fn rate(totals: &Totals, count: u64) -> Option<f64> {
    rate_over(count, Duration::from_secs_f64(totals.seconds()))
}

fn traffic(packets: u64, bytes: u64, pps: Option<f64>, bits: Option<f64>) -> Value {
    json!({"packets": packets, "bytes": bytes, "pps": pps, "bits_per_second": bits})
}

fn drops(totals: &Totals) -> Map<String, Value> {
    let read = |read: &fn(&xsk::Statistics) -> u64| read(&totals.statistics).into();
    DROPS.iter().map(|(name, _, of)| ((*name).to_owned(), read(of))).collect()
}

fn rings(totals: &Totals) -> Map<String, Value> {
    let read = |read: &fn(&xsk::Outstanding) -> u32| read(&totals.outstanding).into();
    RINGS.iter().map(|(name, _, of)| ((*name).to_owned(), read(of))).collect()
}
