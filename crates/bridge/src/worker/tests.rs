//! The worker against real bridges, where something of its inside has to be reached.

use lab::{Bridge, BridgeOptions, Lab};

use super::*;
use crate::{Accelerator, Way};

fn root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {test}: needs root");
    }
    root
}

fn bridge(lab: &Lab) -> Bridge {
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    lab.bridge("switch", &[&a, &b], BridgeOptions::default()).expect("a bridge")
}

fn index(bridge: &Bridge, device: &str) -> u32 {
    let path = format!("/sys/class/net/{device}/ifindex");
    let host = &bridge.own.host;
    let text = host.ip(["-o", "link", "show", "dev", device]).expect(&path);
    text.split(':').next().and_then(|index| index.trim().parse().ok()).expect("an index")
}

/// Waits until the worker has seen to something by itself.
fn comes_true(condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn root_ours_runs_after_the_programs_that_were_there_and_goes_behind_those_that_come() {
    if !root("root_ours_runs_after_the_programs_that_were_there") {
        return;
    }
    let lab = Lab::new("order").expect("a lab");
    let bridge = bridge(&lab);
    let port = index(&bridge, "p0");
    bridge
        .own
        .host
        .run(|| {
            let [first, later] = [(); 2].map(|()| Program::load(8).expect("it loads"));
            // Another's program by its place; ours by its name would be refused at the start.
            let fast = {
                let fast = Accelerator::start(Config::new("br0")).expect("it starts");
                let ours = tcx::programs(port, Hook::Ingress).expect("a port");
                assert_eq!(ours.len(), 1);
                let _first = first.attach(port).expect("there is room");
                let overtaken = || tcx::programs(port, Hook::Ingress).expect("a port");
                assert!(comes_true(|| overtaken() == [first.id(), ours[0]]), "{:?}", overtaken());
                assert!(comes_true(|| fast.plan().ports[0].before == [first.id()]));
                assert!(fast.plan().ports[0].receive.is_empty());
                // It does not race one that comes at once again.
                let _later = later.attach(port).expect("there is room");
                fast.sync().expect("the bridge is there");
                assert_eq!(overtaken(), [first.id(), ours[0], later.id()]);
                let obstacles = &fast.plan().ports[0].receive;
                assert_eq!(obstacles.iter().map(|o| o.id()).collect::<Vec<_>>(), ["tcx-behind"]);
                fast
            };
            drop(fast);
            assert!(tcx::programs(port, Hook::Ingress).expect("a port").is_empty());
        })
        .expect("the host");
}

#[test]
fn root_a_mirror_that_lost_notifications_is_rebuilt_before_it_is_trusted() {
    if !root("root_a_mirror_that_lost_notifications_is_rebuilt_before_it_is_trusted") {
        return;
    }
    let lab = Lab::new("overrun").expect("a lab");
    let bridge = bridge(&lab);
    let batch = |verb: &str| -> String {
        let line = |n: u32| {
            format!("fdb {verb} 06:00:00:00:{:02x}:{:02x} dev p1 master static\n", n >> 8, n & 255)
        };
        (0..3000).map(line).collect()
    };
    let run = |input: String| {
        bridge.own.host.command("bridge").args(["-batch", "-"]).input(input).run().expect("bridge")
    };
    bridge
        .own
        .host
        .run(|| {
            let (mut worker, shared) = Worker::new(&Config::new("br0")).expect("it starts");
            assert!(shared.control().trusted);
            // The smallest that the kernel gives, and a worker that is not running meanwhile.
            worker.watch = Watch::with_buffer(worker.index, 1).expect("sockets");
            let before = worker.mirror.mapped();
            run(batch("add"));
            assert!(worker.drain().expect("no other error"));
            assert!(!shared.control().trusted, "what is known is out of date");
            assert_eq!(shared.gauges.overruns.load(Relaxed), 1);
            worker.attempt(Worker::look).expect("it looks");
            assert!(shared.control().trusted);
            // The hosts may have shown up meanwhile.
            assert!((before + 3000..before + 3010).contains(&worker.mirror.mapped()));
            // Removals get lost as well.
            run(batch("del"));
            worker.drain().expect("no other error");
            while worker.stale {
                worker.attempt(Worker::look).expect("it looks");
            }
            assert!(worker.mirror.mapped() < before + 10);
        })
        .expect("the host");
}

#[test]
fn root_the_packet_paths_map_of_ports_follows_the_plan() {
    if !root("root_the_packet_paths_map_of_ports_follows_the_plan") {
        return;
    }
    let lab = Lab::new("places").expect("a lab");
    let bridge = bridge(&lab);
    bridge
        .own
        .host
        .run(|| {
            let fast = Accelerator::start(Config::new("br0")).expect("it starts");
            let ways = |fast: &Accelerator| -> Vec<Way> {
                fast.plan().ports.iter().map(|port| port.send).collect()
            };
            assert_eq!(ways(&fast), [Way::Straight, Way::Straight]);
            bridge.own.host.ip(["link", "set", "p1", "nomaster"]).expect("root may");
            fast.sync().expect("the bridge is there");
            assert_eq!(ways(&fast), [Way::Straight]);
            let left = tcx::programs(index(&bridge, "p1"), Hook::Ingress).expect("a device");
            assert!(left.is_empty());
            bridge.own.host.ip(["link", "set", "p1", "master", "br0"]).expect("root may");
            assert!(comes_true(|| ways(&fast).len() == 2));
            bridge.own.host.ip(["link", "delete", "br0"]).expect("root may");
            assert!(comes_true(|| fast.failure().is_some()));
            assert!(fast.sync().is_err());
        })
        .expect("the host");
}
