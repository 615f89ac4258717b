//! Each setting shows in its field of the state, and nowhere else, and is announced.

use std::time::Duration;

use netlink_packet_route::link::InfoBridge;

use super::{Rig, wait};
use crate::host::ROOM;
use crate::host::{Reader, Watch, bridge_of, link::Link};
use crate::state::{
    Calls, DeviceHook, GsoLimits, Mac, PeerDetails, Port, State, StpState, VlanProtocol,
};

/// Steps, what they do to the state, steps back, and how soon it is known.
struct Case {
    steps: &'static [&'static str],
    back: &'static [&'static str],
    known: Known,
    edit: fn(&mut State),
}

/// What tells of a change.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    /// The kernel.
    Announced,
    /// A glance.
    AtAGlance,
    /// A look at everything.
    AtALook,
}

const fn case(
    steps: &'static [&'static str],
    back: &'static [&'static str],
    edit: fn(&mut State),
) -> Case {
    Case { steps, back, known: Known::Announced, edit }
}

const fn silent(
    steps: &'static [&'static str],
    back: &'static [&'static str],
    edit: fn(&mut State),
) -> Case {
    Case { steps, back, known: Known::AtAGlance, edit }
}

const fn slow(
    steps: &'static [&'static str],
    back: &'static [&'static str],
    edit: fn(&mut State),
) -> Case {
    Case { steps, back, known: Known::AtALook, edit }
}

/// Each starts and ends with a bridge whose bridge-nf-call sysctls are off.
const START: [&str; 3] = [
    "sysctl -q -w net.bridge.bridge-nf-call-iptables=0",
    "sysctl -q -w net.bridge.bridge-nf-call-ip6tables=0",
    "sysctl -q -w net.bridge.bridge-nf-call-arptables=0",
];

const BRIDGE: &[Case] = &[
    case(&["ip link set br0 down"], &["ip link set br0 up"], |state| {
        state.bridge.up = false;
        state.ports.iter_mut().for_each(|port| port.stp = StpState::Disabled);
    }),
    case(&["ip link set br0 promisc on"], &["ip link set br0 promisc off"], |state| {
        state.bridge.promiscuous = true;
    }),
    // As packet capture does it: the device's flag for people stays off.
    case(
        &["ip link add m0 link br0 type macvlan mode passthru", "ip link set m0 up"],
        &["ip link del m0"],
        |state| state.bridge.promiscuous = true,
    ),
    case(
        &["ip link set br0 type bridge ageing_time 1234"],
        &["ip link set br0 type bridge ageing_time 30000"],
        |state| state.bridge.ageing = Duration::from_millis(12_340),
    ),
    case(
        &["ip link set br0 type bridge forward_delay 456"],
        &["ip link set br0 type bridge forward_delay 1500"],
        |state| state.bridge.forward_delay = Duration::from_millis(4_560),
    ),
    case(
        &["ip link set br0 type bridge stp_state 1"],
        &["ip link set br0 type bridge stp_state 0"],
        |state| state.bridge.stp = true,
    ),
    case(
        &["ip link set br0 type bridge no_linklocal_learn 1"],
        &["ip link set br0 type bridge no_linklocal_learn 0"],
        |state| state.bridge.link_local_learning = false,
    ),
    case(
        &["ip link set br0 type bridge group_fwd_mask 0x4008"],
        &["ip link set br0 type bridge group_fwd_mask 0"],
        |state| state.bridge.group_forward = 0x4008,
    ),
    case(
        &["ip link set br0 type bridge nf_call_iptables 1"],
        &["ip link set br0 type bridge nf_call_iptables 0"],
        |state| state.bridge.calls.iptables = true,
    ),
    case(
        &["ip link set br0 type bridge nf_call_ip6tables 1"],
        &["ip link set br0 type bridge nf_call_ip6tables 0"],
        |state| state.bridge.calls.ip6tables = true,
    ),
    case(
        &["ip link set br0 type bridge nf_call_arptables 1"],
        &["ip link set br0 type bridge nf_call_arptables 0"],
        |state| state.bridge.calls.arptables = true,
    ),
    silent(&["sysctl -q -w net.bridge.bridge-nf-call-iptables=1"], &START, |state| {
        state.bridge.calls.iptables = true;
    }),
    silent(&["sysctl -q -w net.bridge.bridge-nf-call-ip6tables=1"], &START, |state| {
        state.bridge.calls.ip6tables = true;
    }),
    silent(&["sysctl -q -w net.bridge.bridge-nf-call-arptables=1"], &START, |state| {
        state.bridge.calls.arptables = true;
    }),
    // The switch of another namespace.
    silent(&["a: sysctl -q -w net.bridge.bridge-nf-call-iptables=1"], &[], |_| {}),
];

const PORT: &[Case] = &[
    case(&["bridge link set dev p0 learning off"], &["bridge link set dev p0 learning on"], |s| {
        p0(s).flags.learning = false;
    }),
    case(&["bridge link set dev p0 hairpin on"], &["bridge link set dev p0 hairpin off"], |s| {
        p0(s).flags.hairpin = true;
    }),
    case(
        &["ip link set p0 type bridge_slave group_fwd_mask 0x4000"],
        &["ip link set p0 type bridge_slave group_fwd_mask 0"],
        |state| p0(state).flags.group_forward = 0x4000,
    ),
    case(&["bridge link set dev p0 isolated on"], &["bridge link set dev p0 isolated off"], |s| {
        p0(s).flags.isolated = true;
    }),
    case(&["bridge link set dev p0 locked on"], &["bridge link set dev p0 locked off"], |s| {
        p0(s).flags.locked = true;
    }),
    case(
        &["bridge link set dev p0 locked on", "set p0 mab on"],
        &["set p0 mab off", "bridge link set dev p0 locked off"],
        |state| {
            p0(state).flags.locked = true;
            p0(state).flags.mab = true;
        },
    ),
    case(
        &["bridge link set dev p0 neigh_suppress on"],
        &["bridge link set dev p0 neigh_suppress off"],
        |state| p0(state).flags.neigh_suppress = true,
    ),
    case(&["set p0 neigh_vlan_suppress on"], &["set p0 neigh_vlan_suppress off"], |state| {
        p0(state).flags.neigh_suppress = true
    }),
    case(
        &["bridge link set dev p0 vlan_tunnel on"],
        &["bridge link set dev p0 vlan_tunnel off"],
        |state| p0(state).flags.vlan_tunnel = true,
    ),
    case(
        &["ip link set p0 type bridge_slave proxy_arp on"],
        &["ip link set p0 type bridge_slave proxy_arp off"],
        |state| p0(state).flags.proxy_arp = true,
    ),
    case(
        &["ip link set p0 type bridge_slave proxy_arp_wifi on"],
        &["ip link set p0 type bridge_slave proxy_arp_wifi off"],
        |state| p0(state).flags.proxy_arp = true,
    ),
    case(
        &["bridge link set dev p0 backup_port p1"],
        &["bridge link set dev p0 nobackup_port"],
        |state| p0(state).flags.backup = true,
    ),
    case(&["bridge link set dev p0 state 1"], &["bridge link set dev p0 state 3"], |state| {
        p0(state).stp = StpState::Listening;
    }),
    case(&["bridge link set dev p0 state 2"], &["bridge link set dev p0 state 3"], |state| {
        p0(state).stp = StpState::Learning;
    }),
    case(&["ip link set p0 down"], &["ip link set p0 up"], |state| {
        p0(state).running = false;
        p0(state).stp = StpState::Disabled;
    }),
    case(&["ip link set p0 mtu 1400"], &["ip link set p0 mtu 1500"], |state| {
        p0(state).mtu = 1400;
    }),
    case(&["ip link set p0 name p9"], &["ip link set p9 name p0"], |state| {
        p0(state).name = "p9".into();
    }),
];

const QUEUES: &[Case] = &[
    case(
        &["tc qdisc add dev p0 root tbf rate 1gbit burst 10kb latency 10ms"],
        &["tc qdisc del dev p0 root"],
        |state| p0(state).noqueue = false,
    ),
    case(&["tc qdisc add dev p0 clsact"], &["tc qdisc del dev p0 clsact"], |_| {}),
    case(
        &[
            "tc qdisc add dev p0 clsact",
            "tc filter add dev p0 ingress u32 match u32 0 0 flowid 1:1",
        ],
        &["tc qdisc del dev p0 clsact"],
        |state| p0(state).ingress_filters = true,
    ),
    case(
        &["tc qdisc add dev p0 clsact", "tc filter add dev p0 egress u32 match u32 0 0 flowid 1:1"],
        &["tc qdisc del dev p0 clsact"],
        |state| p0(state).egress_filters = true,
    ),
    case(
        &[
            "tc qdisc add dev p0 ingress",
            "tc filter add dev p0 ingress u32 match u32 0 0 flowid 1:1",
        ],
        &["tc qdisc del dev p0 ingress"],
        |state| p0(state).ingress_filters = true,
    ),
    case(
        &[
            "tc qdisc add dev p0 ingress_block 7 clsact",
            "tc qdisc add dev p1 egress_block 7 clsact",
            "tc filter add block 7 u32 match u32 0 0 flowid 1:1",
        ],
        &["tc qdisc del dev p0 clsact", "tc qdisc del dev p1 clsact"],
        |state| {
            p0(state).ingress_filters = true;
            state.ports[1].egress_filters = true;
        },
    ),
    case(&["ethtool -K p0 tx off"], &["ethtool -K p0 tx on"], |s| p0(s).takes_unfinished = false),
    case(&["ethtool -K p0 tso off"], &["ethtool -K p0 tso on"], |s| p0(s).takes_unfinished = false),
    case(&["ethtool -K p0 sg off"], &["ethtool -K p0 sg on"], |s| p0(s).takes_unfinished = false),
    case(
        &["ethtool -K p0 tx-udp-segmentation off"],
        &["ethtool -K p0 tx-udp-segmentation on"],
        |state| p0(state).takes_unfinished = false,
    ),
    case(
        &["ethtool -K p0 tx-checksum-sctp off"],
        &["ethtool -K p0 tx-checksum-sctp on"],
        |state| p0(state).takes_unfinished = false,
    ),
    slow(
        &["ip link set p0 gso_max_size 20000 gso_max_segs 5"],
        &["ip link set p0 gso_max_size 65536 gso_max_segs 65535"],
        |state| p0(state).gso = GsoLimits { size: 20_000, ipv4_size: 20_000, segments: 5 },
    ),
    slow(
        &["ip link set p0 gso_max_size 200000"],
        &["ip link set p0 gso_max_size 65536"],
        |state| p0(state).gso.size = 200_000,
    ),
    // Stops this host from making GSO packets for it; those that others made still pass whole.
    case(&["ethtool -K p0 gso off"], &["ethtool -K p0 gso on"], |_| {}),
];

const PEER: &[Case] = &[
    case(&["a: ip link set eth0 mtu 1400"], &["a: ip link set eth0 mtu 1500"], |state| {
        peer(state).mtu = 1400;
    }),
    case(
        &["a: ip link set eth0 address 02:00:00:00:00:77"],
        &["a: ip link set eth0 address 02:63:6c:01:00:01"],
        |state| peer(state).mac = Mac([2, 0, 0, 0, 0, 0x77]),
    ),
    case(&["a: ip link set eth0 down"], &["a: ip link set eth0 up"], |state| {
        peer(state).up = false;
        p0(state).running = false;
        p0(state).stp = StpState::Disabled;
    }),
];

const NETFILTER: &[Case] = &[
    case(&["nft bridge t forward"], &["nft delete bridge t"], |state| {
        state.netfilter.bridge.push("nft table bridge t, chain c".into());
    }),
    case(&["nft netdev t ingress p0"], &["nft delete netdev t"], |state| {
        state.netfilter.ingress.push(on("p0", "nft table netdev t, chain c"));
    }),
    case(&["nft netdev t egress p1"], &["nft delete netdev t"], |state| {
        state.netfilter.egress.push(on("p1", "nft table netdev t, chain c"));
    }),
    case(&["nft inet t ingress p1"], &["nft delete inet t"], |state| {
        state.netfilter.ingress.push(on("p1", "nft table inet t, chain c"));
    }),
    // Not of bridged packets; not of a port.
    case(&["nft inet t forward"], &["nft delete inet t"], |_| {}),
    case(&["nft netdev t ingress lo"], &["nft delete netdev t"], |_| {}),
];

#[test]
fn root_settings_of_the_bridge_show_in_their_field_alone() {
    check("root_settings_of_the_bridge_show_in_their_field_alone", BRIDGE);
}

#[test]
fn root_settings_of_a_port_show_in_their_field_alone() {
    check("root_settings_of_a_port_show_in_their_field_alone", PORT);
}

#[test]
fn root_queues_filters_and_offloads_show_in_their_field_alone() {
    check("root_queues_filters_and_offloads_show_in_their_field_alone", QUEUES);
}

#[test]
fn root_changes_of_a_peer_in_its_namespace_show_and_are_announced() {
    check("root_changes_of_a_peer_in_its_namespace_show_and_are_announced", PEER);
}

#[test]
fn root_netfilter_shows_where_it_touches_bridged_packets() {
    check("root_netfilter_shows_where_it_touches_bridged_packets", NETFILTER);
}

#[test]
fn root_ebtables_shows_and_is_announced() {
    let test = "root_ebtables_shows_and_is_announced";
    let Some(rig) = Rig::new(test) else { return };
    let version = rig.host().command("ebtables").arg("--version").run();
    if !version.is_ok_and(|version| version.contains("nf_tables")) {
        eprintln!("skipped: {test}: needs ebtables, the one that works by nft");
        return;
    }
    rig.run(|reader, before| {
        let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
        watch.follow(before);
        rig.step("ebtables -A FORWARD -j ACCEPT");
        // Some versions make the other chains as well.
        let forward = "nft table bridge filter, chain FORWARD".to_owned();
        let (after, announced) = wait(reader, &mut watch, |state, announced| {
            announced && state.netfilter.bridge.contains(&forward)
        });
        assert!(announced && after.netfilter.bridge.contains(&forward), "{after:?}");
        assert_eq!(State { netfilter: before.netfilter.clone(), ..after }, *before);
    });
}

/// A kernel may be built without looking at VLAN tags, or without `br_netfilter`.
#[test]
fn settings_of_the_bridge_that_a_kernel_may_lack_are_read() {
    let settings = vec![InfoBridge::VlanFiltering(true), InfoBridge::NfCallArpTables(true)];
    let link = || Link { bridge: settings.clone(), ..Link::default() };
    let on = Calls { iptables: true, ..Calls::default() };
    let without = bridge_of(link(), None);
    assert_eq!(without.vlans, Some(VlanProtocol::Q));
    assert_eq!(without.calls, Calls::default());
    assert_eq!(bridge_of(link(), Some(on)).calls, Calls { arptables: true, ..on });
}

fn check(test: &str, cases: &[Case]) {
    let Some(rig) = Rig::new(test) else { return };
    START.iter().for_each(|step| rig.step(step));
    rig.run(|reader, before| {
        cases.iter().for_each(|case| check_case(&rig, reader, before, case));
    });
}

fn check_case(rig: &Rig, reader: &mut Reader, before: &State, case: &Case) {
    let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
    watch.follow(before);
    case.steps.iter().for_each(|step| rig.step(step));
    let mut expected = before.clone();
    (case.edit)(&mut expected);
    let (after, announced) = wait(reader, &mut watch, |state, announced| {
        *state == expected && (announced || case.known != Known::Announced)
    });
    assert_eq!(after, expected, "after {:?}", case.steps);
    assert!(announced || case.known != Known::Announced, "not announced: {:?}", case.steps);
    if case.known == Known::AtAGlance {
        let mut glanced = before.clone();
        reader.glance(&mut glanced).expect("the state");
        assert_eq!(glanced, expected, "at a glance after {:?}", case.steps);
    }
    case.back.iter().for_each(|step| rig.step(step));
    let (after, _) = wait(reader, &mut watch, |state, _| state == before);
    assert_eq!(after, *before, "after {:?}", case.back);
}

fn p0(state: &mut State) -> &mut Port {
    &mut state.ports[0]
}

fn peer(state: &mut State) -> &mut PeerDetails {
    let peer = state.ports[0].peer.as_mut().expect("p0 is a veth");
    peer.details.as_mut().expect("its namespace may be asked")
}

fn on(device: &str, what: &str) -> DeviceHook {
    DeviceHook { device: device.into(), prefix: false, what: what.into() }
}
