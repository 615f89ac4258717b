//! The limit on a process's CPU time: cgroup v2's `cpu.max`, or the CFS quota of cgroup v1.
//!
//! A group's name may be a pod's or a user's, so groups are no part of a record: the answer has
//! numbers alone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Limit;

/// The tightest limit on a process or above it; none if nothing limits it, or if cgroups are not
/// where they usually are.
pub(super) fn limit(root: &Path, pid: &str) -> Option<Limit> {
    let groups = fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).ok()?;
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next())
        else {
            return Vec::new();
        };
        let mounts: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            names if names.split(',').any(|name| name == "cpu") => {
                &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
            }
            _ => &[],
        };
        mounts.iter().flat_map(|mount| along(&root.join(mount), group)).collect()
    });
    // The least of the shares, compared without rounding.
    limits.min_by(|a, b| {
        let share =
            |one: &Limit, other: &Limit| u128::from(one.quota_us) * u128::from(other.period_us);
        share(a, b).cmp(&share(b, a))
    })
}

/// The limits of a group and of those above it, up to the mount. A namespace shows its own root as
/// `/`, so above that nothing is seen.
fn along(mount: &Path, group: &str) -> Vec<Limit> {
    let plain = Path::new(group.trim_start_matches('/'));
    // A group outside of this namespace is shown with `..`: what is below the mount is another.
    if plain.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return Vec::new();
    }
    let folders: Vec<PathBuf> = plain.ancestors().map(|part| mount.join(part)).collect();
    folders.iter().filter_map(|folder| of(folder)).collect()
}

fn of(folder: &Path) -> Option<Limit> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
        None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    // `max`, or -1: no limit.
    let quota_us = quota.trim().parse().ok()?;
    let period_us = period.trim().parse().ok().filter(|period| *period > 0)?;
    let stat = read("cpu.stat").unwrap_or_default();
    let count = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or(0)
    };
    Some(Limit {
        quota_us,
        period_us,
        periods: count("nr_periods "),
        throttled: count("nr_throttled "),
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn host(files: &[(&str, &str)]) -> TempDir {
        let dir = TempDir::new().expect("a folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        dir
    }

    #[test]
    fn the_tightest_limit_above_a_process_counts() {
        let host = host(&[
            ("proc/7/cgroup", "0::/pods/a/b\n"),
            ("sys/fs/cgroup/pods/cpu.max", "150000 100000\n"),
            (
                "sys/fs/cgroup/pods/cpu.stat",
                "usage_usec 5\nnr_periods 40\nnr_throttled 9\nthrottled_usec 7\n",
            ),
            ("sys/fs/cgroup/pods/a/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pods/a/b/cpu.max", "20000 10000\n"),
        ]);
        let limit = limit(host.path(), "7").expect("a limit");
        let expected = Limit { quota_us: 150_000, period_us: 100_000, periods: 40, throttled: 9 };
        assert_eq!(limit, expected);
    }

    #[test]
    fn cgroup_v1_has_its_quota_elsewhere() {
        let host = host(&[
            ("proc/self/cgroup", "4:memory:/x\n2:cpu,cpuacct:/svc\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/svc/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/svc/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        let limit = limit(host.path(), "self").expect("a limit");
        assert_eq!((limit.quota_us, limit.period_us, limit.throttled), (50_000, 100_000, 0));
    }

    #[test]
    fn no_limit_and_what_makes_no_sense_is_none() {
        for (group, file, text) in [
            ("0::/a", "a/cpu.max", "max 100000"),
            ("0::/a", "a/cpu.max", "1000"),
            ("0::/a", "a/cpu.max", "1000 0"),
            ("0::/a", "b/cpu.max", "1000 1000"),
            ("0::/../a", "a/cpu.max", "1000 1000"),
            ("nonsense", "cpu.max", "1000 1000"),
        ] {
            let file = format!("sys/fs/cgroup/{file}");
            let host = host(&[("proc/self/cgroup", group), (&file, text)]);
            assert_eq!(limit(host.path(), "self"), None, "{group} {file} {text}");
        }
        assert_eq!(limit(host(&[]).path(), "self"), None);
    }
}
