//! VLANs: those of ports, those of the table, and what is announced of them.

use super::{Rig, wait};
use crate::Change;
use crate::host::{ROOM, Reader, Watch};
use crate::state::{EntryKind, Key, Mac, State, VlanProtocol};

/// Has the bridge look at VLANs; says so if its kernel cannot.
fn looks_at_vlans(rig: &Rig) -> bool {
    let set = "ip link set br0 type bridge vlan_filtering 1".split(' ');
    let output = rig.host().command("env").args(set).output().expect("ip runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || said.contains("Operation not supported"), "{said}");
    if !output.status.success() {
        eprintln!("skipped: this kernel's bridges know no VLANs (CONFIG_BRIDGE_VLAN_FILTERING)");
    }
    output.status.success()
}

fn vlans(state: &State) -> String {
    let of = |port: &crate::state::Port| port.vlans.as_ref().map_or("-".into(), |v| v.to_string());
    state.ports.iter().map(of).collect::<Vec<String>>().join("; ")
}

#[test]
fn root_the_vlans_of_ports_are_read_and_announced() {
    let Some(rig) = Rig::new("root_the_vlans_of_ports_are_read_and_announced") else { return };
    if !looks_at_vlans(&rig) {
        return;
    }
    rig.run(|reader, before| {
        assert_eq!((before.bridge.vlans, vlans(before)), (Some(VlanProtocol::Q), "1; 1".into()));
        let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
        watch.follow(before);
        for (step, expected) in [
            ("bridge vlan add dev p0 vid 10", "2, pvid 1; 1"),
            ("bridge vlan add dev p0 vid 20 pvid untagged", "3, pvid 20; 1"),
            ("bridge vlan del dev p0 vid 20", "2, no pvid; 1"),
            ("bridge vlan set dev p0 vid 10 state blocking", "2, no pvid (1 not forwarding); 1"),
            ("bridge vlan set dev p0 vid 10 state forwarding", "2, no pvid; 1"),
            ("bridge vlan del dev p1 vid 1", "2, no pvid; none"),
            ("bridge vlan add dev p1 vid 1-4094 untagged", "2, no pvid; 4094, no pvid"),
            ("ip link set br0 type bridge vlan_filtering 0", "-; -"),
            ("ip link set br0 type bridge vlan_filtering 1", "2, no pvid; 4094, no pvid"),
        ] {
            rig.step(step);
            let found = |state: &State, announced| announced && vlans(state) == expected;
            let (state, announced) = wait(reader, &mut watch, found);
            assert!(announced && vlans(&state) == expected, "{step}: {}", vlans(&state));
        }
    });
}

#[test]
fn root_what_is_announced_names_the_port_or_all_of_them() {
    let test = "root_what_is_announced_names_the_port_or_all_of_them";
    let Some(rig) = Rig::new(test) else { return };
    if !looks_at_vlans(&rig) {
        return;
    }
    rig.run(|_, before| {
        let mut watch = Watch::new(before.bridge.index, ROOM).expect("a watch");
        watch.follow(before);
        let mut heard = |step: &str| {
            rig.step(step);
            watch.drain(&mut Vec::new()).expect("nothing is lost");
            let heard = std::mem::take(&mut watch.heard);
            (heard.ports.into_iter().collect::<Vec<_>>(), heard.everything)
        };
        let p0 = before.ports[0].index;
        assert_eq!(heard("bridge vlan add dev p0 vid 10"), (vec![p0], false));
        assert_eq!(heard("bridge vlan add dev br0 vid 10 self"), (vec![], false));
        let global = "bridge vlan global set dev br0 vid 10 mcast_snooping 0";
        assert_eq!(heard(global), (vec![], true));
    });
}

#[test]
fn root_vlans_that_do_not_fit_into_one_message_are_read_whole() {
    let test = "root_vlans_that_do_not_fit_into_one_message_are_read_whole";
    let Some(rig) = Rig::new(test) else { return };
    if !looks_at_vlans(&rig) {
        return;
    }
    rig.run(|reader, _| {
        rig.step("bridge vlan add dev p0 vid 2-4094");
        // Every other one is told by itself.
        let odd = |vlan: &u16| vlan % 2 == 1;
        let lines = (3..4094).filter(odd).map(|v| format!("vlan add dev p0 vid {v} untagged\n"));
        let batch =
            rig.host().command("bridge").args(["-batch", "-"]).input(lines.collect::<String>());
        batch.run().expect("root may");
        let state = reader.state("br0").expect("the state");
        let found = state.ports[0].vlans.clone().expect("they are read");
        assert_eq!((found.count(), found.pvid(), found.held()), (4094, Some(1), 0));
        let untagged: u32 = found.words().map(|(_, untagged)| untagged.count_ones()).sum();
        assert_eq!(untagged, 2047);
    });
}

#[test]
fn root_stations_are_read_and_announced_with_their_vlans() {
    let test = "root_stations_are_read_and_announced_with_their_vlans";
    let Some(rig) = Rig::new(test) else { return };
    if !looks_at_vlans(&rig) {
        return;
    }
    rig.run(|reader: &mut Reader, before| {
        rig.step("bridge vlan add dev p0 vid 10");
        let (bridge, mac) = (before.bridge.index, Mac([0x06, 0xaa, 0, 0, 0, 1]));
        let mut watch = Watch::new(bridge, ROOM).expect("a watch");
        let mut changes = || {
            let mut changes = Vec::new();
            watch.drain(&mut changes).expect("nothing is lost");
            changes.retain(|change| match change {
                Change::Set(entry) => entry.key.mac == mac,
                Change::Removed(key) => key.mac == mac,
            });
            changes
        };
        rig.step(&format!("bridge fdb add {mac} dev p0 master static vlan 10"));
        let key = Key { mac, vlan: 10 };
        let [Change::Set(entry)] = changes()[..] else { panic!("one entry is announced") };
        assert_eq!((entry.key, entry.kind), (key, EntryKind::Static));
        assert_eq!(reader.station(bridge, key).expect("an answer"), Some(entry));
        let elsewhere = [Key { mac, vlan: 1 }, Key::from(mac)];
        for key in elsewhere {
            assert_eq!(reader.station(bridge, key).expect("an answer"), None, "{key}");
        }
        let all = reader.stations(bridge).expect("the table");
        assert_eq!(all.iter().filter(|entry| entry.key.mac == mac).count(), 1);
        rig.step(&format!("bridge fdb del {mac} dev p0 master vlan 10"));
        assert_eq!(changes(), [Change::Removed(key)]);
    });
}
