//! The lab's folder for configurations and sockets, and the removal of what dead labs left.
//!
//! A folder is `$TMPDIR/cachelane-lab-RANDOM`. As long as its lab lives, the file `lock` in it is
//! locked, which processes in other PID namespaces see as well. The file has its name only once it
//! is locked: a folder without it is a new one.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use crate::{Error, Result};

const PREFIX: &str = "cachelane-lab-";
const LOCK: &str = "lock";

/// A folder that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct TempDir {
    dir: tempfile::TempDir,
    /// Locked as long as it is open.
    _lock: File,
}

impl TempDir {
    /// A new folder in `parent`, which only this user can open.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let make = || -> io::Result<Self> {
            let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            let unlocked = dir.path().join("unlocked");
            let lock = File::create(&unlocked)?;
            lock.lock()?;
            fs::rename(unlocked, dir.path().join(LOCK))?;
            Ok(Self { dir, _lock: lock })
        };
        let context =
            |error| Error::io(format!("cannot make a folder in {}", parent.display()), error);
        make().map_err(context)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the folders in `parent` of labs whose process has died.
pub(crate) fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && is_abandoned(&entry.path()) {
            // Somebody else may sweep it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether it is a folder of this user, a real one, that nobody holds the lock of.
fn is_abandoned(path: &Path) -> bool {
    let is_ours =
        |meta: fs::Metadata| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(is_ours)
        && File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_takes_dead_folders_and_leaves_living_new_and_foreign_ones() {
        // Of its own: other tests sweep the usual one.
        let parent = tempfile::tempdir().expect("a folder");
        let alive = TempDir::new(parent.path()).expect("a folder");
        let [dead, new, other] = ["cachelane-lab-dead", "cachelane-lab-new", "other"]
            .map(|name| parent.path().join(name));
        for folder in [&dead, &new, &other] {
            fs::create_dir(folder).expect("a folder");
            fs::write(folder.join("haproxy.cfg"), "").expect("a file");
        }
        let lock = File::create(dead.join(LOCK)).expect("a lock file");
        File::create(other.join(LOCK)).expect("a lock file");
        lock.lock().expect("the lock");

        sweep(parent.path());
        assert!(alive.path().exists() && dead.exists());
        // Not just closed: a child that another test forks holds the lock too until it execs.
        lock.unlock().expect("unlocks");
        sweep(parent.path());
        assert!(alive.path().exists() && new.exists() && other.exists() && !dead.exists());
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }
}
