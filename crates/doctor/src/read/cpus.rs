//! Processors, their caches, and whether a hypervisor is below them.

use std::path::Path;

use lanes::{CpuSet, LaneMap, Source};

use super::lines;
use crate::tree::Tree;
use crate::{Cpus, Result};

const ROOT: &str = "sys/devices/system";

/// With the lanes that somebody has given, if any.
///
/// # Errors
/// Where the tree has no CPUs, or what it says of them makes no sense; and where the lanes given are
/// not those of such CPUs.
pub(crate) fn cpus(tree: &Tree, given: Option<&str>) -> Result<Cpus> {
    read_files(tree);
    let found = LaneMap::from_sysfs(&tree.at_path(ROOT), None)?;
    let lanes = given.map_or(Ok(found.clone()), |given| found.with_override(given))?;
    let keep = |text: &str| {
        // x86 has a flag; the first CPU's lines speak for all.
        let first = text.split("\n\n").next().unwrap_or_default();
        let flag = first.lines().find(|line| line.starts_with("flags"));
        let flag = flag.filter(|line| line.split_whitespace().any(|word| word == "hypervisor"));
        let model = lines(first, |line| line.starts_with("model name"));
        let flag = flag.map(|_| "flags\t: hypervisor".to_owned());
        flag.into_iter().chain([model]).collect::<Vec<_>>().join("\n").trim().to_owned()
    };
    let about = tree.filtered("proc/cpuinfo", "proc/cpuinfo", keep).unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let elsewhere = ["sys/hypervisor/type", "proc/device-tree/hypervisor/compatible"];
    Ok(Cpus {
        source: lanes.source(),
        several_l2: lanes.source() == Source::L3 && several_l2(tree, &lanes),
        hypervisor: about.contains("hypervisor")
            || elsewhere.iter().any(|path| tree.text(path).is_some_and(|text| !text.is_empty())),
        model: model.map(|(_, name)| name.trim().to_owned()),
        lanes,
    })
}

impl Cpus {
    /// This host's, and nothing else of it.
    ///
    /// # Errors
    /// Where the host shows no CPUs, or what it says of them makes no sense.
    pub fn here() -> Result<Self> {
        cpus(&Tree::at(Path::new("/")), None)
    }
}

/// Reads what lanes follow from, so that a record has it. What does not parse is theirs to say.
fn read_files(tree: &Tree) {
    for file in ["cpu/online", "cpu/present"] {
        tree.text(&format!("{ROOT}/{file}"));
    }
    for cpu in tree.numbered(&format!("{ROOT}/cpu"), "cpu") {
        let caches = format!("{ROOT}/cpu/cpu{cpu}/cache");
        for index in tree.numbered(&caches, "index") {
            for file in ["level", "type", "shared_cpu_list"] {
                tree.text(&format!("{caches}/index{index}/{file}"));
            }
        }
    }
    for node in tree.numbered(&format!("{ROOT}/node"), "node") {
        tree.text(&format!("{ROOT}/node/node{node}/cpulist"));
    }
}

/// Whether an L2 cache is shared by some CPUs of a lane only.
fn several_l2(tree: &Tree, lanes: &LaneMap) -> bool {
    let is_part = |cpu: usize| {
        let lane = lanes.lane_of(cpu).map(|lane| lanes.cpus(lane));
        let caches = format!("{ROOT}/cpu/cpu{cpu}/cache");
        tree.numbered(&caches, "index").iter().any(|index| {
            let file = |name| tree.text(&format!("{caches}/index{index}/{name}"));
            let is_l2 = file("level").as_deref() == Some("2");
            let shared = file("shared_cpu_list").and_then(|text| text.parse::<CpuSet>().ok());
            is_l2 && lane.zip(shared).is_some_and(|(lane, l2)| !lane.difference(&l2).is_empty())
        })
    };
    lanes.online().iter().any(is_part)
}
