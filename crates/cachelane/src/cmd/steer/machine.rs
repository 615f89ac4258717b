//! The machine's CPUs and lanes, as they come and go.

use std::fs;
use std::path::{Path, PathBuf};

use lanes::{CpuSet, LaneMap, Result};

/// Looks after one that saw a change at which lanes are made again: a CPU is online a little before
/// the kernel shows its caches.
const AGAIN: [u32; 3] = [1, 20, 60];

/// The lanes of a machine, which are made again when its CPUs change.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
    /// The lanes that the user gave, of the CPUs that were online then.
    given: Option<LaneMap>,
    lanes: LaneMap,
    /// What `cpu/online` said.
    online: String,
    /// Looks since that changed, and no more than count.
    looks: u32,
    /// The last look failed, or found lanes that were not followed: the next one looks again.
    open: bool,
}

impl Machine {
    /// The machine that a directory describes as `/sys/devices/system` does, all its online CPUs
    /// allowed: where this process may run says nothing about the consumers.
    pub(super) fn look_at(root: &Path, given: Option<&str>) -> Result<Machine> {
        let online = online(root);
        let found = LaneMap::from_sysfs(root, None)?;
        let given = given.map(|given| found.with_override(given)).transpose()?;
        let lanes = given.clone().unwrap_or(found);
        Ok(Machine { root: root.to_owned(), given, lanes, online, looks: u32::MAX, open: false })
    }

    pub(super) fn lanes(&self) -> &LaneMap {
        &self.lanes
    }

    /// The lanes as they are now, if they are not those that were [`followed`](Self::followed)
    /// last. One file is read where no CPU came or went.
    pub(super) fn changed(&mut self) -> Result<Option<LaneMap>> {
        let online = online(&self.root);
        if online == self.online {
            self.looks = self.looks.saturating_add(1);
        } else {
            (self.online, self.looks) = (online, 0);
        }
        if self.looks > 0 && !AGAIN.contains(&self.looks) && !self.open {
            return Ok(None);
        }
        self.open = true;
        let found = LaneMap::from_sysfs(&self.root, None)?;
        let lanes = match &self.given {
            Some(given) => found.with_override(&given_to(given, &found))?,
            None => found,
        };
        self.open = lanes != self.lanes;
        Ok(self.open.then_some(lanes))
    }

    /// These are the lanes now.
    pub(super) fn followed(&mut self, lanes: LaneMap) {
        (self.lanes, self.open) = (lanes, false);
    }
}

/// Empty if it cannot be read, which making the lanes will say.
fn online(root: &Path) -> String {
    fs::read_to_string(root.join("cpu/online")).unwrap_or_default()
}

/// The lanes that the user gave, for the CPUs that are online now: a lane without any is none, and
/// CPUs that the user did not know of are in the machine's own lanes.
fn given_to(given: &LaneMap, found: &LaneMap) -> String {
    let online = found.online();
    let known = given.lanes().fold(CpuSet::new(), |known, lane| known.union(given.cpus(lane)));
    let known_lanes = given.lanes().map(|lane| given.cpus(lane).intersection(online));
    let other_lanes = found.lanes().map(|lane| found.cpus(lane).difference(&known));
    let lanes = known_lanes.chain(other_lanes).filter(|cpus| !cpus.is_empty());
    lanes.map(|cpus| cpus.to_string()).collect::<Vec<_>>().join("|")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A machine of four CPUs in one lane that sysfs describes as far as lanes need it.
    fn tree(online: &str) -> TempDir {
        let dir = TempDir::new().expect("a folder");
        fs::create_dir(dir.path().join("cpu")).expect("a folder");
        fs::write(dir.path().join("cpu/present"), "0-3\n").expect("a file");
        set_online(dir.path(), online);
        dir
    }

    fn set_online(root: &Path, online: &str) {
        fs::write(root.join("cpu/online"), format!("{online}\n")).expect("a file");
    }

    /// Looks until nothing is expected to change any more, and follows.
    fn settle(machine: &mut Machine) -> Vec<String> {
        let looks = (0..100).filter_map(|_| {
            let lanes = machine.changed().expect("it is readable")?;
            let text = lanes.to_string();
            machine.followed(lanes);
            Some(text)
        });
        looks.collect()
    }

    #[test]
    fn lanes_change_when_cpus_come_and_go_and_only_then() {
        let tree = tree("0-3");
        let mut machine = Machine::look_at(tree.path(), None).expect("a machine");
        assert_eq!(settle(&mut machine), [""; 0]);
        set_online(tree.path(), "0,2-3");
        assert_eq!(settle(&mut machine), ["0,2-3"]);
        assert_eq!(machine.lanes().lane_of(1), None);
        set_online(tree.path(), "0-3");
        assert_eq!(settle(&mut machine), ["0-3"]);
    }

    #[test]
    fn given_lanes_outlast_their_cpus() {
        let tree = tree("0-2");
        let mut machine = Machine::look_at(tree.path(), Some("0|1,2")).expect("a machine");
        for (online, lanes) in [
            ("0,2", "0|2"),
            // A lane without CPUs is none, until they are back.
            ("1-2", "1-2"),
            ("0-2", "0|1-2"),
            // One that the user could not name.
            ("0-3", "0|1-2|3"),
            ("3", "3"),
        ] {
            set_online(tree.path(), online);
            assert_eq!(settle(&mut machine), [lanes], "{online}");
        }
    }

    #[test]
    fn a_machine_that_cannot_be_read_is_an_error_and_looked_at_again() {
        let tree = tree("0-3");
        let mut machine = Machine::look_at(tree.path(), None).expect("a machine");
        fs::remove_file(tree.path().join("cpu/online")).expect("it is there");
        for _ in 0..200 {
            machine.changed().expect_err("nothing to read");
        }
        assert_eq!(machine.lanes().to_string(), "0-3");
        set_online(tree.path(), "0-1");
        assert_eq!(settle(&mut machine), ["0-1"]);
    }

    #[test]
    fn what_could_not_be_followed_is_tried_again() {
        let tree = tree("0-3");
        let mut machine = Machine::look_at(tree.path(), None).expect("a machine");
        set_online(tree.path(), "0-1");
        for _ in 0..200 {
            assert!(machine.changed().expect("it is readable").is_some());
        }
        assert_eq!(settle(&mut machine), ["0-1"]);
    }

    #[test]
    fn caches_that_are_shown_late_are_seen() {
        let tree = tree("0-1");
        let mut machine = Machine::look_at(tree.path(), None).expect("a machine");
        set_online(tree.path(), "0-3");
        let seen = machine.changed().expect("it is readable").expect("a change");
        assert_eq!(seen.to_string(), "0-3");
        machine.followed(seen);
        for cpu in 0..4 {
            let cache = tree.path().join(format!("cpu/cpu{cpu}/cache/index3"));
            fs::create_dir_all(&cache).expect("a folder");
            let shared = if cpu < 2 { "0-1" } else { "2-3" };
            for (file, text) in [("level", "3"), ("type", "Unified"), ("shared_cpu_list", shared)] {
                fs::write(cache.join(file), format!("{text}\n")).expect("a file");
            }
        }
        assert_eq!(settle(&mut machine), ["0-1|2-3"]);
    }
}
