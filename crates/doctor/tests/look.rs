//! Looking at hosts that are not as usual: devices that come and go, very many, and their traffic.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use cachelane_doctor::{ErrorKind, Host, LookOptions, Place};
use lab::Lab;
use lab::testing::root;
use lanes::LaneMap;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

const HERE: Place = Place::Here { pid: None };

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Lanes that this machine does not have: its first CPU, and the others. None where it has one CPU.
fn two_lanes() -> Option<String> {
    let found = LaneMap::detect().expect("this machine");
    let first = found.online().first()?;
    let others = found.online().difference(&[first].into_iter().collect());
    (!others.is_empty()).then(|| format!("{first}|{others}"))
}

#[test]
fn root_a_device_that_vanishes_meanwhile_was_not_there() {
    let test = "root_a_device_that_vanishes_meanwhile_was_not_there";
    if !root(test) {
        return;
    }
    let lab = Lab::new("docgone").expect("a lab");
    let host = lab.host("a").expect("a host");
    host.ip(["link", "add", "stays", "type", "veth", "peer", "name", "peer"]).expect("root may");
    let done = Arc::new(AtomicBool::new(false));
    let (other, seen) = (host.clone(), Arc::clone(&done));
    let comes_and_goes = thread::spawn(move || {
        let mut times = 0;
        // Relaxed: the join orders the rest.
        while !seen.load(Relaxed) {
            other.ip("link add goes type veth peer name went".split(' ')).expect("root may");
            other.ip("link add bridge type bridge".split(' ')).expect("root may");
            other.ip(["link", "delete", "goes"]).expect("it is there");
            other.ip(["link", "delete", "bridge"]).expect("it is there");
            times += 1;
        }
        times
    });
    let look = || Host::look(&HERE, &LookOptions::default()).expect("this host");
    for _ in 0..20 {
        let looked = host.run(look).expect("the host");
        let text = looked.not_seen.join("\n");
        for name in ["goes", "went", "bridge"] {
            assert!(!text.contains(name), "{text}");
        }
        for device in &looked.facts.devices {
            // A device that is there has queues, and an MTU.
            assert!(!device.rx.is_empty() && device.mtu.is_some(), "{device:?}");
        }
        assert!(looked.facts.devices.iter().any(|device| device.name == "stays"));
        let dir = TempDir::new().expect("a folder");
        looked.record(dir.path()).expect("it records");
        let again = Host::look(&Place::Recorded(dir.path().to_owned()), &LookOptions::default());
        let names = |host: &Host| -> Vec<String> {
            host.facts.devices.iter().map(|device| device.name.clone()).collect()
        };
        assert_eq!(names(&again.expect("a record")), names(&looked));
    }
    done.store(true, Relaxed);
    let times = comes_and_goes.join().expect("no panic");
    assert!(times > 0, "nothing vanished");
}

#[test]
fn root_a_thousand_devices_are_looked_at() {
    let test = "root_a_thousand_devices_are_looked_at";
    if !root(test) {
        return;
    }
    let lab = Lab::new("docmany").expect("a lab");
    let host = lab.host("a").expect("a host");
    host.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1").expect("root may");
    let mut lines = String::from("link add br0 type bridge\nlink set br0 up\n");
    for pair in 0..500 {
        writeln!(lines, "link add a{pair} type veth peer name b{pair}").expect("a string");
        writeln!(lines, "link set a{pair} up master br0").expect("a string");
    }
    host.command("ip").args(["-batch", "-"]).input(lines).run().expect("root may");
    let look = || {
        let before = cpu_time();
        let looked = Host::look(&HERE, &LookOptions::default()).expect("this host");
        (looked, cpu_time() - before)
    };
    let (looked, took) = host.run(look).expect("the host");
    assert_eq!(looked.not_seen, [""; 0]);
    // Those, their bridge, and the loopback.
    assert_eq!(looked.facts.devices.len(), 1002);
    assert_eq!(looked.facts.answers.devices.len(), 1002);
    assert!(took < Duration::from_secs(5), "{took:?} of CPU time");
}

#[test]
fn lanes_may_be_given_and_stay_in_a_record() {
    let Some(lanes) = two_lanes() else {
        return eprintln!("skipped: lanes_may_be_given_and_stay_in_a_record: needs two CPUs");
    };
    let look = |lanes: Option<String>| Host::look(&HERE, &LookOptions { lanes, watch: None });
    let host = look(Some(lanes.clone())).expect("this host");
    assert_eq!(host.facts.cpus.lanes.to_string(), lanes);
    let dir = TempDir::new().expect("a folder");
    host.record(dir.path()).expect("it records");
    let place = Place::Recorded(dir.path().to_owned());
    let again = Host::look(&place, &LookOptions::default()).expect("a record");
    assert_eq!(again.facts.cpus.lanes.to_string(), lanes);
    let all = host.facts.cpus.lanes.online().to_string();
    let one = LookOptions { lanes: Some(all.clone()), watch: None };
    let other = Host::look(&place, &one).expect("a record");
    assert_eq!(other.facts.cpus.lanes.to_string(), all);
    let wrong = look(Some(format!("{lanes}|{lanes}"))).expect_err("each CPU is in two lanes");
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
    assert!(wrong.to_string().contains("named twice"), "{wrong}");
}

#[test]
fn traffic_is_watched_where_that_can_show_something() {
    let test = "traffic_is_watched_where_that_can_show_something";
    let look = |lanes: String, watch: Option<Duration>| {
        Host::look(&HERE, &LookOptions { lanes: Some(lanes), watch }).expect("this host")
    };
    let all = LaneMap::detect().expect("this machine").online().to_string();
    let time = Some(Duration::from_millis(50));
    let one = look(all, time);
    assert_eq!(one.facts.watch(), None);
    let said = one.not_seen.join("\n");
    assert!(said.contains("all CPUs are in one lane"), "{said}");
    let (Some(two), true) = (two_lanes(), root(test)) else { return };
    let host = look(two.clone(), time);
    let watch = host.facts.watch().expect("it was watched");
    assert!(watch.seconds >= 0.05, "{watch:?}");
    assert_eq!(look(two, None).facts.watch(), None);
}
