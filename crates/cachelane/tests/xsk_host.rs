//! What `cachelane xsk` does to its host, and what it says of one that does not suit it.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::xsk::{SOON, Scene, has_program, three};
use common::{ends_within, text};
use lab::LinkOptions;
use lab::testing::{comes_true, root};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn root_a_killed_process_leaves_nothing_in_the_kernels_way() {
    if !root("root_a_killed_process_leaves_nothing_in_the_kernels_way") {
        return;
    }
    let scene = Scene::new("xskkill");
    let link = scene.link("a", "b");
    let address = link.b.socket(7000);
    let socket = link.b.host.run(move || UdpSocket::bind(address)).expect("the host").expect("one");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let client = link.a.host.run(|| UdpSocket::bind("0.0.0.0:0")).expect("the host").expect("one");
    let arrives = || {
        client.send_to(b"hello", address).expect("sent");
        socket.recv(&mut [0; 16]).is_ok()
    };
    assert!(comes_true(arrives));
    for tool in ["drop", "forward"] {
        let args = ["xsk", tool, &link.b.device, "--udp-port", "7000"];
        let running = scene.start(&link.b.host, &args, "ing UDP to port 7000");
        assert!(has_program(&link.b), "{tool}");
        assert!(!arrives(), "{tool} takes it");
        running.end(Signal::KILL);
        assert!(comes_true(|| !has_program(&link.b)), "{tool}");
        assert!(comes_true(arrives), "{tool}");
    }
}

#[test]
fn root_a_dry_run_says_what_it_would_do_and_leaves_no_trace() {
    if !root("root_a_dry_run_says_what_it_would_do_and_leaves_no_trace") {
        return;
    }
    let scene = Scene::new("xskdry");
    let (near, far) = three(&scene);
    let device = near.b.device.as_str();
    let send = ["xsk", "send", device, "--size", "100", "--sport", "1-10", "--cpus", "0"];
    let drop = ["xsk", "drop", device, "--udp-port", "9,1000-1999", "--xdp", "native"];
    let forward =
        ["xsk", "forward", device, "--to", &far.a.device, "--both", "--split", "--mode", "copy"];
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &send,
            &[
                "would map 8388608 bytes of memory: 4096 frames of 2048 bytes",
                "would open a socket on queue 0 of eth0 (zero-copy where the device can, else \
                 copy; rings of 2048), its thread pinned to CPU 0",
                "would send UDP packets of 100 bytes from 198.18.0.1",
                "10 flows",
            ],
        ),
        (
            &drop,
            &[
                "would attach an XDP program to eth0 (in the driver) that takes UDP to port 9, 1000-1999",
            ],
        ),
        (
            &forward,
            &[
                "16777216 bytes",
                "would open a socket on queue 0 of eth1 (copy",
                "would attach an XDP program to eth1",
                "every packet between eth0 and eth1",
            ],
        ),
    ];
    for (args, says) in cases {
        let output = scene.run(&near.b.host, &[args, &["--dry-run"]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let said = text(&output.stdout);
        for part in says.iter().chain(&["would change nothing else on this host"]) {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert!([&near.b, &far.a].iter().all(|end| !has_program(end)));
}

#[test]
fn root_what_cannot_be_used_is_named() {
    if !root("root_what_cannot_be_used_is_named") {
        return;
    }
    let scene = Scene::new("xskbad");
    let link = scene.link("a", "b");
    let big = LinkOptions { mtu: 3000, ..LinkOptions::default() };
    let big = scene.join(&link.b.host, &scene.host("c"), big);
    let (device, large) = (link.b.device.as_str(), big.a.device.as_str());
    // More than there is memory for, if that were made first.
    let many = ["drop", device, "--queues", "0-99", "--huge-pages", "require"];
    let generic = ["drop", device, "--mode", "zero-copy", "--xdp", "generic"];
    let cases: [(&[&str], i32, &[&str]); 22] = [
        (&generic, 2, &["--mode zero-copy, --xdp generic", "--xdp native"]),
        (&["send", "nope"], 2, &["no device 'nope'", "ip -br link"]),
        (&["drop", "a-name-far-too-long"], 2, &["no device"]),
        (&["send", device, "--queues", "7"], 2, &["no queue 7", device, "ethtool -l"]),
        (&many, 2, &["no queue 1", "it has 1"]),
        (&["drop", device, "--udp-port", "9-1"], 2, &["'9-1'", "1000-1999"]),
        (&["send", device, "--size", "100000"], 2, &["--size 100000: eth0 sends", "1514 bytes\n"]),
        (&["send", "lo", "--size", "65550"], 2, &["IPv4 has at most 65549 bytes"]),
        (&["drop", device, "--queues", "x"], 2, &["'x'", "0-3,6"]),
        (&["drop", large], 2, &["MTU of 3000", "--frame-size 2048 (4096 or --multi-buffer"]),
        (&["send", device, "--size", "59"], 2, &["--size 59", "at least 60"]),
        (&["send", device, "--size", "1515"], 2, &["at most 1514", device]),
        (&["send", large, "--size", "3000"], 2, &["a frame has 2048", "--multi-buffer"]),
        (&["send", device, "--src", "::1", "--dst", "10.0.0.1"], 2, &["::1", "same IP version"]),
        (&["send", device, "--dst-mac", "1:2"], 2, &["'1:2'", "02:00:00:00:00:01"]),
        (&["send", device, "--sport", "9-1"], 2, &["'9-1'", "1000-1999"]),
        (&["send", device, "--mode", "zero-copy"], 3, &["--mode zero-copy:", device]),
        (&["send", device, "--frame-size", "1000"], 2, &["1000"]),
        (&["send", device, "--ring", "1000"], 2, &["--ring", "'1000'", "power"]),
        (&["forward", device, "--to", device], 2, &["packets come from there"]),
        (&["forward", device, "--both"], 2, &["--to"]),
        (&["drop", device, "--alien-free", "never"], 2, &["'never'", "recycle, defer or auto"]),
    ];
    for (args, code, parts) in cases {
        let output = scene.run(&link.b.host, &[&["xsk"], args].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part} is missing: {said}");
        }
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    // A bridge has no driver that could run a program.
    link.b.host.ip(["link", "add", "br9", "up", "type", "bridge"]).expect("root may");
    let cannot = scene.run(&link.b.host, &["xsk", "drop", "br9", "--xdp", "native"]);
    assert_eq!(cannot.status.code(), Some(3), "{cannot:?}");
    assert!(
        text(&cannot.stderr)
            .contains("--xdp native without --multi-buffer: br9: its driver takes no XDP program"),
        "{cannot:?}"
    );
    let dry = scene.run(&link.b.host, &["xsk", "drop", device, "--queues", "7", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(2), "{dry:?}");
}

#[test]
fn root_what_others_hold_is_said_to_be_theirs() {
    if !root("root_what_others_hold_is_said_to_be_theirs") {
        return;
    }
    let scene = Scene::new("xsktaken");
    let link = scene.link("a", "b");
    let running = scene.start(&link.b.host, &["xsk", "drop", &link.b.device], "receiving");
    let second = scene.run(&link.b.host, &["xsk", "send", &link.b.device, "--count", "1"]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(text(&second.stderr).contains("queue 0 of eth0 is taken"), "{second:?}");
    drop(running);

    let queues = LinkOptions { queues: 2, ..LinkOptions::default() };
    let two = scene.join(&scene.host("c"), &scene.host("d"), queues);
    let drop_queue = ["xsk", "drop", &two.b.device, "--queues"];
    let running = scene.start(&two.b.host, &[&drop_queue[..], &["0"]].concat(), "receiving");
    let other = scene.run(&two.b.host, &[&drop_queue[..], &["1"]].concat());
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let said = text(&other.stderr);
    assert!(said.contains("has an XDP program already"), "{said}");
    let whose = format!("process {} (", running.pid());
    let how =
        format!("xsk drop {} --queues 0) has it: `kill {}` ends that", two.b.device, running.pid());
    assert!(said.contains(&whose) && said.contains(&how), "{said}");
}

/// libxdp has several programs on a device by one of this name.
#[test]
fn root_the_dispatcher_of_libxdp_is_said_to_be_one() {
    if !root("root_the_dispatcher_of_libxdp_is_said_to_be_one") {
        return;
    }
    let scene = Scene::new("xskdispatch");
    let link = scene.link("a", "b");
    let folder = scene.place.path();
    let (source, object) = (folder.join("dispatcher.c"), folder.join("dispatcher.o"));
    let text_of = "__attribute__((section(\"xdp\"))) int xdp_dispatcher(void *c) { return 2; }";
    std::fs::write(&source, text_of).expect("a file");
    let mut clang = std::process::Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]).arg(&object).arg(&source);
    assert!(clang.status().expect("clang runs").success());
    let object = object.to_str().expect("text");
    let set = ["link", "set", &link.b.device, "xdpdrv", "obj", object, "sec", "xdp"];
    link.b.host.ip(set).expect("it is put there");
    let output = scene.run(&link.b.host, &["xsk", "drop", &link.b.device]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["'xdp_dispatcher'", "libxdp's dispatcher", "xdp-loader unload eth0 --all"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}

#[test]
fn root_what_the_user_may_not_is_said_with_exit_code_4_and_the_memlock_limit_with_3() {
    if !root("root_what_the_user_may_not_is_said_with_exit_code_4_and_the_memlock_limit_with_3") {
        return;
    }
    let scene = Scene::new("xskdenied");
    let link = scene.link("a", "b");
    for tool in ["send", "drop", "forward"] {
        let mut command = scene.place.unprivileged(&["xsk", tool, &link.b.device]);
        let denied = link.b.host.run(move || command.output()).expect("the host").expect("it runs");
        assert_eq!(denied.status.code(), Some(4), "{tool}: {denied:?}");
        let said = text(&denied.stderr);
        assert!(said.contains("needs root, or CAP_NET_RAW (AF_XDP sockets)"), "{tool}: {said}");
        for more in ["CAP_BPF", "CAP_NET_ADMIN"] {
            assert_eq!(said.contains(more), tool != "send", "{tool}: {said}");
        }
        assert!(!said.contains("libbpf") && said.lines().count() == 1, "{tool}: {said}");
    }
    // Root that may not lock more than its limit.
    let less = ["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "--"];
    let limited = link.b.host.command("prlimit").arg("--memlock=1048576").arg("setpriv").args(less);
    let limited = limited.arg(common::PROGRAM).args(["xsk", "drop", &link.b.device]).output();
    let limited = limited.expect("it runs");
    assert_eq!(limited.status.code(), Some(3), "{limited:?}");
    let said = text(&limited.stderr);
    assert!(said.contains("8192 KiB") && said.contains("ulimit -l"), "{said}");
}

#[test]
fn root_a_device_that_goes_away_ends_it_with_an_error() {
    if !root("root_a_device_that_goes_away_ends_it_with_an_error") {
        return;
    }
    for tool in ["drop", "forward", "send"] {
        let scene = Scene::new("xskgone");
        let link = scene.link("a", "b");
        let args = ["xsk", tool, &link.b.device, "--json"];
        let mut running = scene.start(&link.b.host, &args, "ing ");
        link.b.host.ip(["link", "delete", &link.b.device]).expect("root may");
        let output = ends_within(running.0.take().expect("it runs"), SOON);
        assert_eq!(output.status.code(), Some(1), "{tool}: {output:?}");
        let end: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!((&end["event"], &end["ended_by"]), (&"end".into(), &"error".into()), "{end:#}");
        assert!(end["error"].as_str().is_some_and(|error| !error.is_empty()), "{end:#}");
    }
}

#[test]
fn root_a_device_that_is_down_is_said() {
    if !root("root_a_device_that_is_down_is_said") {
        return;
    }
    let scene = Scene::new("xskdown");
    let link = scene.link("a", "b");
    let device = link.b.device.as_str();
    let drop = ["xsk", "drop", device, "--for", "100ms"];
    let up = scene.run(&link.b.host, &drop);
    assert!(up.status.success() && !text(&up.stderr).contains("down"), "{up:?}");
    link.b.host.ip(["link", "set", device, "down"]).expect("root may");
    let down = scene.run(&link.b.host, &drop);
    let says = format!("{device} is down: no packets until `ip link set {device} up`");
    assert!(text(&down.stderr).contains(&says), "{down:?}");
}

/// Somebody may have taken the cable out: it is waited for, not for ever, and what then comes of the
/// packets is counted.
#[test]
fn root_a_carrier_that_does_not_come_is_said() {
    if !root("root_a_carrier_that_does_not_come_is_said") {
        return;
    }
    let scene = Scene::new("xskcarrier");
    let link = scene.link("a", "b");
    link.b.host.ip(["link", "set", &link.b.device, "down"]).expect("root may");
    let device = link.a.device.as_str();
    let send = ["xsk", "send", device, "--count", "10", "--json"];
    let says = "has no carrier: what is sent there is dropped";
    let mut sender = scene.start(&link.a.host, &send, says);
    let output = ends_within(sender.0.take().expect("it runs"), SOON);
    let sent: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let of = |what: &str| sent.pointer(what).and_then(Value::as_u64).expect("a number");
    // The device took them, and dropped them.
    assert_eq!((of("/tx/packets"), of("/drops/tx_dropped")), (10, 10), "{sent:#}");
    // Once it comes, nothing is said.
    let other = link.b.host.clone();
    let name = link.b.device.clone();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(600));
        other.ip(["link", "set", &name, "up"]).map(drop)
    });
    let output = scene.run(&link.a.host, &send);
    late.join().expect("no panic").expect("root may");
    assert!(!text(&output.stderr).contains("no carrier"), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
