//! Steering follows its machine, and says why it cannot be on a device.

use cachelane_steer::{ErrorKind, SteerOptions, Steering, inspect};
use lab::testing::root;
use lab::{Lab, LinkOptions};
use lanes::{CpuSet, LaneMap};
use tempfile::TempDir;
use xsk::Device;

/// A machine whose CPUs share no cache, as sysfs describes it.
fn machine(present: &str, online: &str) -> LaneMap {
    let dir = TempDir::new().expect("a folder");
    std::fs::create_dir(dir.path().join("cpu")).expect("a folder");
    for (file, cpus) in [("present", present), ("online", online)] {
        std::fs::write(dir.path().join("cpu").join(file), cpus).expect("a file");
    }
    LaneMap::from_sysfs(dir.path(), None).expect("a machine")
}

fn cpus(list: &str) -> CpuSet {
    list.parse().expect("a list")
}

#[test]
fn root_targets_are_the_wanted_cpus_that_are_online() {
    if !root("root_targets_are_the_wanted_cpus_that_are_online") {
        return;
    }
    // CPUs can be targets that are there, so all but the first are this machine's only if it has
    // them.
    let there = LaneMap::detect().expect("this machine");
    let all = there.present().to_string();
    let first = there.online().first().expect("a CPU").to_string();
    let lab = Lab::new("stfollow").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
    let link = lab.link(&a, &b, options).expect("a link");
    let attach = || {
        let device = Device::find(&link.b.device).expect("a device");
        Steering::attach(&device, &there, &SteerOptions::default())
    };
    let steering = b.run(attach).expect("the host").expect("it steers");
    assert!(b.run(|| steering.is_attached()).expect("the host").expect("its device"));
    assert_eq!(steering.targets(), *there.online());
    for online in [&first, &all, &first, &all] {
        steering.follow(&machine(&all, online)).expect("it follows");
        assert_eq!(steering.targets(), cpus(online));
    }
    for on in [false, true] {
        steering.set_llc_affinity(on).expect("it is set");
        assert_eq!(steering.llc_affinity().expect("it is read"), on);
    }
    let by_cpu = steering.counters_by_cpu().expect("counters");
    assert_eq!(by_cpu.iter().map(|(cpu, _)| *cpu).collect::<CpuSet>(), *there.present());
    b.ip(["link", "delete", &link.b.device]).expect("root may");
    let gone = b.run(|| steering.is_attached()).expect("the host").expect_err("it is gone");
    assert_eq!(gone.kind(), ErrorKind::NoDevice);
}

#[test]
fn root_a_driver_that_takes_no_program_is_told_from_other_trouble() {
    if !root("root_a_driver_that_takes_no_program_is_told_from_other_trouble") {
        return;
    }
    let lab = Lab::new("stdriver").expect("a lab");
    let host = lab.host("a").expect("a host");
    let lanes = LaneMap::detect().expect("this machine");
    let (plan, error) = host
        .run(|| {
            let device = Device::find("lo").expect("lo");
            let plan = inspect(&device, &lanes).expect("it is there");
            (plan, Steering::attach(&device, &lanes, &SteerOptions::default()))
        })
        .expect("the host");
    let ids: Vec<_> = plan.obstacles.iter().map(cachelane_steer::Obstacle::id).collect();
    assert_eq!(ids, ["no-native-xdp"], "what is asked before");
    assert_eq!(plan.refusals(true).count(), 1, "force does not help");
    let error = error.expect_err("lo has no native XDP");
    assert_eq!(error.kind(), ErrorKind::NoXdp, "and what is tried: {error}");
    assert!(error.to_string().contains("expected native XDP"), "{error}");
}

#[test]
fn root_more_records_than_memory_allows_for_all_queues_are_refused() {
    if !root("root_more_records_than_memory_allows_for_all_queues_are_refused") {
        return;
    }
    let lab = Lab::new("strecords").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let options = LinkOptions { wire_like: true, queues: 64, ..LinkOptions::default() };
    let link = lab.link(&a, &b, options).expect("a link");
    let lanes = LaneMap::detect().expect("this machine");
    let options = SteerOptions { records: 1 << 24, ..SteerOptions::default() };
    let attach = || Steering::attach(&Device::find(&link.b.device)?, &lanes, &options);
    let error = b.run(attach).expect("the host").expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("expected at most 4194304 for the 64 queues"), "{error}");
}

#[test]
fn root_a_device_that_was_renamed_is_the_same() {
    if !root("root_a_device_that_was_renamed_is_the_same") {
        return;
    }
    let lab = Lab::new("strename").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
    let lanes = LaneMap::detect().expect("this machine");
    let name = &link.b.device;
    let device = b.run(|| Device::find(name)).expect("the host").expect("a device");
    link.b.set_attribute("queues/rx-0/rps_cpus", "1").expect("root may");
    b.ip(["link", "set", name, "down"]).expect("root may");
    b.ip(["link", "set", name, "name", "other"]).expect("root may");
    // And another one has its name.
    b.ip(["link", "add", name, "type", "veth", "peer", "name", "third"]).expect("root may");
    let plan = b.run(|| inspect(&device, &lanes)).expect("the host").expect("it is there");
    assert_eq!(plan.device, "other");
    assert!(plan.obstacles.iter().any(|obstacle| obstacle.id() == "rps"), "{plan:?}");
}
