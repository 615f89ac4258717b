//! What the tables of settings do not cover: programs, sockets, names, and ports that go.

use std::os::fd::AsFd as _;

use bpf::tcx::{self, Hook};
use bpf::{Object, Program};

use super::{Rig, kernel::packet_socket, wait};
use crate::ErrorKind;
use crate::host::ROOM;
use crate::host::{Reader, Watch};
use crate::state::{Peer, State, StpState, Xdp};

#[test]
fn root_devices_that_are_no_bridge_are_refused_with_what_could_be_meant() {
    let test = "root_devices_that_are_no_bridge_are_refused_with_what_could_be_meant";
    let Some(rig) = Rig::new(test) else { return };
    rig.step("ip link add docker0 type bridge");
    rig.step("ip link add v0 type veth peer name v1");
    let cases = [
        ("nope", ErrorKind::NoDevice, "no such device: 'nope' (bridges here: br0, docker0)"),
        ("", ErrorKind::NoDevice, "no such device: '' (bridges here: br0, docker0)"),
        (
            "longer-than-a-name",
            ErrorKind::NoDevice,
            "no such device: 'longer-than-a-name' (bridges here: br0, docker0)",
        ),
        ("p1", ErrorKind::NotABridge, "'p1' is a port of 'br0'; give the bridge"),
        (
            "v0",
            ErrorKind::NotABridge,
            "'v0' is not a bridge; it is a veth (bridges here: br0, docker0)",
        ),
        (
            "lo",
            ErrorKind::NotABridge,
            "'lo' is not a bridge; it is a device of its own (bridges here: br0, docker0)",
        ),
    ];
    rig.run(|reader, _| {
        for (name, kind, message) in cases {
            let error = reader.state(name).expect_err(name);
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
        }
    });
    let without = rig.a.run(|| Reader::new()?.state("br0")).expect("a thread in the host");
    let message = without.expect_err("it is in another host").to_string();
    assert_eq!(message, "no such device: 'br0' (there are no bridges here)");
}

#[test]
fn root_ports_come_in_the_order_of_their_numbers() {
    let Some(rig) = Rig::new("root_ports_come_in_the_order_of_their_numbers") else { return };
    rig.run(|reader, before| {
        // The number that it leaves goes to the next that comes, whose index is higher.
        for step in ["ip link set p0 nomaster", "ip link add v0 type veth peer name v1"] {
            rig.step(step);
        }
        rig.step("ip link set v1 master br0");
        rig.step("ip link set p0 master br0");
        let state = reader.state("br0").expect("the state");
        let ports: Vec<_> = state.ports.iter().map(|p| (p.number, p.name.as_str())).collect();
        assert_eq!(ports, [(1, "v1"), (2, "p1"), (3, "p0")]);
        // v0 is here, and is asked for without a detour.
        let expected = before.ports[0].peer.clone().and_then(|peer| peer.details);
        let peer = state.ports[0].peer.clone().expect("v1 is a veth");
        assert!(peer.here && peer.details.is_some() && peer.details != expected, "{peer:?}");
    });
}

#[test]
fn root_a_port_that_the_spanning_tree_blocks_shows() {
    let Some(rig) = Rig::new("root_a_port_that_the_spanning_tree_blocks_shows") else { return };
    rig.run(|reader, before| {
        let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
        rig.step("ip link set br0 type bridge stp_state 1");
        // A loop.
        rig.step("ip link add v0 type veth peer name v1");
        for port in ["v0", "v1"] {
            rig.step(&format!("ip link set {port} master br0 up"));
        }
        let blocked = |state: &State| {
            state.ports.iter().filter(|port| port.stp == StpState::Blocking).count()
        };
        let (state, announced) =
            wait(reader, &mut watch, |state, announced| announced && blocked(state) == 1);
        assert!(announced && blocked(&state) == 1 && state.bridge.stp, "{state:?}");
    });
}

#[test]
fn root_a_port_that_leaves_is_announced_with_its_entries() {
    let test = "root_a_port_that_leaves_is_announced_with_its_entries";
    for leaving in ["ip link set p0 nomaster", "ip link del p0", "a: ip link del eth0"] {
        let Some(rig) = Rig::new(test) else { return };
        rig.step("bridge fdb add 02:00:00:00:00:01 dev p0 master static");
        rig.run(|reader, before| {
            let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
            watch.follow(before);
            let old = reader.stations(before.bridge.index).expect("the table");
            rig.step(leaving);
            let mut changes = Vec::new();
            assert!(watch.drain(&mut changes).expect("nothing is lost"), "{leaving}");
            let state = reader.state("br0").expect("the state");
            let names: Vec<_> = state.ports.iter().map(|port| port.name.as_str()).collect();
            assert_eq!(names, ["p1"], "{leaving}");
            let gone = old.iter().filter(|entry| entry.port == before.ports[0].index);
            for entry in gone {
                let removed = crate::Change::Removed(entry.key);
                assert!(changes.contains(&removed), "{leaving}: {entry:?} in {changes:?}");
            }
        });
    }
}

#[test]
fn root_tcx_programs_show_in_their_order() {
    let Some(rig) = Rig::new("root_tcx_programs_show_in_their_order") else { return };
    let file = std::fs::read(rig.bpf_object()).expect("it was just built");
    rig.run(|reader, before| {
        let load = || {
            let object = Object::load(&file).expect("the programs are fine");
            object.program("pass_tc").expect("it is there")
        };
        let programs = [load(), load(), load()];
        let index = before.ports[0].index;
        let hooks = [Hook::Ingress, Hook::Ingress, Hook::Egress];
        let attach = |(program, hook): (&Program, Hook)| {
            tcx::attach(program.as_fd(), index, hook).expect("it is attached")
        };
        let links: Vec<_> = programs.iter().zip(hooks).map(attach).collect();
        let id = |n: usize| programs[n].id().expect("its id");
        let mut expected = before.clone();
        expected.ports[0].tcx_ingress = vec![id(0), id(1)];
        expected.ports[0].tcx_egress = vec![id(2)];
        assert_eq!(reader.state("br0").expect("the state"), expected);
        drop(links);
        assert_eq!(await_state(reader, before), *before);
    });
}

#[test]
fn root_xdp_on_a_peer_shows_with_its_mode_and_is_announced() {
    let test = "root_xdp_on_a_peer_shows_with_its_mode_and_is_announced";
    let Some(rig) = Rig::new(test) else { return };
    let file = rig.bpf_object();
    // In the driver it takes the port's own offloads away as well.
    let cases = [("xdpdrv", Xdp::Native, false), ("xdpgeneric", Xdp::Generic, true)];
    rig.run(|reader, before| {
        for (mode, xdp, offloads) in cases {
            let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
            watch.follow(before);
            rig.step(&format!("a: ip link set eth0 {mode} obj {} sec xdp", file.display()));
            let mut expected = before.clone();
            expected.ports[0].takes_unfinished = offloads;
            details(&mut expected.ports[0].peer).xdp = xdp;
            let (after, announced) =
                wait(reader, &mut watch, |state, announced| announced && *state == expected);
            assert_eq!((after, announced), (expected, true), "{mode}");
            rig.step(&format!("a: ip link set eth0 {mode} off"));
            assert_eq!(reader.state("br0").expect("the state"), *before, "without {mode}");
        }
    });
}

#[test]
fn root_a_packet_socket_shows() {
    let Some(rig) = Rig::new("root_a_packet_socket_shows") else { return };
    rig.run(|reader, before| {
        let socket = packet_socket();
        let expected = State { taps: vec![0], ..before.clone() };
        assert_eq!(reader.state("br0").expect("the state"), expected);
        drop(socket);
        assert_eq!(await_state(reader, before), *before);
    });
}

/// What has been closed here may live on for a moment, in a program that another test is starting.
fn await_state(reader: &mut Reader, expected: &State) -> State {
    let mut watch = Watch::new(expected.bridge.index, ROOM).expect("a watch");
    wait(reader, &mut watch, |state, _| state == expected).0
}

fn details(peer: &mut Option<Peer>) -> &mut crate::state::PeerDetails {
    peer.as_mut().and_then(|peer| peer.details.as_mut()).expect("the peer may be asked")
}
