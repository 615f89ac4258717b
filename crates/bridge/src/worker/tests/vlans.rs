//! VLANs: what the packet path is told of them, and when.

use super::*;
use crate::program::{InletBucket, PortVlans, Settings};

/// What the packet path knows of a port: its flags, its PVID, and whether some VLANs forward.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    open: bool,
    pvid: u32,
    forwarding: Vec<u16>,
}

fn told(worker: &Worker, port: usize, vlans: &[u16]) -> Told {
    let (port, maps) = (&worker.state.ports[port], &worker.shared.program.maps);
    let slot = u32::from(port.number);
    let open = port_flags(&maps.ports, slot).expect("the map is read") & constants::PORT_IN != 0;
    let home = port.index % constants::INLET_BUCKETS;
    let bucket: InletBucket = maps.inlets.get(&home).expect("it is there");
    let inlet = bucket.inlets.iter().find(|inlet| inlet.index == port.index);
    let all: PortVlans = maps.vlans.get(&slot).expect("it is there");
    let forwards =
        |vlan: &&u16| all.sets[usize::from(**vlan) / 64].forwarding >> (**vlan % 64) & 1 == 1;
    let forwarding = vlans.iter().filter(forwards).copied().collect();
    Told { open, pvid: inlet.map_or(0, |inlet| inlet.pvid), forwarding }
}

#[test]
fn root_a_port_whose_vlans_change_is_closed_until_they_have_been_read() {
    if !root("root_a_port_whose_vlans_change_is_closed_until_they_have_been_read") {
        return;
    }
    let lab = Lab::new("vlans").expect("a lab");
    let bridge = bridge(&lab);
    let host = &bridge.own.host;
    if host.ip("link set br0 type bridge vlan_filtering 1".split(' ')).is_err() {
        eprintln!("skipped: this kernel's bridges know no VLANs (CONFIG_BRIDGE_VLAN_FILTERING)");
        return;
    }
    let vlan = |line: &str| host.command("bridge").args(line.split(' ')).run().expect("root may");
    host.run(|| {
        let mut worker = Worker::new("br0", Config::default()).expect("it starts");
        let settle = |worker: &mut Worker| {
            worker.tend().expect("no error");
            while worker.watch.heard.is_something() {
                worker.attend().expect("no error");
            }
        };
        settle(&mut worker);
        let all = [1, 10, 20];
        let before = Told { open: true, pvid: 1, forwarding: vec![1] };
        assert_eq!(told(&worker, 0, &all), before);
        for (change, pvid, forwarding) in [
            ("vlan add dev p0 vid 10", 1, vec![1, 10]),
            ("vlan add dev p0 vid 20 pvid", 20, vec![1, 10, 20]),
            ("vlan set dev p0 vid 10 state blocking", 20, vec![1, 20]),
            ("vlan del dev p0 vid 20", 0, vec![1]),
            ("vlan set dev p0 vid 10 state forwarding", 0, vec![1, 10]),
        ] {
            vlan(change);
            worker.tend().expect("no error");
            assert!(!told(&worker, 0, &all).open, "{change}");
            assert_eq!(told(&worker, 1, &all), before, "{change}");
            settle(&mut worker);
            assert_eq!(told(&worker, 0, &all), Told { open: true, pvid, forwarding }, "{change}");
        }
        let shared = Arc::clone(&worker.shared);
        let protocol = || {
            let settings: Settings = shared.program.maps.settings.get(&0_u32).expect("it is there");
            settings.vlan_protocol
        };
        assert_eq!(protocol(), u32::from(0x8100_u16.to_be()));
        host.ip("link set br0 type bridge vlan_filtering 0".split(' ')).expect("root may");
        worker.tend().expect("no error");
        assert!(shared.gate.lock().alarmed, "nothing has been read yet");
        settle(&mut worker);
        assert_eq!((protocol(), shared.gate.lock().alarmed), (0, false));
        assert!(told(&worker, 0, &all).open);
    })
    .expect("the host");
}
