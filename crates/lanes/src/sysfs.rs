//! What the kernel says about CPUs, caches and NUMA nodes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

use crate::{CpuSet, Error, ErrorKind, Result};

/// The files of `/sys/devices/system` that lanes follow from.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) present: CpuSet,
    pub(crate) online: CpuSet,
    /// Each online CPU's last cache; CPUs that show none are absent.
    pub(crate) caches: BTreeMap<usize, Cache>,
    /// The CPUs of each NUMA node, by its number; empty where the kernel knows no nodes.
    pub(crate) nodes: BTreeMap<u32, CpuSet>,
}

/// The last unified cache that one CPU sees.
#[derive(Debug)]
pub(crate) struct Cache {
    /// 2 or more: an L1, even a unified one, is a core's own and says nothing about lanes.
    pub(crate) level: u32,
    pub(crate) shared: CpuSet,
}

impl Machine {
    /// Reads a tree that stands for `/sys/devices/system`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let online_path = root.join("cpu/online");
        let online = cpus(&online_path)?.ok_or_else(|| {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            Error::caused(ErrorKind::Sysfs, format!("read {}", online_path.display()), missing)
        })?;
        if online.is_empty() {
            let message = format!("{}: no CPU is online", online_path.display());
            return Err(Error::new(ErrorKind::Sysfs, message));
        }
        let present = cpus(&root.join("cpu/present"))?.unwrap_or_default();
        let mut caches = BTreeMap::new();
        for cpu in online.iter() {
            if let Some(cache) = last_cache(&root.join(format!("cpu/cpu{cpu}/cache")))? {
                caches.insert(cpu, cache);
            }
        }
        let nodes = nodes(&root.join("node"))?;
        Ok(Self { present: present.union(&online), online, caches, nodes })
    }
}

fn last_cache(dir: &Path) -> Result<Option<Cache>> {
    let mut last: Option<Cache> = None;
    for index in numbered(dir, "index")? {
        let dir = dir.join(format!("index{index}"));
        let is_unified = value(&dir.join("type"), |text| Ok::<_, Error>(text == "Unified"))?;
        if is_unified != Some(true) {
            continue;
        }
        let level = value(&dir.join("level"), number)?;
        let shared = cpus(&dir.join("shared_cpu_list"))?;
        let (Some(level), Some(shared)) = (level, shared) else { continue };
        if level >= 2 && last.as_ref().is_none_or(|last| level > last.level) {
            last = Some(Cache { level, shared });
        }
    }
    Ok(last)
}

fn nodes(dir: &Path) -> Result<BTreeMap<u32, CpuSet>> {
    let mut nodes = BTreeMap::new();
    for node in numbered(dir, "node")? {
        let cpus = cpus(&dir.join(format!("node{node}/cpulist")))?;
        nodes.extend(cpus.map(|cpus| (node, cpus)));
    }
    Ok(nodes)
}

/// The numbers N of the entries `prefixN` of a directory, ascending; none where there is no such
/// directory. They may have gaps.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<u32>> {
    let failed = |error| Error::caused(ErrorKind::Sysfs, format!("list {}", dir.display()), error);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// What a file says; `None` where it is absent, which is normal for a CPU that just went offline.
fn value<T, E: Display>(path: &Path, parse: fn(&str) -> Result<T, E>) -> Result<Option<T>> {
    match fs::read_to_string(path) {
        Ok(text) => parse(text.trim()).map(Some).map_err(|trouble| {
            Error::new(ErrorKind::Sysfs, format!("{}: {trouble}", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Error::caused(ErrorKind::Sysfs, format!("read {}", path.display()), error))
        }
    }
}

fn cpus(path: &Path) -> Result<Option<CpuSet>> {
    value(path, str::parse)
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected a number, found {text:?}"))
}
