//! The worker against real bridges, where something of its inside has to be reached.

use std::sync::atomic::Ordering::Relaxed;

use bpf::tcx::{self, Hook};
use bpf::{Link, Object};
use lab::testing::{comes_true, root};
use lab::traffic::FrameSender;
use lab::{Bridge, BridgeOptions, Lab};

use super::looking::LOOK;
use super::*;
use crate::Plan;
use crate::program::{Owner, constants, port_flags};
use crate::{Accelerator, Way};

mod vlans;

fn bridge(lab: &Lab) -> Bridge {
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    lab.bridge("switch", &[&a, &b], BridgeOptions::default()).expect("a bridge")
}

/// A program that does nothing but return this.
fn returning(lab: &Lab, verdict: i32) -> bpf::Program {
    let (source, object) = (lab.dir().join("returns.c"), lab.dir().join("returns.o"));
    let text = format!(
        "__attribute__((section(\"tc\"), used)) int returns(void *c) {{ return {verdict}; }}\n"
    );
    std::fs::write(&source, text).expect("a file in the lab's folder");
    let mut clang = std::process::Command::new("clang");
    clang.args(["-target", "bpf", "-g", "-O2", "-c", "-o"]).arg(&object).arg(&source);
    assert!(clang.status().expect("clang, which builds this crate").success());
    let object = Object::load(&std::fs::read(&object).expect("it was just built"));
    object.expect("it loads").program("returns").expect("it is there")
}

/// Fills a device's ingress with programs, until they are dropped.
fn fill(index: u32) -> Vec<(Program, Link)> {
    let mut there = Vec::new();
    loop {
        let program = Program::load(8, 8, Owner::default()).expect("it loads");
        match program.attach(index) {
            Ok(link) => there.push((program, link)),
            Err(error) => {
                let full = Errno::RANGE.raw_os_error();
                assert_eq!(error.raw_os_error(), Some(full));
                return there;
            }
        }
    }
}

/// Looks at everything, as the worker does when it is time.
fn look(worker: &mut Worker) {
    worker.look().and_then(|()| worker.rebuild_if_stale()).expect("it looks");
}

fn index(bridge: &Bridge, device: &str) -> u32 {
    let path = format!("/sys/class/net/{device}/ifindex");
    let host = &bridge.own.host;
    let text = host.ip(["-o", "link", "show", "dev", device]).expect(&path);
    text.split(':').next().and_then(|index| index.trim().parse().ok()).expect("an index")
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
            let [first, later] =
                [(); 2].map(|()| Program::load(8, 8, Owner::default()).expect("it loads"));
            // Another's program by its place; ours by its name would be refused at the start.
            let fast = {
                let fast = Accelerator::start("br0", Config::default()).expect("it starts");
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
            // A program that another test is starting may hold the others' links for a moment.
            assert!(comes_true(|| tcx::programs(port, Hook::Ingress).expect("a port").is_empty()));
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
            let mut worker = Worker::new("br0", Config::default()).expect("it starts");
            let shared = Arc::clone(&worker.shared);
            assert!(shared.gate.lock().trusted);
            // The smallest that the kernel gives, and a worker that is not running meanwhile.
            worker.watch = Watch::new(worker.shared.bridge, 1).expect("sockets");
            let before = worker.mirror.mapped;
            run(batch("add"));
            worker.drain().expect("no other error");
            assert!(!shared.gate.lock().trusted, "what is known is out of date");
            assert_eq!(shared.gauges.overruns.load(Relaxed), 1);
            look(&mut worker);
            assert!(shared.gate.lock().trusted);
            // The hosts may have shown up meanwhile.
            assert!((before + 3000..before + 3010).contains(&worker.mirror.mapped));
            // Removals get lost as well.
            run(batch("del"));
            worker.drain().expect("no other error");
            while worker.stale {
                look(&mut worker);
            }
            assert!(worker.mirror.mapped < before + 10);
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
            let fast = Accelerator::start("br0", Config::default()).expect("it starts");
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

#[test]
fn root_a_port_is_the_kernels_from_its_notification_until_it_has_been_looked_at() {
    if !root("root_a_port_is_the_kernels_from_its_notification_until_it_has_been_looked_at") {
        return;
    }
    let lab = Lab::new("closed").expect("a lab");
    let bridge = bridge(&lab);
    let host = &bridge.own.host;
    host.run(|| {
        let mut worker = Worker::new("br0", Config::default()).expect("it starts");
        let shared = Arc::clone(&worker.shared);
        let settled = |worker: &mut Worker| {
            worker.tend().expect("no error");
            while worker.watch.heard.is_something() {
                worker.attend().expect("no error");
            }
        };
        let slots: Vec<u32> = worker.state.ports.iter().map(|p| u32::from(p.number)).collect();
        let flags = |slot| port_flags(&shared.program.maps.ports, slot).expect("the map is read");
        settled(&mut worker);
        let both = flags(slots[0]);
        assert_eq!(both & constants::PORT_IN, constants::PORT_IN);
        assert_eq!(flags(slots[1]), both);
        host.command("bridge")
            .args(["link", "set", "dev", "p0", "isolated", "on"])
            .run()
            .expect("root may");
        worker.tend().expect("no error");
        assert_eq!([flags(slots[0]), flags(slots[1])], [0, both], "nothing has been read yet");
        settled(&mut worker);
        assert_eq!(flags(slots[0]), both | constants::PORT_ISOLATED);
        // What concerns all of them turns everything off.
        host.ip(["link", "set", "br0", "promisc", "on"]).expect("root may");
        worker.tend().expect("no error");
        assert!(shared.gate.lock().alarmed && flags(slots[1]) == both);
        settled(&mut worker);
        assert!(!shared.gate.lock().alarmed);
        assert_eq!(shared.gate.lock().plan.obstacles, [crate::Obstacle::Promiscuous]);
    })
    .expect("the host");
}

#[test]
fn root_a_port_that_comes_is_read_with_the_filters_that_it_had_before() {
    if !root("root_a_port_that_comes_is_read_with_the_filters_that_it_had_before") {
        return;
    }
    let lab = Lab::new("brings").expect("a lab");
    let bridge = bridge(&lab);
    let host = &bridge.own.host;
    let ip = |step: &str| host.ip(step.split(' ')).map(drop).expect("root may");
    let tc =
        |step: &str| host.command("tc").args(step.split(' ')).run().map(drop).expect("a filter");
    host.run(|| {
        let mut worker = Worker::new("br0", Config::default()).expect("it starts");
        let mut obstacles = || -> Vec<&str> {
            worker.tend().expect("no error");
            while worker.watch.heard.is_something() {
                worker.attend().expect("no error");
            }
            let plan = worker.shared.gate.lock().plan.clone();
            let port = plan.ports.iter().find(|port| port.name == "p1");
            port.map_or(vec!["gone"], |port| port.receive.iter().map(|o| o.id()).collect())
        };
        assert_eq!(obstacles(), [""; 0]);
        ip("link set p1 nomaster");
        assert_eq!(obstacles(), ["gone"]);
        tc("qdisc add dev p1 clsact");
        tc("filter add dev p1 ingress u32 match u32 0 0 flowid 1:1");
        assert_eq!(obstacles(), ["gone"]);
        ip("link set p1 master br0");
        assert_eq!(obstacles(), ["ingress-filters"]);
        tc("filter del dev p1 ingress");
        assert_eq!(obstacles(), [""; 0]);
    })
    .expect("the host");
}

#[test]
fn root_a_program_that_somebody_took_off_a_port_comes_back() {
    if !root("root_a_program_that_somebody_took_off_a_port_comes_back") {
        return;
    }
    let lab = Lab::new("taken").expect("a lab");
    let bridge = bridge(&lab);
    let port = index(&bridge, "p0");
    let work = || {
        let mut worker = Worker::new("br0", Config::default()).expect("it starts");
        let shared = Arc::clone(&worker.shared);
        let there = || tcx::programs(port, Hook::Ingress).expect("a port");
        assert_eq!(there(), [shared.program.id()]);
        worker.links[&port].link.detach().expect("root may");
        assert_eq!(there(), [0_u32; 0]);
        worker.glance().expect("no error");
        assert_eq!(there(), [shared.program.id()]);
        assert!(worker.stale, "stations may have moved meanwhile");
        worker.glance().expect("no error");
        assert_eq!(there(), [shared.program.id()]);
    };
    bridge.own.host.run(work).expect("the host");
}

#[test]
fn root_a_bridge_is_followed_when_it_gets_another_name() {
    if !root("root_a_bridge_is_followed_when_it_gets_another_name") {
        return;
    }
    let lab = Lab::new("renamed").expect("a lab");
    let bridge = bridge(&lab);
    let host = &bridge.own.host;
    let work = || {
        let fast = Accelerator::start("br0", Config::default()).expect("it starts");
        for args in [["down", "", ""], ["name", "br7", ""], ["up", "", ""]] {
            let name = if args[0] == "up" { "br7" } else { "br0" };
            let args = args.into_iter().filter(|arg| !arg.is_empty());
            host.ip(["link", "set", name].into_iter().chain(args)).expect("root may");
            fast.sync().expect("the bridge is there");
        }
        let straight = |port: &crate::PortPlan| port.send == Way::Straight;
        assert!(comes_true(|| fast.sync().is_ok() && fast.plan().ports.iter().all(straight)));
        assert!(fast.plan().can_forward() && fast.failure().is_none());
    };
    host.run(work).expect("the host");
}

#[test]
fn root_a_port_without_room_for_our_program_is_refused_alone() {
    if !root("root_a_port_without_room_for_our_program_is_refused_alone") {
        return;
    }
    let lab = Lab::new("full").expect("a lab");
    let bridge = bridge(&lab);
    let port = index(&bridge, "p0");
    let work = || {
        let fast = Accelerator::start("br0", Config::default()).expect("it starts");
        bridge.own.host.ip(["link", "set", "p0", "nomaster"]).expect("root may");
        fast.sync().expect("the bridge is there");
        let there = fill(port);
        bridge.own.host.ip(["link", "set", "p0", "master", "br0"]).expect("root may");
        let against = |name: &str| -> Option<Vec<&str>> {
            let port = fast.plan().ports.into_iter().find(|port| port.name == name)?;
            Some(port.receive.iter().map(crate::Obstacle::id).collect())
        };
        assert!(comes_true(|| against("p0") == Some(vec!["not-attached"])), "{:?}", fast.plan());
        assert_eq!(against("p1"), Some(vec![]), "the other port has room");
        drop(there);
        assert!(comes_true(|| against("p0") == Some(vec![])), "there is room now");
        assert!(fast.failure().is_none());
    };
    bridge.own.host.run(work).expect("the host");
}

#[test]
fn root_a_program_before_ours_that_lets_nothing_through_is_said() {
    if !root("root_a_program_before_ours_that_lets_nothing_through_is_said") {
        return;
    }
    const TC_ACT_OK: i32 = 0;
    const TCX_NEXT: i32 = -1;
    let lab = Lab::new("keeps").expect("a lab");
    let bridge = bridge(&lab);
    let port = index(&bridge, "p0");
    let [a, b] = [0, 1].map(|member| bridge.members[member].clone());
    let frame = [&b.mac.0[..], &a.mac.0, &[0x88, 0xb5], &[0; 46]].concat();
    let sender = FrameSender::open(&a.host, &a.device).expect("a socket");
    let send = || (0..50).for_each(|_| sender.send(&frame).expect("it is up"));
    let work = || {
        let fast = Accelerator::start("br0", Config::default()).expect("it starts");
        let against = |plan: &Plan| -> Vec<&'static str> {
            plan.ports[0].receive.iter().map(crate::Obstacle::id).collect()
        };
        let keeper = tcx::attach(returning(&lab, TC_ACT_OK).as_fd(), port, Hook::Ingress);
        let keeper = keeper.expect("there is room");
        let keeps_all = || {
            send();
            std::thread::sleep(Duration::from_millis(20));
            against(&fast.plan()) == ["tcx-keeps-all"]
        };
        assert!(comes_true(keeps_all), "{:?}", fast.plan());
        // Whoever asks is told, and nothing is forgotten while nothing comes.
        let inspected = || against(&crate::inspect("br0").expect("it is there").plan);
        assert!(comes_true(|| inspected() == ["tcx-keeps-all"]));
        std::thread::sleep(LOOK * 2);
        assert_eq!(against(&fast.plan()), ["tcx-keeps-all"]);
        // What lets packets through is no obstacle.
        keeper.replace(returning(&lab, TCX_NEXT).as_fd()).expect("it is replaced");
        assert!(comes_true(|| !keeps_all()), "{:?}", fast.plan());
        assert!(comes_true(|| inspected().is_empty()));
        let until = Instant::now() + LOOK * 4;
        while Instant::now() < until {
            assert!(!keeps_all(), "{:?}", fast.plan());
        }
        assert_eq!(fast.plan().ports[0].before.len(), 1, "it is still there");
    };
    bridge.own.host.run(work).expect("the host");
}

#[test]
fn root_what_cannot_be_settled_or_read_is_tried_again() {
    if !root("root_what_cannot_be_settled_or_read_is_tried_again") {
        return;
    }
    let lab = Lab::new("again").expect("a lab");
    let bridge = bridge(&lab);
    let work = || {
        let mut worker = Worker::new("br0", Config::default()).expect("it starts");
        let shared = Arc::clone(&worker.shared);
        let station = crate::state::Mac([6, 0, 0, 0, 0, 1]);
        let add = ["fdb", "add", "06:00:00:00:00:01", "dev", "p1", "master", "static"];
        bridge.own.host.command("bridge").args(add).run().expect("root may");
        worker.tend().expect("no error");
        let last = worker.unsettled.last().expect("it has just been written");
        std::thread::sleep(last.saturating_duration_since(Instant::now()));
        worker.reader.is_answered(false);
        let settled = worker.settle();
        assert_eq!(settled.as_ref().expect_err("no answer").kind(), ErrorKind::Io);
        worker.bear(settled).expect("it is tried again");
        assert!(worker.unsettled.next().is_some(), "not forgotten");
        assert!(!shared.gate.lock().trusted, "until it is over");
        let read = worker.read_table().map(drop);
        worker.bear(Err(read.expect_err("no answer"))).expect("it is tried again");
        worker.reader.is_answered(true);
        look(&mut worker);
        let count = || shared.program.unsettled(station).expect("it is read");
        assert!(comes_true(|| {
            worker.settle().expect("no error");
            count() == Some(0)
        }));
    };
    bridge.own.host.run(work).expect("the host");
}
