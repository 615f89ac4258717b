//! The benches run to their end and give what was asked for; what they measure here is nothing
//! to go by.

use std::process::Command;

use parking_lot::{Mutex, MutexGuard};

/// One bench at a time: side by side they take each other's CPUs, for longer than their windows.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

#[test]
fn root_bench_bridge_gives_every_claimed_ratio() {
    if !lab::testing::root("root_bench_bridge_gives_every_claimed_ratio") {
        return;
    }
    let _turn = turn();
    let output = Command::new(env!("CARGO_BIN_EXE_cachelane"))
        .args(["bench", "bridge", "--json", "--rounds", "1", "--window", "200ms"])
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
    // Differences, which may be less than 0.
    for name in [
        "announced change to effect, 1000 ports: cachelane - linux bridge",
        "filter rule to effect, busy machine: cachelane - linux bridge",
    ] {
        let there = ratios.iter().filter(|ratio| ratio["name"] == name && ratio["bar"].is_object());
        assert_eq!(there.count(), 1, "'{name}' in {ratios:?}");
    }
    for case in ["time to mirror, 1000 entries", "table memory, 1000 entries"] {
        let cases = json["cases"].as_array().unwrap();
        let there = cases.iter().any(|c| c["name"] == case && c["median"].as_f64() > Some(0.0));
        assert!(there, "no case '{case}' in {cases:?}");
    }
}

#[test]
fn bench_frames_gives_every_claimed_ratio() {
    let json = bench_frames(&["--rounds", "1", "--window", "10ms"], None);
    let (ratios, absent) = (json["ratios"].as_array().unwrap(), texts(&json["absent"]));
    let of_memory = ["get+put single", "get+put bulk 32", "alien (get on A, put on B)"];
    for pattern in of_memory {
        for (peer, has_bar) in [("dpdk", true), ("crossbeam", false), ("mimalloc", false)] {
            let name = format!("{pattern}: frames / {peer}");
            let there = ratios.iter().any(|ratio| {
                ratio["name"] == name.as_str()
                    && ratio["median"].as_f64() > Some(0.0)
                    && ratio["bar"].is_object() == has_bar
            });
            let said = absent.iter().any(|text| text.starts_with(&format!("{peer}: ")));
            assert!(there != said, "'{name}' once in {ratios:?} or {absent:?}");
        }
    }
    for pattern in ["ping-pong", "one-way", "all-to-all", "bursts", "one thread stops"] {
        for flows in ["one flow", "many flows"] {
            for lanes in ["", ", one lane"] {
                let name = format!("auto / best of both: {pattern}, {flows}{lanes}");
                let there = ratios
                    .iter()
                    .any(|ratio| ratio["name"] == name.as_str() && ratio["bar"]["at_most"] == 1.03);
                assert!(there, "no ratio '{name}' in {ratios:?}");
            }
        }
    }
    let cases = json["cases"].as_array().unwrap();
    for threads in ["1 thread", "4 threads", "8 threads"] {
        for pattern in ["get+put single", "alien (get on A, put on B)", "all-to-all"] {
            let name = format!("{pattern}, frames, {threads} per cpu");
            let there = cases
                .iter()
                .any(|c| c["name"] == name.as_str() && c["median"].as_f64() > Some(0.0));
            assert!(there, "no case '{name}' in {cases:?}");
        }
    }
}

#[test]
fn bench_frames_says_which_peers_are_absent_and_why() {
    let nothing = tempfile::Builder::new().prefix("cachelane-bench-").tempdir().unwrap();
    let args = ["--only", "memory,threads", "--rounds", "1", "--window", "5ms"];
    let json = bench_frames(&args, Some(nothing.path()));
    let absent = texts(&json["absent"]);
    for (peer, reason) in [
        ("dpdk", "pkg-config cannot be run"),
        ("dpdk, stack handler", "pkg-config cannot be run"),
        ("mimalloc", "the C compiler, cc, cannot be run"),
    ] {
        let said = format!("{peer}: {reason}");
        assert!(absent.iter().any(|text| text.starts_with(&said)), "'{said}' in {absent:?}");
        let case = format!(", {peer}");
        let cases = json["cases"].as_array().unwrap();
        assert!(!cases.iter().any(|c| c["name"].as_str().unwrap().contains(&case)), "{cases:?}");
    }
    let names: Vec<_> = json["ratios"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert!(names.contains(&&"get+put single: frames / crossbeam".into()), "{names:?}");
}

fn bench_frames(args: &[&str], path: Option<&std::path::Path>) -> serde_json::Value {
    bench("frames", args, path)
}

/// Runs an experiment, with programs looked for in this folder only.
fn bench(name: &str, args: &[&str], path: Option<&std::path::Path>) -> serde_json::Value {
    let _turn = turn();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachelane"));
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.args(["bench", name, "--json"]).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["schema"], &json["experiment"]), (&1.into(), &name.into()));
    json
}

/// By part, whether the bench of lend can measure it as this user.
const LEND_RATIOS: [(&str, bool); 7] = [
    ("take+return one core: counters / ledger", true),
    ("take+return two cores: counters / ledger", true),
    ("worker idle points: counters - ledger", true),
    ("delivered pps: lend / af_packet", true),
    ("delivered pps: lend --private / lend", false),
    ("delivered pps: c / rust", false),
    ("delivered pps: python / rust", false),
];

#[test]
fn root_bench_lend_gives_every_claimed_ratio() {
    if !lab::testing::root("root_bench_lend_gives_every_claimed_ratio") {
        return;
    }
    let json = bench("lend", &["--rounds", "1", "--window", "100ms"], None);
    let (ratios, absent) = (json["ratios"].as_array().unwrap(), texts(&json["absent"]));
    for (name, has_bar) in LEND_RATIOS {
        let there = ratios.iter().any(|ratio| {
            ratio["name"] == name
                && ratio["median"].as_f64().is_some()
                && ratio["bar"].is_object() == has_bar
        });
        let peer = name.rsplit_once(" / ").map_or("", |(cases, peer)| match peer {
            "rust" => cases.rsplit_once(' ').map_or("", |(_, language)| language),
            peer => peer,
        });
        let said = absent.iter().any(|text| {
            [format!("{peer}: "), format!("borrower in {peer}: ")]
                .iter()
                .any(|said| !peer.is_empty() && text.starts_with(said))
        });
        assert!(there != said, "'{name}' once in {ratios:?} or {absent:?}");
    }
    // What is installed and cannot be built is a defect.
    assert!(!absent.iter().any(|text| text.contains("cannot be built")), "{absent:?}");
    let cases = json["cases"].as_array().unwrap();
    for case in ["cpu time per packet, 64 bytes at 1 kpps, lend", "delivered pps, 1500 bytes, lend"]
    {
        let there = cases.iter().any(|c| c["name"] == case && c["median"].as_f64() > Some(0.0));
        assert!(there, "no case '{case}' in {cases:?}");
    }
}

#[test]
fn bench_lend_says_what_is_absent_and_why() {
    let nothing = tempfile::Builder::new().prefix("cachelane-bench-").tempdir().unwrap();
    let args = ["--only", "accounting", "--rounds", "1", "--window", "5ms"];
    let json = bench("lend", &args, Some(nothing.path()));
    assert_eq!(
        json["ratios"].as_array().unwrap().iter().filter(|r| r["bar"].is_object()).count(),
        2
    );
    if rustix::process::geteuid().is_root() {
        let args = ["--only", "delivered", "--rounds", "1", "--window", "50ms"];
        // Without a compiler and without Python in its path.
        for program in ["env", "ethtool", "ip", "setpriv"] {
            let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(std::path::Path::new);
            let found = folders.iter().map(|dir| dir.join(program)).find(|path| path.exists());
            let found = found.unwrap_or_else(|| panic!("no {program}"));
            std::os::unix::fs::symlink(found, nothing.path().join(program)).unwrap();
        }
        let json = bench("lend", &args, Some(nothing.path()));
        let absent = texts(&json["absent"]);
        for said in [
            "af_packet: the C compiler, cc, cannot be run",
            "borrower in c: the C compiler, cc, cannot be run",
        ] {
            assert!(absent.iter().any(|text| text.starts_with(said)), "'{said}' in {absent:?}");
        }
    }
}

fn texts(array: &serde_json::Value) -> Vec<&str> {
    array.as_array().into_iter().flatten().filter_map(|text| text.as_str()).collect()
}

/// By name, what is claimed of it, if anything is.
const STEER_RATIOS: [(&str, Option<&str>); 15] = [
    ("records: llc_affinity on / off", Some("at_most")),
    ("records, a lane per cpu: on / off", Some("between")),
    ("rpc throughput: steer / kernel rfs", Some("at_least")),
    ("rpc p99: steer / kernel rfs", Some("at_most")),
    ("rpc throughput: steer / kernel rps", None),
    ("rpc p99: steer / no steering", None),
    ("rpc throughput: steer / kernel rfs, no program on the veth", None),
    ("rpc p99: steer / no steering, no program on the veth", None),
    ("run time: steer / parse and redirect only", Some("at_most")),
    ("run time: record / tuple and hash only", Some("at_most")),
    ("run time, 64 connections: steer / parse and redirect only", None),
    ("softirq and consumer in one lane", Some("at_least")),
    ("softirq and consumer in one lane, no steering", None),
    ("busy machine, lost: steer - kernel rfs", Some("at_most")),
    ("busy machine, p99: steer / kernel rfs", Some("at_most")),
];

#[test]
fn root_bench_steer_gives_every_claimed_ratio() {
    if !lab::testing::root("root_bench_steer_gives_every_claimed_ratio") {
        return;
    }
    let entries = "/proc/sys/net/core/rps_sock_flow_entries";
    let found = std::fs::read_to_string(entries).unwrap();
    let args = ["--rounds", "1", "--window", "200ms"];
    let json = bench("steer", &args, None);
    let (ratios, absent) = (json["ratios"].as_array().unwrap(), texts(&json["absent"]));
    for (name, bar) in STEER_RATIOS {
        let there = ratios.iter().any(|ratio| {
            let claimed = ratio["bar"].as_object().and_then(|bar| bar.keys().next());
            ratio["name"] == name
                && (ratio["median"].as_f64() >= Some(0.0) || name.contains(" - "))
                && claimed.map(String::as_str) == bar
        });
        // What this host cannot measure has a reason.
        let part = name.split([':', ',']).next().unwrap_or(name);
        let said = absent.iter().any(|text| {
            let peer = name.contains("kernel rfs") && text.starts_with("kernel rfs: ");
            peer || part.starts_with(text.split(": ").next().unwrap_or(text))
        });
        assert!(there != said, "'{name}' once in {ratios:?} or {absent:?}");
    }
    assert_eq!(std::fs::read_to_string(entries).unwrap(), found, "the machine's own setting");
}

#[test]
fn root_bench_relay_gives_every_claimed_ratio() {
    if !lab::testing::root("root_bench_relay_gives_every_claimed_ratio") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("cachelane-bench-").tempdir().unwrap();
    let page = dir.path().join("page.html");
    let _turn = turn();
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
