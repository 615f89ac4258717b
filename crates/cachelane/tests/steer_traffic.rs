//! `cachelane steer` under traffic between test hosts: what is steered where, what is left to the
//! kernel, and what changes that meanwhile.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::PROGRAM;
use common::frames::{left_to_the_kernel, with_tags};
use common::steer::{Exchange, HOPS, Steered, lane_per_cpu, one_lane, tagged, two_cpus};
use common::xsk::{Running, number};
use lab::testing::{comes_true, root};
use lab::traffic::{EchoOptions, EchoServer, FrameSender, RrOptions, RrSession};
use rustix::process::Signal;

#[test]
fn root_the_knob_is_flipped_under_traffic() {
    let test = "root_the_knob_is_flipped_under_traffic";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stknob");
    let running = steered.start(&["--lanes", &one_lane()]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, HOPS);
    let grows = |name: &str, by: u64| {
        let before = steered.counter(&running, name);
        assert!(comes_true(|| steered.counter(&running, name) >= before + by), "{name}");
    };
    for (value, written) in [("on", false), ("off", true), ("on", false)] {
        let set = steered.scene.run(steered.host(), &["knob", "set", "steer.llc_affinity", value]);
        assert!(set.status.success(), "{set:?}");
        // What was going on while it was set is over.
        exchange.goes_on(100);
        let [records, filtered] =
            ["written", "same_lane"].map(|name| steered.counter(&running, name));
        grows(if written { "written" } else { "same_lane" }, 50);
        grows("steered", 100);
        match written {
            true => assert_eq!(steered.counter(&running, "same_lane"), filtered),
            false => assert_eq!(steered.counter(&running, "written"), records),
        }
    }
    let refused = steered.scene.run(steered.host(), &["knob", "set", "steer.llc_affinity", "yes"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    exchange.end();
    assert!(running.end(Signal::INT).status.success());
}

#[test]
fn root_a_consumer_that_leaves_its_lane_takes_its_flow_along() {
    let test = "root_a_consumer_that_leaves_its_lane_takes_its_flow_along";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stlane");
    let running = steered.start(&["--lanes", &lane_per_cpu(), "--json"]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, HOPS);
    assert!(comes_true(|| steered.counter(&running, "moves") > 50));
    assert!(steered.counter(&running, "written") > 50);
    assert_eq!(steered.counter(&running, "same_lane"), 0);
    exchange.end();
    let end = running.object();
    assert_eq!((&end["schema"], &end["event"]), (&1.into(), &"end".into()), "{end:#}");
    assert_eq!(end["ended_by"], "signal");
    // What all CPUs count is what they count together, and records are written where the
    // consumer runs.
    let cpus = end["cpus"].as_array().expect("CPUs");
    for name in ["/steered", "/moves", "/held", "/written", "/left_alone", "/kernel/unknown"] {
        let sum: u64 = cpus.iter().map(|cpu| number(cpu, name)).sum();
        assert_eq!(sum, number(&end["counters"], name), "{name}: {end:#}");
    }
    for cpu in [0, 1] {
        let there = cpus.iter().find(|there| there["cpu"] == cpu).expect("its counts");
        assert!(number(there, "/written") > 10, "{end:#}");
    }
}

#[test]
fn root_flows_of_local_sockets_are_steered_and_the_rest_is_counted_by_reason() {
    let test = "root_flows_of_local_sockets_are_steered_and_the_rest_is_counted_by_reason";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stkinds");
    let link = &steered.link;
    let (a, b) = (&link.a, &link.b);
    // The tag stays in the packet, as on a card that strips none.
    for end in [a, b] {
        let args = ["-K", &end.device, "rxvlan", "off", "txvlan", "off"];
        end.host.command("ethtool").args(args).run().expect("ethtool");
    }
    let running = steered.start(&[]);
    let sender = FrameSender::open(&a.host, &a.device).expect("a sender");
    // Consumers run on CPU 0: what arrives there is left there.
    lanes::pin(1).expect("a CPU that is there");
    let mut kinds: Vec<(&str, IpAddr, IpAddr)> = vec![
        ("UDP over IPv4", a.v4.into(), b.v4.into()),
        ("UDP over IPv6", a.v6.into(), b.v6.into()),
    ];
    if let Some([from, to]) = tagged(test, link) {
        kinds.push(("UDP over IPv4 with a tag", from, to));
    }
    for (what, from, to) in kinds {
        udp_is_steered(&steered, &running, &sender, what, [from, to]);
    }
    for (what, listen, target) in [
        ("TCP over IPv4", b.socket(0), b.v4.into()),
        ("TCP over IPv6", b.socket_v6(0), b.v6.into()),
        ("TCP over IPv4 to a socket of IPv6", "[::]:0".parse().expect("any"), b.v4.into()),
    ] {
        tcp_is_steered(&steered, &running, what, listen, target);
    }
    for (reason, frame) in left_to_the_kernel() {
        let name = format!("kernel.{reason}");
        let before = steered.counter(&running, &name);
        (0..10).for_each(|_| sender.send(&frame).expect("sent"));
        assert!(comes_true(|| steered.counter(&running, &name) >= before + 10), "{reason}");
    }
    assert!(running.end(Signal::TERM).status.success());
}

fn udp_is_steered(
    steered: &Steered,
    running: &Running,
    sender: &FrameSender,
    what: &str,
    [from, to]: [IpAddr; 2],
) {
    let before = steered.counter(running, "steered");
    let exchange = Exchange::start(&steered.link, from, to, 0);
    exchange.goes_on(200);
    assert!(steered.counter(running, "steered") >= before + 150, "{what}");
    let ends = exchange.ends;
    exchange.end();
    // Its record is still there: tags of others do not hide it.
    let before = steered.counter(running, "steered");
    for tags in 0..3 {
        (0..10).for_each(|_| sender.send(&with_tags(ends, tags)).expect("sent"));
    }
    assert!(comes_true(|| steered.counter(running, "steered") >= before + 30), "{what}");
    assert_eq!(steered.counter(running, "steered"), before + 30, "{what}");
}

fn tcp_is_steered(
    steered: &Steered,
    running: &Running,
    what: &str,
    listen: SocketAddr,
    target: IpAddr,
) {
    let options = EchoOptions { request: 64, cpus: vec![0], ..EchoOptions::default() };
    let server = EchoServer::start(steered.host(), listen, options).expect("a server");
    let before = steered.counter(running, "steered");
    let options = RrOptions { connections: 4, verify: true, cpu: Some(1), ..RrOptions::default() };
    let address = (target, server.address().port()).into();
    let session = RrSession::start(&steered.link.a.host, address, &options).expect("a session");
    assert!(comes_true(|| steered.counter(running, "steered") >= before + 500), "{what}");
    let window = session.take_window();
    assert_eq!((window.errors, window.corrupt), (0, 0), "{what}: {window:?}");
}

#[test]
fn root_cpus_that_leave_get_nothing_until_they_are_back() {
    let test = "root_cpus_that_leave_get_nothing_until_they_are_back";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stcpus");
    // The process sees this file in place of the kernel's; the CPU itself stays.
    let online = steered.scene.place.path().join("online");
    let all = format!("{}\n", one_lane());
    std::fs::write(&online, &all).expect("a file");
    let running = start_seeing(&steered, &online);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 1);
    let counter = |name: &str| steered.counter(&running, name);
    assert!(comes_true(|| counter("steered") > 500));
    let targets = counter("targets");
    for _ in 0..2 {
        let without: lanes::CpuSet = all.trim().parse().expect("a list");
        let without = without.iter().filter(|cpu| *cpu != 1).collect::<lanes::CpuSet>();
        std::fs::write(&online, format!("{without}\n")).expect("the file");
        assert!(comes_true(|| counter("targets") == targets - 1), "it is noticed");
        exchange.goes_on(50);
        let (steered_then, left_then) = (counter("steered"), counter("kernel.target"));
        exchange.goes_on(500);
        assert_eq!(counter("steered"), steered_then, "to the CPU that left");
        assert!(counter("kernel.target") >= left_then + 400);
        // Its consumer moves to a CPU that is there.
        exchange.consume_on(0);
        assert!(comes_true(|| counter("steered") > steered_then + 500));
        exchange.consume_on(1);
        exchange.goes_on(50);
        std::fs::write(&online, &all).expect("the file");
        let steered_then = counter("steered");
        assert!(comes_true(|| counter("steered") > steered_then + 500), "it is back");
        assert_eq!(counter("targets"), targets);
    }
    exchange.end();
    assert!(running.end(Signal::TERM).status.success());
}

/// Starts the command with `file` in place of the kernel's list of CPUs that are online.
fn start_seeing(steered: &Steered, file: &std::path::Path) -> Running {
    let script = "mount --bind \"$0\" /sys/devices/system/cpu/online && exec \"$@\"";
    let args = ["steer", steered.device(), "--force", "--lanes", &lane_per_cpu()];
    let with = ["--mount", "sh", "-ec", script, file.to_str().expect("text"), PROGRAM];
    steered.scene.start_program(
        "unshare",
        steered.host(),
        &[&with[..], &args].concat(),
        "steering flows of",
    )
}

#[test]
fn root_targets_are_the_chosen_cpus_only() {
    let test = "root_targets_are_the_chosen_cpus_only";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("sttargets");
    let running = steered.start(&["--cpus", "lane:0", "--lanes", &lane_per_cpu()]);
    assert_eq!(steered.counter(&running, "targets"), 1);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 1);
    assert!(comes_true(|| steered.counter(&running, "kernel.target") > 100));
    assert_eq!(steered.counter(&running, "steered"), 0);
    exchange.consume_on(0);
    assert!(comes_true(|| steered.counter(&running, "steered") > 100));
    exchange.end();
}

#[test]
fn root_steering_ends_while_its_process_is_stopped_and_goes_on_after() {
    let test = "root_steering_ends_while_its_process_is_stopped_and_goes_on_after";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("ststop");
    let running = steered.start(&[]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 0);
    exchange.goes_on(200);
    assert_eq!(steered.counter(&running, "kernel.lease"), 0);
    running.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(2100));
    let before = exchange.done();
    exchange.goes_on(500);
    let exchanged = exchange.done() - before;
    running.signal(Signal::CONT);
    let left = steered.counter(&running, "kernel.lease");
    assert!(left >= exchanged, "{left} of {exchanged} packets were the kernel's");
    // It steers again.
    let steered_by_then = steered.counter(&running, "steered");
    assert!(comes_true(|| steered.counter(&running, "steered") > steered_by_then + 200));
    exchange.end();
    assert!(running.end(Signal::INT).status.success());
}
