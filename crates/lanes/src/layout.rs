//! Dividing CPUs into lanes: as the machine is built, or as the user says.

use crate::scan::Scanner;
use crate::sysfs::Machine;
use crate::{CpuSet, ErrorKind, Result, Source};

/// The lanes of a machine in the order of their lowest CPUs, and what they follow from.
///
/// Every online CPU is in exactly one lane, also where CPUs contradict each other about what they
/// share: the lowest CPU of a lane decides.
pub(crate) fn of_machine(machine: &Machine) -> (Vec<CpuSet>, Source) {
    let without_cache: CpuSet =
        machine.online.iter().filter(|cpu| !machine.caches.contains_key(cpu)).collect();
    let mut lanes = Vec::new();
    let mut left = machine.online.clone();
    while let Some(cpu) = left.first() {
        let shared = machine.caches.get(&cpu).map_or(&without_cache, |cache| &cache.shared);
        let mut lane = left.intersection(shared).intersection(&node_of(machine, cpu));
        lane.insert(cpu);
        left = left.difference(&lane);
        lanes.push(lane);
    }
    let source = match machine.caches.values().map(|cache| cache.level).max() {
        None => Source::AllCpus,
        Some(..=2) => Source::L2,
        Some(3) => Source::L3,
        Some(4..) => Source::L4,
    };
    (lanes, source)
}

/// The CPUs of the NUMA node that has `cpu`. CPUs in no node count as one node.
fn node_of(machine: &Machine, cpu: usize) -> CpuSet {
    let known = machine.nodes.values().find(|node| node.contains(cpu));
    known.cloned().unwrap_or_else(|| {
        machine.nodes.values().fold(machine.online.clone(), |rest, node| rest.difference(node))
    })
}

/// Reads a layout such as `0-7|8-15`, which must have each online CPU exactly once.
pub(crate) fn parse(text: &str, online: &CpuSet, present: &CpuSet) -> Result<Vec<CpuSet>> {
    let mut scanner = Scanner::new("lane layout", text);
    let mut lanes = vec![CpuSet::new()];
    let mut seen = CpuSet::new();
    loop {
        scanner.skip_blanks();
        let at = scanner.offset();
        if scanner.at_end() || scanner.take("|") {
            return Err(scanner.error_at(at, "expected the CPUs of a lane"));
        }
        let cpus = scanner.cpus()?;
        check(&scanner, at, &cpus, online, present, &seen)?;
        seen.extend(cpus.iter());
        if let Some(lane) = lanes.last_mut() {
            lane.extend(cpus.iter());
        }
        scanner.skip_blanks();
        if scanner.at_end() {
            break;
        }
        if scanner.take("|") {
            lanes.push(CpuSet::new());
        } else if !scanner.take(",") {
            return Err(scanner.error("expected \",\", \"|\" or the end"));
        }
    }
    let missing = online.difference(&seen);
    if !missing.is_empty() {
        let trouble = format_args!("online CPUs {missing} are in no lane: the layout ends");
        return Err(scanner.fault_at(ErrorKind::Incomplete, text.len(), trouble));
    }
    Ok(lanes)
}

/// Refuses CPUs that a lane cannot have.
fn check(
    scanner: &Scanner<'_>,
    at: usize,
    cpus: &CpuSet,
    online: &CpuSet,
    present: &CpuSet,
    seen: &CpuSet,
) -> Result<()> {
    let wrong = [
        (
            cpus.difference(present),
            ErrorKind::NoSuchCpu,
            format!("does not exist (online: {online})"),
        ),
        (cpus.difference(online), ErrorKind::Offline, format!("is not online (online: {online})")),
        (cpus.intersection(seen), ErrorKind::Overlap, "is named twice".to_owned()),
    ];
    match wrong.iter().find_map(|(cpus, kind, is)| Some((cpus.first()?, *kind, is))) {
        Some((cpu, kind, is)) => Err(scanner.fault_at(kind, at, format_args!("cpu {cpu} {is}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::Cache;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const CPUS: usize = 12;

    fn any_cpus() -> impl Strategy<Value = CpuSet> {
        prop::collection::btree_set(0..CPUS, 0..CPUS).prop_map(CpuSet::from_iter)
    }

    /// Machines that no one would build: caches that CPUs disagree about, CPUs in no node.
    fn any_machine() -> impl Strategy<Value = Machine> {
        let cache = (2..5u32, any_cpus()).prop_map(|(level, shared)| Cache { level, shared });
        let caches = prop::collection::btree_map(0..CPUS, cache, 0..CPUS);
        let node_of = prop::collection::vec(0..4usize, CPUS);
        (any_cpus(), caches, node_of, 0..4usize).prop_map(|(online, caches, node_of, nodes)| {
            let mut online = online;
            online.insert(0);
            let in_node = |node| (0..CPUS).filter(|&cpu| node_of[cpu] == node).collect();
            let caches: BTreeMap<_, _> =
                caches.into_iter().filter(|(cpu, _)| online.contains(*cpu)).collect();
            let nodes = (0..nodes).map(|node| (node as u32, in_node(node))).collect();
            Machine { present: (0..CPUS).collect(), online, caches, nodes }
        })
    }

    proptest! {
        #[test]
        fn every_online_cpu_is_in_exactly_one_lane(machine in any_machine()) {
            let (lanes, _) = of_machine(&machine);
            let mut seen = CpuSet::new();
            for lane in &lanes {
                prop_assert!(!lane.is_empty());
                prop_assert!(seen.intersection(lane).is_empty(), "{:?}", lanes);
                seen.extend(lane.iter());
                for node in machine.nodes.values() {
                    let inside = lane.intersection(node);
                    prop_assert!(inside.is_empty() || inside == *lane, "{:?} spans nodes", lane);
                }
            }
            prop_assert_eq!(seen, machine.online);
        }

        #[test]
        fn any_text_is_a_layout_or_refused_inside_it(text in "[0-9,|:/ é-]{0,24}") {
            let cpus: CpuSet = (0..4).collect();
            match parse(&text, &cpus, &cpus) {
                Ok(lanes) => {
                    prop_assert_eq!(lanes.iter().map(CpuSet::len).sum::<usize>(), cpus.len());
                }
                Err(error) => prop_assert!(text.is_char_boundary(error.offset().unwrap())),
            }
        }
    }
}
