//! How much CPU time a process's cgroups let it use.

use std::fs;
use std::path::{Path, PathBuf};

/// The CPUs' worth of time that this process may use: the least that any of its cgroups, of either
/// version, gives it. None where no cgroup limits it, or none can be seen: a quota that cannot be read
/// slows nobody down who does not know of it.
pub fn quota() -> Option<f64> {
    quota_below(Path::new("/proc/self"), Path::new("/"))
}

/// Likewise, by the files of a directory that stands for `/proc/self`, with mount points below `root`.
fn quota_below(process: &Path, root: &Path) -> Option<f64> {
    let cgroups = fs::read_to_string(process.join("cgroup")).ok()?;
    let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
    let least = |a: f64, b: f64| a.min(b);
    cgroups.lines().filter_map(|line| of_hierarchy(line, &mounts, root)).reduce(least)
}

/// By a line of `/proc/PID/cgroup`: `ID:CONTROLLERS:PATH`, without controllers for version 2.
fn of_hierarchy(line: &str, mounts: &str, root: &Path) -> Option<f64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let is_v2 = controllers.is_empty();
    if !is_v2 && !controllers.split(',').any(|one| one == "cpu") {
        return None;
    }
    let (mount, top) = mounts.lines().find_map(|line| mount_of(line, is_v2))?;
    // In a container the mount may show a part of the tree only, or all as if it were the top.
    let below = Path::new(path).strip_prefix(top).unwrap_or(Path::new(""));
    let mount = root.join(mount.trim_start_matches('/'));
    let own = mount.join(below.strip_prefix("/").unwrap_or(below));
    let dirs = own.ancestors().take_while(|dir| dir.starts_with(&mount)).map(Path::to_path_buf);
    dirs.filter_map(|dir| if is_v2 { of_v2(dir) } else { of_v1(dir) }).reduce(f64::min)
}

/// Where a line of `/proc/PID/mountinfo` mounts the hierarchy, and which of its directories.
fn mount_of(line: &str, is_v2: bool) -> Option<(&str, &str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    let wanted = match is_v2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
    };
    let mut fields = mount.split(' ').skip(3);
    let (top, at) = (fields.next()?, fields.next()?);
    wanted.then_some((at, top))
}

/// `cpu.max`: `QUOTA PERIOD`, or `max PERIOD`.
fn of_v2(dir: PathBuf) -> Option<f64> {
    let max = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let (quota, period) = max.trim().split_once(' ')?;
    ratio(quota, period)
}

/// `cpu.cfs_quota_us`, -1 for none, and `cpu.cfs_period_us`.
fn of_v1(dir: PathBuf) -> Option<f64> {
    let read = |file| fs::read_to_string(dir.join(file)).ok();
    ratio(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let [quota, period] = [quota, period].map(|text| text.trim().parse::<f64>().ok());
    let ratio = quota? / period?;
    (ratio > 0.0 && ratio.is_finite()).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "32 31 0:29 / /cg/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct";
    const V2: &str = "41 31 0:38 / /cg rw,relatime - cgroup2 cgroup2 rw";
    const V2_IN_A_CONTAINER: &str = "41 31 0:38 /pods/a /cg rw,relatime - cgroup2 cgroup2 rw";

    /// The quota with these lines of `cgroup` and `mountinfo` and these files.
    fn quota_with(cgroup: &str, mounts: &str, files: &[(&str, &str)]) -> Option<f64> {
        let dir = tempfile::TempDir::new().expect("a folder");
        for (path, text) in [("self/cgroup", cgroup), ("self/mountinfo", mounts)]
            .into_iter()
            .chain(files.iter().copied())
        {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a file")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        quota_below(&dir.path().join("self"), dir.path())
    }

    #[test]
    fn the_least_quota_of_all_cgroups_holds() {
        type Files = Vec<(&'static str, &'static str)>;
        let v1 = |own, top| -> Files {
            vec![
                ("cg/cpu/x/cpu.cfs_quota_us", own),
                ("cg/cpu/x/cpu.cfs_period_us", "100000\n"),
                ("cg/cpu/cpu.cfs_quota_us", top),
                ("cg/cpu/cpu.cfs_period_us", "100000\n"),
            ]
        };
        for (cgroup, mounts, files, quota) in [
            ("0::/a/b\n", V2, vec![("cg/a/b/cpu.max", "150000 100000\n")], Some(1.5)),
            ("0::/a/b\n", V2, vec![("cg/a/b/cpu.max", "max 100000\n")], None),
            // Of a cgroup further up, which counts as well.
            (
                "0::/a/b\n",
                V2,
                vec![("cg/a/b/cpu.max", "300000 100000\n"), ("cg/a/cpu.max", "25000 50000\n")],
                Some(0.5),
            ),
            // What a container sees: its own cgroup is the mount's top, whatever it is called.
            ("0::/pods/a\n", V2_IN_A_CONTAINER, vec![("cg/cpu.max", "2000 1000")], Some(2.0)),
            ("0::/\n", V2, vec![("cg/cpu.max", "2000 1000")], Some(2.0)),
            ("0::/../x\n", V2_IN_A_CONTAINER, vec![("cg/cpu.max", "2000 1000")], Some(2.0)),
            ("3:cpuset:/\n1:cpu,cpuacct:/x\n0::/\n", V1, v1("350000\n", "-1\n"), Some(3.5)),
            ("1:cpu,cpuacct:/x\n", V1, v1("-1\n", "-1\n"), None),
            ("1:cpuacct:/x\n", V1, v1("350000\n", "-1\n"), None),
            // Nothing to be seen, or nonsense.
            ("0::/a\n", "", vec![], None),
            ("0::/a\n", V2, vec![("cg/a/cpu.max", "0 0\n")], None),
            ("nonsense", V2, vec![("cg/a/cpu.max", "x\n")], None),
        ] {
            assert_eq!(quota_with(cgroup, mounts, &files), quota, "{cgroup:?}, {files:?}");
        }
    }
}
