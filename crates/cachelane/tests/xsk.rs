//! `cachelane xsk` as a user meets it: packets over links between test hosts.

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::time::Duration;

use common::xsk::{SOON, Scene, has_program, number, three};
use common::{ends_within, text};
use lab::testing::{comes_true, root};
use lab::{End, Host, LinkOptions};
use rustix::process::Signal;
use serde_json::Value;

/// Sends `count` numbered packets over the link's first end, at a rate that loses none.
fn send(scene: &Scene, from: &End, to: &End, count: u64, more: &[&str]) -> Value {
    let (count, mac) = (count.to_string(), to.mac.to_string());
    let args = ["xsk", "send", &from.device, "--count", &count, "--dst-mac", &mac];
    let args = [&args[..], &["--pattern", "seq", "--rate", "5000"], more].concat();
    scene.object(&from.host, &args)
}

#[test]
fn root_what_is_sent_arrives_whole_and_in_order() {
    if !root("root_what_is_sent_arrives_whole_and_in_order") {
        return;
    }
    let scene = Scene::new("xsksend");
    let link = scene.link("a", "b");
    let many_ports = ["--sport", "1000-1099", "--dport", "9-10"];
    let v6 = ["--src", "fd00::1", "--dst", "fd00::2"];
    for (size, more) in [
        ("64", &[][..]),
        ("64", &many_ports),
        ("300", &["--xdp", "generic"]),
        ("1514", &["--batch", "7", "--busy-poll", "20"]),
        ("1514", &v6),
    ] {
        let (sending, receiving): (Vec<&str>, Vec<&str>) =
            if more.first().is_some_and(|option| ["--xdp", "--batch"].contains(option)) {
                (vec![], more.to_vec())
            } else {
                (more.to_vec(), vec![])
            };
        let drop = ["xsk", "drop", &link.b.device, "--udp-port", "8-10", "--check", "--json"];
        let receiver = scene.start(&link.b.host, &[&drop[..], &receiving].concat(), "receiving");
        let sent =
            send(&scene, &link.a, &link.b, 3000, &[&["--size", size], &sending[..]].concat());
        assert_eq!(number(&sent, "/tx/packets"), 3000, "{sent:#}");
        assert_eq!(sent["ended_by"], "count");
        assert!(
            comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 3000),
            "{size} {more:?}"
        );
        let got = receiver.object();
        assert_eq!(number(&got, "/check/probes"), 3000, "{got:#}");
        for bad in ["lost", "reordered", "duplicated", "corrupt", "other"] {
            assert_eq!(number(&got, &format!("/check/{bad}")), 0, "{bad}: {got:#}");
        }
        let bytes = 3000 * size.parse::<u64>().expect("a number");
        assert_eq!((number(&sent, "/tx/bytes"), number(&got, "/rx/bytes")), (bytes, bytes));
        assert_eq!((&got["schema"], &got["command"]), (&1.into(), &"drop".into()));
        assert_eq!((number(&got, "/frames/leaked"), number(&sent, "/frames/leaked")), (0, 0));
        assert!(got["check"]["delay_us"]["median"].as_f64().is_some_and(|us| us > 0.0), "{got:#}");
    }
    assert!(!has_program(&link.b));
}

#[test]
fn root_packets_larger_than_a_frame_go_in_several() {
    if !root("root_packets_larger_than_a_frame_go_in_several") {
        return;
    }
    let scene = Scene::new("xskparts");
    let options = LinkOptions { mtu: 6000, ..LinkOptions::default() };
    let link = scene.join(&scene.host("a"), &scene.host("b"), options);
    let drop = ["xsk", "drop", &link.b.device, "--udp-port", "9", "--check", "--json"];
    let drop = [&drop[..], &["--multi-buffer"]].concat();
    let receiver = scene.start(&link.b.host, &drop, "receiving");
    let more = ["--size", "5000", "--multi-buffer"];
    let sent = send(&scene, &link.a, &link.b, 1000, &more);
    assert_eq!(number(&sent, "/tx/packets"), 1000, "{sent:#}");
    assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 1000));
    let got = receiver.object();
    assert_eq!((number(&got, "/check/probes"), number(&got, "/check/lost")), (1000, 0), "{got:#}");
    assert_eq!(number(&got, "/rx/bytes"), 5_000_000);
}

#[test]
fn root_lost_packets_are_found_and_are_a_failure() {
    if !root("root_lost_packets_are_found_and_are_a_failure") {
        return;
    }
    let scene = Scene::new("xsklost");
    let link = scene.link("a", "b");
    let drop = ["xsk", "drop", &link.b.device, "--udp-port", "9", "--check", "--json"];
    let receiver = scene.start(&link.b.host, &drop, "receiving");
    // Half of the packets go to a port that is not received.
    send(&scene, &link.a, &link.b, 1001, &["--dport", "9-10"]);
    assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 501));
    let output = receiver.end(Signal::INT);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let got: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((number(&got, "/check/probes"), number(&got, "/check/lost")), (501, 500), "{got:#}");
    assert!(number(&got, "/program/not_chosen") >= 500, "{got:#}");
}

#[test]
fn root_a_packet_that_is_dropped_is_listed_under_one_reason() {
    if !root("root_a_packet_that_is_dropped_is_listed_under_one_reason") {
        return;
    }
    let scene = Scene::new("xskonce");
    let link = scene.link("a", "b");
    let args = ["xsk", "drop", &link.b.device, "--udp-port", "9", "--frames", "64", "--json"];
    let receiver = scene.start(&link.b.host, &args, "receiving");
    // It takes nothing, so that its frames are used up.
    receiver.signal(Signal::STOP);
    send(&scene, &link.a, &link.b, 300, &[]);
    receiver.signal(Signal::CONT);
    let drops = || scene.counter(&receiver, "xsk.drops.fill_ring_empty");
    assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") + drops() == 300));
    let got = receiver.object();
    assert!(number(&got, "/drops/fill_ring_empty") >= 200, "{got:#}");
    let reasons = got["drops"].as_object().expect("reasons").values();
    let listed: u64 = reasons.filter_map(Value::as_u64).sum();
    assert_eq!(number(&got, "/rx/packets") + listed, 300, "{got:#}");
}

#[test]
fn root_no_rate_is_said_of_packets_that_took_no_time() {
    if !root("root_no_rate_is_said_of_packets_that_took_no_time") {
        return;
    }
    let scene = Scene::new("xskrate");
    let link = scene.link("a", "b");
    let one = ["xsk", "send", &link.a.device, "--count", "1"];
    let sent = scene.run(&link.a.host, &one);
    let said = text(&sent.stdout);
    assert!(sent.status.success() && said.contains("sent 1 packets, 64 bytes\n"), "{sent:?}");
    assert!(!said.contains("pps"), "{said}");
    let sent = scene.object(&link.a.host, &one);
    assert_eq!((number(&sent, "/tx/packets"), &sent["tx"]["pps"]), (1, &Value::Null), "{sent:#}");
}

#[test]
fn root_packets_come_back_with_their_addresses_swapped() {
    if !root("root_packets_come_back_with_their_addresses_swapped") {
        return;
    }
    let scene = Scene::new("xskswap");
    let link = scene.link("a", "b");
    let args = ["xsk", "forward", &link.b.device, "--udp-port", "9", "--json"];
    let forwarder = scene.start(&link.b.host, &args, "forwarding");
    let before = link.a.counters().expect("counters");
    let sent = send(&scene, &link.a, &link.b, 3000, &[]);
    assert_eq!(number(&sent, "/tx/packets"), 3000);
    assert!(comes_true(|| {
        link.a.counters().expect("counters").rx_packets >= before.rx_packets + 3000
    }));
    let got = forwarder.object();
    let both = (number(&got, "/rx/packets"), number(&got, "/tx/packets"));
    assert_eq!(both, (3000, 3000), "{got:#}");
    assert_eq!(number(&got, "/frames/leaked"), 0);
}

#[test]
fn root_two_threads_forward_every_packet_while_the_knob_is_flipped() {
    if !root("root_two_threads_forward_every_packet_while_the_knob_is_flipped") {
        return;
    }
    let scene = Scene::new("xsksplit");
    let (near, far) = three(&scene);
    let args = ["xsk", "forward", &near.b.device, "--to", &far.a.device, "--split", "--json"];
    let args = [&args[..], &["--udp-port", "9"]].concat();
    let forwarder = scene.start(&near.b.host, &args, "forwarding");
    let drop = ["xsk", "drop", &far.b.device, "--udp-port", "9", "--check", "--json"];
    let receiver = scene.start(&far.b.host, &drop, "receiving");
    let mut total = 0;
    for value in ["recycle", "defer", "auto", "defer", "recycle"] {
        let sending = std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(&scene, &near.a, &far.b, 4000, &[]));
            let halfway = || scene.counter(&forwarder, "xsk.rx_packets") >= total + 1000;
            assert!(comes_true(halfway), "{value}");
            // In the middle of the traffic.
            scene.set_alien_free(&forwarder, value);
            sending.join().expect("sent")
        });
        assert_eq!(number(&sending, "/tx/packets"), 4000);
        total += 4000;
        assert!(comes_true(|| scene.counter(&forwarder, "xsk.tx_packets") >= total), "{value}");
    }
    let forwarded = forwarder.object();
    assert_eq!(number(&forwarded, "/tx/packets"), total, "{forwarded:#}");
    assert_eq!(number(&forwarded, "/frames/leaked"), 0);
    assert_eq!(forwarded["alien_free"], "recycle");
    assert!(number(&forwarded, "/pool/sent_home") > 0, "{forwarded:#}");
    let got = receiver.object();
    assert_eq!((number(&got, "/check/probes"), number(&got, "/check/lost")), (total, 0), "{got:#}");
}

#[test]
fn root_two_hosts_talk_through_a_forwarder_as_over_a_wire() {
    if !root("root_two_hosts_talk_through_a_forwarder_as_over_a_wire") {
        return;
    }
    let scene = Scene::new("xskboth");
    let (near, far) = three(&scene);
    // Both ends of the wire are in one subnet, and make their checksums themselves.
    for (end, address) in [(&near.a, "10.99.0.1/24"), (&far.b, "10.99.0.2/24")] {
        end.host.ip(["address", "add", address, "dev", &end.device]).expect("ip");
        let off = ["-K", &end.device, "tx", "off"];
        end.host.command("ethtool").args(off).run().expect("ethtool");
    }
    let echo = |host: &Host, address: &'static str| {
        let socket = host.run(move || UdpSocket::bind(address)).expect("the host").expect("one");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        socket
    };
    let (one, other) = (echo(&near.a.host, "10.99.0.1:7"), echo(&far.b.host, "10.99.0.2:7"));
    for more in [&["--split"][..], &["--threads", "1"], &["--huge-pages", "never"]] {
        let args = ["xsk", "forward", &near.b.device, "--to", &far.a.device, "--both", "--json"];
        let forwarder = scene.start(&near.b.host, &[&args[..], more].concat(), "forwarding");
        for n in 0..20_u8 {
            for (from, to, address) in
                [(&one, &other, "10.99.0.2:7"), (&other, &one, "10.99.0.1:7")]
            {
                from.send_to(&[n; 100], address).expect("sent");
                let mut buffer = [0; 200];
                assert_eq!(to.recv(&mut buffer).expect("it arrives"), 100, "{more:?}");
                assert_eq!(buffer[..100], [n; 100]);
            }
        }
        let got = forwarder.object();
        let (received, sent) = (number(&got, "/rx/packets"), number(&got, "/tx/packets"));
        // What came at the very end may not have gone on.
        assert!(sent >= 40 && sent <= received, "{got:#}");
    }
}

#[test]
fn root_several_queues_each_have_a_socket_and_share_the_count() {
    if !root("root_several_queues_each_have_a_socket_and_share_the_count") {
        return;
    }
    let scene = Scene::new("xskqueues");
    let options = LinkOptions { queues: 2, ..LinkOptions::default() };
    let link = scene.join(&scene.host("a"), &scene.host("b"), options);
    let drop = ["xsk", "drop", &link.b.device, "--udp-port", "9", "--check", "--json"];
    let drop = [&drop[..], &["--count", "8001", "--cpus", "all"]].concat();
    let mut receiver = scene.start(&link.b.host, &drop, "receiving");
    let more = ["--queues", "0-1", "--cpus", "all"];
    let sent = send(&scene, &link.a, &link.b, 8001, &more);
    assert_eq!((&sent["queues"], number(&sent, "/tx/packets")), (&serde_json::json!([0, 1]), 8001));
    let output = ends_within(receiver.0.take().expect("it runs"), SOON);
    let got: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((number(&got, "/rx/packets"), &got["ended_by"]), (8001, &"count".into()), "{got:#}");
    assert_eq!((number(&got, "/check/probes"), number(&got, "/check/lost")), (8001, 0), "{got:#}");
    for (object, name, device) in [(&sent, "tx_packets", &link.a), (&got, "rx_packets", &link.b)] {
        let of = |queue: usize| &object["by_queue"][queue];
        let each = [0, 1].map(|queue| of(queue)[name].as_u64().expect("a number"));
        assert!(each.iter().sum::<u64>() == 8001 && each[0] > 0 && each[1] > 0, "{object:#}");
        assert_eq!(of(1)["interface"], device.device.as_str());
        assert_eq!(number(of(1), "/queue"), 1);
    }
}

/// Packets of queue 0 leave by queue 1, and those of queue 1 by queue 0.
#[test]
fn root_queues_of_different_numbers_are_joined() {
    if !root("root_queues_of_different_numbers_are_joined") {
        return;
    }
    let scene = Scene::new("xskcross");
    let options = || LinkOptions { queues: 2, ..LinkOptions::default() };
    let middle = scene.host("m");
    let near = scene.join(&scene.host("a"), &middle, options());
    let far = scene.join(&middle, &scene.host("b"), options());
    let (from, to) = (&near.b.device, &far.a.device);
    for more in [&[][..], &["--split"], &["--threads", "1"]] {
        let forward = ["xsk", "forward", from, "--to", to, "--to-queues", "1,0", "--json"];
        let forward = scene.start(&middle, &[&forward[..], more].concat(), "forwarding");
        let drop = ["xsk", "drop", &far.b.device, "--udp-port", "9", "--check", "--json"];
        let receiver = scene.start(&far.b.host, &drop, "receiving");
        send(&scene, &near.a, &far.b, 500, &["--queues", "0"]);
        assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 500));
        let (got, passed) = (receiver.object(), forward.object());
        // A veth's queue leads to the one of the same number.
        let by_queue = got["by_queue"].as_array().expect("queues");
        assert_eq!(by_queue.len(), 1, "{got:#}");
        assert_eq!((number(&by_queue[0], "/queue"), number(&got, "/check/lost")), (1, 0));
        let sent = passed["by_queue"].as_array().expect("queues");
        let sent = sent.iter().find(|queue| queue["interface"] == to.as_str()).expect("one");
        assert_eq!((number(sent, "/queue"), number(sent, "/tx_packets")), (1, 500), "{passed:#}");
    }
    let args = ["xsk", "forward", from, "--to", to, "--to-queues"];
    for (queues, code, said) in [("0", 2, "1 queues for the 2"), ("0,2", 2, "no queue 2")] {
        let output = scene.run(&middle, &[&args[..], &[queues]].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
}

#[test]
fn root_intervals_are_lines_of_json_and_ctrl_c_ends_with_a_summary() {
    if !root("root_intervals_are_lines_of_json_and_ctrl_c_ends_with_a_summary") {
        return;
    }
    let scene = Scene::new("xskint");
    let link = scene.link("a", "b");
    let args = ["xsk", "send", &link.a.device, "--rate", "1000"];
    let json = [&args[..], &["--json", "--interval", "20ms", "--for", "300ms"]].concat();
    let output = scene.run(&link.a.host, &json);
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert!(lines.len() >= 4, "{lines:?}");
    let (end, intervals) = lines.split_last().expect("lines");
    assert_eq!((&end["event"], &end["ended_by"]), (&"end".into(), &"time".into()));
    assert!(intervals.iter().all(|line| line["event"] == "interval" && line["schema"] == 1));
    for part in ["/frames/cached", "/rings/tx", "/drops/tx_invalid", "/tx/packets"] {
        assert!(intervals.iter().all(|line| line.pointer(part).is_some()), "{part}: {lines:?}");
    }
    for signal in [Signal::INT, Signal::TERM] {
        let running = scene.start(&link.a.host, &args, "sending");
        assert!(comes_true(|| scene.counter(&running, "xsk.tx_packets") >= 10));
        running.signal(Signal::USR1);
        let output = running.end(signal);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = text(&output.stdout);
        for part in ["sent ", "queue 0 of eth0: copy", "no drops", "all 4096 frames came back"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn root_a_run_ends_when_nobody_reads_its_lines_any_more() {
    if !root("root_a_run_ends_when_nobody_reads_its_lines_any_more") {
        return;
    }
    let scene = Scene::new("xskread");
    let link = scene.link("a", "b");
    let args = ["xsk", "drop", &link.b.device, "--json", "--interval", "10ms"];
    let mut running = scene.start(&link.b.host, &args, "receiving");
    let mut child = running.0.take().expect("it was not ended");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.next().is_some_and(|line| line.is_ok()));
    drop(lines);
    assert!(ends_within(child, SOON).status.success());
    assert!(!has_program(&link.b));
}
