//! `cachelane xsk send --engine live`: packets that the kernel makes and redirects to a device.

mod common;

use std::time::{Duration, Instant};

use common::text;
use common::xsk::{Scene, number};
use lab::testing::{comes_true, root};
use lab::{End, Link, LinkOptions};
use rustix::process::Signal;

/// Sends by live frames over a link whose other end runs an XDP program.
fn live<'a>(link: &'a Link, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["xsk", "send", &link.a.device, "--engine", "live"];
    [&args[..], more].concat()
}

fn drop<'a>(end: &'a End, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["xsk", "drop", &end.device, "--udp-port", "8-10", "--json"];
    [&args[..], more].concat()
}

#[test]
fn root_live_frames_arrive_whole_and_in_order() {
    if !root("root_live_frames_arrive_whole_and_in_order") {
        return;
    }
    let scene = Scene::new("livesend");
    let link = scene.link("a", "b");
    let mac = link.b.mac.to_string();
    let to = ["--dst-mac", &mac, "--pattern", "seq"];
    let v6 = ["--src", "fd00::1", "--dst", "fd00::2"];
    let many_ports = ["--sport", "1000-1099", "--dport", "9-10"];
    // So slowly that the receiver follows, and no more than its ring has room for.
    let rate = ["--count", "2000", "--rate", "100000"];
    for (size, more) in [
        ("64", &[][..]),
        ("65", &many_ports),
        ("300", &v6),
        ("1514", &[&v6[..], &many_ports].concat()),
        // Whoever had a frame's memory before may have written to it.
        ("84", &v6),
    ] {
        let receiver = scene.start(&link.b.host, &drop(&link.b, &["--check"]), "receiving");
        let args = [&to[..], &rate, &["--size", size], more].concat();
        let sent = scene.object(&link.a.host, &live(&link, &args));
        assert_eq!(number(&sent, "/tx/packets"), 2000, "{sent:#}");
        assert_eq!(number(&sent, "/drops/tx_dropped"), 0, "{sent:#}");
        let socket = sent["sockets"][0].as_str().expect("words");
        assert!(socket.contains("live frames out of"), "{socket}");
        assert!(
            comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 2000),
            "{size} {more:?}"
        );
        let got = receiver.object();
        assert_eq!(number(&got, "/check/probes"), 2000, "{got:#}");
        for bad in ["lost", "reordered", "duplicated", "corrupt", "other"] {
            assert_eq!(number(&got, &format!("/check/{bad}")), 0, "{size} {more:?}: {got:#}");
        }
        let bytes = 2000 * size.parse::<u64>().expect("a number");
        assert_eq!((number(&sent, "/tx/bytes"), number(&got, "/rx/bytes")), (bytes, bytes));
    }
}

/// The longest that there can be, to a veth that takes frames for its GRO.
#[test]
fn root_the_longest_frame_is_sent() {
    if !root("root_the_longest_frame_is_sent") {
        return;
    }
    let scene = Scene::new("livelong");
    let options = LinkOptions { mtu: 4000, ..LinkOptions::default() };
    let link = scene.join(&scene.host("a"), &scene.host("b"), options);
    let ethtool = link.b.host.command("ethtool").args(["-K", &link.b.device, "gro", "on"]);
    ethtool.run().expect("ethtool");
    let sent = scene.object(&link.a.host, &live(&link, &["--count", "100", "--size", "3072"]));
    assert_eq!(number(&sent, "/tx/bytes"), 307_200, "{sent:#}");
    assert_eq!(number(&sent, "/drops/tx_dropped"), 0, "{sent:#}");
}

/// Each thread has its flows and its stream, and together they send the count.
#[test]
fn root_threads_share_a_count_and_a_rate() {
    if !root("root_threads_share_a_count_and_a_rate") {
        return;
    }
    let scene = Scene::new("livethreads");
    let link = scene.link("a", "b");
    let receiver = scene.start(&link.b.host, &drop(&link.b, &["--check"]), "receiving");
    let online = rustix::thread::sched_getaffinity(None).expect("our own");
    let cpus: Vec<String> =
        (0..64).filter(|cpu| online.is_set(*cpu)).take(2).map(|cpu| cpu.to_string()).collect();
    let (cpus, threads) = (cpus.join(","), cpus.len() as u64);
    let mac = link.b.mac.to_string();
    let rate = (threads * 100_000).to_string();
    let args = ["--dst-mac", &mac, "--pattern", "seq", "--cpus", &cpus, "--rate", &rate];
    let start = Instant::now();
    let sent =
        scene.object(&link.a.host, &live(&link, &[&args[..], &["--count", "1501"]].concat()));
    let took = start.elapsed();
    assert_eq!(number(&sent, "/tx/packets"), 1501, "{sent:#}");
    let least = Duration::from_secs_f64(1400.0 / (threads * 100_000) as f64);
    assert!(took >= least, "{took:?}: faster than the rate");
    assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 1501));
    let got = receiver.object();
    assert_eq!((number(&got, "/check/probes"), number(&got, "/check/lost")), (1501, 0), "{got:#}");
}

/// A call of the kernel's lasts long; a signal ends it all the same.
#[test]
fn root_live_frames_end_at_once_and_auto_takes_them() {
    if !root("root_live_frames_end_at_once_and_auto_takes_them") {
        return;
    }
    let scene = Scene::new("liveend");
    let link = scene.link("a", "b");
    let receiver = scene.start(&link.b.host, &drop(&link.b, &[]), "receiving");
    let mac = link.b.mac.to_string();
    let args = ["xsk", "send", &link.a.device, "--dst-mac", &mac, "--json"];
    let sender = scene.start(&link.a.host, &args, "as live frames");
    assert!(comes_true(|| scene.counter(&sender, "xsk.tx_packets") > 100_000));
    let sent = sender.object();
    assert!(number(&sent, "/tx/packets") > 100_000, "{sent:#}");
    // Sockets, as soon as one of their options is given.
    for more in [["--ring", "1024"], ["--mode", "copy"], ["--rate", "1000"]] {
        let args = [&args[..], &["--count", "10"], &more].concat();
        let output = scene.run(&link.a.host, &args);
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains("queue 0 of"), "{more:?}: {output:?}");
    }
    drop_it(receiver);
    // Without a program at the other end nobody takes them.
    let output = scene.run(&link.a.host, &[&args[..], &["--count", "10"]].concat());
    assert!(text(&output.stdout).contains("queue 0 of"), "{output:?}");
}

fn drop_it(receiver: common::xsk::Running) {
    assert!(receiver.end(Signal::INT).status.success());
}

#[test]
fn root_what_cannot_be_sent_live_is_refused_with_what_can() {
    if !root("root_what_cannot_be_sent_live_is_refused_with_what_can") {
        return;
    }
    let scene = Scene::new("liverefused");
    let link = scene.link("a", "b");
    for (more, code, parts) in [
        (&[][..], 3, &["--engine live", "eth0", "GRO", "ethtool -K"][..]),
        (&["--ring", "1024"], 2, &["--ring", "--engine socket"]),
        (&["--queues", "0"], 2, &["--queues", "--engine socket"]),
        (&["--rate", "99999"], 2, &["--rate 99999", "100000 a second", "--engine socket"]),
        (&["--size", "4000"], 2, &["--size 4000"]),
    ] {
        let output = scene.run(&link.a.host, &live(&link, more));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{more:?}: {part} is missing: {said}");
        }
    }
    let output = scene.run(&link.a.host, &live(&link, &["--dry-run"]));
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("would send live frames out of eth0"), "{output:?}");
}

/// Frames are made in the kernel, in calls of half a second: they stop with the process all the same.
#[test]
fn root_a_sender_that_is_stopped_sends_nothing_and_goes_on_where_it_was() {
    if !root("root_a_sender_that_is_stopped_sends_nothing_and_goes_on_where_it_was") {
        return;
    }
    let scene = Scene::new("livestop");
    let link = scene.link("a", "b");
    let receiver = scene.start(&link.b.host, &drop(&link.b, &["--check"]), "receiving");
    let mac = link.b.mac.to_string();
    let args = ["--dst-mac", &mac, "--pattern", "seq", "--rate", "100000", "--json"];
    let sender = scene.start(&link.a.host, &live(&link, &args), "as live frames");
    let received = || link.b.counters().expect("counters").rx_packets;
    assert!(comes_true(|| received() > 1000));
    for _ in 0..3 {
        sender.signal(Signal::STOP);
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", sender.pid()));
        assert!(comes_true(|| state().is_ok_and(|stat| stat.contains(") T "))));
        // What it has sent is received.
        std::thread::sleep(Duration::from_millis(100));
        let before = received();
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(received(), before, "frames of a sender that is stopped");
        sender.signal(Signal::CONT);
        assert!(comes_true(|| received() > before + 1000), "it does not go on");
    }
    let sent = number(&sender.object(), "/tx/packets");
    assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= sent), "{sent}");
    let got = receiver.object();
    // None was sent twice, and none left out, where a call ended early.
    for bad in ["reordered", "duplicated", "corrupt"] {
        assert_eq!(number(&got, &format!("/check/{bad}")), 0, "{got:#}");
    }
    assert_eq!(number(&got, "/check/probes") + number(&got, "/check/lost"), sent, "{got:#}");
}

/// The other end stops to take them, and then the device itself goes.
#[test]
fn root_what_a_device_does_not_take_is_counted_and_one_that_goes_is_named() {
    if !root("root_what_a_device_does_not_take_is_counted_and_one_that_goes_is_named") {
        return;
    }
    let scene = Scene::new("livegone");
    let link = scene.link("a", "b");
    let receiver = scene.start(&link.b.host, &drop(&link.b, &[]), "receiving");
    let mac = link.b.mac.to_string();
    let mut sender = scene.start(
        &link.a.host,
        &live(&link, &["--dst-mac", &mac, "--json", "--rate", "100000"]),
        "as live frames",
    );
    let counter = |name: &str| scene.counter(&sender, name);
    assert!(comes_true(|| counter("xsk.tx_packets") > 1000));
    drop_it(receiver);
    assert!(comes_true(|| counter("xsk.drops.tx_dropped") > 1000));
    link.a.host.ip(["link", "set", &link.a.device, "down"]).expect("ip");
    let output = common::ends_within(sender.0.take().expect("it runs"), Duration::from_secs(20));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("eth0 is down"), "{output:?}");
}
