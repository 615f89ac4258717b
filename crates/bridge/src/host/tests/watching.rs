//! What is announced, and what is passed over.

use lab::Lab;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::run;
use crate::host::ROOM;
use crate::host::{Reader, Watch};

/// On a bridge that is down and without ports: nothing happens but what is done here.
#[test]
fn root_devices_of_others_are_passed_over_once_it_is_known_what_matters() {
    let test = "root_devices_of_others_are_passed_over_once_it_is_known_what_matters";
    if !lab::testing::root(test) {
        return;
    }
    let lab = Lab::new("watching").expect("a lab");
    let host = lab.host("switch").expect("a host");
    let ip = |step: &str| run(&host, "ip", &step.split(' ').collect::<Vec<_>>());
    let tc = |step: &str| run(&host, "tc", &step.split(' ').collect::<Vec<_>>());
    ip("link add br0 type bridge");
    ip("link add v0 type veth peer name v1");
    let work = || {
        let state = Reader::new().and_then(|mut reader| reader.state("br0")).expect("the state");
        let mut watch = Watch::new(state.bridge.index, ROOM).expect("a watch");
        let changed = |step: &dyn Fn(), watch: &mut Watch| {
            step();
            watch.drain(&mut Vec::new()).expect("nothing is lost")
        };
        assert!(changed(&|| ip("link set v0 mtu 1400"), &mut watch), "before it is told");
        watch.follow(&state);
        assert!(!changed(&|| ip("link set v0 mtu 1300"), &mut watch), "another device");
        assert!(!changed(&|| tc("qdisc add dev v0 clsact"), &mut watch), "its filters");
        assert!(changed(&|| ip("link set v0 master br0"), &mut watch), "a new port");
        assert!(changed(&|| ip("link set br0 mtu 1400"), &mut watch), "the bridge");
    };
    host.run(work).expect("a thread in the host");
}

#[test]
fn root_the_stations_of_other_bridges_wake_nobody() {
    let test = "root_the_stations_of_other_bridges_wake_nobody";
    if !lab::testing::root(test) {
        return;
    }
    let lab = Lab::new("stations").expect("a lab");
    let host = lab.host("switch").expect("a host");
    let ip = |step: &str| run(&host, "ip", &step.split(' ').collect::<Vec<_>>());
    let fdb = |step: &str| run(&host, "bridge", &step.split(' ').collect::<Vec<_>>());
    for (bridge, port, peer) in [("br0", "v0", "v1"), ("br1", "v2", "v3")] {
        ip(&format!("link add {bridge} type bridge"));
        ip(&format!("link add {port} type veth peer name {peer}"));
        ip(&format!("link set {port} master {bridge}"));
    }
    let work = || {
        let state = Reader::new().and_then(|mut reader| reader.state("br0")).expect("the state");
        let mut watch = Watch::new(state.bridge.index, ROOM).expect("a watch");
        watch.follow(&state);
        let wakes = |watch: &Watch| {
            let mut fds: Vec<_> = watch
                .fds()
                .into_iter()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            poll(&mut fds, Some(&Timespec::default())).expect("it is asked") > 0
        };
        let stations = |watch: &mut Watch| {
            let mut changes = Vec::new();
            watch.drain(&mut changes).expect("nothing is lost");
            changes.len()
        };
        assert!(!wakes(&watch));
        fdb("fdb add 06:00:00:00:00:01 dev v2 master static");
        ip("neigh add 10.9.9.9 lladdr 06:00:00:00:00:02 dev v1 nud permanent");
        assert!(!wakes(&watch), "of another bridge, and of IPv4");
        fdb("fdb add 06:00:00:00:00:01 dev v0 master static");
        assert!(wakes(&watch) && stations(&mut watch) == 1, "one that comes");
        fdb("fdb del 06:00:00:00:00:01 dev v2 master");
        assert!(!wakes(&watch));
        fdb("fdb del 06:00:00:00:00:01 dev v0 master");
        assert!(wakes(&watch) && stations(&mut watch) == 1, "one that goes");
    };
    host.run(work).expect("a thread in the host");
}

#[test]
fn root_who_has_a_namespace_of_his_own_announces_nothing_of_ours() {
    let test = "root_who_has_a_namespace_of_his_own_announces_nothing_of_ours";
    if !lab::testing::root(test) {
        return;
    }
    let lab = Lab::new("strangers").expect("a lab");
    let (host, guest) = (lab.host("switch").expect("a host"), lab.host("guest").expect("a host"));
    let ip = |step: &str| run(&host, "ip", &step.split(' ').collect::<Vec<_>>());
    let there = |step: &str| run(&guest, "ip", &step.split(' ').collect::<Vec<_>>());
    let namespace = guest.namespace_path().expect("a host of its own");
    ip("link add index 70 name br0 type bridge");
    // By which the two namespaces know of each other.
    let peer = format!("peer name w1 netns {}", namespace.display());
    ip(&format!("link add index 71 name w0 type veth {peer}"));
    ip("link set w0 master br0");
    let work = || {
        let state = Reader::new().and_then(|mut reader| reader.state("br0")).expect("the state");
        let mut watch = Watch::new(state.bridge.index, ROOM).expect("a watch");
        watch.follow(&state);
        let changed = |step: &str, watch: &mut Watch| {
            there(step);
            watch.drain(&mut Vec::new()).expect("nothing is lost")
        };
        assert!(changed("link set w1 mtu 1400", &mut watch), "the peer of a port");
        assert_eq!(std::mem::take(&mut watch.heard).ports.into_iter().collect::<Vec<_>>(), [71]);
        for step in [
            "link add index 70 name x0 type bridge",
            "link set x0 mtu 1400",
            "link add index 71 name x1 type veth peer name x2",
            "link set x1 master x0",
            "link set x1 mtu 1400",
        ] {
            assert!(!changed(step, &mut watch), "{step}: {:?}", watch.heard);
        }
    };
    host.run(work).expect("a thread in the host");
}
