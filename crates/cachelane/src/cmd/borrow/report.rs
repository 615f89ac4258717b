//! How it goes and what came of it, as text and as JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use super::Args;
use crate::describe;
use crate::exit::Exit;
use crate::figures::{rate_over, si};
use crate::packets::meter::{Totals, Traffic};
use crate::packets::session::{Outcome, Sample, Show};
use crate::run::Ended;
use crate::terminal::table;

/// What was asked for, and what the lender gives.
pub(super) struct Report<'a> {
    pub(super) args: &'a Args,
    pub(super) quota: u32,
    pub(super) channels: usize,
    /// Capture files so far.
    pub(super) files: Option<Arc<AtomicU64>>,
}

impl Show for Report<'_> {
    fn line(&self, sample: &Sample, width: usize) -> String {
        let ((pps, bits), totals) = (sample.rx(), &sample.totals);
        let (packets, bytes) = (totals.traffic.rx_packets, totals.traffic.rx_bytes);
        let dropped = match totals.over_quota - sample.before.over_quota {
            0 => "no drops".into(),
            dropped => format!("{dropped} dropped over the quota"),
        };
        let rates = format!("{}pps {}bit/s", si(pps), si(bits));
        let line = format!("{rates} | {dropped} | {packets} packets, {bytes} bytes so far");
        line.chars().take(width).collect()
    }

    fn object(&self, sample: &Sample) -> Value {
        let (pps, bits) = sample.rx();
        json!({
            "schema": 1,
            "command": "borrow",
            "event": "interval",
            "seconds": sample.seconds.as_secs_f64(),
            "packets": sample.totals.traffic.rx_packets,
            "bytes": sample.totals.traffic.rx_bytes,
            "pps": pps,
            "bits_per_second": bits,
            "dropped": sample.totals.over_quota,
            "filtered": sample.totals.filtered,
            "reconnects": sample.totals.reconnects,
        })
    }
}

impl Report<'_> {
    /// Prints the outcome, and says how the command ends.
    pub(super) fn finish(&self, outcome: Outcome) -> anyhow::Result<Exit> {
        if outcome.ended == Ended::Lender {
            tracing::info!("the lender has ended");
        }
        let text = match self.args.run.json {
            true => format!("{}\n", self.end(&outcome)),
            false => self.summary(&outcome),
        };
        // Where packets go, nothing else does.
        if self.args.file.is_stdout() {
            text.lines().for_each(|line| tracing::info!("{line}"));
            return outcome.finish("", Exit::Ok);
        }
        outcome.finish(&text, Exit::Ok)
    }

    fn end(&self, outcome: &Outcome) -> Value {
        let mut object = traffic(&outcome.totals());
        object["schema"] = 1.into();
        object["command"] = "borrow".into();
        object["event"] = "end".into();
        object["socket"] = self.args.socket.display().to_string().into();
        object["task"] = self.args.task().into();
        object["mirror"] = self.args.mirror.into();
        object["group"] = self.args.group.unwrap_or(0).into();
        object["filter"] = self.args.filter.as_deref().into();
        object["quota"] = self.quota.into();
        object["channels"] = self.channels.into();
        object["ended_by"] = outcome.ended.name().into();
        object["seconds"] = outcome.seconds.into();
        object["workers"] = outcome.threads.iter().map(traffic).collect();
        if let Some(error) = &outcome.error {
            object["error"] = describe(error).into();
        }
        if let Some(path) = &self.args.file.path {
            object["file"] = path.display().to_string().into();
            object["files"] = self.files().into();
        }
        object
    }

    fn summary(&self, outcome: &Outcome) -> String {
        let mut text = String::new();
        if self.args.worker.is_some() {
            let row = |(number, worker): (usize, &Totals)| {
                let Traffic { rx_packets, rx_bytes, .. } = worker.traffic;
                let rate = rate_over(rx_packets, worker.active());
                let rate = rate.map_or_else(String::new, |rate| format!("{}pps", si(rate)));
                let [packets, bytes, dropped] =
                    [rx_packets, rx_bytes, worker.over_quota].map(|count| count.to_string());
                [number.to_string(), packets, bytes, rate, dropped]
            };
            let rows: Vec<_> = outcome.threads.iter().enumerate().map(row).collect();
            text += &table(["worker", "packets", "bytes", "rate", "dropped"], &rows);
        }
        let total = outcome.totals();
        text += &match total.traffic.rx_packets {
            0 => format!("no packets in {:.2} s\n", outcome.seconds),
            packets => total.text("received", packets, total.traffic.rx_bytes) + "\n",
        };
        text += &match (total.over_quota, self.quota) {
            (0, _) => "no drops\n".into(),
            (1, quota) => format!("1 packet dropped over the quota of {quota}\n"),
            (dropped, quota) => format!("{dropped} packets dropped over the quota of {quota}\n"),
        };
        if let Some(filter) = &self.args.filter {
            let filtered = total.filtered;
            text += &format!("{filtered} packets given back that '{filter}' does not match\n");
        }
        if total.reconnects > 0 {
            text += &format!("connected again {} times\n", total.reconnects);
        }
        if let Some(name) = self.args.file.name() {
            text += &match self.files() {
                1 => format!("written to {name}\n"),
                files => format!("written to {files} files, {name}\n"),
            };
        }
        text
    }

    fn files(&self) -> u64 {
        // Relaxed: the thread that counts them has ended.
        self.files.as_ref().map_or(0, |files| files.load(Relaxed))
    }
}

/// What was received, of a worker or of all, for programs.
fn traffic(totals: &Totals) -> Value {
    let mut object = totals.object(totals.traffic.rx_packets, totals.traffic.rx_bytes);
    object["active_seconds"] = totals.active().as_secs_f64().into();
    object["dropped"] = totals.over_quota.into();
    object["filtered"] = totals.filtered.into();
    object["reconnects"] = totals.reconnects.into();
    object
}
