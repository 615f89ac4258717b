//! `cachelane relay --stats`: what the relays that run have counted of each listener and backend.

use knobs::ErrorKind;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::figures::tight;
use crate::out;
use crate::terminal::table;

const HEAD: [&str; 11] = [
    "RELAY",
    "ADDRESS",
    "STATE",
    "NOW",
    "TOTAL",
    "REFUSED",
    "FAILED",
    "BYTES UP",
    "BYTES DOWN",
    "CONNECT MS P50/P99",
    "SESSION MS P50/P99",
];

/// Prints a table, or JSON; a relay that does not answer is logged, and costs the others nothing.
pub(super) fn print(as_json: bool) -> anyhow::Result<Exit> {
    let (mut rows, mut list, mut exit) = (Vec::new(), Vec::new(), Exit::Ok);
    let processes = knobs::discover()?;
    let answers = knobs::ask_each(&processes, |process| {
        let mut client = process.connect()?;
        let name = client.listing()?.name;
        Ok((name, client.ask(relay::STATISTICS, Value::Null)?.value))
    });
    for (process, answer) in processes.iter().zip(answers) {
        let (name, statistics) = match answer {
            Ok(answer) => answer,
            // A process of another mechanism, or one that has ended meanwhile.
            Err(e) if matches!(e.kind(), ErrorKind::UnknownRequest | ErrorKind::Gone) => continue,
            Err(error) => {
                tracing::error!("{} (pid {}): {error}", process.kind, process.pid);
                exit = Exit::Failed;
                continue;
            }
        };
        for (kind, is_backend) in [("listeners", false), ("backends", true)] {
            let all = statistics[kind].as_array().into_iter().flatten();
            rows.extend(all.map(|one| row(&name, one, is_backend)));
        }
        list.push(json!({
            "process": process.kind, "name": name, "pid": process.pid, "statistics": statistics,
        }));
    }
    let text = match (as_json, rows.as_slice()) {
        (true, _) => format!("{}\n", json!({"schema": 1, "relays": list})),
        (false, []) if exit == Exit::Ok => "no relay runs\n".into(),
        (false, rows) => table(HEAD, rows),
    };
    out::print(&text).map(|()| exit)
}

fn row(label: &str, one: &Value, is_backend: bool) -> [String; 11] {
    let number = |name: &str| one[name].as_u64().unwrap_or(0);
    let text = |name: &str| one[name].as_str().unwrap_or("?").to_owned();
    let ended = one["ended"].as_object().into_iter().flatten();
    let failed: u64 =
        ended.filter(|(cause, _)| *cause != "normal").filter_map(|(_, n)| n.as_u64()).sum();
    let state = match (is_backend, one["up"] == true) {
        (false, _) => "OPEN",
        (true, true) => "UP",
        (true, false) => "DOWN",
    };
    [
        label.to_owned(),
        text("addr"),
        state.to_owned(),
        number("active").to_string(),
        number("connections").to_string(),
        // Of clients by a listener, or of the relay by a backend.
        (number("refused") + number("connect_failed")).to_string(),
        failed.to_string(),
        tight(number("bytes_up") as f64),
        tight(number("bytes_down") as f64),
        times(&one["connect_ms"]),
        times(&one["session_ms"]),
    ]
}

/// Such as `0.4/1.2`; nothing where there are none.
fn times(distribution: &Value) -> String {
    let at = |share: &str| distribution[share].as_f64().map(|ms| format!("{ms:.1}"));
    at("p50").zip(at("p99")).map_or("-".into(), |(p50, p99)| format!("{p50}/{p99}"))
}
