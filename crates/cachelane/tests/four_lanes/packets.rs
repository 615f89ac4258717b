//! Frames and loans whose threads are in four lanes.

use std::process::{Command, Stdio};
use std::time::Duration;

use lab::testing::comes_true;
use lab::traffic::UdpSender;
use lab::{Link, LinkOptions};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::xsk::{Running, Scene, number, three};
use crate::common::{PROGRAM, ends_within};
use crate::machine::{Offline, own_machine};

/// Sends numbered packets over the link.
fn send(scene: &Scene, near: &Link, far: &Link, count: u64) {
    let (count, mac) = (count.to_string(), far.b.mac.to_string());
    let args = ["xsk", "send", &near.a.device, "--count", &count, "--dst-mac", &mac];
    let sent = [&args[..], &["--pattern", "seq", "--rate", "2000", "--dport", "9"]].concat();
    let sent = scene.object(&near.a.host, &sent);
    assert_eq!(number(&sent, "/tx/packets").to_string(), count);
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_frames_that_cross_lanes_are_sent_home_or_stay_and_none_is_lost() {
    let test = "root_frames_that_cross_lanes_are_sent_home_or_stay_and_none_is_lost";
    let Some(_own) = own_machine(test) else { return };
    let scene = Scene::new("laneframes");
    let (near, far) = three(&scene);
    // The thread that receives is in one lane and the one that sends in another, or both are in one.
    for (cpus, alien_free, crosses) in [
        ("0,6", "defer", true),
        ("0,6", "auto", true),
        ("0,6", "recycle", true),
        ("lane:2", "auto", false),
    ] {
        let args = ["xsk", "forward", &near.b.device, "--to", &far.a.device, "--split", "--json"];
        let more = ["--udp-port", "9", "--cpus", cpus, "--alien-free", alien_free];
        let forwarder = scene.start(&near.b.host, &[&args[..], &more].concat(), "forwarding");
        let drop = ["xsk", "drop", &far.b.device, "--udp-port", "9", "--check", "--json"];
        let receiver = scene.start(&far.b.host, &drop, "receiving");
        send(&scene, &near, &far, 4000);
        assert!(comes_true(|| scene.counter(&forwarder, "xsk.tx_packets") >= 4000), "{cpus}");
        let forwarded = forwarder.object();
        assert_eq!(number(&forwarded, "/tx/packets"), 4000, "{forwarded:#}");
        assert_eq!(number(&forwarded, "/frames/leaked"), 0, "{forwarded:#}");
        let sent_home = number(&forwarded, "/pool/sent_home");
        match (crosses, alien_free) {
            (true, "defer") => assert!(sent_home > 0, "{forwarded:#}"),
            (_, "recycle") => assert_eq!(sent_home, 0, "{forwarded:#}"),
            (false, _) => assert_eq!(sent_home, 0, "inside a lane: {forwarded:#}"),
            _ => {}
        }
        let got = receiver.object();
        assert_eq!(
            (number(&got, "/check/probes"), number(&got, "/check/lost")),
            (4000, 0),
            "{got:#}"
        );
    }
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_a_thread_whose_cpu_goes_loses_no_frame() {
    let Some(_own) = own_machine("root_a_thread_whose_cpu_goes_loses_no_frame") else { return };
    let scene = Scene::new("lanethread");
    let link = scene.link("a", "b");
    let drop = ["xsk", "drop", &link.b.device, "--udp-port", "9", "--json", "--cpus", "5"];
    let receiver = scene.start(&link.b.host, &drop, "receiving");
    let sender = UdpSender::start(&link.a.host, link.b.socket(9), 1000, 4).expect("a sender");
    let goes_on = || {
        let before = scene.counter(&receiver, "xsk.rx_packets");
        comes_true(|| scene.counter(&receiver, "xsk.rx_packets") > before + 500)
    };
    assert!(goes_on());
    for _ in 0..2 {
        let offline = Offline::new(5);
        assert!(goes_on(), "while it is gone");
        std::mem::drop(offline);
        assert!(goes_on(), "when it is back");
    }
    std::mem::drop(sender);
    let got = receiver.object();
    assert_eq!(number(&got, "/frames/leaked"), 0, "{got:#}");
}

/// A borrower in a process of its own, on one CPU.
fn borrow(scene: &Scene, socket: &str, cpu: usize) -> Running {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), PROGRAM, "borrow", socket, "--json"]);
    command.env("CACHELANE_RUNTIME_DIR", scene.place.path()).current_dir(scene.place.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(Some(command.spawn().expect("taskset runs")))
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_borrowers_of_four_lanes_get_packets_while_cpus_come_and_go() {
    let test = "root_borrowers_of_four_lanes_get_packets_while_cpus_come_and_go";
    let Some(_own) = own_machine(test) else { return };
    let scene = Scene::new("lanelend");
    let options = LinkOptions { queues: 4, ..LinkOptions::default() };
    let link = scene.join(&scene.host("a"), &scene.host("b"), options);
    let socket = scene.place.path().join("lend.sock");
    let socket = socket.to_str().expect("text");
    let lend = ["lend", &link.b.device, "--udp-port", "9000", "--socket", socket, "--json"];
    let lend = [&lend[..], &["--queues", "0-3", "--cpus", "0,2,4,6", "--quota", "256"]].concat();
    let lender = scene.start(&link.b.host, &lend, "lending UDP to port 9000 on");
    let borrowers = [1, 3, 5, 7].map(|cpu| borrow(&scene, socket, cpu));
    let counter = |name: &str| scene.counter(&lender, &format!("lend.{name}"));
    assert!(comes_true(|| counter("borrowers") == 4), "{}", counter("borrowers"));
    let sender = UdpSender::start(&link.a.host, link.b.socket(9000), 2000, 64).expect("a sender");
    let goes_on = || {
        let before = counter("lent");
        comes_true(|| counter("lent") > before + 1000)
    };
    assert!(goes_on());
    // A borrower's CPU, and one of the lender's.
    for cpu in [5, 4] {
        let offline = Offline::new(cpu);
        assert!(goes_on(), "without CPU {cpu}");
        drop(offline);
        assert!(goes_on(), "with CPU {cpu} again");
    }
    drop(sender);
    let balanced = || counter("lent") == counter("returned");
    assert!(comes_true(balanced), "{} lent, {} returned", counter("lent"), counter("returned"));
    for mut borrower in borrowers {
        borrower.signal(Signal::INT);
        let output = ends_within(borrower.0.take().expect("it runs"), Duration::from_secs(60));
        assert!(output.status.success(), "{output:?}");
        let last = output.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
        let got: Value = serde_json::from_slice(last.unwrap_or_default())
            .or_else(|_| serde_json::from_slice(&output.stdout))
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert!(number(&got, "/packets") > 0, "{got:#}");
    }
    let got = lender.object();
    assert_eq!(number(&got, "/frames/leaked"), 0, "{got:#}");
    assert_eq!(number(&got, "/lend/lent"), number(&got, "/lend/returned"), "{got:#}");
}
