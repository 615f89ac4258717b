//! `cachelane xsk search`: the highest rate through something that limits it, and what it says where
//! nothing does, or nothing comes.

mod common;

use std::time::Duration;

use common::text;
use common::xsk::{Running, Scene, has_program, number};
use lab::testing::{comes_true, root};
use lab::{Host, Link, LinkOptions};
use rustix::process::Signal;
use serde_json::Value;

/// A host with two devices, `eth0` and `eth1`, and a bridge between them whose second port sends so many
/// bits a second.
fn limited(scene: &Scene, rate: &str) -> Host {
    let (host, middle) = (scene.host("a"), scene.host("m"));
    let links = [(); 2].map(|()| scene.join(&host, &middle, LinkOptions::default()));
    let ip = |args: &[&str]| middle.ip(args).map(drop).expect("ip");
    ip(&["link", "add", "br0", "type", "bridge"]);
    for link in &links {
        ip(&["link", "set", &link.b.device, "master", "br0"]);
    }
    ip(&["link", "set", "br0", "up"]);
    // What may wait is little, so that the rate counts and not how long it is measured.
    let limit = ["rate", rate, "burst", "10kb", "latency", "5ms"];
    let tc = middle.command("tc").args(["qdisc", "add", "dev", &links[1].b.device, "root", "tbf"]);
    tc.args(limit).run().expect("tc");
    host
}

fn search(scene: &Scene, host: &Host, more: &[&str]) -> Value {
    let args = ["xsk", "search", "eth0", "--receive", "eth1", "--trial", "200ms"];
    scene.object(host, &[&args[..], more].concat())
}

#[test]
fn root_the_highest_rate_is_that_of_what_limits_it() {
    if !root("root_the_highest_rate_is_that_of_what_limits_it") {
        return;
    }
    let scene = Scene::new("searchrate");
    let host = limited(&scene, "4mbit");
    let page = scene.place.path().join("search.html");
    let path = page.to_str().expect("text");
    let more = ["--sizes", "500,1000", "--precision", "10", "--tries", "2", "--html", path];
    let found = search(&scene, &host, &more);
    assert_eq!(found["ended_by"], "done", "{found:#}");
    for (at, size) in [500.0, 1000.0].into_iter().enumerate() {
        let of = &found["results"][at];
        assert_eq!((of["size"].as_f64(), &of["limit"]), (Some(size), &"loss".into()), "{of:#}");
        let rate = of["pps"].as_f64().expect("a rate");
        // A machine without time loses packets at lower rates as well, but never lets more through:
        // of 4 Mbit/s in 200 ms, what was saved up, and what may wait.
        let (saved, waiting) = (10.0 * 1024.0, 10.0 * 1024.0 + 4e6 * 0.005 / 8.0);
        let most = (4e6 * 0.2 / 8.0 + saved + waiting) / 0.2 / size;
        assert!(rate <= most * 1.02, "{size}: {rate} of {most}: {of:#}");
        assert!(rate >= most * 0.1, "{size}: {rate} of {most}: {of:#}");
        let trials = of["trials"].as_array().expect("trials");
        let mut passed = trials.iter().filter(|trial| trial["passed"] == true);
        let best = passed.find(|trial| trial["pps"] == of["pps"]).expect("one of them");
        assert_eq!(number(best, "/lost"), 0, "{best}");
        assert!(trials.iter().any(|trial| trial["passed"] == false), "{of:#}");
        let late =
            ["median", "p99", "max"].map(|at| of["latency_us"][at].as_f64().expect("a time"));
        assert!(late.is_sorted() && late[0] > 0.0, "{late:?}");
        let cable = of["cable_bits_per_second"].as_f64().expect("a rate");
        assert!((cable - rate * 8.0 * (size + 24.0)).abs() < 1.0);
    }
    let html = std::fs::read_to_string(page).expect("a page");
    for part in ["Highest rates from eth0 to eth1", "500 bytes", "99th percentile", "RFC 2544"] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(number(&found, "/frames/leaked"), 0);
}

/// Nothing is lost at the highest rate that was asked for, and that is said.
#[test]
fn root_a_rate_that_nothing_limits_is_said_to_be_so() {
    if !root("root_a_rate_that_nothing_limits_is_said_to_be_so") {
        return;
    }
    let scene = Scene::new("searchfree");
    let link = scene.link("a", "b");
    let reflect = ["xsk", "forward", &link.b.device, "--udp-port", "9"];
    let _forward = scene.start(&link.b.host, &reflect, "forwarding");
    let mac = link.b.mac.to_string();
    let args = ["xsk", "search", &link.a.device, "--dst-mac", &mac, "--trial", "300ms"];
    let more = ["--sizes", "64,300", "--max-rate", "500", "--tries", "5"];
    let found = scene.object(&link.a.host, &[&args[..], &more].concat());
    for of in found["results"].as_array().expect("two sizes") {
        assert_eq!(of["limit"], "max-rate", "{of:#}");
        let rate = of["pps"].as_f64().expect("a rate");
        assert!((400.0..=510.0).contains(&rate), "{of:#}");
    }
    // Half of the packets are not sent back.
    let half = [&args[..], &["--sizes", "64", "--max-rate", "500", "--dport", "9-10"]].concat();
    let allowed = scene.object(&link.a.host, &[&half[..], &["--loss", "50"]].concat());
    assert_eq!(allowed["results"][0]["limit"], "max-rate", "{allowed:#}");
    let output = scene.run(&link.a.host, &[&half[..], &["--loss", "40"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("packets are lost even at"), "{output:?}");
}

#[test]
fn root_what_cannot_be_searched_is_said() {
    if !root("root_what_cannot_be_searched_is_said") {
        return;
    }
    let scene = Scene::new("searchbad");
    let link = scene.link("a", "b");
    for (more, code, parts) in [
        (&[][..], 1, &["none of", "came back to eth0", "xsk forward"][..]),
        (&["--receive", "eth0"], 2, &["--receive eth0", "leave it out"]),
        (&["--receive", "eth9"], 2, &["eth9"]),
        (&["--sizes", "20"], 2, &["--sizes 20", "at least 64"]),
        (&["--sizes", "imix"], 2, &["--sizes imix", "64,512"]),
        (&["--sizes", "64:2"], 2, &["--sizes 64:2", "64,512"]),
        (&["--sizes", "9000"], 2, &["--sizes 9000"]),
        (&["--count", "5"], 2, &["--count 5", "--trial"]),
        (&["--loss", "-1"], 2, &["-1"]),
        (&["--trial", "500000000000y"], 2, &["500000000000y", "10ms to 24h"]),
        (&["--trial", "1ms"], 2, &["1ms", "10ms to 24h"]),
        (&["--html", "/nowhere/x"], 1, &["--html /nowhere/x"]),
    ] {
        let output =
            scene.run(&link.a.host, &[&["xsk", "search", &link.a.device][..], more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{more:?}: {part} is missing: {said}");
        }
    }
    let dry = ["xsk", "search", &link.a.device, "--dry-run"];
    let output = scene.run(&link.a.host, &dry);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("would search the highest rate"), "{said}");
    assert!(said.contains("64, 124, 252, 508, 1020, 1276, 1514 bytes"), "{said}");
    // What comes once is read once, for all sizes.
    let key = vec!["6d"; 40].join(":");
    let rss = format!("RX flow hash indirection table for b:\n 0: 0 1\nRSS hash key:\n{key}\n");
    let path = scene.place.path().join("rss");
    std::fs::write(&path, rss).expect("a file");
    let mut command = scene.command(&[&dry[..], &["--rss", "-", "--flows", "8"]].concat());
    command.stdin(std::fs::File::open(&path).expect("a file"));
    let output = link.a.host.run(move || command.output()).expect("the host").expect("it runs");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("queues 0-1: 4 each"), "{output:?}");
}

/// Ctrl-C ends it with what was found until then.
#[test]
fn root_a_search_that_is_interrupted_gives_what_it_has() {
    if !root("root_a_search_that_is_interrupted_gives_what_it_has") {
        return;
    }
    let scene = Scene::new("searchstop");
    let host = limited(&scene, "4mbit");
    let args = ["xsk", "search", "eth0", "--receive", "eth1", "--trial", "200ms", "--json"];
    let more = ["--sizes", "1000,500"];
    let running = scene.start(&host, &[&args[..], &more].concat(), "1000 bytes:");
    let found = running.object();
    assert_eq!(found["ended_by"], "signal", "{found:#}");
    assert_eq!(found["results"][0]["limit"], "loss", "{found:#}");
    assert_eq!(found["results"][1]["limit"], "unfinished", "{found:#}");
}

/// A search that another host sends packets back to, and which is in a trial of so long.
fn in_a_trial(scene: &Scene, link: &Link, trial: &str, more: &[&str]) -> (Running, Running) {
    let reflect = ["xsk", "forward", &link.b.device, "--udp-port", "9"];
    let forward = scene.start(&link.b.host, &reflect, "forwarding");
    let mac = link.b.mac.to_string();
    let args = ["xsk", "search", &link.a.device, "--dst-mac", &mac, "--trial", trial, "--json"];
    let args = [&args[..], &["--sizes", "64", "--max-rate", "500"], more].concat();
    let running = scene.start(&link.a.host, &args, "searching");
    // More than those before the first trial.
    assert!(comes_true(|| scene.counter(&running, "xsk.tx_packets") > 100));
    (running, forward)
}

#[test]
fn root_a_search_that_is_stopped_in_a_trial_leaves_nothing_behind() {
    if !root("root_a_search_that_is_stopped_in_a_trial_leaves_nothing_behind") {
        return;
    }
    let scene = Scene::new("searchend");
    let link = scene.link("a", "b");
    let page = scene.place.path().join("search.html");
    let html = ["--html", page.to_str().expect("text")];
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let (running, _forward) = in_a_trial(&scene, &link, "1m", &html);
        assert!(has_program(&link.a));
        let output = running.end(signal);
        assert!(comes_true(|| !has_program(&link.a)), "{signal:?}");
        assert_eq!(page.exists(), signal != Signal::KILL, "{signal:?}");
        if signal == Signal::KILL {
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found["ended_by"], "signal", "{found:#}");
        assert_eq!(found["results"][0]["limit"], "unfinished", "{found:#}");
        assert_eq!(number(&found, "/frames/leaked"), 0, "{found:#}");
        let html = std::fs::read_to_string(&page).expect("a page");
        assert!(html.contains("64 bytes: not finished"), "{html}");
        assert!(html.trim_end().ends_with("</html>"), "{html}");
        std::fs::remove_file(&page).expect("it is there");
    }
}

#[test]
fn root_a_search_whose_device_goes_names_it() {
    if !root("root_a_search_whose_device_goes_names_it") {
        return;
    }
    for (name, device) in [("searchgone", ""), ("searchgone0", "eth0"), ("searchgone1", "eth1")] {
        let scene = Scene::new(name);
        let (host, running) = if device.is_empty() {
            let link = scene.link("a", "b");
            let (running, _forward) = in_a_trial(&scene, &link, "1m", &[]);
            (link.a.host.clone(), running)
        } else {
            let host = limited(&scene, "100mbit");
            let args = ["xsk", "search", "eth0", "--receive", "eth1", "--trial", "1m", "--json"];
            let more = ["--sizes", "64", "--max-rate", "500"];
            let running = scene.start(&host, &[&args[..], &more].concat(), "searching");
            assert!(comes_true(|| scene.counter(&running, "xsk.tx_packets") > 100));
            (host, running)
        };
        let device = if device.is_empty() { "eth0" } else { device };
        host.ip(["link", "del", device]).expect("ip");
        let output = running.ends();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let error = found["error"].as_str().expect("an error");
        assert!(error.contains(device), "{device}: {error}");
        assert_eq!(found["results"][0]["limit"], "unfinished", "{found:#}");
    }
}

/// Where nothing comes any more, no rate passes.
#[test]
fn root_a_receiver_that_is_killed_is_a_loss() {
    if !root("root_a_receiver_that_is_killed_is_a_loss") {
        return;
    }
    let scene = Scene::new("searchkilled");
    let link = scene.link("a", "b");
    let (running, forward) = in_a_trial(&scene, &link, "2s", &[]);
    // A trial in which the search was stopped is made again.
    running.signal(Signal::STOP);
    assert!(!forward.end(Signal::KILL).status.success());
    std::thread::sleep(Duration::from_millis(500));
    running.signal(Signal::CONT);
    let output = running.ends();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["results"][0]["limit"], "loss", "{found:#}");
    assert!(found["results"][0]["pps"].is_null(), "{found:#}");
}

/// A process that is stopped takes nothing meanwhile, so that its trial says nothing of the rate.
#[test]
fn root_a_trial_in_which_the_process_was_stopped_is_made_again() {
    if !root("root_a_trial_in_which_the_process_was_stopped_is_made_again") {
        return;
    }
    let scene = Scene::new("searchheld");
    let link = scene.link("a", "b");
    // In the five trials at most, some may be of a machine without time.
    let (running, _forward) = in_a_trial(&scene, &link, "5s", &["--tries", "5"]);
    running.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(4));
    running.signal(Signal::CONT);
    let output = running.ends();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = &found["results"][0];
    assert_eq!(of["limit"], "max-rate", "{of:#}");
    let trials = of["trials"].as_array().expect("trials");
    let sent: Vec<u64> = trials.iter().map(|trial| number(trial, "/sent")).collect();
    assert!(sent.iter().all(|sent| *sent > 1000), "{of:#}");
    // What was sent before is in no trial.
    assert!(number(&found, "/by_queue/0/tx_packets") > sent.iter().sum::<u64>() + 100, "{found:#}");
}

/// Each queue has a thread, and together they send and receive what one would.
#[test]
fn root_all_queues_of_a_device_take_part() {
    if !root("root_all_queues_of_a_device_take_part") {
        return;
    }
    let scene = Scene::new("searchqueues");
    let options = || LinkOptions { queues: 4, ..LinkOptions::default() };
    let link = scene.join(&scene.host("a"), &scene.host("b"), options());
    let reflect = ["xsk", "forward", &link.b.device, "--udp-port", "9,1000-1099"];
    let _forward = scene.start(&link.b.host, &reflect, "forwarding");
    let mac = link.b.mac.to_string();
    let to = ["--dst-mac", &mac, "--dport", "1000-1099", "--queues", "0-3"];
    let queues = |ended: &Value, name: &str| {
        let all = ended["by_queue"].as_array().expect("queues").iter();
        let used = all.filter(|one| number(one, &format!("/{name}")) > 0);
        used.map(|one| number(one, "/queue")).collect::<Vec<_>>()
    };
    // Fewer than a veth's queue has room for, so that none is lost.
    let send = ["xsk", "send", &link.a.device, "--latency", "--count", "200", "--rate", "1k"];
    let sent = scene.object(&link.a.host, &[&send[..], &to].concat());
    let both = (number(&sent, "/latency/sent"), number(&sent, "/latency/back"));
    assert_eq!(both, (200, 200), "{sent:#}");
    assert_eq!(
        (queues(&sent, "tx_packets"), number(&sent, "/frames/leaked")),
        (vec![0, 1, 2, 3], 0)
    );
    let search = ["xsk", "search", &link.a.device, "--trial", "300ms", "--sizes", "64"];
    let more = ["--max-rate", "500", "--tries", "5"];
    let found = scene.object(&link.a.host, &[&search[..], &more, &to].concat());
    let of = &found["results"][0];
    assert_eq!(of["limit"], "max-rate", "{of:#}");
    let rate = of["pps"].as_f64().expect("a rate");
    assert!((400.0..=520.0).contains(&rate), "{of:#}");
    assert_eq!(queues(&found, "tx_packets"), [0, 1, 2, 3], "{found:#}");
}
