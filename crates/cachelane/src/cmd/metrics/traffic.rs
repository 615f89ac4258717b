//! What a relay has counted of each listener and each backend, as `cachelane relay --stats` asks for it.

use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::registry::Unit;
use serde_json::Value;

use super::families::{Families, Labels, Sample};
use super::show::about;

/// Listeners, or backends.
struct Side {
    label: &'static str,
    /// The field of the answer that has all of them.
    list: &'static str,
    /// Fields that are numbers, and what they mean.
    numbers: &'static [(&'static str, MetricType, &'static str)],
}

const SIDES: [Side; 2] = [
    Side {
        label: "listener",
        list: "listeners",
        numbers: &[
            ("active", Gauge, "Connections at this moment."),
            ("connections", Counter, "Connections so far."),
            ("refused", Counter, "Clients that were not let in: by their address or by a limit."),
        ],
    },
    Side {
        label: "backend",
        list: "backends",
        numbers: &[
            ("up", Gauge, "Whether it is up: not left alone after a refusal or a failed check."),
            ("active", Gauge, "Connections at this moment, with those that wait for it."),
            ("connections", Counter, "Connections so far."),
            ("connect_failed", Counter, "Attempts to connect that failed."),
        ],
    },
];

/// Bytes, by the direction that they were forwarded in.
const BYTES: (&str, &str) = ("bytes", "Bytes forwarded: up, from clients to backends, and down.");
const DIRECTIONS: [(&str, &str); 2] = [("up", "bytes_up"), ("down", "bytes_down")];

const ENDED: (&str, &str) = ("ended", "Connections that have ended, by cause.");

/// Distributions of times since the start, in milliseconds.
const TIMES: [(&str, &str, &str); 2] = [
    ("connect", "connect_ms", "The time in which this share of the connections was made."),
    ("session", "session_ms", "The time in which this share of the connections was over."),
];
const SHARES: [(&str, &str); 3] = [("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99")];

/// Adds all of a relay with these labels, unless there are the `most` series already. How many listeners
/// and backends have no place.
pub(super) fn add(families: &mut Families, labels: &Labels, all: &Value, most: usize) -> u64 {
    let before = families.len();
    let mut left_out = 0;
    for side in &SIDES {
        for one in all[side.list].as_array().into_iter().flatten() {
            let has_place = families.len() - before < most;
            let added = has_place.then(|| add_one(families, labels, side, one)).flatten();
            left_out += u64::from(added.is_none());
        }
    }
    left_out
}

/// Adds one; none if it has no name, or another has it.
fn add_one(families: &mut Families, labels: &Labels, side: &Side, one: &Value) -> Option<()> {
    let mut base = labels.clone();
    base.push((side.label, one["addr"].as_str()?.to_owned()));
    let name = |field: &str| format!("cachelane_relay_{}_{field}", side.label);
    let with = |label: &'static str, value: &str| {
        base.iter().cloned().chain([(label, value.to_owned())]).collect::<Labels>()
    };
    for (field, kind, help) in side.numbers {
        let is_new = families.add(
            &about(&name(field), *kind, None, help),
            base.clone(),
            count(&one[*field]),
        );
        is_new.then_some(())?;
    }
    let (family, help) = (format!("cachelane_relay_{}", side.label), BYTES.1);
    for (direction, field) in DIRECTIONS {
        let about = about(&family, Counter, Some(Unit::Bytes), help);
        families.add(&about, with("direction", direction), count(&one[field]));
    }
    for (cause, ended) in one["ended"].as_object().into_iter().flatten() {
        families.add(
            &about(&name(ENDED.0), Counter, None, ENDED.1),
            with("cause", cause),
            count(ended),
        );
    }
    for (family, field, help) in TIMES {
        for (share, key) in SHARES {
            if let Some(ms) = one[field][key].as_f64() {
                let name = name(family);
                families.add(
                    &about(&name, Gauge, Some(Unit::Seconds), help),
                    with("share", share),
                    Sample::Number(ms / 1000.0),
                );
            }
        }
    }
    Some(())
}

/// A number, or a truth.
fn count(value: &Value) -> Sample {
    Sample::Count(value.as_u64().unwrap_or(u64::from(*value == true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_backends_of_one_name_are_one_series_and_one_that_is_left_out() {
        let one = json!({"addr": "a:1", "up": true, "bytes_up": 7, "ended": {"normal": 2},
            "connect_ms": {"p50": 1.5, "p90": null}});
        let all = json!({"backends": [one, one, {"up": true}], "listeners": []});
        let mut families = Families::default();
        assert_eq!(add(&mut families, &Vec::new(), &all, 100), 2);
        let form = super::super::families::Form { open: false, gzip: false };
        let text = families.encode(&[form]).unwrap().remove(0).1;
        let text = String::from_utf8(text.to_vec()).unwrap();
        for line in [
            "cachelane_relay_backend_up{backend=\"a:1\"} 1",
            "cachelane_relay_backend_bytes_total{backend=\"a:1\",direction=\"up\"} 7",
            "cachelane_relay_backend_ended_total{backend=\"a:1\",cause=\"normal\"} 2",
            "cachelane_relay_backend_connect_seconds{backend=\"a:1\",share=\"0.5\"} 0.0015",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        }
        assert_eq!(add(&mut Families::default(), &Vec::new(), &all, 0), 3);
    }
}
