//! What the tests of the view are made of.

use std::sync::Arc;
use std::time::Duration;

use knobs::MeterKind;

use super::sample::{Answer, Cpu, Key, Knob, Meter, Process, Said, Sample, Usage};

/// What a process says after so many milliseconds: names, whether each is a counter, and values.
pub(super) fn said(ms: u64, meters: &[(&str, bool, u64)]) -> Said {
    let meter = |(name, is_counter, _): &(&str, bool, u64)| Meter {
        name: (*name).to_owned(),
        unit: "things".into(),
        help: format!("What {name} counts."),
        kind: if *is_counter { MeterKind::Counter } else { MeterKind::Gauge },
    };
    Said {
        at: Duration::from_millis(ms),
        meters: Arc::new(meters.iter().map(meter).collect()),
        meters_id: 0,
        values: meters.iter().map(|(.., value)| Some(*value)).collect(),
        knobs: vec![Knob {
            name: "relay.engine".into(),
            value: "auto".into(),
            takes: "copy or auto".into(),
            held: Some("trial, pid 7".into()),
        }],
        relays: Vec::new(),
    }
}

/// A process after so many milliseconds, which takes half a CPU.
pub(super) fn process(name: &str, pid: u32, ms: u64, answer: Answer) -> Process {
    let at = Duration::from_millis(ms);
    Process {
        key: Key { socket: format!("relay-{pid}.sock"), uid: 0, started: Some(1) },
        kind: "relay".into(),
        pid,
        name: name.into(),
        usage: Some(Usage { at, cpu: at / 2, rss: 12 << 20, threads: 5 }),
        answer,
    }
}

/// A sample after so many milliseconds, of two CPUs of which the first is busy.
pub(super) fn sample(ms: u64, processes: Vec<Process>) -> Sample {
    let ticks = ms / 10;
    let busy = Cpu { cpu: 0, user: ticks / 4, system: ticks / 4, softirq: ticks / 2, rest: 0 };
    let idle = Cpu { cpu: 1, rest: ticks, ..Cpu::default() };
    Sample {
        unix_ms: 1_764_198_000_000 + ms,
        at: Duration::from_millis(ms),
        cpus: vec![busy, idle],
        own_cpu: Duration::from_millis(ms / 100),
        processes,
    }
}

/// A relay that moves so many bytes a millisecond.
pub(super) fn relay(pid: u32, ms: u64, bytes: u64) -> Process {
    let said = said(
        ms,
        &[
            ("relay.accepted", true, 10 * ms / 1000),
            ("relay.bytes", true, bytes * ms),
            ("relay.connections", false, 3),
        ],
    );
    process(&format!("relay :{pid}"), pid, ms, Answer::Said(said))
}
