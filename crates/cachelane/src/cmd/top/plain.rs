//! One view as text, and as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::marks::Marks;
use super::model::{EndRate, Model, Track};
use super::table::{Columns, Facts, Sort, cpus, first, ordered};

/// All rows, in lines of at most `width` columns.
pub(super) fn text(facts: &Facts, model: &Model, marks: Marks, width: usize, more: &str) -> String {
    let mut lines = vec![first(facts, model, more, marks, width)];
    lines.extend(cpus(facts, model, marks, width, model.cpus.len().max(1)));
    lines.push(String::new());
    let columns = Columns::new(marks, width, model);
    let rows = ordered(model, Sort::Name, false, "");
    if rows.is_empty() {
        lines.push("no cachelane process runs".into());
    } else {
        lines.push(columns.title());
        lines.extend(rows.iter().map(|track| columns.row(track, model.at)));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The same for programs, and all that is known.
pub(super) fn object(facts: &Facts, model: &Model, interval: Duration) -> Value {
    let lane_of = |cpu: usize| facts.lanes.iter().position(|lane| lane.contains(&cpu));
    let cpus = model.cpus.iter().map(|cpu| {
        json!({
            "cpu": cpu.cpu,
            "lane": lane_of(cpu.cpu),
            "busy": cpu.busy(),
            "user": cpu.user,
            "system": cpu.system,
            "softirq": cpu.softirq,
        })
    });
    let rows = ordered(model, Sort::Name, false, "");
    json!({
        "schema": 1,
        "host": facts.host,
        "unix_ms": model.unix_ms,
        "interval_seconds": interval.as_secs_f64(),
        "own_cpu": model.own,
        "cpus": cpus.collect::<Vec<_>>(),
        "processes": rows.iter().map(|track| process(track, model.at)).collect::<Vec<_>>(),
    })
}

fn process(track: &Track, now: Duration) -> Value {
    let process = &track.process;
    let mut object = Map::from_iter([
        ("process".to_owned(), json!(process.kind)),
        ("name".to_owned(), json!(process.name)),
        ("pid".to_owned(), json!(process.pid)),
        ("uid".to_owned(), json!(process.key.uid)),
        ("cpu".to_owned(), json!(track.share)),
    ]);
    let mut add = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
    if let Some(usage) = process.usage {
        add("rss_bytes", usage.rss.into());
        add("threads", usage.threads.into());
    }
    if let Some((why, since)) = track.silent() {
        let seconds = now.saturating_sub(since).as_secs_f64();
        add("silent", json!({"seconds": seconds, "why": why}));
    }
    add("counters", counters(track));
    let knobs = track.knobs.iter().map(|knob| {
        json!({"name": knob.name, "value": knob.value, "takes": knob.takes, "held_by": knob.held})
    });
    add("knobs", knobs.collect());
    add("listeners", ends(track, false));
    add("backends", ends(track, true));
    object.into()
}

fn counters(track: &Track) -> Value {
    let Some(said) = &track.said else { return Value::Array(Vec::new()) };
    let each = said.meters.iter().zip(&said.values).zip(&track.rates);
    let object = each.map(|((meter, value), rate)| {
        json!({
            "name": meter.name,
            "unit": meter.unit,
            "kind": meter.kind,
            "value": value,
            "rate": rate,
        })
    });
    object.collect()
}

fn ends(track: &Track, backends: bool) -> Value {
    let ends = track.ends.iter().filter(|one| one.end.is_backend == backends);
    let object = |one: &EndRate| {
        json!({
            "relay": one.prefix,
            "addr": one.end.addr,
            "up": one.end.is_up,
            "active": one.end.active,
            "connections": one.end.connections,
            "connections_rate": one.connections,
            "refused": one.end.refused,
            "failed": one.end.failed,
            "bytes_up_rate": one.up,
            "bytes_down_rate": one.down,
        })
    };
    ends.map(object).collect()
}
