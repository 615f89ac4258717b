//! Processors and their caches.

use lanes::Source;

use super::table;
use super::words::{again, list};
use crate::{Facts, Found};

table! { Topology:
    "CL001" Info several_lanes ["steer" "relay" "frames" "bridge"]
        "The CPUs are in several lanes"
        costs "a packet that is handled in one lane and read in another is fetched from a cache that \
               the two do not share, which takes several times as long as from a shared one";
    "CL002" Warning caches_hidden ["steer" "relay" "frames"]
        "The virtual machine does not show which CPUs share a cache"
        costs "all CPUs count as one lane, so nothing is kept in a lane, whatever the hardware is";
    "CL003" Warning no_l3 ["steer" "relay" "frames"]
        "No L3 cache is shown, so that lanes are as small as an L2 cache"
        costs "work that moves within a cache that is there, and not shown, counts as having left \
               its lane";
}

fn several_lanes(facts: &Facts) -> Option<Found> {
    if !facts.has_lanes() {
        return None;
    }
    let lanes = &facts.cpus.lanes;
    let sets = list(lanes.lanes().map(|lane| format!("[{}]", lanes.cpus(lane))));
    Some(Found {
        evidence: vec![format!("{} lanes, by {}: {sets}", lanes.lanes().len(), facts.cpus.source)],
        command: "cachelane steer IFACE --check, and cachelane relay with --cpus lane:N".into(),
        check: "cachelane trial steer.llc_affinity --arms off,on".into(),
    })
}

fn caches_hidden(facts: &Facts) -> Option<Found> {
    let hidden = facts.cpus.hypervisor && facts.cpus.source == Source::AllCpus;
    if !hidden || facts.online() < 2 {
        return None;
    }
    Some(Found {
        evidence: vec![format!(
            "a hypervisor runs this machine, and no CPU of {} shows a cache",
            facts.cpus.lanes.online()
        )],
        command:
            "let the hypervisor pass its caches on (libvirt: <cache mode='passthrough'/>, QEMU: \
                  -cpu host,host-cache-info=on), with virtual CPUs bound to real ones; or say what \
                  they are: cachelane steer IFACE --lanes '0-3|4-7'"
                .into(),
        check: again("CL002"),
    })
}

fn no_l3(facts: &Facts) -> Option<Found> {
    if facts.cpus.source != Source::L2 || !facts.has_lanes() {
        return None;
    }
    Some(Found {
        evidence: vec![format!(
            "{} lanes by their L2 caches: {}",
            facts.cpus.lanes.lanes().len(),
            facts.cpus.lanes
        )],
        command:
            "cachelane steer IFACE --lanes '0-31|32-63', with the CPUs that share the last cache \
                  by the machine's manual"
                .into(),
        check: "cachelane trial steer.llc_affinity --arms off,on".into(),
    })
}
