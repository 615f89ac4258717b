//! The mechanisms on network cards: zero-copy, programs in the driver, several queues. Where there
//! are no cards, each test says that it is skipped.

mod common;

use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

use common::cards::Cards;
use common::steer::{Exchange, HOPS, Steered, lane_per_cpu, two_cpus};
use common::xsk::{SOON, Scene, has_program, number};
use common::{ends_within, text};
use lab::testing::comes_true;
use lab::{End, LinkOptions};
use rustix::process::Signal;
use serde_json::Value;

/// A scene with both cards in it.
fn cards(test: &str, name: &str) -> Option<(Scene, Cards)> {
    let scene = Scene::new(name);
    let (a, b) = (scene.host("a"), scene.host("b"));
    let cards = Cards::take(test, &a, &b)?;
    Some((scene, cards))
}

/// Whether this driver sends and receives without copying, on the kernels that this is tried on.
fn has_zero_copy(scene: &Scene, end: &End) -> bool {
    let args = ["xsk", "send", &end.device, "--mode", "zero-copy", "--count", "1"];
    let tried = scene.run(&end.host, &args);
    let said = text(&tried.stderr);
    assert!(tried.status.success() || said.contains("no zero-copy"), "{said}");
    tried.status.success()
}

/// Receives on one card what is sent from the other, and checks all of it.
struct Trip<'a> {
    size: &'a str,
    sending: &'a [&'a str],
    receiving: &'a [&'a str],
}

impl Trip<'_> {
    /// What the sender and the receiver say.
    fn make(&self, scene: &Scene, from: &End, to: &End) -> [Value; 2] {
        const COUNT: u64 = 300;

        let drop = ["xsk", "drop", &to.device, "--udp-port", "9", "--check", "--json"];
        let receiver = scene.start(&to.host, &[&drop[..], self.receiving].concat(), "receiving");
        let (count, mac) = (COUNT.to_string(), to.mac.to_string());
        let send = ["xsk", "send", &from.device, "--count", &count, "--dst-mac", &mac];
        let send = [&send[..], &["--pattern", "seq", "--rate", "1000", "--size", self.size]];
        let sent = scene.object(&from.host, &[&send.concat()[..], self.sending].concat());
        let what = format!("{} {:?} {:?}", self.size, self.sending, self.receiving);
        assert_eq!(number(&sent, "/tx/packets"), COUNT, "{what}: {sent:#}");
        let came = comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= COUNT);
        let got = receiver.object();
        assert!(came, "{what}: {sent:#}\n{got:#}");
        assert_eq!(number(&got, "/check/probes"), COUNT, "{what}: {got:#}");
        for bad in ["lost", "reordered", "duplicated", "corrupt", "other"] {
            assert_eq!(number(&got, &format!("/check/{bad}")), 0, "{what}: {bad}: {got:#}");
        }
        let bytes = COUNT * self.size.parse::<u64>().expect("a number");
        assert_eq!(number(&got, "/rx/bytes"), bytes, "{what}: {got:#}");
        for end in [&sent, &got] {
            assert_eq!(number(end, "/frames/leaked"), 0, "{what}: {end:#}");
            let drops = end["drops"].as_object().expect("reasons").values();
            assert_eq!(drops.filter_map(Value::as_u64).sum::<u64>(), 0, "{what}: {end:#}");
        }
        [sent, got]
    }
}

#[test]
fn root_packets_of_each_length_arrive_whole_in_each_mode() {
    let test = "root_packets_of_each_length_arrive_whole_in_each_mode";
    let Some((scene, cards)) = cards(test, "cardtrip") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let zero_copy = has_zero_copy(&scene, a);
    let large: &[&str] = &["--frame-size", "4096"];
    for size in ["64", "1100", "1514"] {
        for receiving in [&[][..], &["--mode", "copy"], large, &["--xdp", "generic"]] {
            let [sent, got] = Trip { size, sending: &[], receiving }.make(&scene, a, b);
            for (said, may) in [(sent, true), (got, !receiving.contains(&"generic"))] {
                let socket = said["sockets"][0].as_str().expect("words");
                assert!(!socket.contains(": zero-copy") || (zero_copy && may), "{socket}");
            }
        }
        if zero_copy {
            let mode = ["--mode", "zero-copy"];
            let receiving = [large, &mode].concat();
            let trip = Trip { size, sending: &mode, receiving: &receiving };
            for said in trip.make(&scene, a, b) {
                let socket = said["sockets"][0].as_str().expect("words");
                assert!(socket.contains(": zero-copy"), "{socket}");
            }
        }
    }
    assert!(!has_program(a) && !has_program(b));
}

/// With `SO_PREFER_BUSY_POLL` nobody would wake the part of a driver that sends.
#[test]
fn root_a_socket_that_polls_sends_all_the_same() {
    let test = "root_a_socket_that_polls_sends_all_the_same";
    let Some((scene, cards)) = cards(test, "cardpoll") else { return };
    let polls: &[&str] = &["--busy-poll", "50"];
    for mode in [&[][..], &["--mode", "copy"]] {
        let sending = [polls, mode].concat();
        let receiving = [&sending[..], &["--frame-size", "4096"]].concat();
        let trip = Trip { size: "200", sending: &sending, receiving: &receiving };
        trip.make(&scene, &cards.link.a, &cards.link.b);
    }
}

/// The frames of a socket that is closed while packets come are all accounted for, and the queue is
/// free for the next one.
#[test]
fn root_a_queue_is_given_back_under_load() {
    let test = "root_a_queue_is_given_back_under_load";
    let Some((scene, cards)) = cards(test, "cardclose") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let mac = b.mac.to_string();
    let send = ["xsk", "send", &a.device, "--dst-mac", &mac, "--rate", "2000", "--json"];
    let sender = scene.start(&a.host, &send, "sending");
    for _ in 0..4 {
        let args = ["xsk", "drop", &b.device, "--frame-size", "4096", "--json"];
        let receiver = scene.start(&b.host, &args, "receiving");
        assert!(comes_true(|| scene.counter(&receiver, "xsk.rx_packets") > 200));
        let got = receiver.object();
        assert_eq!(number(&got, "/frames/leaked"), 0, "{got:#}");
        assert_eq!(number(&got, "/pool/withheld"), 0, "{got:#}");
    }
    let sent = sender.object();
    assert_eq!(
        (number(&sent, "/frames/leaked"), number(&sent, "/pool/withheld")),
        (0, 0),
        "{sent:#}"
    );
}

#[test]
fn root_what_comes_from_a_card_goes_on_by_a_veth_and_back() {
    let test = "root_what_comes_from_a_card_goes_on_by_a_veth_and_back";
    let Some((scene, cards)) = cards(test, "cardforward") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let far = scene.join(&b.host, &scene.host("c"), LinkOptions::default());
    let forward = ["xsk", "forward", &b.device, "--to", &far.a.device, "--both", "--json"];
    let forward = [&forward[..], &["--frame-size", "4096", "--queues", "0"]].concat();
    let forwarder = scene.start(&b.host, &forward, "every packet");
    // Cards receive what is for them.
    for (from, to, device) in [(a, b, &far.b), (&far.b, a, a)] {
        let drop = ["xsk", "drop", &device.device, "--udp-port", "9", "--check", "--json"];
        let drop = [&drop[..], &["--frame-size", "4096"]].concat();
        let receiver = scene.start(&device.host, &drop, "receiving");
        let mac = to.mac.to_string();
        let send = ["xsk", "send", &from.device, "--dst-mac", &mac, "--count", "500"];
        let send = [&send[..], &["--pattern", "seq", "--rate", "500"]].concat();
        scene.object(&from.host, &send);
        let came = comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 500);
        let got = receiver.object();
        assert!(came && number(&got, "/check/lost") == 0, "{got:#}");
    }
    let said = forwarder.object();
    assert_eq!(number(&said, "/frames/leaked"), 0, "{said:#}");
}

#[test]
fn root_frames_of_a_card_are_lent() {
    let test = "root_frames_of_a_card_are_lent";
    let Some((scene, cards)) = cards(test, "cardlend") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let socket = scene.place.path().join("lend");
    let path = socket.to_str().expect("a path");
    let lend = ["lend", &b.device, "--socket", path, "--udp-port", "9", "--json"];
    let lender = scene.start(&b.host, &[&lend[..], &["--frame-size", "4096"]].concat(), "lending");
    let mut borrower = scene.command(&["borrow", path, "--json"]);
    let borrower = borrower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let joined = comes_true(|| scene.counter(&lender, "lend.borrowers") == 1);
    assert!(joined, "{:?}", ends_within(borrower, SOON));
    let mac = b.mac.to_string();
    let send = ["xsk", "send", &a.device, "--dst-mac", &mac, "--count", "500", "--rate", "500"];
    scene.object(&a.host, &send);
    let came = comes_true(|| scene.counter(&lender, "lend.lent") == 500);
    assert!(comes_true(|| scene.counter(&lender, "lend.on_loan") == 0));
    let said = lender.object();
    assert!(came, "{said:#}");
    assert_eq!(number(&said, "/frames/leaked"), 0, "{said:#}");
    // It ends with its lender.
    let output = ends_within(borrower, SOON);
    assert!(output.status.success(), "{output:?}");
    let got: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(number(&got, "/packets"), 500, "{got:#}");
}

/// A card that goes to another namespace is gone for whoever uses it here.
#[test]
fn root_a_card_that_is_taken_away_is_named() {
    let test = "root_a_card_that_is_taken_away_is_named";
    let Some((scene, cards)) = cards(test, "cardgone") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let mut receiver = scene.start(&b.host, &["xsk", "drop", &b.device, "--json"], "receiving");
    let elsewhere = a.host.namespace_path().expect("a host");
    let elsewhere = elsewhere.to_str().expect("a path");
    b.host.ip(["link", "set", &b.device, "netns", elsewhere]).expect("it moves");
    let output = ends_within(receiver.0.take().expect("it runs"), SOON);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let said: Value = serde_json::from_str(said).expect("JSON");
    assert!(said["error"].as_str().is_some_and(|error| error.contains(&b.device)), "{said:#}");
}

#[test]
fn root_a_card_that_is_set_down_and_up_goes_on() {
    let test = "root_a_card_that_is_set_down_and_up_goes_on";
    let Some((scene, cards)) = cards(test, "carddown") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let args = ["xsk", "drop", &b.device, "--frame-size", "4096", "--json"];
    let receiver = scene.start(&b.host, &args, "receiving");
    let mac = b.mac.to_string();
    let send = ["xsk", "send", &a.device, "--dst-mac", &mac, "--rate", "500", "--json"];
    let sender = scene.start(&a.host, &send, "sending");
    let received = || scene.counter(&receiver, "xsk.rx_packets");
    assert!(comes_true(|| received() > 100));
    b.host.ip(["link", "set", &b.device, "down"]).expect("ip");
    std::thread::sleep(Duration::from_millis(300));
    b.host.ip(["link", "set", &b.device, "up"]).expect("ip");
    let before = received();
    assert!(comes_true(|| received() > before + 100), "{}", cards.driver);
    for end in [sender, receiver] {
        let output = end.end(Signal::INT);
        assert!(output.status.success(), "{output:?}");
    }
}

/// Packets that need more than a frame are refused, with what would do.
#[test]
fn root_an_mtu_that_fits_no_frame_is_refused_with_what_would_do() {
    let test = "root_an_mtu_that_fits_no_frame_is_refused_with_what_would_do";
    let Some((scene, cards)) = cards(test, "cardmtu") else { return };
    let b = &cards.link.b;
    if b.host.ip(["link", "set", &b.device, "mtu", "3000"]).is_err() {
        eprintln!("skipped: {test}: {} takes no MTU of 3000", cards.driver);
        return;
    }
    let output = scene.run(&b.host, &["xsk", "drop", &b.device]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("MTU of 3000") && said.contains("4096"), "{said}");
    let output =
        scene.run(&b.host, &["xsk", "send", &b.device, "--mode", "zero-copy", "--count", "1"]);
    let said = text(&output.stderr);
    assert!(output.status.success() || said.contains("MTU of 3000"), "{said}");
}

/// Interrupts of a card with several queues fall on CPUs that no consumer is on: what arrives there
/// goes to the consumer's.
#[test]
fn root_flows_of_a_card_go_to_their_consumer() {
    let test = "root_flows_of_a_card_go_to_their_consumer";
    let Some((scene, cards)) = cards(test, "cardsteer") else { return };
    if !two_cpus(test) {
        return;
    }
    let Cards { link, driver, .. } = &cards;
    let steered = Steered { scene, link: link.clone() };
    let device = steered.device().to_owned();
    let queues = |count: &str| {
        let args = ["-L", &device, "combined", count];
        steered.host().command("ethtool").args(args).run().is_ok()
    };
    let counts: &[&str] = if queues("2") { &["1", "2"] } else { &["1"] };
    for count in counts {
        queues(count);
        let running = steered.start(&["--lanes", &lane_per_cpu()]);
        let (from, to) = (link.a.v4.into(), link.b.v4.into());
        let exchange = Exchange::start(link, from, to, HOPS);
        let counter = |name: &str| steered.counter(&running, name);
        let moves = || counter("moves") >= 5 && counter("steered") >= 50;
        // vmxnet3 leaves no room for the queue's number, which is said.
        let none = driver == "vmxnet3";
        assert!(
            comes_true(|| moves() || none && counter("kernel.unsent") > 200),
            "{driver}, {count} queues: {} steered, {} moves",
            counter("steered"),
            counter("moves")
        );
        exchange.goes_on(20);
        exchange.end();
        assert!(running.end(Signal::INT).status.success());
    }
}

/// How the card spreads flows over its queues is what was foreseen of `ethtool -x`.
#[test]
fn root_flows_go_to_the_queues_of_a_card_in_turn() {
    let test = "root_flows_go_to_the_queues_of_a_card_in_turn";
    let Some((scene, cards)) = cards(test, "cardrss") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let ethtool = |args: &[&str]| b.host.command("ethtool").args(args).run();
    // By chance the first queue would get five of eight flows.
    let weights = ["-X", &b.device, "weight", "5", "2", "1", "0"];
    let has_queues = ethtool(&["-L", &b.device, "combined", "4"]).is_ok();
    if !has_queues || ethtool(&weights).is_err() {
        eprintln!("skipped: {test}: {} has no table of queues that can be set", cards.driver);
        return;
    }
    let table = ethtool(&["-x", &b.device]).expect("ethtool");
    // On older kernels igb does not tell its key, which is this one.
    let key = std::fs::read_to_string("/proc/sys/net/core/netdev_rss_key").expect("a key");
    let table = table.replacen("key:\nOperation not supported", &format!("key:\n{key}"), 1);
    let path = scene.place.path().join("rss");
    std::fs::write(&path, table).expect("a file");
    let path = path.to_str().expect("text");
    let is_udp = ethtool(&["-N", &b.device, "rx-flow-hash", "udp4", "sdfn"]).is_ok();
    assert!(is_udp || cards.driver != "igb");
    let kinds = [("udp", "--udp-port", is_udp), ("tcp-syn", "--tcp-port", true)];
    for (kind, port, _) in kinds.into_iter().filter(|(.., has)| *has) {
        let drop = ["xsk", "drop", &b.device, port, "9", "--frame-size", "4096", "--json"];
        let receiver = scene.start(&b.host, &drop, "receiving");
        let mac = b.mac.to_string();
        let send = ["xsk", "send", &a.device, "--dst-mac", &mac, "--packet", kind, "--rss", path];
        let more = ["--flows", "300", "--count", "300", "--rate", "500"];
        let sent = scene.object(&a.host, &[&send[..], &more].concat());
        let came = comes_true(|| scene.counter(&receiver, "xsk.rx_packets") >= 300);
        let got = receiver.object();
        assert!(came, "{kind}: {got:#}");
        let each = |said: &Value, of: &str, field: &str| {
            let queues = said.pointer(of).and_then(Value::as_array).expect("queues");
            queues.iter().map(|queue| number(queue, field)).collect::<Vec<_>>()
        };
        assert_eq!(each(&sent, "/rss/by_queue", "/flows"), [100; 3], "{kind}: {sent:#}");
        let came = each(&got, "/by_queue", "/rx_packets");
        assert_eq!(came, [100; 3], "{kind}: {got:#}");
    }
}

/// A bridge with a card and a veth: known unicast goes by the fast path in both directions.
#[test]
fn root_a_bridge_with_a_card_is_accelerated() {
    let test = "root_a_bridge_with_a_card_is_accelerated";
    let Some((scene, cards)) = cards(test, "cardbridge") else { return };
    let (a, b) = (&cards.link.a, &cards.link.b);
    let far = scene.join(&b.host, &scene.host("c"), LinkOptions::default());
    let ip = |line: &str| b.host.ip(line.split(' ').collect::<Vec<_>>()).expect("ip");
    ip("link add br0 type bridge");
    for port in [&b.device, &far.a.device] {
        ip(&format!("address flush dev {port}"));
        ip(&format!("link set {port} master br0"));
    }
    ip("link set br0 up");
    // The far host is in the near one's subnet.
    let address = "10.84.0.3/24";
    far.b.host.ip(["address", "add", address, "dev", &far.b.device]).expect("ip");
    let accelerates = scene.start(&b.host, &["bridge", "br0"], "2 of 2 ports");
    let to = far.b.host.run(|| UdpSocket::bind("10.84.0.3:0")).expect("the host").expect("one");
    let address = to.local_addr().expect("an address");
    let from = a.host.run(|| UdpSocket::bind("0.0.0.0:0")).expect("the host").expect("one");
    for socket in [&to, &from] {
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    }
    let answered = || {
        from.send_to(b"there", address).expect("sent");
        let Ok((_, back)) = to.recv_from(&mut [0; 16]) else { return false };
        to.send_to(b"back", back).expect("sent");
        from.recv(&mut [0; 16]).is_ok()
    };
    let fast = || {
        let way = |name: &str| scene.counter(&accelerates, &format!("bridge.{name}"));
        way("straight") + way("redirected")
    };
    assert!(
        comes_true(|| answered() && fast() >= 50),
        "{}: {} by the fast path",
        cards.driver,
        fast()
    );
    assert!(accelerates.end(Signal::INT).status.success());
}
