//! What of the processes and of this host is shown, and under which names.

use std::time::Duration;

use knobs::{Current, MeterKind, Process, Reading};
use lanes::LaneMap;
use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Info};
use prometheus_client::registry::Unit;
use rustix::process::geteuid;

use super::families::{About, Families, Labels, Sample};
use super::gather::Answer;
use super::names::{Named, SERVICE, named};
use super::traffic;
use super::usage::Usage;

/// The most series of one process: what another user's process says must not fill Prometheus' memory.
const MOST: usize = 4000;

/// A process as its series name it.
#[derive(Clone)]
pub(super) struct Who {
    labels: Labels,
    pid: String,
}

impl Who {
    /// A process of this name; not the `first` of it, it is told by its process id as well.
    pub(super) fn new(process: &Process, name: String, is_first: bool) -> Who {
        let pid = process.pid.to_string();
        let mut labels = vec![("process", process.kind.clone()), ("name", name)];
        if process.uid != geteuid().as_raw() {
            labels.push(("uid", process.uid.to_string()));
        }
        if !is_first {
            labels.push(("pid", pid.clone()));
        }
        Who { labels, pid }
    }

    fn and<const N: usize>(&self, more: [(&'static str, &str); N]) -> Labels {
        let more = more.map(|(name, value)| (name, value.to_owned()));
        self.labels.iter().cloned().chain(more).collect()
    }

    fn and_service(&self, service: Option<&str>) -> Labels {
        let service = service.map(|service| (SERVICE, service.to_owned()));
        self.labels.iter().cloned().chain(service).collect()
    }

    /// With the process id, whether or not that is needed.
    fn with_pid(&self) -> Labels {
        let mut labels = self.labels.clone();
        labels.retain(|(name, _)| *name != "pid");
        labels.push(("pid", self.pid.clone()));
        labels
    }
}

/// What there is to show so far.
pub(super) struct Shown(Families);

/// What a family is of.
pub(super) fn about<'a>(
    name: &'a str,
    kind: MetricType,
    unit: Option<Unit>,
    help: &'a str,
) -> About<'a> {
    About { name, kind, unit, help }
}

impl Shown {
    /// Only what this program is.
    pub(super) fn new() -> Shown {
        let mut shown = Shown(Families::default());
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("kernel", kernel)];
        let help = "The version of the exporter, and that of the kernel.";
        shown.0.add(&about("cachelane_build", Info, None, help), labels, Sample::Info);
        shown
    }

    /// Shows a process: what it takes of the host, and what it has answered, if it has.
    pub(super) fn process(&mut self, who: &Who, usage: Option<&Usage>, answer: Option<&Answer>) {
        let up = about(
            "cachelane_process_up",
            Gauge,
            None,
            "Whether the process answers: 0 if it is stopped, stuck or starved of its CPU.",
        );
        self.0.add(&up, who.with_pid(), Sample::Count(answer.is_some().into()));
        if let Some(usage) = usage {
            self.usage("cachelane_process", &who.labels, usage);
        }
        let Some(answer) = answer else { return };
        let mut left_out = answer.missed;
        let before = self.0.len();
        for reading in &answer.readings {
            let is_full = self.0.len() - before >= MOST;
            left_out += u64::from(is_full || !self.reading(who, reading));
        }
        let knob =
            about("cachelane_knob", Info, None, "The value that a knob (a setting) has now.");
        for info in &answer.knobs {
            let is_full = self.0.len() - before >= MOST;
            let is_shown = match &info.value {
                Current::Value(value) if !is_full => {
                    let labels = who.and([("knob", &info.name), ("value", value)]);
                    self.0.add(&knob, labels, Sample::Info)
                }
                _ => false,
            };
            left_out += u64::from(!is_shown);
        }
        for (service, statistics) in &answer.statistics {
            let labels = who.and_service(service.as_deref());
            let most = MOST.saturating_sub(self.0.len() - before);
            left_out += traffic::add(&mut self.0, &labels, statistics, most);
        }
        let help = "Knobs, counters, listeners and backends that could not be read or shown.";
        let about = about("cachelane_process_left_out", Gauge, None, help);
        self.0.add(&about, who.labels.clone(), Sample::Count(left_out));
    }

    /// A counter or gauge; whether it could be shown.
    fn reading(&mut self, who: &Who, reading: &Reading) -> bool {
        let Some(Named { family, unit, label, help }) = named(&reading.name, &reading.unit) else {
            return false;
        };
        let Some(value) = reading.value.value() else { return false };
        let kind = match reading.kind {
            MeterKind::Counter => Counter,
            MeterKind::Gauge => Gauge,
            _ => MetricType::Unknown,
        };
        let about = about(&family, kind, unit, help.unwrap_or(&reading.help));
        let labels = who.labels.iter().cloned().chain(label).collect();
        self.0.add(&about, labels, Sample::Count(*value))
    }

    /// What a process takes of the host.
    fn usage(&mut self, prefix: &str, labels: &Labels, usage: &Usage) {
        let mut add = |name: &str, kind, unit, help, sample| {
            let name = format!("{prefix}_{name}");
            self.0.add(&about(&name, kind, unit, help), labels.clone(), sample);
        };
        let (seconds, bytes) = (Some(Unit::Seconds), Some(Unit::Bytes));
        let help = "CPU time of the process, in programs and in the kernel.";
        add("cpu", Counter, seconds.clone(), help, Sample::Number(usage.cpu));
        let help = "Resident memory of the process.";
        add("resident_memory", Gauge, bytes, help, Sample::Count(usage.memory));
        let help = "When the process started, since 1970.";
        add("start_time", Gauge, seconds, help, Sample::Number(usage.start));
        if let Some(files) = usage.files {
            add("open_fds", Gauge, None, "Open files of the process.", Sample::Count(files));
        }
        if let Some(most) = usage.max_files {
            let help = "The most files that the process may open.";
            add("max_fds", Gauge, None, help, Sample::Count(most));
        }
    }

    /// Which CPU is in which lane.
    pub(super) fn lanes(&mut self, map: &LaneMap) {
        let help = "Which CPU is in which lane (CPUs that share a last-level cache).";
        let about = about("cachelane_lane", Info, None, help);
        for lane in map.lanes() {
            for cpu in map.cpus(lane).iter() {
                let labels = vec![("lane", lane.to_string()), ("cpu", cpu.to_string())];
                self.0.add(&about, labels, Sample::Info);
            }
        }
    }

    /// Adds what this scrape took, and what this process takes under the names that exporters have for
    /// that, if it is shown by itself: all families.
    pub(super) fn end(mut self, took: Duration, own: bool) -> Families {
        let help = "How long it took to ask all processes.";
        let about = about("cachelane_exporter_scrape_duration", Gauge, Some(Unit::Seconds), help);
        self.0.add(&about, Vec::new(), Sample::Number(took.as_secs_f64()));
        let usage = Usage::of(std::process::id(), geteuid().as_raw());
        if let Some(usage) = usage.filter(|_| own) {
            self.usage("process", &Vec::new(), &usage);
        }
        self.0
    }
}
