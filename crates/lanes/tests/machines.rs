//! Lanes of real machines, and of machines that are short of something.
//!
//! A fixture is a text file of `PATH VALUE` lines below `/sys/devices/system`; `{0-3,8}` in a path
//! stands for each of these numbers.

use std::fs;
use std::path::Path;

use cachelane_lanes::{CpuSet, CpuSpec, ErrorKind, LaneId, LaneMap, Source};
use tempfile::TempDir;

#[test]
fn lanes_follow_the_last_cache_and_the_numa_nodes() {
    for (name, source, lanes) in [
        ("arm-gb10", Source::L3, "0-9|10-19"),
        ("arm-kunpeng-920", Source::L3, "0-31|32-63|64-95|96-127"),
        ("arm-no-cache-no-node", Source::AllCpus, "0-1"),
        ("arm-no-l3", Source::L2, "0-1|2-3|4-5|6-7"),
        ("epyc-smt-off", Source::L3, "0-3|4-7"),
        ("intel-asymmetric", Source::L2, "0,4|1,5|2,6|3,7"),
        ("intel-hybrid", Source::L3, "0-19"),
        (
            "intel-interleaved",
            Source::L3,
            "0,4,8,12,16,20,24,28,32,36|1,5,9,13,17,21,25,29,33,37\
             |2,6,10,14,18,22,26,30,34,38|3,7,11,15,19,23,27,31,35,39",
        ),
        (
            "intel-snc",
            Source::L3,
            "0-3|4-7|8-11|12-15|16-19|20-23|24-27|28-31|32-35|36-39|40-43|44-47|48-51|52-55|56-59|60-63",
        ),
        ("opteron-4-socket", Source::L3, "0-7|8-15|16-23|24-31|32-39|40-47|48-55|56-63"),
        ("opteron-offline-cpu", Source::L2, "0|1|2|3|5|6|7|8|9|10|11|12|13|14|15"),
        ("vm-no-cache", Source::AllCpus, "0-1|2-3"),
    ] {
        let map = load(name, None);
        assert_eq!(map.to_string(), lanes, "{name}");
        assert_eq!(map.source(), source, "{name}");
    }
}

#[test]
fn a_ccx_and_its_smt_siblings_are_a_lane() {
    let map = load("epyc-2-socket", None);
    assert_eq!(map.lanes().len(), 16);
    assert_eq!(map.cpus(LaneId(0)).to_string(), "0-3,64-67");
    assert_eq!(map.cpus(LaneId(15)).to_string(), "60-63,124-127");
    assert!(map.same_lane(0, 67) && map.same_lane(62, 124));
    assert!(!map.same_lane(3, 4) && !map.same_lane(0, 32));
}

#[test]
fn the_node_of_a_cpu_is_known_where_there_is_a_choice() {
    let map = load("intel-interleaved", None);
    let nodes: Vec<_> = [0, 1, 2, 39].into_iter().map(|cpu| map.node_of(cpu)).collect();
    assert_eq!(nodes, [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(map.node_of(40), None);
    // One node, and none at all.
    assert_eq!(load("epyc-smt-off", None).node_of(0), None);
    assert_eq!(load("arm-no-cache-no-node", None).node_of(0), None);
}

#[test]
fn every_online_cpu_of_every_fixture_is_in_exactly_one_lane() {
    let mut seen = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let map = load(path.file_stem().unwrap().to_str().unwrap(), None);
        for cpu in 0..=CpuSet::MAX + 1 {
            let lanes: Vec<_> = map.lanes().filter(|&lane| map.cpus(lane).contains(cpu)).collect();
            assert_eq!(lanes.len(), usize::from(map.online().contains(cpu)), "{path:?}: cpu {cpu}");
            assert_eq!(map.lane_of(cpu), lanes.first().copied(), "{path:?}: cpu {cpu}");
        }
        assert_eq!(map.with_override(&map.to_string()).unwrap().to_string(), map.to_string());
        seen += 1;
    }
    assert!(seen >= 12, "only {seen} fixtures");
}

#[test]
fn an_offline_cpu_is_in_no_lane() {
    let map = load("epyc-smt-off", None);
    assert_eq!((map.lane_of(8), map.lane_of(usize::MAX)), (None, None));
    assert!(!map.same_lane(8, 9) && !map.same_lane(8, 8));
    assert_eq!((map.online().to_string(), map.present().len()), ("0-7".to_owned(), 16));
    assert!(map.cpus(LaneId(9)).is_empty());
}

#[test]
fn a_restricted_process_sees_the_same_lanes_and_resolves_inside_its_cpus() {
    let map = load("epyc-smt-off", Some("2-4,9"));
    assert_eq!(map.to_string(), "0-3|4-7");
    assert_eq!(map.allowed().to_string(), "2-4");
    for (spec, cpus) in
        [("all", "2-4"), ("lane:0", "2-3"), ("lane:1", "4"), ("lane:1,2", "2,4"), ("3", "3")]
    {
        assert_eq!(resolve(&map, spec).unwrap().to_string(), cpus, "{spec}");
    }
    let error = resolve(&map, "0-4").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAllowed);
    let expected = "CPU set \"0-4\": cpu 0 is not open to this process (allowed: 2-4)";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_spec_that_the_machine_cannot_meet_names_what_there_is() {
    let map = load("epyc-smt-off", None);
    for (spec, kind, message) in [
        ("9", ErrorKind::Offline, "CPU set \"9\": cpu 9 is not online (online: 0-7)"),
        ("0,16", ErrorKind::NoSuchCpu, "CPU set \"0,16\": cpu 16 does not exist (online: 0-7)"),
        ("lane:2", ErrorKind::NoSuchLane, "CPU set \"lane:2\": lane 2 does not exist (lanes: 0-1)"),
    ] {
        let error = resolve(&map, spec).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
    }
    for (allowed, spec) in [("0", "lane:1"), ("12", "all")] {
        let map = load("epyc-smt-off", Some(allowed));
        assert_eq!(resolve(&map, spec).unwrap_err().kind(), ErrorKind::NotAllowed, "{spec}");
    }
}

#[test]
fn an_override_replaces_the_lanes() {
    let map = load("vm-no-cache", Some("0,3")).with_override(" 3 , 0|1-2 ").unwrap();
    assert_eq!((map.to_string(), map.source()), ("0,3|1-2".to_owned(), Source::Override));
    assert_eq!((map.lane_of(3), map.lane_of(2)), (Some(LaneId(0)), Some(LaneId(1))));
    assert_eq!(map.allowed().to_string(), "0,3");
}

#[test]
fn a_bad_override_is_refused_at_the_character() {
    let map = load("epyc-smt-off", None);
    for (spec, kind, offset, trouble) in [
        ("", ErrorKind::Syntax, 0, "expected the CPUs of a lane"),
        ("0-3||4-7", ErrorKind::Syntax, 4, "expected the CPUs of a lane"),
        ("0-7|", ErrorKind::Syntax, 4, "expected the CPUs of a lane"),
        ("0-3|x", ErrorKind::Syntax, 4, "expected a CPU number"),
        ("0-3;4-7", ErrorKind::Syntax, 3, "expected \",\", \"|\" or the end"),
        ("0-4|5,4,6-7", ErrorKind::Overlap, 6, "cpu 4 is named twice"),
        ("0-3,3|4-7", ErrorKind::Overlap, 4, "cpu 3 is named twice"),
        ("0-3|4-8", ErrorKind::Offline, 4, "cpu 8 is not online (online: 0-7)"),
        ("0-7|16", ErrorKind::NoSuchCpu, 4, "cpu 16 does not exist (online: 0-7)"),
        ("0-3|5", ErrorKind::Incomplete, 5, "online CPUs 4,6-7 are in no lane: the layout ends"),
    ] {
        let error = map.with_override(spec).unwrap_err();
        let message = format!("lane layout {spec:?}: {trouble} at character {}", offset + 1);
        assert_eq!(error.to_string(), message);
        assert_eq!((error.kind(), error.offset()), (kind, Some(offset)), "{spec:?}");
    }
}

#[test]
fn a_broken_sysfs_is_an_error_that_names_the_file() {
    let empty = TempDir::new().unwrap();
    let error = LaneMap::from_sysfs(empty.path(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Sysfs);
    assert!(error.to_string().contains("cpu/online"), "{error}");
    for (tree, file) in [
        ("cpu/online\n", "cpu/online"),
        ("cpu/online 0-2000\n", "cpu/online"),
        (
            "cpu/online 0\ncpu/cpu0/cache/index0/type Unified\ncpu/cpu0/cache/index0/level two\n",
            "index0/level",
        ),
    ] {
        let root = expand(tree);
        let error = LaneMap::from_sysfs(root.path(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Sysfs);
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn an_l1_that_is_unified_is_not_a_lane_of_its_own() {
    let root = expand(
        "cpu/online 0-1\ncpu/cpu{0-1}/cache/index0/type Unified\n\
         cpu/cpu{0-1}/cache/index0/level 1\ncpu/cpu0/cache/index0/shared_cpu_list 0\n\
         cpu/cpu1/cache/index0/shared_cpu_list 1\n",
    );
    let map = LaneMap::from_sysfs(root.path(), None).unwrap();
    assert_eq!((map.to_string(), map.source()), ("0-1".to_owned(), Source::AllCpus));
}

#[test]
fn this_machine_has_lanes() {
    let map = LaneMap::detect().unwrap();
    assert!(!map.allowed().is_empty() && map.allowed().difference(map.online()).is_empty());
    assert!(map.online().iter().all(|cpu| map.lane_of(cpu).is_some()));
    assert!(map.online().contains(rustix::thread::sched_getcpu()));
    assert_eq!(&resolve(&map, "all").unwrap(), map.allowed());
}

fn resolve(map: &LaneMap, spec: &str) -> cachelane_lanes::Result<CpuSet> {
    spec.parse::<CpuSpec>()?.resolve(map)
}

fn load(name: &str, allowed: Option<&str>) -> LaneMap {
    let root = expand(&fs::read_to_string(fixtures().join(format!("{name}.txt"))).unwrap());
    let allowed: Option<CpuSet> = allowed.map(|cpus| cpus.parse().unwrap());
    LaneMap::from_sysfs(root.path(), allowed.as_ref()).unwrap()
}

fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
}

/// Writes the tree that a fixture describes.
fn expand(fixture: &str) -> TempDir {
    let root = TempDir::new().unwrap();
    for line in fixture.lines().filter(|line| !line.starts_with('#')) {
        let (path, value) = line.split_once(' ').unwrap_or((line, ""));
        for path in expand_path(path) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
    }
    root
}

fn expand_path(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (numbers, after) = rest.split_once('}').unwrap();
    let numbers: CpuSet = numbers.parse().unwrap();
    let after = expand_path(after);
    let one = |number| after.iter().map(move |after| format!("{before}{number}{after}"));
    numbers.iter().flat_map(one).collect()
}

#[test]
fn without_sysfs_the_cpus_of_the_affinity_are_one_lane() {
    let map = LaneMap::from_affinity("1,4-5".parse().unwrap());
    assert_eq!((map.to_string().as_str(), map.source()), ("1,4-5", Source::AllCpus));
    assert_eq!(CpuSpec::all().resolve(&map).unwrap().to_string(), "1,4-5");
    assert_eq!("5".parse::<CpuSpec>().unwrap().resolve(&map).unwrap().to_string(), "5");
    let error = "0".parse::<CpuSpec>().unwrap().resolve(&map).unwrap_err();
    assert!(error.to_string().contains("online: 1,4-5"), "{error}");
}

#[test]
fn the_nearest_cpus_are_of_the_same_lane_first() {
    let map = load("arm-no-l3", None);
    for (cpu, count, cpus) in
        [(0, 2, "0-1"), (3, 2, "2-3"), (2, 3, "2-4"), (7, 3, "0,6-7"), (5, 99, "0-7"), (5, 1, "5")]
    {
        assert_eq!(map.nearest(cpu, count).to_string(), cpus, "{count} from {cpu}");
    }
}
