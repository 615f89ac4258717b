//! What was seen of the host and its processes at one moment, as it is shown, recorded and replayed.

use std::sync::Arc;
use std::time::Duration;

use knobs::{KnobInfo, MeterKind, Reading};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Milliseconds since 1970.
    pub(super) unix_ms: u64,
    /// When the CPUs were read, since the first sample.
    #[serde(rename = "at_us", with = "micros")]
    pub(super) at: Duration,
    /// What the CPUs have done, in ticks.
    pub(super) cpus: Vec<Cpu>,
    /// CPU time of this command itself.
    #[serde(rename = "own_cpu_us", with = "micros")]
    pub(super) own_cpu: Duration,
    pub(super) processes: Vec<Process>,
}

/// The columns of `/proc/stat` that are shown, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cpu {
    pub(super) cpu: usize,
    pub(super) user: u64,
    pub(super) system: u64,
    /// Interrupts, both kinds.
    pub(super) softirq: u64,
    /// Idle, waiting for I/O, or stolen.
    pub(super) rest: u64,
}

/// What tells a process from all others, also from one that has its process id later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Key {
    /// The name of its control socket and, if it can be seen, when it started.
    pub(super) socket: String,
    pub(super) uid: u32,
    pub(super) started: Option<u64>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) key: Key,
    pub(super) kind: String,
    pub(super) pid: u32,
    /// What people call it; its kind and process id until it has said so.
    pub(super) name: String,
    /// None where `/proc` does not show it.
    pub(super) usage: Option<Usage>,
    pub(super) answer: Answer,
}

/// What a process costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    #[serde(rename = "at_us", with = "micros")]
    pub(super) at: Duration,
    /// Of all its threads, since it started.
    #[serde(rename = "cpu_us", with = "micros")]
    pub(super) cpu: Duration,
    /// Resident memory in bytes.
    pub(super) rss: u64,
    pub(super) threads: u64,
}

/// What came of asking it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Said(Said),
    Silent {
        /// In a few words.
        why: String,
        /// When it was first found silent, since the first sample.
        #[serde(rename = "since_us", with = "micros")]
        since: Duration,
    },
}

/// What a process has said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Said {
    /// When it answered, since the first sample.
    #[serde(rename = "at_us", with = "micros")]
    pub(super) at: Duration,
    /// What its counters are; a recording has these once.
    #[serde(skip)]
    pub(super) meters: Arc<Vec<Meter>>,
    /// The number of these in a recording.
    #[serde(rename = "meters")]
    pub(super) meters_id: usize,
    /// Their values; none where it cannot be read.
    pub(super) values: Vec<Option<u64>>,
    /// Empty where nobody asked for them.
    pub(super) knobs: Vec<Knob>,
    pub(super) relays: Vec<Relay>,
}

/// A counter or gauge, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meter {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) help: String,
    pub(super) kind: MeterKind,
}

/// A knob, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Knob {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) takes: String,
    pub(super) held: Option<String>,
}

/// The listeners and backends of a relay; `prefix` tells several of one process apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Relay {
    pub(super) prefix: String,
    pub(super) ends: Vec<End>,
}

/// A listener or a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) is_backend: bool,
    pub(super) addr: String,
    pub(super) is_up: bool,
    pub(super) active: u64,
    pub(super) connections: u64,
    /// Of clients by a listener, or of the relay by a backend.
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
}

impl Said {
    /// The present value of a counter or gauge.
    pub(super) fn value(&self, name: &str) -> Option<u64> {
        let place = self.meters.iter().position(|meter| meter.name == name)?;
        self.values.get(place).copied().flatten()
    }
}

impl From<&Reading> for Meter {
    fn from(reading: &Reading) -> Meter {
        let Reading { name, unit, help, kind, .. } = reading;
        Meter { name: name.clone(), unit: unit.clone(), help: help.clone(), kind: *kind }
    }
}

impl Meter {
    pub(super) fn is_of(&self, reading: &Reading) -> bool {
        self.name == reading.name && self.kind == reading.kind && self.unit == reading.unit
    }

    pub(super) fn is_counter(&self) -> bool {
        self.kind == MeterKind::Counter
    }
}

impl From<&KnobInfo> for Knob {
    fn from(info: &KnobInfo) -> Knob {
        Knob {
            name: info.name.clone(),
            value: info.value.to_string(),
            takes: info.values.to_string(),
            held: info.held.as_ref().map(|held| held.holder.clone()),
        }
    }
}

impl Relay {
    /// What a relay answers to the request for its statistics.
    pub(super) fn of(prefix: &str, said: &Value) -> Relay {
        let all = [("listeners", false), ("backends", true)].into_iter().flat_map(|(list, is)| {
            let list = said[list].as_array().into_iter().flatten();
            list.map(move |one| End::of(one, is))
        });
        Relay { prefix: prefix.to_owned(), ends: all.collect() }
    }
}

impl End {
    fn of(said: &Value, is_backend: bool) -> End {
        let number = |name: &str| said[name].as_u64().unwrap_or(0);
        let ended = said["ended"].as_object().into_iter().flatten();
        let failed = ended.filter(|(cause, _)| *cause != "normal").filter_map(|(_, n)| n.as_u64());
        End {
            is_backend,
            addr: said["addr"].as_str().unwrap_or("?").to_owned(),
            is_up: said["up"] == true,
            active: number("active"),
            connections: number("connections"),
            refused: number("refused").saturating_add(number("connect_failed")),
            failed: failed.fold(0, u64::saturating_add),
            bytes_up: number("bytes_up"),
            bytes_down: number("bytes_down"),
        }
    }
}

/// Times in microseconds.
mod micros {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}
