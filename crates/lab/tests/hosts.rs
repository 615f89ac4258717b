//! Hosts, links and bridges: they carry traffic, do not collide, and leave nothing behind.

mod common;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Stdio,
    time::Duration,
};

use cachelane_lab::testing::{comes_true, root};
use cachelane_lab::{BridgeOptions, End, ErrorKind, Host, Lab, LinkOptions};
use common::{fdb, lives, machine_network, namespaces};

/// Sends `bytes` from one host to an address of another and returns how many arrived.
fn send(from: &Host, to: &Host, address: SocketAddr, bytes: usize) -> usize {
    let listener = to.run(|| TcpListener::bind(address)).unwrap().expect("the address is ours");
    let receiver = to
        .spawn_thread("receiver", move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("all of it");
            received.len()
        })
        .expect("a thread");
    from.run(|| {
        let limit = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&address, limit).expect("connects");
        stream.write_all(&vec![7; bytes]).expect("sends");
    })
    .expect("runs");
    receiver.join().expect("the receiver ends well")
}

fn pair(lab: &Lab, options: LinkOptions) -> (End, End) {
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let link = lab.link(&a, &b, options).expect("a link");
    (link.a, link.b)
}

#[test]
fn root_a_link_carries_ipv4_and_ipv6() {
    if !root("root_a_link_carries_ipv4_and_ipv6") {
        return;
    }
    let lab = Lab::new("link").expect("a lab");
    let (a, b) = pair(&lab, LinkOptions::default());
    for address in [b.socket(4000), b.socket_v6(4000)] {
        assert_eq!(send(&a.host, &b.host, address, 100_000), 100_000, "{address}");
    }
    let neighbours = a.host.ip(["neighbour"]).expect("ip");
    assert!(neighbours.contains(&b.mac.to_string()), "{neighbours}");
}

#[test]
fn root_two_labs_with_the_same_addresses_do_not_meet() {
    if !root("root_two_labs_with_the_same_addresses_do_not_meet") {
        return;
    }
    let labs = [Lab::new("twin").expect("a lab"), Lab::new("twin").expect("a lab")];
    assert_ne!(labs[0].dir(), labs[1].dir());
    let ends = labs.each_ref().map(|lab| pair(lab, LinkOptions::default()));
    assert_eq!(ends[0].1.v4, ends[1].1.v4);
    std::thread::scope(|scope| {
        for (number, (a, b)) in (1..).zip(&ends) {
            scope.spawn(move || {
                let bytes = number * 10_000;
                assert_eq!(send(&a.host, &b.host, b.socket(4000), bytes), bytes);
            });
        }
    });
}

#[test]
fn root_a_bridge_joins_its_members_and_learns_them() {
    if !root("root_a_bridge_joins_its_members_and_learns_them") {
        return;
    }
    let lab = Lab::new("bridge").expect("a lab");
    let hosts = ["a", "b", "c"].map(|name| lab.host(name).expect("a host"));
    let members = hosts.each_ref();
    let bridge = lab.bridge("switch", &members, BridgeOptions::default()).expect("a bridge");
    let [a, b, c] = bridge.members.as_slice() else { panic!("three members") };
    assert_eq!(send(&a.host, &b.host, b.socket(4000), 50_000), 50_000);
    assert_eq!(send(&c.host, &a.host, a.socket_v6(4000), 50_000), 50_000);
    assert_eq!(send(&a.host, &bridge.own.host, bridge.own.socket(4000), 10), 10);
    let fdb = fdb(&bridge);
    for (member, port) in bridge.members.iter().zip(&bridge.ports) {
        let entry = format!("{} dev {port} master br0", member.mac);
        assert!(fdb.contains(&entry), "no `{entry}` in\n{fdb}");
    }
}

#[test]
fn root_a_quiet_bridge_knows_nobody() {
    if !root("root_a_quiet_bridge_knows_nobody") {
        return;
    }
    let lab = Lab::new("quiet").expect("a lab");
    let hosts = ["a", "b"].map(|name| lab.host(name).expect("a host"));
    let options = BridgeOptions { quiet: true, ..Default::default() };
    let bridge = lab.bridge("switch", &hosts.each_ref(), options).expect("a bridge");
    for host in hosts.iter().chain([&bridge.own.host]) {
        let addresses = host.ip(["-br", "address"]).expect("ip");
        let addressed = addresses.lines().filter(|line| line.split_whitespace().count() > 2);
        assert_eq!(addressed.filter(|line| !line.starts_with("lo ")).count(), 0, "{addresses}");
    }
    let fdb = fdb(&bridge);
    for member in &bridge.members {
        assert!(!fdb.contains(&member.mac.to_string()), "{fdb}");
    }
}

#[test]
fn root_only_a_wire_like_link_carries_packets_of_wire_size() {
    if !root("root_only_a_wire_like_link_carries_packets_of_wire_size") {
        return;
    }
    for wire_like in [false, true] {
        let lab = Lab::new("wire").expect("a lab");
        let (a, b) = pair(&lab, LinkOptions { wire_like, ..Default::default() });
        let before = b.counters().expect("counters");
        assert_eq!(send(&a.host, &b.host, b.socket(4000), 4 << 20), 4 << 20);
        let after = b.counters().expect("counters");
        let bytes = after.rx_bytes - before.rx_bytes;
        let size = bytes / (after.rx_packets - before.rx_packets);
        assert_eq!(size <= 1514, wire_like, "mean packet size {size}");
        for end in [&a, &b] {
            let features = end.host.command("ethtool").args(["-k", &end.device]).run();
            let features = features.expect("ethtool");
            for feature in ["tcp-segmentation-offload", "generic-receive-offload"] {
                let off = features.contains(&format!("{feature}: off"));
                // A plain veth has GRO off as well on many kernels.
                assert!(off || !wire_like, "{feature} at {}:\n{features}", end.device);
            }
        }
    }
}

#[test]
fn root_link_options_reach_the_device() {
    if !root("root_link_options_reach_the_device") {
        return;
    }
    let lab = Lab::new("options").expect("a lab");
    let mut options = LinkOptions { mtu: 9000, queues: 4, ..Default::default() };
    let (a, b) = pair(&lab, options.clone());
    assert_eq!(a.socket(1).to_string(), "10.83.1.1:1");
    assert_eq!(b.socket_v6(2).to_string(), "[fd83:6361:6c61:1::2]:2");
    for end in [&a, &b] {
        let shown = end.host.ip(["-d", "link", "show", &end.device]).expect("ip");
        for part in ["mtu 9000", "numrxqueues 4", "numtxqueues 4", &end.mac.to_string()] {
            assert!(shown.contains(part), "no `{part}` in\n{shown}");
        }
    }
    options.mtu = 100;
    let refused = lab.link(&a.host, &b.host, options).expect_err("too small an mtu");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn root_sysctls_stay_in_their_host() {
    if !root("root_sysctls_stay_in_their_host") {
        return;
    }
    let lab = Lab::new("sysctl").expect("a lab");
    let host = lab.host("router").expect("a host");
    let name = "net.ipv4.ip_forward";
    let machine = Host::here().unwrap().sysctl(name).expect("the machine's");
    for value in ["1", "0"] {
        host.set_sysctl(name, value).expect("sets it");
        assert_eq!(host.sysctl(name).expect("reads it"), value);
        assert_eq!(Host::here().unwrap().sysctl(name).expect("the machine's"), machine);
    }
    let outside = host.set_sysctl("kernel.hostname", "x").expect_err("not of the network");
    assert_eq!(outside.kind(), ErrorKind::Invalid);
    let unknown = host.set_sysctl("net.ipv4.no_such_thing", "1").expect_err("there is none");
    assert_eq!(unknown.kind(), ErrorKind::Io);
}

#[test]
fn root_a_failing_program_is_named_with_its_complaint() {
    if !root("root_a_failing_program_is_named_with_its_complaint") {
        return;
    }
    let lab = Lab::new("errors").expect("a lab");
    let host = lab.host("a").expect("a host");
    let error = host.ip(["link", "set", "nosuch", "up"]).expect_err("there is no such device");
    assert_eq!(error.kind(), ErrorKind::Command);
    let message = error.to_string();
    assert!(message.contains("ip link set nosuch up") && message.contains("Cannot find device"));
}

#[test]
fn a_missing_program_is_reported_with_its_package() {
    let here = Host::here().expect("a host");
    let error = here.command("no-such-program").run().expect_err("it does not exist");
    assert!(matches!(error.kind(), ErrorKind::Missing { .. }), "{error}");
    let output = here.command("echo").arg("hi").run().expect("echo is everywhere");
    assert_eq!(output, "hi\n");
}

#[test]
fn a_pipe_to_a_program_is_open_until_its_owner_closes_it() {
    let here = Host::here().expect("a host");
    let cat = here.command("cat").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut cat = cat.spawn().expect("cat starts");
    let mut to = cat.pipes().stdin.take().expect("a pipe that nobody has closed");
    to.write_all(b"said").expect("cat reads");
    drop(to);
    let mut said = String::new();
    cat.pipes().stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(said, "said");
}

#[test]
fn a_program_that_takes_too_long_is_killed() {
    let here = Host::here().expect("a host");
    let limit = Duration::from_millis(50);
    let error = here.command("sleep").arg("600").output_within(limit).expect_err("it sleeps");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let mut process = here.command("sleep").arg("600").spawn().expect("sleep starts");
    let pid = process.pid();
    assert!(lives(pid));
    process.stop(Duration::from_secs(5)).expect("it ends");
    assert!(!lives(pid));
}

#[test]
fn root_a_contained_program_takes_its_children_along() {
    if !root("root_a_contained_program_takes_its_children_along") {
        return;
    }
    let here = Host::here().expect("a host");
    let script = "trap '' TERM; sleep 600 & sleep 600 & echo up; wait";
    let mut process = here
        .command("sh")
        .args(["-c", script])
        .contained()
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let mut up = [0; 3];
    process.pipes().stdout.as_mut().expect("a pipe").read_exact(&mut up).expect("it is up");
    let all = cachelane_lab::usage::descendants(process.pid());
    assert_eq!(all.len(), 2, "{all:?}");
    process.stop(Duration::from_millis(50)).expect("it ends");
    assert!(comes_true(|| all.iter().all(|pid| !lives(*pid))));
}

#[test]
fn root_a_process_without_capabilities_is_told_so() {
    let name = "root_a_process_without_capabilities_is_told_so";
    if std::env::var_os("LAB_TEST_NO_CAPS").is_some() {
        let error = Lab::new("denied").unwrap().host("a").expect_err("not permitted");
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.to_string().contains("needs root"), "{error}");
        return;
    }
    if !root(name) {
        return;
    }
    let output = std::process::Command::new("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all", "--"])
        .arg(std::env::current_exe().expect("our path"))
        .args(["--exact", name])
        .env("LAB_TEST_NO_CAPS", "1")
        .output()
        .expect("setpriv runs");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
fn root_a_dropped_lab_leaves_nothing() {
    if !root("root_a_dropped_lab_leaves_nothing") {
        return;
    }
    let before = machine_network();
    let lab = Lab::new("drop").expect("a lab");
    let (a, b) = pair(&lab, LinkOptions::default());
    let sleeper = a.host.command("sleep").arg("600").spawn().expect("sleep starts");
    let (dir, pid) = (lab.dir().to_owned(), sleeper.pid());
    let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("it is alive");
    let namespace = namespace.display().to_string();
    assert!(namespaces().contains(&namespace));
    assert_eq!(machine_network(), before);
    drop((sleeper, a, b, lab));
    assert!(!dir.exists());
    assert!(!lives(pid));
    assert!(comes_true(|| !namespaces().contains(&namespace)));
    assert_eq!(machine_network(), before);
}

#[test]
fn root_a_devices_files_are_those_of_its_own_namespace() {
    if !root("root_a_devices_files_are_those_of_its_own_namespace") {
        return;
    }
    let lab = Lab::new("files").expect("a lab");
    // Both are called eth0, as the machine's may be.
    let (a, b) = pair(&lab, LinkOptions { mtu: 1400, ..LinkOptions::default() });
    assert_eq!(a.attribute("mtu").expect("reads"), "1400");
    b.set_attribute("queues/rx-0/rps_cpus", "1").expect("writes");
    let read = |end: &End| end.attribute("queues/rx-0/rps_cpus").expect("reads");
    let is_set = |mask: &str| mask.trim_matches(['0', ',']) == "1";
    assert_eq!([&a, &b].map(|end| is_set(&read(end))), [false, true]);
    for name in ["../lo/mtu", "/sys/class/net/lo/mtu", "queues/../../lo/mtu"] {
        assert_eq!(a.attribute(name).expect_err(name).kind(), ErrorKind::Invalid);
    }
    assert_eq!(a.attribute("none").expect_err("none").kind(), ErrorKind::Io);
}
