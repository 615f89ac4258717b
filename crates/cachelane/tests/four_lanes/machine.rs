//! The machine, and what the command finds of it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lab::testing::root;
use lanes::{CpuSet, LaneMap};

use crate::common::{Place, text};

/// The variable that says that the machine is the test's own.
const OWN: &str = "CACHELANE_OWN_MACHINE";

/// Whether a test can run, and until when no other does: all of them change the machine.
pub(crate) fn own_machine(test: &str) -> Option<MutexGuard<'static, ()>> {
    static MACHINE: Mutex<()> = Mutex::new(());
    if !root(test) {
        return None;
    }
    if std::env::var_os(OWN).is_none() {
        eprintln!(
            "skipped: {test}: needs a machine of its own ({OWN}): scripts/kernels/test lanes"
        );
        return None;
    }
    Some(MACHINE.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn cpus(list: &str) -> CpuSet {
    list.parse().expect("a list of CPUs")
}

/// A CPU that is offline until this is dropped.
pub(crate) struct Offline(usize);

impl Offline {
    pub(crate) fn new(cpu: usize) -> Offline {
        set_online(cpu, "0");
        Offline(cpu)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        set_online(self.0, "1");
    }
}

fn set_online(cpu: usize, value: &str) {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    fs::write(&file, value).unwrap_or_else(|error| panic!("{file}: {error}"));
}

/// A cgroup, which is gone when this is; processes in it go to the one above it.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    pub(crate) fn new(name: &str) -> Cgroup {
        let dir = PathBuf::from("/sys/fs/cgroup").join(name);
        fs::create_dir(&dir).expect("a cgroup");
        Cgroup(dir)
    }

    pub(crate) fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            // It may have ended.
            let _ = fs::write("/sys/fs/cgroup/cgroup.procs", pid);
        }
        // The machine ends soon after.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_lanes_are_the_kernels_caches() {
    let Some(_own) = own_machine("root_lanes_are_the_kernels_caches") else { return };
    let map = LaneMap::detect().expect("lanes");
    let lanes: Vec<_> = map.lanes().map(|lane| map.cpus(lane).to_string()).collect();
    assert_eq!(lanes, ["0-1", "2-3", "4-5", "6-7"]);
    for (cpu, other, same) in [(0, 1, true), (1, 2, false), (6, 7, true), (0, 7, false)] {
        assert_eq!(map.same_lane(cpu, other), same, "{cpu} {other}");
    }
    let place = Place::new();
    let args = ["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--dry-run"];
    for (spec, workers) in [("lane:2", "CPUs 4-5"), ("lane:0", "CPUs 0-1"), ("all", "CPUs 0-7")] {
        let said =
            place.command(&[&args[..], &["--cpus", spec]].concat()).output().expect("it runs");
        assert!(text(&said.stdout).contains(workers), "{spec}: {said:?}");
    }
    let said =
        place.command(&[&args[..], &["--cpus", "lane:4"]].concat()).output().expect("it runs");
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    // A lane whose CPUs are offline is none, and the others keep theirs.
    let _offline = (Offline::new(2), Offline::new(3), Offline::new(7));
    let map = LaneMap::detect().expect("lanes");
    let lanes: Vec<_> = map.lanes().map(|lane| map.cpus(lane).to_string()).collect();
    assert_eq!(lanes, ["0-1", "4-5", "6"]);
}
