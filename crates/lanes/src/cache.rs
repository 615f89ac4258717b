//! How large a core's own cache is.

use std::fs;
use std::path::Path;

use crate::CpuSet;

/// Bytes of the smallest cache of level 2 that a CPU of the set shows; `None` where none shows one,
/// as in many virtual machines.
pub fn l2_size(cpus: &CpuSet) -> Option<usize> {
    l2_size_at(Path::new("/sys/devices/system"), cpus)
}

/// The same, of a tree that stands for `/sys/devices/system`.
pub(crate) fn l2_size_at(root: &Path, cpus: &CpuSet) -> Option<usize> {
    cpus.iter().filter_map(|cpu| of_cpu(&root.join(format!("cpu/cpu{cpu}/cache")))).min()
}

fn of_cpu(dir: &Path) -> Option<usize> {
    fs::read_dir(dir).ok()?.flatten().find_map(|index| {
        let says = |file| fs::read_to_string(index.path().join(file)).ok();
        let is_l2 = says("level")?.trim() == "2" && says("type")?.trim() != "Instruction";
        is_l2.then(|| bytes(says("size")?.trim())).flatten()
    })
}

/// What the kernel writes: `1024K`. Nothing is no size.
fn bytes(text: &str) -> Option<usize> {
    let kib: usize = text.strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1024).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_second_level_cache_counts_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        for (index, values) in [
            ("cpu0/cache/index0", ["1", "Data", "32K"]),
            ("cpu0/cache/index2", ["2", "Unified", "2048K"]),
            ("cpu1/cache/index0", ["2", "Instruction", "64K"]),
            ("cpu1/cache/index1", ["2", "Data", "1024K"]),
            ("cpu2/cache/index0", ["3", "Unified", "64K"]),
            ("cpu3/cache/index0", ["2", "Unified", "0K"]),
            ("cpu4/cache/index0", ["2", "Unified", "large"]),
        ] {
            let dir = root.path().join("cpu").join(index);
            fs::create_dir_all(&dir).unwrap();
            for (file, value) in ["level", "type", "size"].into_iter().zip(values) {
                fs::write(dir.join(file), format!("{value}\n")).unwrap();
            }
        }
        for (cpus, expected) in
            [("0", Some(2 << 20)), ("0-1", Some(1 << 20)), ("2-9", None), ("0-9", Some(1 << 20))]
        {
            assert_eq!(l2_size_at(root.path(), &cpus.parse().unwrap()), expected, "{cpus}");
        }
    }
}
