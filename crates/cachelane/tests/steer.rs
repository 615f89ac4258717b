//! `cachelane steer` as a user meets it: what it refuses, what it says, and how it ends.

mod common;

use std::time::{Duration, Instant};

use common::steer::{Exchange, Steered, ids, one_lane, tagged, two_cpus};
use common::xsk::{Running, Scene, has_program, number};
use common::{PROGRAM, text};
use lab::testing::{comes_true, root};
use lab::traffic::{EchoOptions, EchoServer, RrOptions, RrSession};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn root_what_cannot_be_used_is_named() {
    if !root("root_what_cannot_be_used_is_named") {
        return;
    }
    let steered = Steered::new("stbad");
    let device = steered.device();
    let cases: [(&[&str], i32, &str); 17] = [
        (&["steer"], 2, "<IFACE>"),
        (&["steer", "nope0"], 2, "no device 'nope0' here"),
        (&["steer", "a-name-far-too-long"], 2, "no device"),
        (&["steer", ""], 2, "no device ''"),
        (&["steer", device, "--records", "1000"], 2, "1000 records: expected a power of two"),
        (&["steer", device, "--records", "128"], 2, "expected a power of two from 256"),
        (&["steer", device, "--records", "many"], 2, "invalid value 'many'"),
        (&["steer", device, "--queue", "0"], 2, "a queue of 0 packets: expected 1 to 16384"),
        (&["steer", device, "--queue", "16385"], 2, "expected 1 to 16384"),
        (&["steer", device, "--priority", "100"], 2, "priority 100: expected 0 to 99"),
        (&["steer", device, "--cpus", "0-"], 2, "expected a CPU number"),
        (&["steer", device, "--cpus", "1022"], 2, "cpu 1022 does not exist"),
        (&["steer", device, "--cpus", "lane:99"], 2, "lane 99 does not exist"),
        (&["steer", device, "--lanes", "0|0"], 2, "cpu 0 is named twice"),
        (&["steer", device, "--lanes", "x"], 2, "lane layout \"x\""),
        (&["steer", device, "--llc-affinity", "maybe"], 2, "'maybe'"),
        (&["steer", device, "--dry-run", "--json"], 2, "--json"),
    ];
    for (args, code, says) in cases {
        let output = steered.scene.run(steered.host(), args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    assert!(!has_program(&steered.link.b));
}

#[test]
fn root_without_privileges_it_says_what_it_needs() {
    if !root("root_without_privileges_it_says_what_it_needs") {
        return;
    }
    let steered = Steered::new("stuser");
    for more in [&[][..], &["--check"], &["--dry-run"]] {
        let args = [&["steer", steered.device()], more].concat();
        let mut command = steered.scene.place.unprivileged(&args);
        let output = steered.host().run(move || command.output()).expect("the host").expect("runs");
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let said = text(&output.stderr);
        for part in ["needs root, or ", "BPF", "PERFMON", "NET_ADMIN", "SYS_NICE"] {
            assert!(said.contains(part), "no {part} in {said}");
        }
        assert!(!said.contains("libbpf") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn root_without_cap_sys_admin_it_goes_by_the_sysfs_that_is_mounted_if_that_is_its_own() {
    let test = "root_without_cap_sys_admin_it_goes_by_the_sysfs_that_is_mounted_if_that_is_its_own";
    if !root(test) {
        return;
    }
    let steered = Steered::new("stsysfs");
    let run = |before: &str| {
        let script = format!(
            "{before} exec setpriv --bounding-set=-sys_admin --inh-caps=-all \"$0\" steer {} --force \
             --for 1ms",
            steered.device()
        );
        steered.host().command("unshare").args(["-m", "sh", "-c", &script, PROGRAM]).output()
    };
    // The host that the test runs on may have a device of this name and number, but not of this address.
    let refused = run("").expect("it runs");
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let said = text(&refused.stderr);
    assert!(said.contains("CAP_SYS_ADMIN: the sysfs at /sys is another network"), "{said}");
    let own = run("mount -t sysfs sysfs /sys &&").expect("it runs");
    assert!(own.status.success(), "{own:?}");
}

#[test]
fn root_threads_that_may_have_no_priority_are_a_reason_not_to_steer() {
    let test = "root_threads_that_may_have_no_priority_are_a_reason_not_to_steer";
    if !root(test) {
        return;
    }
    let steered = Steered::new("stnice");
    let run = |more: &[&str]| {
        let without = ["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", PROGRAM];
        let args = [&without[..], &["steer", steered.device(), "--force"], more].concat();
        steered.host().command("setpriv").args(args).output().expect("setpriv")
    };
    for more in [&["--for", "1ms"][..], &["--check"]] {
        let refused = run(more);
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("CAP_SYS_NICE") && said.contains("--priority 0"), "{said}");
    }
    let ordinary = run(&["--priority", "0", "--for", "1ms"]);
    assert!(ordinary.status.success(), "{ordinary:?}");
}

#[test]
fn root_what_stands_against_it_is_refused_with_what_helps() {
    let test = "root_what_stands_against_it_is_refused_with_what_helps";
    if !root(test) {
        return;
    }
    let steered = Steered::new("strefuse");
    let device = steered.device().to_owned();
    let queue = format!("/sys/class/net/{device}/queues/rx-0");
    let timeout = format!("/sys/class/net/{device}/gro_flush_timeout");
    let mut cases: Vec<(&str, String, &str, String, String)> = vec![
        ("whole-packets", "true".into(), "veth", "ethtool -K PEER".into(), "true".into()),
        (
            "rps",
            format!("echo 1 > {queue}/rps_cpus"),
            "packets of queue 0",
            format!("echo 0 > {queue}/rps_cpus"),
            format!("echo 0 > {queue}/rps_cpus"),
        ),
        (
            "rps",
            // In this network namespace nobody can see whether the machine's table is there.
            format!("echo 64 > {queue}/rps_flow_cnt"),
            "packets of queue 0",
            format!("echo 0 > {queue}/rps_flow_cnt"),
            format!("echo 0 > {queue}/rps_flow_cnt"),
        ),
        (
            "gro-timeout",
            format!("echo 20000 > {timeout}"),
            "up to 20000 ns",
            format!("echo 0 > {timeout}"),
            format!("echo 0 > {timeout}"),
        ),
    ];
    if tagged(test, &steered.link).is_some() {
        cases.insert(
            0,
            (
                "vlan-offload",
                "true".into(),
                "tagged above it needs them",
                // In another network namespace.
                "ethtool -K PEER txvlan off".into(),
                "ip link delete tagged".into(),
            ),
        );
    }
    for (id, cause, says, remedy, undo) in cases {
        steered.shell(&cause);
        let refused = steered.run(&[]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{id}: {refused:?}");
        for part in [id, says, &remedy, "--force"] {
            assert!(said.contains(part), "{id}: no {part} in {said}");
        }
        assert_eq!(steered.run(&["--dry-run"]).status.code(), Some(3), "{id}");
        let (code, found) = steered.check(&[]);
        assert_eq!((code, &found["can_steer"]), (Some(1), &false.into()), "{id}: {found}");
        assert!(ids(&found, "obstacles").contains(&id.to_owned()), "{id}: {found}");
        let (code, found) = steered.check(&["--force"]);
        assert_eq!((code, &found["can_steer"]), (Some(0), &true.into()), "{id}: {found}");
        assert!(!has_program(&steered.link.b), "{id}");
        steered.start(&[]).end(Signal::TERM);
        steered.shell(&undo);
    }
    assert_eq!(ids(&steered.check(&[]).1, "obstacles"), ["whole-packets"], "the others are gone");
}

#[test]
fn root_a_device_without_native_xdp_is_refused_even_by_force() {
    if !root("root_a_device_without_native_xdp_is_refused_even_by_force") {
        return;
    }
    let steered = Steered::new("stnative");
    steered.shell(&format!("ip link add mv0 link {} type macvlan", steered.device()));
    for device in ["mv0", "lo"] {
        for more in [&[][..], &["--force"], &["--dry-run"]] {
            let output = steered.scene.run(steered.host(), &[&["steer", device], more].concat());
            assert_eq!(output.status.code(), Some(3), "{device} {more:?}: {output:?}");
            let said = text(&output.stderr);
            assert!(said.contains("native XDP") && said.contains("no-native-xdp"), "{said}");
        }
        let check = ["steer", device, "--check", "--json"];
        let found = steered.scene.run(steered.host(), &check);
        assert_eq!(found.status.code(), Some(1), "{found:?}");
        let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
        assert_eq!(ids(&found, "obstacles"), ["no-native-xdp"], "{found}");
    }
    // What is above does no harm.
    assert_eq!(ids(&steered.check(&[]).1, "obstacles"), ["whole-packets"]);
}

#[test]
fn root_a_second_program_on_the_device_is_refused_even_by_force() {
    if !root("root_a_second_program_on_the_device_is_refused_even_by_force") {
        return;
    }
    let steered = Steered::new("sttwice");
    let first = steered.start(&[]);
    let second = steered.run(&["--force"]);
    assert_eq!(second.status.code(), Some(3), "{second:?}");
    let said = text(&second.stderr);
    assert!(said.contains("has an XDP program already: 'cachelane_steer'"), "{said}");
    assert!(!said.contains("all the same, for tests"), "{said}");
    let whose = format!("process {} (", first.pid());
    let how = format!("`kill {}` ends that", first.pid());
    assert!(said.contains(&whose) && said.contains(&how), "{said}");
    let (code, found) = steered.check(&["--force"]);
    assert_eq!(code, Some(1));
    assert_eq!(ids(&found, "obstacles"), ["xdp-program", "whole-packets"]);
    assert!(first.end(Signal::TERM).status.success());
    assert_eq!(steered.check(&["--force"]).0, Some(0));
}

#[test]
fn root_check_and_dry_run_say_it_and_change_nothing() {
    if !root("root_check_and_dry_run_say_it_and_change_nothing") {
        return;
    }
    let steered = Steered::new("stcheck");
    let before = steered.host().ip(["-details", "link"]).expect("ip");
    let (_, found) = steered.check(&["--lanes", &one_lane()]);
    assert_eq!((&found["schema"], &found["queues"]), (&1.into(), &1.into()), "{found}");
    assert_eq!(found["interface"], steered.device());
    assert_eq!((&found["priority"], &found["lease_seconds"]), (&98.into(), &2.0.into()), "{found}");
    assert!(ids(&found, "notes").contains(&"one-lane".to_owned()), "{found}");
    let check = steered.run(&["--check"]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let said = text(&check.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "1 receive queue,",
        "refused without --force: a veth device",
        "[whole-packets]",
        "SO_INCOMING_NAPI_ID is 0",
        "PTP, and chrony with hwtimestamp",
        "look after the host for 2 s",
    ] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    let would = steered.run(&["--dry-run", "--force", "--records", "1024"]);
    assert!(would.status.success() && would.stderr.is_empty(), "{would:?}");
    let said = text(&would.stdout);
    for part in
        ["would attach an XDP program to", "hold 1024 records", "sock_recv_length", "98 on each"]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
    assert_eq!(steered.host().ip(["-details", "link"]).expect("ip"), before);
}

#[test]
fn root_what_is_set_later_stops_it_until_it_is_gone() {
    let test = "root_what_is_set_later_stops_it_until_it_is_gone";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stlater");
    let device = steered.device();
    let running = steered.start(&[]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 0);
    let count = || steered.counter(&running, "steered");
    let grows = || {
        let before = count();
        exchange.goes_on(200);
        count() > before + 100
    };
    assert!(comes_true(grows));
    for file in ["queues/rx-0/rps_cpus", "gro_flush_timeout"] {
        let file = format!("/sys/class/net/{device}/{file}");
        steered.shell(&format!("echo 1 > {file}"));
        let stands = || {
            let before = count();
            exchange.goes_on(200);
            count() == before
        };
        assert!(comes_true(stands), "steered with {file}");
        assert!(stands(), "steered with {file}");
        steered.shell(&format!("echo 0 > {file}"));
        assert!(comes_true(grows), "not steered without {file}");
    }
    exchange.end();
    assert!(running.end(Signal::TERM).status.success());
}

#[test]
fn root_a_veth_whose_peer_sends_finished_packets_is_not_refused() {
    let test = "root_a_veth_whose_peer_sends_finished_packets_is_not_refused";
    if !root(test) {
        return;
    }
    let scene = Scene::new("stpeer");
    let host = scene.host("a");
    let add = ["link", "add", "p0", "up", "type", "veth", "peer", "name", "p1"];
    host.ip(add).expect("root may");
    let check = || {
        let output = scene.run(&host, &["steer", "p0", "--check", "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), found)
    };
    let (code, found) = check();
    assert_eq!((code, ids(&found, "obstacles")), (Some(1), vec!["whole-packets".to_owned()]));
    let remedy = found["obstacles"][0]["remedy"].as_str().expect("a remedy");
    let (_, command) = remedy.split_once("or: ").expect("a command");
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some("ethtool"));
    host.command("ethtool").args(words).run().expect("what it asks for can be done");
    let (code, found) = check();
    assert_eq!((code, &found["can_steer"]), (Some(0), &true.into()), "{found}");
    assert_eq!(ids(&found, "obstacles"), [""; 0]);
    let steered = scene.run(&host, &["steer", "p0", "--for", "100ms"]);
    assert!(steered.status.success(), "{steered:?}");
    host.ip(["link", "set", "p0", "down"]).expect("root may");
    assert!(ids(&check().1, "notes").contains(&"down".to_owned()));
}

/// The signals that end a process that does nothing about them, and two that it does something
/// about.
const DEADLY: [Signal; 16] = [
    Signal::KILL,
    Signal::TERM,
    Signal::INT,
    Signal::ABORT,
    Signal::SEGV,
    Signal::QUIT,
    Signal::HUP,
    Signal::BUS,
    Signal::FPE,
    Signal::ILL,
    Signal::TRAP,
    Signal::SYS,
    Signal::XCPU,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
];

#[test]
fn root_connections_outlive_a_hundred_deaths() {
    let test = "root_connections_outlive_a_hundred_deaths";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stdie");
    let (a, b) = (&steered.link.a, &steered.link.b);
    let options = EchoOptions { threads: 4, request: 512, cpus: vec![1], ..EchoOptions::default() };
    let server = EchoServer::start(&b.host, b.socket(0), options).expect("a server");
    let options = RrOptions { connections: 32, request: 512, ..RrOptions::default() };
    let options = RrOptions { verify: true, cpu: Some(0), ..options };
    let session = RrSession::start(&a.host, server.address(), &options).expect("a session");
    // What starts the tests may ignore some, as nohup does, and then the command does so too.
    let deadly = DEADLY.into_iter().filter(|signal| !is_ignored(*signal));
    for signal in deadly.cycle().take(100) {
        let running = steered.start(&[]);
        assert!(comes_true(|| steered.counter(&running, "steered") > 100), "{signal:?}");
        kill(running, signal);
        assert!(!has_program(b), "after {signal:?}");
        // Those that were under way when it died are behind us when as many again are.
        for _ in 0..2 {
            let answered = server.counters().answered;
            assert!(comes_true(|| server.counters().answered >= answered + 64), "{signal:?}");
        }
        let window = session.take_window();
        assert_eq!((window.errors, window.corrupt), (0, 0), "after {signal:?}: {window:?}");
        assert!(window.exchanges > 200, "{signal:?}: {window:?}");
    }
    assert_eq!(server.counters().accepted, 32, "no connection was opened again");
    let window = session.measure(Duration::from_millis(500));
    assert!(window.exchanges > 0 && window.longest_pending < Duration::from_secs(5), "{window:?}");
}

/// Whether this process ignores a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Sends a signal until the process is dead: Rust's runtime takes the first SIGSEGV and SIGBUS for
/// itself.
fn kill(mut running: Running, signal: Signal) {
    let mut child = running.0.take().expect("it was not ended");
    let until = Instant::now() + Duration::from_secs(20);
    while child.try_wait().expect("its status").is_none() {
        assert!(Instant::now() < until, "{signal:?} does not end it");
        kill_process(Pid::from_child(&child), signal).expect("it is not waited for yet");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn root_it_ends_when_its_time_is_up_and_says_what_came_of_it() {
    if !root("root_it_ends_when_its_time_is_up_and_says_what_came_of_it") {
        return;
    }
    let steered = Steered::new("sttime");
    let output = steered.run(&["--force", "--for", "300ms", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let end: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!((&end["ended_by"], &end["llc_affinity"]), (&"time".into(), &"on".into()));
    let said = text(&output.stderr);
    for part in ["steered all the same (--force): a veth", "steering flows of", "steered 0 packets"]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
    assert!(!has_program(&steered.link.b));
}

#[test]
fn root_sigusr1_says_how_it_goes_and_it_goes_on() {
    let test = "root_sigusr1_says_how_it_goes_and_it_goes_on";
    if !root(test) || !two_cpus(test) {
        return;
    }
    let steered = Steered::new("stusr1");
    let running = steered.start(&["--json"]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 0);
    assert!(comes_true(|| steered.counter(&running, "steered") > 100));
    running.signal(Signal::USR1);
    exchange.goes_on(500);
    exchange.end();
    let output = running.end(Signal::INT);
    assert!(output.status.success(), "{output:?}");
    let objects: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect();
    let events: Vec<&Value> = objects.iter().map(|object| &object["event"]).collect();
    assert_eq!(events, ["status", "end"]);
    assert!(number(&objects[0], "/counters/steered") > 100);
    assert!(number(&objects[1], "/counters/steered") >= number(&objects[0], "/counters/steered"));
}

#[test]
fn root_the_thread_that_looks_goes_before_those_that_take_packets_and_does_little() {
    if !root("root_the_thread_that_looks_goes_before_those_that_take_packets_and_does_little") {
        return;
    }
    let steered = Steered::new("stlooks");
    for (options, expected) in [(&[][..], "99 1"), (&["--priority", "0"], "0 0")] {
        let running = steered.start(options);
        let id = running.pid();
        let stat = |thread: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/task/{thread}/stat"));
            let stat = stat.expect("it runs");
            let fields = stat.rsplit_once(") ").expect("a name").1.split(' ');
            fields.map(str::to_owned).collect::<Vec<_>>()
        };
        // SCHED_FIFO is 1.
        let priority = |thread: &str| stat(thread)[37..39].join(" ");
        assert!(comes_true(|| priority(&id) == expected), "{options:?}: {}", priority(&id));
        // In hundredths of a second.
        let used = || stat(&id)[11..13].iter().map(|n| n.parse::<u64>().expect("ticks")).sum();
        let before: u64 = used();
        std::thread::sleep(Duration::from_secs(3));
        let used: u64 = used() - before;
        assert!(used <= 15, "{used} of 300 hundredths");
        for thread in std::fs::read_dir(format!("/proc/{id}/task")).expect("it runs") {
            let thread = thread.expect("a thread").file_name().into_string().expect("a number");
            assert!(thread == id || priority(&thread) == "0 0", "others are ordinary");
        }
        eprintln!("{used} of 300 hundredths of a second");
        assert!(running.end(Signal::TERM).status.success());
    }
}

#[test]
fn root_it_ends_when_the_device_is_gone() {
    if !root("root_it_ends_when_the_device_is_gone") {
        return;
    }
    let steered = Steered::new("stgone");
    let mut running = steered.start(&[]);
    steered.host().ip(["link", "delete", steered.device()]).expect("root may");
    let child = running.0.take().expect("it was not ended");
    let output = common::ends_within(child, common::xsk::SOON);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
