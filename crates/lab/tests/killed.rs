//! A process that is killed leaves nothing of its lab behind. In a test program of its own, as
//! it compares what the whole machine has before and after.

mod common;

use std::{
    collections::HashSet,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{
    BridgeOptions, Lab, LinkOptions,
    peer::{Peer, Proxy, ProxyOptions, installed},
};
use common::{lives, machine_network, namespaces};

const TEST: &str = "root_a_killed_owner_leaves_nothing";
const IS_OWNER: &str = "LAB_TEST_OWNER";

/// The owner: builds a lab with peers, says what it has made, and waits to be killed.
fn own() {
    let lab = Lab::new("killed").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
    let bridge = lab.bridge("switch", &[&a, &b], BridgeOptions::default()).expect("a bridge");
    let sleeper = bridge.own.host.command("sleep").arg("600").spawn().expect("sleep starts");
    let mut pids = vec![sleeper.pid()];
    let mut peers = Vec::new();
    let proxies = [Proxy::Haproxy { splice: false }, Proxy::Nginx { buffer: None }];
    for (port, proxy) in (4000..).zip(proxies) {
        if installed(proxy.program()).is_some() {
            let options = ProxyOptions::new(link.b.socket(port), link.a.socket(port));
            peers.push(Peer::proxy(&lab, &b, proxy, &options).expect("it starts"));
        }
    }
    pids.extend(peers.iter().flat_map(Peer::pids));
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    println!("\nowns {} {}", lab.dir().display(), pids.join(" "));
    loop {
        std::thread::park();
    }
}

#[test]
fn root_a_killed_owner_leaves_nothing() {
    if std::env::var_os(IS_OWNER).is_some() {
        return own();
    }
    if !root(TEST) {
        return;
    }
    let before = (machine_network(), namespaces());
    let mut owner = Command::new(std::env::current_exe().expect("our path"))
        .args(["--exact", TEST, "--nocapture"])
        .env(IS_OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stdout = BufReader::new(owner.stdout.take().expect("a pipe"));
    let owns = stdout.lines().map_while(Result::ok).find_map(|line| {
        line.strip_prefix("owns ").map(|rest| rest.split(' ').map(str::to_owned).collect())
    });
    let owns: Vec<String> = owns.expect("the owner says what it owns");
    let dir = PathBuf::from(&owns[0]);
    let pids: Vec<u32> = owns[1..].iter().map(|pid| pid.parse().expect("a PID")).collect();
    assert!(dir.exists());
    assert!(pids.iter().all(|pid| lives(*pid)), "{pids:?}");
    assert_eq!(machine_network(), before.0);
    let theirs: HashSet<String> = pids
        .iter()
        .map(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("it is alive"))
        .map(|link| link.display().to_string())
        .collect();
    assert!(!theirs.is_empty() && theirs.is_disjoint(&before.1));

    owner.kill().expect("it is alive");
    owner.wait().expect("its status");
    assert!(comes_true(|| pids.iter().all(|pid| !lives(*pid))), "{pids:?}");
    assert!(comes_true(|| theirs.is_disjoint(&namespaces())));
    assert_eq!(machine_network(), before.0);
    assert!(dir.exists(), "nobody was left to remove it");
    let next = Lab::new("next").expect("a lab");
    assert!(!dir.exists() && next.dir().exists());
}
