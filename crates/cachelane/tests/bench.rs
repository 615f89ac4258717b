//! The benches run to their end and give what was asked for; what they measure here is nothing
//! to go by.

use std::process::Command;

#[test]
fn root_bench_bridge_gives_every_claimed_ratio() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: root_bench_bridge_gives_every_claimed_ratio: needs root");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_cachelane"))
        .args(["bench", "bridge", "--json", "--rounds", "1", "--window", "50ms"])
        .args(["--entries", "1000"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["schema"], &json["experiment"]), (&1.into(), &"bridge".into()));
    let ratios = json["ratios"].as_array().unwrap();
    let absent: Vec<_> = json["absent"].as_array().into_iter().flatten().collect();
    for (name, needs) in [
        ("pps: cachelane / linux bridge", None),
        ("pps: 2 cpus / 1 cpu", Some("there is one CPU")),
        ("cache-to-cache fills per packet: split / shared", Some("")),
        ("tcp stream: cachelane / linux bridge", None),
        ("tcp rr: cachelane / linux bridge", None),
        ("pps: 1000 entries / 3 entries", None),
    ] {
        let there = ratios.iter().any(|r| {
            r["name"] == name && r["median"].as_f64() >= Some(0.0) && r["bar"].is_object()
        });
        // What this host cannot measure has a reason.
        let said = needs.is_some_and(|reason| {
            let said = absent
                .iter()
                .filter_map(|text| text.as_str())
                .find_map(|text| text.strip_prefix(name)?.strip_prefix(": "));
            said.is_some_and(|said| !said.is_empty() && said.contains(reason))
        });
        assert!(there != said, "'{name}' once in {ratios:?} or {absent:?}");
    }
    for case in ["time to mirror, 1000 entries", "table memory, 1000 entries"] {
        let cases = json["cases"].as_array().unwrap();
        let there = cases.iter().any(|c| c["name"] == case && c["median"].as_f64() > Some(0.0));
        assert!(there, "no case '{case}' in {cases:?}");
    }
}

#[test]
fn root_bench_relay_gives_every_claimed_ratio() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: root_bench_relay_gives_every_claimed_ratio: needs root");
        return;
    }
    let dir = tempfile::Builder::new().prefix("cachelane-bench-").tempdir().unwrap();
    let page = dir.path().join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_cachelane"))
        .args(["bench", "relay", "--json", "--rounds", "1", "--window", "100ms"])
        .args(["--memory-time", "1s", "--idle", "200", "--html"])
        .arg(&page)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["schema"], &json["experiment"]), (&1.into(), &"relay".into()));
    let absent = json["absent"].as_array().map_or(0, Vec::len);
    let ratios = json["ratios"].as_array().unwrap();
    for (name, needs_peer) in [
        ("sockmap sized / sockmap stock", false),
        ("relay / haproxy-splice", true),
        ("relay / nginx-256k", true),
        ("relay / direct", false),
        ("rr p99: relay / haproxy", true),
        ("connections per second: relay / haproxy", true),
        ("forwarding on chosen cpus", false),
    ] {
        let there = ratios.iter().any(|r| r["name"] == name && r["median"].as_f64() > Some(0.0));
        assert!(there || (needs_peer && absent > 0), "no ratio '{name}' in {ratios:?}");
    }
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("relay / nginx-256k"));
}
