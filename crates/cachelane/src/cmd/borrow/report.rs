//! What came of it, as text and as JSON.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Args;
use super::meter::Totals;
use super::pcap;
use super::session::{Ended, Outcome};
use crate::cmd::xsk::live::{per_second, si};
use crate::exit::Exit;
use crate::table::table;

/// Prints the outcome, and says how the command ends.
pub(super) fn finish(args: &Args, outcome: &Outcome) -> anyhow::Result<Exit> {
    if outcome.ended == Ended::Lender {
        tracing::info!("the lender has ended");
    }
    let text = match args.run.json {
        true => format!("{}\n", object(args, outcome)),
        false => summary(args, outcome),
    };
    // Where packets go, nothing else does.
    let is_taken = args.pcap.as_deref().is_some_and(|path| path.as_os_str() == "-");
    if is_taken {
        text.lines().for_each(|line| tracing::info!("{line}"));
    } else {
        io::stdout().write_all(text.as_bytes()).context("cannot print the summary")?;
    }
    Ok(Exit::Ok)
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
        "pps": per_second(packets, totals.active()),
        "bits_per_second": per_second(bytes, totals.active()) * 8.0,
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
            let rate = format!("{}pps", si(per_second(*packets, worker.active())));
            [number.to_string(), packets.to_string(), bytes.to_string(), rate, dropped.to_string()]
        };
        let rows: Vec<_> = outcome.workers.iter().enumerate().map(row).collect();
        text += &table(["worker", "packets", "bytes", "rate", "dropped"], &rows);
    }
    let Totals { packets, bytes, dropped, .. } = total;
    if packets == 0 {
        text += &format!("no packets in {:.2} s\n", outcome.time.as_secs_f64());
    } else {
        let (pps, bits) =
            [packets, bytes * 8].map(|count| si(per_second(count, total.active()))).into();
        let seconds = total.active().as_secs_f64();
        text += &format!(
            "received {packets} packets, {bytes} bytes in {seconds:.2} s: {pps}pps, {bits}bit/s\n"
        );
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
