//! The benches run to their end and give what was asked for; what they measure here is nothing
//! to go by.

use std::process::Command;

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
