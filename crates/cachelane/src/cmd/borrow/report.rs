//! What came of it, as text and as JSON.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Args;
use super::meter::Totals;
use super::pcap;
use super::session::{Ended, Outcome};
use crate::cmd::xsk::live::{per_second, rate_over, si};
use crate::describe;
use crate::exit::Exit;
use crate::table::table;

/// Prints the outcome, and says how the command ends.
///
/// # Errors
/// What ended it, if something failed; that it cannot be printed.
pub(super) fn finish(args: &Args, outcome: Outcome) -> anyhow::Result<Exit> {
    if outcome.ended == Ended::Lender {
        tracing::info!("the lender has ended");
    }
    let text = match args.run.json {
        true => format!("{}\n", object(args, &outcome)),
        false => summary(args, &outcome),
    };
    // Where packets go, nothing else does.
    let is_taken = args.pcap.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let printed = match is_taken {
        true => {
            text.lines().for_each(|line| tracing::info!("{line}"));
            Ok(())
        }
        false => io::stdout().write_all(text.as_bytes()).context("cannot print the summary"),
    };
    match outcome.error {
        Some(error) => Err(error),
        None => printed.map(|()| Exit::Ok),
    }
}

/// One interval.
pub(super) fn sample(since: Duration, span: Duration, now: &Totals, before: &Totals) -> Value {
    json!({
        "schema": 1,
        "command": "borrow",
        "event": "interval",
        "seconds": since.as_secs_f64(),
        "packets": now.packets,
        "bytes": now.bytes,
        "pps": per_second(now.packets - before.packets, span),
        "bits_per_second": per_second(now.bytes - before.bytes, span) * 8.0,
        "dropped": now.dropped,
    })
}

fn object(args: &Args, outcome: &Outcome) -> Value {
    let total = outcome.workers.iter().copied().fold(Totals::default(), Totals::and);
    let mut object = traffic(&total);
    let more = json!({
        "schema": 1,
        "command": "borrow",
        "event": "end",
        "socket": args.socket.display().to_string(),
        "task": args.task(),
        "mirror": args.mirror,
        "quota": outcome.quota,
        "channels": outcome.channels,
        "ended_by": outcome.ended.name(),
        "seconds": outcome.time.as_secs_f64(),
        "workers": outcome.workers.iter().map(traffic).collect::<Vec<_>>(),
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
    if let Some(error) = &outcome.error {
        object["error"] = describe(error).into();
    }
    if let Some(path) = &args.pcap {
        object["file"] = path.display().to_string().into();
    }
    object
}

fn traffic(totals: &Totals) -> Value {
    let Totals { packets, bytes, dropped, .. } = *totals;
    json!({
        "packets": packets,
        "bytes": bytes,
        "pps": rate_over(packets, totals.active()),
        "bits_per_second": rate_over(bytes * 8, totals.active()),
        "active_seconds": totals.active().as_secs_f64(),
        "dropped": dropped,
    })
}

fn summary(args: &Args, outcome: &Outcome) -> String {
    let total = outcome.workers.iter().copied().fold(Totals::default(), Totals::and);
    let mut text = String::new();
    if args.worker.is_some() {
        let row = |(number, worker): (usize, &Totals)| {
            let Totals { packets, bytes, dropped, .. } = worker;
            let rate = rate_over(*packets, worker.active());
            let rate = rate.map_or_else(String::new, |rate| format!("{}pps", si(rate)));
            [number.to_string(), packets.to_string(), bytes.to_string(), rate, dropped.to_string()]
        };
        let rows: Vec<_> = outcome.workers.iter().enumerate().map(row).collect();
        text += &table(["worker", "packets", "bytes", "rate", "dropped"], &rows);
    }
    let Totals { packets, bytes, dropped, .. } = total;
    if packets == 0 {
        text += &format!("no packets in {:.2} s\n", outcome.time.as_secs_f64());
    } else {
        text += &format!("received {packets} packets, {bytes} bytes");
        let rates = [packets, bytes * 8].map(|count| rate_over(count, total.active()).map(si));
        if let [Some(pps), Some(bits)] = rates {
            let seconds = total.active().as_secs_f64();
            text += &format!(" in {seconds:.2} s: {pps}pps, {bits}bit/s");
        }
        text.push('\n');
    }
    text += &match dropped {
        0 => "no drops\n".into(),
        1 => format!("1 packet dropped over the quota of {}\n", outcome.quota),
        _ => format!("{dropped} packets dropped over the quota of {}\n", outcome.quota),
    };
    if let Some(path) = &args.pcap {
        text += &format!("written to {}\n", pcap::name(path));
    }
    text
}
