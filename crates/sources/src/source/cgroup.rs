//! The CPU time of cgroups, of either version.

use std::fs;
use std::path::{Path, PathBuf};

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::error::Context as _;
use crate::spec::Named;
use crate::{Error, ErrorKind, Result, Value};

const MOUNTS: &str = "/proc/self/mounts";

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let mounts = fs::read_to_string(MOUNTS).context(MOUNTS)?;
    let files = names.iter().map(|name| file(name, &mounts)).collect::<Result<_>>()?;
    let mut index = 0..;
    Text::new(files, names, move |_| {
        let index = index.next().unwrap_or_default();
        Ok(Box::new(move |files| {
            let file = &files[index];
            cpu_time(file.text()?).ok_or_else(|| unexpected(&file.path, "CPU time"))
        }))
    })
}

/// The file with a cgroup's CPU time.
fn file(name: &Named, mounts: &str) -> Result<Kept> {
    let cgroup = name.of.as_deref().unwrap_or_default();
    let tried = candidates(cgroup, mounts);
    let found = tried.iter().find(|path| path.is_file()).ok_or_else(|| {
        let paths: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
        let message = format!("{name}: there is no such cgroup (looked for {})", paths.join(", "));
        Error::new(ErrorKind::Unknown, message)
    })?;
    Kept::open(found.display().to_string(), "there is no such cgroup")
}

/// Where a cgroup's figure can be: `cgroup` is its path in the hierarchy, or in the file system.
fn candidates(cgroup: &str, mounts: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let words: Vec<&str> = mount.split(' ').collect();
        let [_, at, kind, options, ..] = words[..] else { continue };
        let file = match kind {
            "cgroup2" => "cpu.stat",
            "cgroup" if options.split(',').any(|option| option == "cpuacct") => "cpuacct.usage",
            _ => continue,
        };
        let inside =
            cgroup.strip_prefix(at).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let inside = inside.unwrap_or(cgroup).trim_start_matches('/');
        found.push(Path::new(at).join(inside).join(file));
    }
    found
}

/// From a `cpu.stat`, in microseconds, or a `cpuacct.usage`, in nanoseconds.
fn cpu_time(text: &str) -> Option<Value> {
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    let seconds = match usage {
        Some(micros) => micros.parse::<f64>().ok()? / 1e6,
        None => text.trim().parse::<f64>().ok()? / 1e9,
    };
    Some(Value::total(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Known;

    const MOUNTS: &str = "\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
";

    #[test]
    fn a_cgroup_is_looked_for_in_each_hierarchy_that_counts() {
        for path in ["/a/b.service", "a/b.service"] {
            let found = candidates(path, MOUNTS);
            let expected = [
                "/sys/fs/cgroup/cpu,cpuacct/a/b.service/cpuacct.usage",
                "/sys/fs/cgroup/unified/a/b.service/cpu.stat",
            ];
            assert_eq!(found, expected.map(PathBuf::from), "{path}");
        }
        let found = candidates("/sys/fs/cgroup/unified/a", MOUNTS);
        assert!(found.contains(&"/sys/fs/cgroup/unified/a/cpu.stat".into()), "{found:?}");
        let name = Named { known: Known::find("cgroup.cpu").unwrap(), of: Some("/nowhere".into()) };
        let error = file(&name, MOUNTS).err().unwrap().to_string();
        assert!(error.contains("cgroup.cpu@/nowhere") && error.contains("unified"), "{error}");
    }

    #[test]
    fn both_versions_are_read() {
        let text = "usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n";
        assert_eq!(cpu_time(text), Some(Value::total(2.5)));
        assert_eq!(cpu_time("2500000000\n"), Some(Value::total(2.5)));
        assert_eq!(cpu_time("nr_periods 0\n"), None);
    }
}
