//! BPF programs, maps and links of processes, and whether they are still there.

use std::collections::BTreeSet;
use std::fs;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};

/// Ids, which the kernel does not give again for a long time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) programs: BTreeSet<u32>,
    pub(crate) maps: BTreeSet<u32>,
    pub(crate) links: BTreeSet<u32>,
}

impl Objects {
    /// What these processes have open, and the maps of their programs.
    pub(crate) fn of(pids: impl IntoIterator<Item = u32>) -> Objects {
        let mut found = Objects::default();
        for pid in pids {
            let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
            for text in files.filter_map(|file| fs::read_to_string(file.path()).ok()) {
                let id = |key: &str| {
                    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u32>().ok())
                };
                found.programs.extend(id("prog_id:"));
                found.maps.extend(id("map_id:"));
                found.links.extend(id("link_id:"));
            }
        }
        if !found.programs.is_empty() {
            let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
            for program in ProgInfoIter::with_query_opts(with_maps) {
                if found.programs.contains(&program.id) {
                    found.maps.extend(program.map_ids);
                }
            }
        }
        found
    }

    /// Those that the kernel still has.
    pub(crate) fn alive(&self) -> Objects {
        let mut alive = Objects::default();
        if *self == alive {
            return alive;
        }
        let there = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default());
        alive.programs = there.map(|it| it.id).filter(|id| self.programs.contains(id)).collect();
        let there = MapInfoIter::default();
        alive.maps = there.map(|it| it.id).filter(|id| self.maps.contains(id)).collect();
        let there = LinkInfoIter::default();
        alive.links = there.map(|it| it.id).filter(|id| self.links.contains(id)).collect();
        alive
    }

    /// The kernel's threads that take packets of these maps, by their names.
    pub(crate) fn threads(&self) -> Vec<String> {
        let ends: Vec<_> = self.maps.iter().map(|id| format!("/map:{id}")).collect();
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let names = processes.filter_map(|it| fs::read_to_string(it.path().join("comm")).ok());
        let ours = |name: &String| {
            name.starts_with("cpumap/") && ends.iter().any(|end| name.trim().ends_with(end))
        };
        names.filter(ours).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Objects::default()
    }
}
