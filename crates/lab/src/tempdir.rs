//! The lab's folder for configurations and sockets, and the removal of what dead labs left.
//!
//! A folder is `$TMPDIR/cachelane-lab-PID-START-N`, where START is the start time of the
//! process in clock ticks since boot, so that a reused PID is not taken for the owner. The owner
//! also holds a lock on a file inside: a process in another PID namespace that shares the folder
//! sees no such PID, but it sees the lock. A folder is swept only if both say that it is dead.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, Result, usage};

const PREFIX: &str = "cachelane-lab-";
const LOCK: &str = "lock";

/// A folder that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct TempDir {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl TempDir {
    /// A new folder in `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let start = usage::start_time(pid)
            .ok_or_else(|| Error::io(format!("/proc/{pid}/stat"), io::ErrorKind::NotFound))?;
        // Relaxed: a counter on its own.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{pid}-{start}-{number}"));
        let context = |error| Error::io(format!("cannot make {}", path.display()), error);
        DirBuilder::new().mode(0o700).create(&path).map_err(context)?;
        let lock = File::create(path.join(LOCK)).map_err(context)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| context(error.into()))?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // If it fails, the next lab sweeps it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders in `parent` of labs whose process has died.
pub(crate) fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let owner = entry.file_name().to_str().and_then(owner);
        if owner.is_some_and(|owner| !lives(owner)) && is_abandoned(&entry.path()) {
            // Somebody else may sweep it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The PID and start time in a folder's name.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let pid = parts.next()?.parse().ok()?;
    let start = parts.next()?.parse().ok()?;
    let _number: u32 = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((pid, start))
}

fn lives((pid, start): (u32, u64)) -> bool {
    usage::start_time(pid) == Some(start)
}

/// Whether it is a folder of ours, a real one, that nobody holds the lock of.
fn is_abandoned(path: &Path) -> bool {
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() {
        return false;
    }
    match File::open(path.join(LOCK)) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        // The owner died before it made the lock.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_scheme_have_an_owner() {
        let cases = [
            ("cachelane-lab-12-345-0", Some((12, 345))),
            ("cachelane-lab-12-345", None),
            ("cachelane-lab-12-345-0-1", None),
            ("cachelane-lab-x-345-0", None),
            ("other-12-345-0", None),
        ];
        for (name, expected) in cases {
            assert_eq!(owner(name), expected, "{name}");
        }
    }

    #[test]
    fn a_reused_pid_does_not_count_as_the_owner() {
        let pid = std::process::id();
        let start = usage::start_time(pid).expect("this process lives");
        assert!(lives((pid, start)));
        assert!(!lives((pid, start + 1)));
    }

    #[test]
    fn sweep_takes_dead_folders_and_leaves_living_and_locked_ones() {
        let pid = std::process::id();
        let start = usage::start_time(pid).expect("this process lives");
        // Of its own: other tests sweep the usual one.
        let parent = std::env::temp_dir().join(format!("lab-sweep-{pid}-{start}"));
        fs::create_dir(&parent).expect("a folder");
        let alive = TempDir::new(&parent).expect("a folder");
        let dead = parent.join(format!("{PREFIX}{pid}-{}-7", start + 1));
        let locked = parent.join(format!("{PREFIX}{pid}-{}-8", start + 1));
        fs::create_dir(&dead).expect("a folder");
        fs::write(dead.join("haproxy.cfg"), "").expect("a file");
        fs::create_dir(&locked).expect("a folder");
        let lock = File::create(locked.join(LOCK)).expect("a lock file");
        flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("the lock");

        sweep(&parent);
        assert!(alive.path().exists());
        assert!(!dead.exists());
        assert!(locked.exists());

        // Not just closed: a child that another test forks holds the lock too until it execs.
        flock(&lock, FlockOperation::Unlock).expect("unlocks");
        sweep(&parent);
        assert!(!locked.exists());
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
        fs::remove_dir(&parent).expect("it is empty");
    }
}
