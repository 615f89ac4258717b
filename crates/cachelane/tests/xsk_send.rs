//! What `cachelane xsk send` sends, as others see it: tcpdump at the other end, and the kernel there.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::tcpdump::{Tcpdump, lines};
use common::text;
use common::xsk::{Scene, number};
use lab::testing::{comes_true, root};
use lab::{End, Host, Link, LinkOptions};
use serde_json::Value;

/// The same of each packet, with all its bytes.
fn packets(file: &PathBuf) -> Vec<String> {
    let mut packets: Vec<String> = Vec::new();
    for line in lines(file, &["-e", "-xx"]) {
        match packets.last_mut().filter(|_| line.starts_with(char::is_whitespace)) {
            Some(packet) => *packet += &line,
            None => packets.push(line),
        }
    }
    packets
}

/// Sends so many packets by sockets, so slowly that none is lost.
fn send(scene: &Scene, link: &Link, count: u64, more: &[&str]) -> Value {
    let count = count.to_string();
    let args = ["xsk", "send", &link.a.device, "--count", &count];
    let rate =
        if more.contains(&"--rate") || more.contains(&"--pcap") { "" } else { "--rate=2000" };
    let rate: Vec<&str> = [rate].into_iter().filter(|rate| !rate.is_empty()).collect();
    scene.object(&link.a.host, &[&args[..], &rate, more].concat())
}

#[test]
fn root_every_kind_of_packet_is_what_tcpdump_sees() {
    if !root("root_every_kind_of_packet_is_what_tcpdump_sees") {
        return;
    }
    let scene = Scene::new("sendkinds");
    let link = scene.link("a", "b");
    for (more, parts) in [
        (
            &["--sport", "7", "--dport", "8"][..],
            &["198.18.0.1.7 > 198.18.0.2.8: UDP, length 22"][..],
        ),
        (&["--packet", "tcp-syn", "--dport", "80"], &["198.18.0.2.80: Flags [S]", "length 10"]),
        (&["--packet", "icmp-echo"], &["198.18.0.1 > 198.18.0.2: ICMP echo request, id 1"]),
        (
            &["--packet", "arp"],
            &["> ff:ff:ff:ff:ff:ff", "Request who-has 198.18.0.2 tell 198.18.0.1"],
        ),
        (&["--dst", "fd00::2", "--size", "90"], &["2001:2::1.9 > fd00::2.9: UDP, length 28"]),
        (
            &["--dst", "fd00::2", "--packet", "icmp-echo", "--size", "90"],
            &["ICMP6, echo request, id 1"],
        ),
        (&["--vlan", "10:3"], &["802.1Q (0x8100)", "vlan 10, p 3", "UDP, length 18"]),
        (
            &["--vlan", "100,10", "--packet", "arp"],
            &["802.1Q-QinQ (0x88a8)", "vlan 100, p 0", "vlan 10, p 0", "who-has"],
        ),
    ] {
        let seen = Tcpdump::start(&scene, &link.b, 3, "");
        send(&scene, &link, 3, more);
        let lines = seen.lines();
        assert_eq!(lines.len(), 3);
        for (line, part) in lines.iter().flat_map(|line| parts.iter().map(move |part| (line, part)))
        {
            assert!(line.contains(part), "{more:?}: no '{part}' in: {line}");
        }
        let wrong = lines.iter().find(|line| line.contains("bad ") || line.contains("truncated"));
        assert_eq!(wrong, None, "{more:?}");
    }
}

/// A counter of a host's kernel, such as `Icmp InEchos`.
fn counted(host: &Host, group: &str, name: &str) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let snmp = host.run(read).expect("the host").expect("counters");
    let group = format!("{group}:");
    let mut rows = snmp.lines().filter(|line| line.starts_with(&group));
    let names = rows.next().expect("names").split_whitespace();
    let values = rows.next().expect("values").split_whitespace();
    let (_, value) = names.zip(values).find(|(this, _)| *this == name).expect("a counter");
    value.parse().expect("a number")
}

/// The kernel at the other end takes nothing of a packet for granted: it answers only what is right.
#[test]
fn root_the_kernel_answers_what_is_asked_of_it() {
    if !root("root_the_kernel_answers_what_is_asked_of_it") {
        return;
    }
    let scene = Scene::new("sendanswer");
    let link = scene.link("a", "b");
    let (mac, host) = (link.b.mac.to_string(), &link.b.host);
    host.ip(["addr", "add", "198.18.0.2/15", "dev", &link.b.device]).expect("an address");
    let to = ["--dst-mac", &mac, "--src", "198.18.1.0/25", "--size", "64,100:2,1000"];
    let packet = |kind| [&to[..], &["--packet", kind]].concat();
    let before = counted(host, "Icmp", "InEchos");
    send(&scene, &link, 200, &packet("icmp-echo"));
    assert!(comes_true(|| counted(host, "Icmp", "InEchos") == before + 200));
    let before = counted(host, "Tcp", "OutRsts");
    let ports = ["--sport", "1000-1999", "--dport", "1-3"];
    send(&scene, &link, 200, &[&packet("tcp-syn")[..], &ports].concat());
    assert!(comes_true(|| counted(host, "Tcp", "OutRsts") == before + 200));
    let before = counted(host, "Udp", "NoPorts");
    send(&scene, &link, 200, &[&packet("udp")[..], &ports].concat());
    assert!(comes_true(|| counted(host, "Udp", "NoPorts") == before + 200));
    assert_eq!(counted(host, "Icmp", "InCsumErrors") + counted(host, "Udp", "InCsumErrors"), 0);
    assert_eq!(counted(host, "Tcp", "InCsumErrors") + counted(host, "Ip", "InHdrErrors"), 0);
    let answers = Tcpdump::start(&scene, &link.a, 20, "arp[7] == 2");
    send(&scene, &link, 20, &["--packet", "arp", "--src", "198.18.1.0/27"]);
    assert!(answers.lines().iter().all(|line| line.contains(&format!("198.18.0.2 is-at {mac}"))));
}

#[test]
fn root_ranges_make_flows_and_sizes_come_in_turn() {
    if !root("root_ranges_make_flows_and_sizes_come_in_turn") {
        return;
    }
    let scene = Scene::new("sendflows");
    let link = scene.link("a", "b");
    let ranges = ["--src", "10.0.0.1-10.0.0.3", "--dst", "10.1.0.0/31", "--sport", "5-9"];
    let macs = ["--src-mac", "02:00:00:00:01:00-02:00:00:00:01:01", "--vlan", "7-8"];
    let ranges = [&ranges[..], &macs].concat();
    let flows = |more: &[&str], count: u64| {
        let seen = Tcpdump::start(&scene, &link.b, count, "");
        send(&scene, &link, count, &[&ranges[..], more].concat());
        seen.lines()
    };
    let counting = flows(&[], 240);
    assert_eq!(counting.iter().collect::<BTreeSet<_>>().len(), 3 * 2 * 5 * 2 * 2);
    assert_eq!(counting[..120], counting[120..]);
    let limited = flows(&["--flows", "17"], 51);
    assert_eq!(limited[..17], counting[..17]);
    assert_eq!([&limited[..17], &limited[..17]].concat(), limited[17..]);
    let random: Vec<String> = flows(&["--order", "random"], 240);
    assert_ne!(random[..120], random[120..]);
    let all: BTreeSet<_> = counting.iter().collect();
    assert!(random.iter().all(|line| all.contains(line)));
    let turn = flows(&["--size", "64:2,100,300"], 8);
    let size = |line: &String| {
        let (_, rest) = line.split_once("length ").expect("a length");
        rest.split(':').next().and_then(|size| size.parse::<u32>().ok()).expect("a number")
    };
    let mut sizes: Vec<u32> = turn.iter().map(size).collect();
    assert_eq!(sizes[..4], sizes[4..]);
    sizes.sort_unstable();
    assert_eq!(sizes, [64, 64, 64, 64, 100, 100, 300, 300]);
}

/// What `ethtool -x` prints of a card with 128 entries for six queues, and the key of Microsoft's
/// "Verifying the RSS hash calculation".
fn rss() -> (String, Vec<u8>, Vec<u32>) {
    let key = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:\
               ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";
    let table: Vec<u32> = (0..128).map(|entry| entry % 6).collect();
    let mut text = "RX flow hash indirection table for eth1 with 6 RX ring(s):\n".to_owned();
    for (row, queues) in table.chunks(8).enumerate() {
        let queues: String = queues.iter().map(|queue| format!(" {queue:5}")).collect();
        text += &format!("{:5}: {queues}\n", 8 * row);
    }
    text += &format!("RSS hash key:\n{key}\nRSS hash function:\n    toeplitz: on\n    xor: off\n");
    let byte = |byte| u8::from_str_radix(byte, 16).expect("a byte");
    (text, key.split(':').map(byte).collect(), table)
}

/// The queue of each packet in a file of tcpdump's, as a card would choose it.
fn queues(file: &PathBuf, key: &[u8], table: &[u32]) -> Vec<u32> {
    let file = std::fs::read(file).expect("a file");
    let (mut queues, mut rest) = (Vec::new(), &file[24..]);
    while !rest.is_empty() {
        let len = u32::from_ne_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        let (packet, after) = rest[16..].split_at(len);
        let covered = match packet[14] >> 4 {
            4 => &packet[26..38],
            _ => &packet[22..58],
        };
        let bit = |of: &[u8], bit: usize| of[bit / 8] >> (7 - bit % 8) & 1;
        let mut hash = 0;
        for at in (0..8 * covered.len()).filter(|at| bit(covered, *at) == 1) {
            hash ^= (at..at + 32).fold(0, |window, at| window << 1 | u32::from(bit(key, at)));
        }
        queues.push(table[hash as usize % table.len()]);
        rest = after;
    }
    queues
}

/// How many flows each queue is due to get, as it is said.
fn due(sent: &Value) -> Vec<u64> {
    let queues = sent["rss"]["by_queue"].as_array().expect("queues");
    queues.iter().map(|queue| number(queue, "/flows")).collect()
}

#[test]
fn root_flows_go_to_the_queues_of_a_receiver_in_turn() {
    if !root("root_flows_go_to_the_queues_of_a_receiver_in_turn") {
        return;
    }
    let scene = Scene::new("sendrss");
    let link = scene.link("a", "b");
    let (text, key, table) = rss();
    let path = scene.place.path().join("rss");
    std::fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("text");
    let (limited, count) = (["--flows", "12", "--packet", "tcp-syn"], 24);
    for (more, count, flows) in [
        (&["--dst", "10.1.0.0/30", "--sport", "1000-1095", "--dport", "53-54"][..], 768, 768),
        (&["--dst", "fd00::/127", "--src", "fd00:1::fffe-fd00:1::1:1"], 300, 8 * 16_384),
        (&limited, count, 12),
        (&[&limited[..], &["--order", "random"]].concat(), 200, 12),
    ] {
        let seen = Tcpdump::start(&scene, &link.b, count, "");
        let sent = send(&scene, &link, count, &[&["--rss", path][..], more].concat());
        let went = queues(&seen.file(), &key, &table);
        assert_eq!(due(&sent).iter().sum::<u64>(), flows, "{more:?}: {sent:#}");
        let by_queue = |queue| went.iter().filter(|other| **other == queue).count() as u64;
        if count == flows {
            assert_eq!((0..6).map(by_queue).collect::<Vec<_>>(), due(&sent), "{more:?}");
        }
        if more.contains(&"random") {
            assert!((0..6).all(|queue| by_queue(queue) > 0), "{went:?}");
            continue;
        }
        // As long as each queue has ports left.
        let round = went[..count.min(60) as usize].iter().enumerate();
        round.for_each(|(at, queue)| assert_eq!(*queue, at as u32 % 6, "{more:?}: {at}"));
    }
    let few = ["xsk", "send", &link.a.device, "--rss", path, "--sport", "7-8", "--dry-run"];
    let output = scene.run(&link.a.host, &few);
    let said = common::text(&output.stderr);
    assert!(output.status.success() && said.contains("these get no flow"), "{said}");
    // Also where the kernel could make the packets, and from stdin.
    let mut command = scene.command(&["xsk", "send", &link.a.device, "--rss", "-", "--dry-run"]);
    command.stdin(std::fs::File::open(path).expect("a file"));
    let output = link.a.host.run(move || command.output()).expect("the host").expect("it runs");
    let said = common::text(&output.stdout);
    assert!(output.status.success() && said.contains("16384 flows (by the receiver's"), "{said}");
    assert!(!said.contains("live"), "{said}");
}

#[test]
fn root_a_rate_is_kept_and_how_well_is_said() {
    if !root("root_a_rate_is_kept_and_how_well_is_said") {
        return;
    }
    let scene = Scene::new("sendrate");
    let link = scene.link("a", "b");
    for (rate, asked) in [("2k", 2000.0), ("1.024Mbit", 1000.0)] {
        let start = Instant::now();
        let args = ["--size", "128", "--engine", "socket", "--burst", "1", "--rate", rate];
        let sent = send(&scene, &link, 1000, &args);
        let (took, pacing) = (start.elapsed().as_secs_f64(), &sent["pacing"]);
        assert_eq!(pacing["asked_pps"].as_f64(), Some(asked), "{sent:#}");
        assert!(took >= 999.0 / asked, "{took}: faster than {rate}");
        // All that was due was sent, or it is said to have been skipped.
        let (due, made, skipped) = (
            pacing["due"].as_f64().expect("a number"),
            number(&sent, "/pacing/sent"),
            number(&sent, "/pacing/skipped"),
        );
        assert_eq!(made, 1000, "{sent:#}");
        let late = pacing["late_us"]["max"].as_f64().expect("a number") / 1e6;
        let behind = due - (made + skipped) as f64;
        assert!((0.0..=late * asked + 20.0 * asked / 1000.0 + 1.0).contains(&behind), "{sent:#}");
    }
    let text_of = ["xsk", "send", &link.a.device, "--rate", "5k", "--count", "100"];
    let said = text(&scene.run(&link.a.host, &text_of).stdout).to_owned();
    assert!(
        said.contains("rate: 5000 a second asked") && said.contains("not sent in time"),
        "{said}"
    );
}

#[test]
fn root_latency_is_measured_where_packets_come_back() {
    if !root("root_latency_is_measured_where_packets_come_back") {
        return;
    }
    /// Fewer than a veth's queue has room for, so that none is lost where others have the CPU.
    const ALL: u64 = 200;
    let scene = Scene::new("sendlatency");
    let link = scene.link("a", "b");
    let (mac, host) = (link.b.mac.to_string(), &link.b.host);
    let measure = |more: &[&str]| {
        let to = ["--latency", "--dst-mac", &mac, "--dst", "198.18.0.2"];
        send(&scene, &link, ALL, &[&to[..], more].concat())
    };
    let check = |sent: &Value, packets| {
        let both = (number(sent, "/latency/sent"), number(sent, "/latency/back"));
        assert_eq!(both, (ALL, ALL), "{sent:#}");
        for bad in ["lost", "reordered", "duplicated", "corrupt"] {
            assert_eq!(number(sent, &format!("/latency/{bad}")), 0, "{bad}: {sent:#}");
        }
        assert_eq!(number(sent, "/rx/packets"), packets, "{sent:#}");
        let at = |name: &str| sent["latency"]["us"][name].as_f64().expect("a number");
        let order = ["median", "p90", "p99", "p99_9", "p99_99", "max"].map(at);
        assert!(order.is_sorted() && order[0] > 0.0, "{order:?}");
        assert_eq!(number(sent, "/frames/leaked"), 0, "{sent:#}");
    };
    let reflect = ["xsk", "forward", &link.b.device, "--udp-port", "9,1000-1999"];
    let forward = scene.start(host, &reflect, "forwarding");
    check(&measure(&[]), ALL);
    check(&measure(&["--size", "imix", "--burst", "1"]), ALL);
    // There is room to send, however many frames the ring would take.
    check(&measure(&["--ring", "4096"]), ALL);
    check(&measure(&["--dport", "1000-1099", "--src", "198.18.1.0/25"]), ALL);
    drop(forward);
    // Any host answers a ping; one that comes to another hardware address is of no use.
    host.ip(["addr", "add", "198.18.0.2/15", "dev", &link.b.device]).expect("an address");
    let own = link.a.mac.to_string();
    host.ip(["neigh", "add", "198.18.0.1", "lladdr", &own, "dev", &link.b.device]).expect("ip");
    check(&measure(&["--packet", "icmp-echo", "--size", "64,1000"]), ALL);
    // What others send to the same port is not ours, and does not keep it.
    let own = link.a.mac.to_string();
    let other = ["xsk", "send", &link.b.device, "--dst-mac", &own, "--rate", "200"];
    let other = scene.start(host, &[&other[..], &["--pattern", "seq"]].concat(), "sending");
    let args = ["xsk", "send", &link.a.device, "--latency", "--count", "5", "--json"];
    let output = scene.run(&link.a.host, &args);
    drop(other);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let sent: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((number(&sent, "/latency/back"), number(&sent, "/latency/lost")), (0, 5));
}

/// A receiver knows the flows that either engine sends, also one that does not come at all.
#[test]
fn root_what_happens_to_a_flow_is_seen() {
    if !root("root_what_happens_to_a_flow_is_seen") {
        return;
    }
    let scene = Scene::new("sendbyflow");
    let link = scene.link("a", "b");
    let mac = link.b.mac.to_string();
    let to = ["--dst-mac", &mac, "--pattern", "seq", "--sport", "100-149", "--dport", "9-12"];
    for more in [
        &["--engine", "socket"][..],
        &["--engine", "socket", "--order", "random"],
        &["--engine", "socket", "--flows", "150", "--src", "10.0.0.0/30"],
        &["--engine", "live", "--rate", "100000"],
    ] {
        let args = ["xsk", "drop", &link.b.device, "--udp-port", "9-11", "--check", "--json"];
        let receiver = scene.start(&link.b.host, &args, "receiving");
        // Fewer than a veth's queue has room for.
        let sent = send(&scene, &link, 240, &[&to[..], more].concat());
        assert_eq!(number(&sent, "/tx/packets"), 240, "{sent:#}");
        // Those to port 12 are not received.
        let least = if more.contains(&"random") { 120 } else { 190 };
        let all_came = || scene.counter(&receiver, "xsk.rx_packets") >= least;
        assert!(comes_true(all_came), "{more:?}");
        let output = receiver.end(rustix::process::Signal::INT);
        let got: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let is_limited = more.contains(&"--flows");
        let (seen, lost) = if is_limited { (150, 0) } else { (150, 50) };
        let flows = |name: &str| number(&got, &format!("/check/flows/{name}"));
        assert_eq!((flows("reordered"), flows("duplicated")), (0, 0), "{got:#}");
        assert_eq!(number(&got, "/check/corrupt") + number(&got, "/check/other"), 0, "{got:#}");
        // Of flows that are drawn, some have no packet.
        let is_right = match more.contains(&"random") {
            true => (80..150).contains(&flows("seen")) && (20..50).contains(&flows("lost")),
            false => (flows("seen"), flows("lost")) == (seen, lost),
        };
        assert!(is_right && (number(&got, "/check/lost") > 0) == (lost > 0), "{more:?}: {got:#}");
        assert_eq!(output.status.code(), Some(i32::from(lost > 0)), "{more:?}");
    }
}

/// Packets that come long after one another are seen to, whenever they are taken.
#[test]
fn root_gaps_are_measured_by_when_packets_came() {
    if !root("root_gaps_are_measured_by_when_packets_came") {
        return;
    }
    let scene = Scene::new("sendgaps");
    let link = scene.link("a", "b");
    let args = ["xsk", "drop", &link.b.device, "--udp-port", "9", "--gaps", "--json"];
    let receiver = scene.start(&link.b.host, &args, "receiving");
    let start = Instant::now();
    send(&scene, &link, 20, &["--rate", "50", "--burst", "1"]);
    let took = start.elapsed().as_secs_f64() * 1e6;
    assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 20));
    let got = receiver.object();
    assert_eq!(number(&got, "/without_time"), 0, "{got:#}");
    let at = |name: &str| got["gaps_us"][name].as_f64().expect("a number");
    // 19 gaps of 20 ms: a machine that is late makes one longer and the next shorter.
    assert!(at("max") >= 19_000.0 && at("max") <= took, "{got:#}");
    assert!(at("median") > 1_000.0, "{got:#}");
}

#[test]
fn root_intervals_are_lines_of_a_csv_file() {
    if !root("root_intervals_are_lines_of_a_csv_file") {
        return;
    }
    let scene = Scene::new("sendcsv");
    let link = scene.link("a", "b");
    let file = scene.place.path().join("sent.csv");
    let path = file.to_str().expect("text");
    let args = ["xsk", "send", &link.a.device, "--count", "1000", "--rate", "2k", "--csv", path];
    let output = scene.run(&link.a.host, &[&args[..], &["--interval", "100ms"]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&file).expect("a file");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let column = |name| rows[0].iter().position(|column| *column == name).expect("a column");
    let (packets, seconds) = (column("tx_packets"), column("seconds"));
    let value =
        |at: usize| rows[1..].iter().map(move |row| row[at].parse::<f64>().expect("a number"));
    assert_eq!(value(packets).sum::<f64>(), 1000.0, "{text}");
    assert!(value(seconds).is_sorted() && rows.len() > 3, "{text}");
    let full = ["xsk", "send", &link.a.device, "--count", "5", "--csv", "/dev/full"];
    let output = scene.run(&link.a.host, &full);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(common::text(&output.stderr).contains("--csv /dev/full: No space left"), "{output:?}");
}

/// A capture file of what a sender sends.
fn record(scene: &Scene, link: &Link, count: u64, more: &[&str]) -> PathBuf {
    let seen = Tcpdump::start(scene, &link.b, count, "");
    send(scene, link, count, more);
    let kept = scene.place.path().join("kept.pcap");
    std::fs::rename(seen.file(), &kept).expect("a file");
    kept
}

#[test]
fn root_a_capture_file_is_sent_as_it_is() {
    if !root("root_a_capture_file_is_sent_as_it_is") {
        return;
    }
    let scene = Scene::new("sendfile");
    let link = scene.link("a", "b");
    let more = ["--size", "64,1514,300", "--sport", "1-100", "--pattern", "counter"];
    let kept = record(&scene, &link, 90, &more);
    let (whole, path) = (packets(&kept), kept.to_str().expect("text"));
    let replayed = |count: u64, args: &[&str]| {
        let seen = Tcpdump::start(&scene, &link.b, count, "");
        let sent = scene.object(&link.a.host, &[&["xsk", "send", &link.a.device], args].concat());
        assert_eq!(number(&sent, "/tx/packets"), count, "{sent:#}");
        (packets(&seen.file()), sent)
    };
    let (got, sent) = replayed(90, &["--pcap", path, "--rate", "2k"]);
    assert!(got == whole && sent["ended_by"] == "done", "{sent:#}");
    assert_eq!(number(&sent, "/tx/bytes"), 30 * (64 + 1514 + 300));
    let (got, _) = replayed(270, &["--pcap", path, "--rate", "4Mbit", "--loop", "3"]);
    assert!(got == [&whole[..], &whole, &whole].concat());
    let (got, sent) =
        replayed(100, &["--pcap", path, "--rate", "2k", "--loop", "0", "--count", "100"]);
    assert!(got == [&whole[..], &whole[..10]].concat() && sent["ended_by"] == "count");
    // Hardware addresses that the devices at hand know.
    let macs = ["--dst-mac", "02:00:00:00:00:aa", "--src-mac", "02:00:00:00:00:bb"];
    let (got, _) = replayed(90, &[&["--pcap", path, "--speed", "20"][..], &macs].concat());
    let swapped = |packet: &String| packet.starts_with("02:00:00:00:00:bb > 02:00:00:00:00:aa");
    assert!(got.iter().all(swapped), "{got:?}");
    // From a pipe, and of pcapng.
    let ng = scene.place.path().join("kept.pcapng");
    let made = Command::new("tshark").args(["-r", path, "-F", "pcapng", "-w"]).arg(&ng).output();
    assert!(made.expect("tshark runs").status.success());
    let seen = Tcpdump::start(&scene, &link.b, 90, "");
    let mut command =
        scene.command(&["xsk", "send", &link.a.device, "--pcap", "-", "--rate", "2k"]);
    command.stdin(std::fs::File::open(ng).expect("a file"));
    let output = link.a.host.run(move || command.output()).expect("the host").expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(packets(&seen.file()) == whole);
}

#[test]
fn root_a_capture_file_keeps_its_times() {
    if !root("root_a_capture_file_keeps_its_times") {
        return;
    }
    let scene = Scene::new("sendtimes");
    let link = scene.link("a", "b");
    let kept = record(&scene, &link, 5, &["--rate", "10"]);
    let path = kept.to_str().expect("text");
    for (speed, least) in [("1", 0.38), ("0.5", 0.76), ("4", 0.09)] {
        let start = Instant::now();
        let args = ["xsk", "send", &link.a.device, "--pcap", path, "--speed", speed];
        let sent = scene.object(&link.a.host, &args);
        let took = start.elapsed();
        // The file's times are those of a machine that may have been busy; a gap that it has is kept.
        assert!(took >= Duration::from_secs_f64(least), "{speed}: {took:?}");
        assert_eq!(number(&sent, "/tx/packets"), 5, "{sent:#}");
        assert!(sent["late_us"]["median"].as_f64().is_some(), "{sent:#}");
    }
}

#[test]
fn root_what_a_device_cannot_send_of_a_file_is_counted() {
    if !root("root_what_a_device_cannot_send_of_a_file_is_counted") {
        return;
    }
    let scene = Scene::new("sendskip");
    let options = LinkOptions { mtu: 4000, ..LinkOptions::default() };
    let wide = scene.join(&scene.host("a"), &scene.host("b"), options);
    let more = ["--size", "64,3000", "--multi-buffer"];
    let kept = record(&scene, &wide, 10, &more);
    let path = kept.to_str().expect("text");
    let link = scene.link("c", "d");
    let send = |device: &End, more: &[&str]| {
        let args = ["xsk", "send", &device.device, "--pcap", path, "--rate", "0"];
        scene.object(&device.host, &[&args[..], more].concat())
    };
    let sent = send(&link.a, &[]);
    assert_eq!((number(&sent, "/tx/packets"), number(&sent, "/pcap/too_long")), (5, 5), "{sent:#}");
    let sent = send(&wide.a, &[]);
    assert_eq!((number(&sent, "/tx/packets"), number(&sent, "/pcap/too_long")), (5, 5), "{sent:#}");
    let sent = send(&wide.a, &more[2..]);
    assert_eq!(
        (number(&sent, "/tx/bytes"), number(&sent, "/pcap/too_long")),
        (15_320, 0),
        "{sent:#}"
    );
    assert_eq!(number(&sent, "/frames/leaked"), 0);
}

#[test]
fn root_what_cannot_be_sent_is_refused_with_what_can() {
    if !root("root_what_cannot_be_sent_is_refused_with_what_can") {
        return;
    }
    let scene = Scene::new("sendrefused");
    let link = scene.link("a", "b");
    let folder = scene.place.path().to_str().expect("text").to_owned();
    let (text_of, ..) = rss();
    let [good, xor] = ["good", "xor"].map(|name| format!("{folder}/{name}"));
    let is_xor = text_of.replace("toeplitz: on", "toeplitz: off").replace("xor: off", "xor: on");
    for (path, text) in [(&good, &text_of), (&xor, &is_xor)] {
        std::fs::write(path, text).expect("a file");
    }
    for (more, code, parts) in [
        (&["--packet", "arp", "--sport", "5"][..], 2, &["--sport 5", "has no ports"][..]),
        (&["--packet", "arp", "--dst", "fd00::1"], 2, &["IPv6", "expected IPv4"]),
        (&["--size", "1515"], 2, &["--size 1515", "at most 1514", "mtu 1501"]),
        (&["--size", "64,1519", "--vlan", "5"], 2, &["--size 1519", "at most 1518"]),
        (&["--vlan", "5000"], 2, &["5000", "0 to 4094"]),
        (&["--rate", "1Mbps"], 2, &["1Mbps", "100Mbit"]),
        (&["--src", "10.0.0.9-10.0.0.1"], 2, &["10.0.0.9-10.0.0.1", "198.18.0.0/22"]),
        (&["--engine", "live", "--dst", "10.0.0.0/24"], 2, &["--dst", "--engine socket"]),
        (&["--latency", "--packet", "arp"], 2, &["--latency", "icmp-echo over IPv4"]),
        (&["--burst", "1000", "--rate", "5k"], 2, &["--burst 1000", "--batch, which is 128"]),
        (&["--size", "30000", "--multi-buffer", "--ring", "8"], 2, &["--size 30000"]),
        (&["--latency", "--engine", "live"], 2, &["--latency", "--engine socket"]),
        (&["--latency", "--packet", "icmp-echo", "--dst", "fd00::1"], 2, &["expected IPv4"]),
        (&["--pcap", "/nowhere"], 1, &["--pcap /nowhere", "No such file"]),
        (&["--pcap", &folder], 2, &["is a folder"]),
        (&["--pcap", "/etc/hostname"], 1, &["neither pcap nor pcapng"]),
        (&["--pcap", "x", "--size", "64"], 2, &["--pcap", "--size"]),
        (&["--speed", "2"], 2, &["--pcap"]),
        (&["--pcap", "-", "--loop", "2"], 2, &["--loop 2", "expected a file"]),
        (&["--rss", "/nowhere"], 1, &["--rss /nowhere", "No such file"]),
        (&["--rss", &folder], 1, &["--rss", "Is a directory"]),
        (&["--rss", "/etc/hostname"], 2, &["--rss /etc/hostname", "ethtool -x DEVICE"]),
        (&["--rss", &xor], 2, &["hash function xor", "hfunc toeplitz"]),
        (&["--rss", &good, "--packet", "arp"], 2, &["--packet arp has no ports"]),
        (&["--rss", &good, "--packet", "icmp-echo"], 2, &["--packet icmp-echo has no ports"]),
        (&["--rss", &good, "--engine", "live"], 2, &["--rss", "--engine socket"]),
        (&["--rss", &good, "--pcap", "x"], 2, &["--rss", "--pcap"]),
        (&["--pcap", "x", "--speed", "0"], 2, &["'0'", "factor"]),
    ] {
        let output =
            scene.run(&link.a.host, &[&["xsk", "send", &link.a.device][..], more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{more:?}: {part} is missing: {said}");
        }
    }
}
