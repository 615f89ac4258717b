//! `cachelane xsk search`: the highest rate through something that limits it, and what it says where
//! nothing does, or nothing comes.

mod common;

use common::text;
use common::xsk::{Scene, number};
use lab::testing::root;
use lab::{Host, LinkOptions};
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
