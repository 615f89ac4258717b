#![allow(clippy::type_complexity)] // tables of changes

use super::*;
use crate::state::{Calls, DeviceHook, Membership, Netfilter, PortFlags};

fn port(number: u16) -> Port {
    let details = PeerDetails {
        mac: Mac([2, 0, 0, 0, 0, number as u8]),
        up: true,
        mtu: 1500,
        xdp: Xdp::None,
    };
    Port {
        index: 10 + u32::from(number),
        name: format!("p{number}"),
        number,
        running: true,
        ethernet: true,
        mtu: 1500,
        gso: GsoLimits::default(),
        stp: StpState::Forwarding,
        flags: PortFlags { learning: true, ..PortFlags::default() },
        switch: false,
        noqueue: true,
        ingress_filters: false,
        egress_filters: false,
        xdp: Xdp::None,
        tcx_ingress: Vec::new(),
        tcx_egress: Vec::new(),
        takes_unfinished: true,
        peer: Some(Peer { index: 2, here: false, details: Some(details) }),
        refused: None,
        unseen: false,
        vlans: None,
        no_vlan_room: false,
    }
}

fn state() -> State {
    State {
        bridge: Bridge {
            index: 10,
            name: "br0".into(),
            up: true,
            promiscuous: false,
            vlans: None,
            vlan_stats: false,
            mst: false,
            stp: false,
            ageing: Duration::from_secs(300),
            forward_delay: Duration::from_secs(15),
            link_local_learning: true,
            group_forward: 0,
            calls: Calls::default(),
        },
        ports: vec![port(1), port(2)],
        netfilter: Netfilter::default(),
        taps: Vec::new(),
        longest_look: Duration::ZERO,
    }
}

/// Has the bridge look at VLANs, with both ports in VLAN 1 as the kernel puts them there.
fn by_vlan(state: &mut State) {
    state.bridge.vlans = Some(VlanProtocol::Q);
    state.ports.iter_mut().for_each(|port| put(port, 1));
}

/// Puts a port in one VLAN, from which frames leave without a tag.
fn put(port: &mut Port, vlan: u16) {
    let mut vlans = Vlans::default();
    vlans.add(vlan..=vlan, Membership { pvid: true, untagged: true, forwarding: true });
    port.vlans = Some(Arc::new(vlans));
}

fn peer(port: &mut Port) -> &mut PeerDetails {
    port.peer.as_mut().expect("a veth").details.as_mut().expect("details")
}

#[test]
fn two_plain_veths_are_taken_and_sent_straight() {
    let plan = decide(&state(), None);
    assert!(plan.obstacles.is_empty() && plan.left.is_empty() && plan.can_forward());
    for port in &plan.ports {
        assert_eq!((port.receive.as_slice(), port.send), (&[][..], Way::Straight), "{}", port.name);
        assert_eq!((port.max_len, port.limits.as_slice()), (1514, &[][..]));
    }
    assert_eq!(plan.ports[1].peer, Some(Mac([2, 0, 0, 0, 0, 2])));
    assert_eq!(plan.refresh, Duration::from_secs(75));
}

#[test]
fn what_concerns_the_whole_bridge_stops_everything() {
    let cases: [(&str, fn(&mut State)); 5] = [
        ("slow-looks", |s| s.longest_look = Duration::from_millis(667)),
        ("bridge-down", |s| s.bridge.up = false),
        ("promiscuous", |s| s.bridge.promiscuous = true),
        ("vlan-stats", |s| {
            by_vlan(s);
            s.bridge.vlan_stats = true;
        }),
        ("bridge-hooks", |s| s.netfilter.bridge.push("table filter chain FORWARD".into())),
    ];
    for (id, change) in cases {
        let mut state = state();
        change(&mut state);
        let plan = decide(&state, None);
        let ids: Vec<_> = plan.obstacles.iter().map(Obstacle::id).collect();
        assert_eq!(ids, [id]);
        assert!(!plan.can_forward(), "{id}");
    }
}

#[test]
fn a_port_is_neither_taken_from_nor_sent_to_while_the_kernel_must_see_both() {
    let cases: [(&str, fn(&mut Port)); 8] = [
        ("not-running", |p| p.running = false),
        ("not-ethernet", |p| p.ethernet = false),
        ("switch", |p| p.switch = true),
        ("stp-state", |p| p.stp = StpState::Blocking),
        ("stp-state", |p| p.stp = StpState::Learning),
        ("answers-for-others", |p| p.flags.neigh_suppress = true),
        ("answers-for-others", |p| p.flags.proxy_arp = true),
        ("vlan-tunnel", |p| p.flags.vlan_tunnel = true),
    ];
    for (id, change) in cases {
        let mut state = state();
        change(&mut state.ports[0]);
        let plan = decide(&state, None);
        assert_eq!(plan.ports[0].receive[0].id(), id);
        assert_eq!((plan.ports[0].send, plan.ports[0].limits[0].id()), (Way::Kernel, id));
        assert_eq!((plan.ports[1].receive.len(), plan.ports[1].send), (0, Way::Straight), "{id}");
        assert!(!plan.can_forward(), "{id}: the other port is alone");
    }
}

#[test]
fn ports_of_a_bridge_that_looks_at_vlans_exchange_frames_where_they_meet() {
    let cases: [(&str, fn(&mut State), bool); 6] = [
        ("both in VLAN 1", |_| {}, true),
        ("each in its own", |s| put(&mut s.ports[0], 5), false),
        ("in none", |s| s.ports[0].vlans = Some(Arc::default()), false),
        ("unread", |s| s.ports[0].vlans = None, false),
        ("without room", |s| s.ports[0].no_vlan_room = true, false),
        // Of a bridge that has stopped to look at them.
        ("off again", |s| (s.bridge.vlans, s.ports[0].vlans) = (None, None), true),
    ];
    for (name, change, expected) in cases {
        let mut state = state();
        by_vlan(&mut state);
        change(&mut state);
        let plan = decide(&state, None);
        assert_eq!((plan.can_forward(), plan.vlans), (expected, state.bridge.vlans), "{name}");
        let ids: Vec<_> = plan.ports[0].receive.iter().map(Obstacle::id).collect();
        let against: &[&str] = match name {
            "unread" => &["vlans-unread"],
            "without room" => &["vlan-room"],
            _ => &[],
        };
        assert_eq!(ids, against, "{name}");
        assert_eq!(plan.ports[1].vlans.is_some(), plan.vlans.is_some(), "{name}");
    }
}

#[test]
fn counting_by_vlan_matters_only_where_vlans_do() {
    let mut state = state();
    state.bridge.vlan_stats = true;
    assert!(decide(&state, None).can_forward());
}

#[test]
fn some_things_stop_only_what_a_port_receives() {
    let cases: [(&str, fn(&mut State)); 6] = [
        ("locked", |s| s.ports[0].flags.locked = true),
        ("locked", |s| s.ports[0].flags.mab = true),
        ("ingress-filters", |s| s.ports[0].ingress_filters = true),
        ("ingress-hooks", |s| s.netfilter.ingress.push(hook("p", true))),
        ("tcx-keeps-all", |s| s.ports[0].unseen = true),
        ("tcx-behind", |s| s.ports[0].tcx_ingress = vec![5, 7, 9]),
    ];
    for (id, change) in cases {
        let mut state = state();
        change(&mut state);
        let plan = decide(&state, Some(7));
        let ids: Vec<_> = plan.ports[0].receive.iter().map(Obstacle::id).collect();
        assert_eq!(ids, [id]);
        assert_eq!(plan.ports[0].send, Way::Straight, "{id}");
    }
}

#[test]
fn programs_before_ours_are_no_obstacle() {
    let mut state = state();
    state.ports[0].tcx_ingress = vec![5, 9, 7];
    for (ours, before) in [(Some(7), vec![5, 9]), (None, vec![5, 9, 7])] {
        let port = &decide(&state, ours).ports[0];
        assert_eq!((port.receive.as_slice(), &port.before), (&[][..], &before), "{ours:?}");
    }
}

#[test]
fn some_things_keep_packets_from_being_sent() {
    let cases: [(&str, fn(&mut Port)); 3] = [
        ("backup-port", |p| p.flags.backup = true),
        ("peer-unknown", |p| p.peer.as_mut().expect("a veth").details = None),
        ("peer-generic-xdp", |p| peer(p).xdp = Xdp::Generic),
    ];
    for (id, change) in cases {
        let mut state = state();
        change(&mut state.ports[0]);
        let plan = &decide(&state, None).ports[0];
        assert_eq!((plan.send, plan.limits[0].id(), plan.peer), (Way::Kernel, id, None));
        assert!(plan.receive.is_empty(), "{id}");
    }
}

#[test]
fn netfilter_on_a_ports_egress_does_not_see_what_is_redirected() {
    let mut state = state();
    state.netfilter.egress.push(hook("p1", false));
    let plan = decide(&state, None);
    assert_eq!((plan.ports[0].send, plan.ports[0].limits[0].id()), (Way::Kernel, "egress-hooks"));
    assert_eq!(plan.ports[1].send, Way::Straight);
}

#[test]
fn what_only_the_ports_queue_does_keeps_packets_in_it() {
    let cases: [(&str, fn(&mut State)); 10] = [
        ("no-peer", |s| s.ports[0].peer = None),
        ("peer-here", |s| s.ports[0].peer.as_mut().expect("a veth").here = true),
        ("peer-down", |s| peer(&mut s.ports[0]).up = false),
        ("peer-xdp", |s| peer(&mut s.ports[0]).xdp = Xdp::Native),
        ("queue-discipline", |s| s.ports[0].noqueue = false),
        ("egress-filters", |s| s.ports[0].egress_filters = true),
        ("egress-filters", |s| s.ports[0].tcx_egress = vec![3]),
        ("offloads-off", |s| s.ports[0].takes_unfinished = false),
        ("taps", |s| s.taps.push(0)),
        ("taps", |s| s.taps.push(11)),
    ];
    for (id, change) in cases {
        let mut state = state();
        change(&mut state);
        let plan = &decide(&state, None).ports[0];
        let ids: Vec<_> = plan.limits.iter().map(Obstacle::id).collect();
        assert_eq!((plan.send, ids.as_slice(), plan.peer), (Way::Queue, &[id][..], None));
        assert!(plan.receive.is_empty(), "{id}");
    }
}

#[test]
fn a_packet_socket_on_another_device_does_not_matter() {
    let mut state = state();
    state.taps.extend([12, 99]);
    assert_eq!(decide(&state, None).ports[0].send, Way::Straight);
}

#[test]
fn br_netfilter_claims_its_protocols_and_no_others() {
    use Protocol::{Arp, Ipv4, Ipv6, Pppoe};
    let calls = |iptables, ip6tables, arptables| Calls { iptables, ip6tables, arptables };
    let cases = [
        (calls(true, false, false), vec![Ipv4, Pppoe]),
        (calls(false, true, false), vec![Ipv6, Pppoe]),
        (calls(false, false, true), vec![Arp]),
        (calls(true, true, true), vec![Ipv4, Ipv6, Arp, Pppoe]),
    ];
    for (calls, left) in cases {
        let mut state = state();
        state.bridge.calls = calls;
        let plan = decide(&state, None);
        assert_eq!(plan.left, left);
        assert!(plan.can_forward(), "other protocols are forwarded");
    }
}

#[test]
fn a_port_that_answers_for_others_has_all_questions_pass_by_the_kernel() {
    let cases: [fn(&mut PortFlags); 2] = [|f| f.neigh_suppress = true, |f| f.proxy_arp = true];
    for change in cases {
        let mut state = state();
        state.ports.push(port(3));
        change(&mut state.ports[2].flags);
        let plan = decide(&state, None);
        assert_eq!(plan.left, [Protocol::Arp, Protocol::Nd]);
        assert!(plan.can_forward(), "other protocols are forwarded");
    }
}

#[test]
fn the_shorter_of_port_and_peer_bounds_a_frame() {
    let mut state = state();
    state.ports[0].mtu = 9000;
    assert_eq!(decide(&state, None).ports[0].max_len, 1514);
    peer(&mut state.ports[0]).mtu = 65535;
    assert_eq!(decide(&state, None).ports[0].max_len, 9014);
    state.ports[0].mtu = u32::MAX;
    peer(&mut state.ports[0]).mtu = u32::MAX;
    assert_eq!(decide(&state, None).ports[0].max_len, u32::MAX);
}

#[test]
fn a_spanning_tree_may_shorten_the_time_that_the_kernel_remembers() {
    let mut state = state();
    state.bridge.stp = true;
    assert_eq!(decide(&state, None).refresh, Duration::from_millis(3750));
    state.bridge.ageing = Duration::ZERO;
    assert_eq!(decide(&state, None).refresh, Duration::ZERO);
}

#[test]
fn a_copy_refreshes_only_where_the_bridge_learns_from_it_and_nobody_else_sees_it() {
    let cases: [(Refresh, fn(&mut State)); 11] = [
        (Refresh::Copy, |_| {}),
        (Refresh::Copy, |s| s.bridge.group_forward = !0x4000),
        (Refresh::Copy, |s| s.taps.push(s.ports[1].index)),
        (Refresh::Copy, |s| s.ports[0].xdp = Xdp::Native),
        (Refresh::Never, |s| s.ports[0].flags.learning = false),
        (Refresh::Packet, |s| s.bridge.link_local_learning = false),
        (Refresh::Packet, |s| s.bridge.group_forward = 0x4000),
        (Refresh::Packet, |s| s.ports[0].flags.group_forward = 0x4000),
        (Refresh::Packet, |s| s.taps.push(s.ports[0].index)),
        (Refresh::Packet, |s| s.taps.push(0)),
        (Refresh::Packet, |s| s.ports[0].xdp = Xdp::Generic),
    ];
    for (expected, change) in cases {
        let mut state = state();
        change(&mut state);
        assert_eq!(decide(&state, None).ports[0].refresh, expected, "{state:?}");
    }
    let mut state = state();
    state.ports[0].tcx_ingress = vec![7, 8];
    assert_eq!(decide(&state, Some(7)).ports[0].refresh, Refresh::Copy);
    assert_eq!(decide(&state, Some(8)).ports[0].refresh, Refresh::Packet);
}

fn hook(device: &str, prefix: bool) -> DeviceHook {
    DeviceHook { device: device.into(), prefix, what: "table netdev t chain c".into() }
}
