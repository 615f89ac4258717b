//! The files of a capture: one, or one after the other, of which the oldest may be removed.
//!
//! With rotation, `all.pcap` becomes `all_00001_20261129101500.pcap`, as dumpcap names its files: a
//! number, and the time in UTC. Only files that this run has made are removed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use anyhow::Context as _;

use super::Rotation;

/// Makes the files.
pub(super) struct Files {
    path: PathBuf,
    rotates: bool,
    /// So many of this run are kept.
    most: Option<usize>,
    number: u64,
    kept: VecDeque<Kept>,
    made: Arc<AtomicU64>,
}

/// A file of this run.
struct Kept {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

/// A file that was made.
pub(super) struct Made {
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// Nobody else writes to it.
    pub(super) ours: bool,
}

impl Files {
    pub(super) fn new(path: &Path, rotation: &Rotation) -> Files {
        Files {
            path: path.to_owned(),
            rotates: rotation.is_on(),
            most: rotation.files.map(|files| files as usize),
            number: 0,
            kept: VecDeque::new(),
            made: Arc::default(),
        }
    }

    /// How many were made so far, for whoever asks.
    pub(super) fn made(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.made)
    }

    /// Makes the next file; before that, removes the oldest if there are too many.
    pub(super) fn next(&mut self) -> anyhow::Result<Made> {
        let made = match self.rotates {
            false if self.path == Path::new("-") => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                let file = stdout.context("cannot write stdout")?.into();
                Made { path: self.path.clone(), file, ours: false }
            }
            false => {
                let file = File::create(&self.path);
                let file = file.with_context(|| cannot_write(&self.path))?;
                Made { path: self.path.clone(), file, ours: true }
            }
            true => {
                self.make_room()?;
                self.make()?
            }
        };
        // Relaxed: it orders nothing.
        self.made.fetch_add(1, Relaxed);
        Ok(made)
    }

    /// Removes the file that was made last, in which there is nothing.
    pub(super) fn undo(&mut self) {
        if let Some(last) = self.kept.pop_back() {
            let _ = last.remove();
            self.made.fetch_sub(1, Relaxed);
        }
    }

    fn make(&mut self) -> anyhow::Result<Made> {
        let now = SystemTime::now();
        loop {
            self.number += 1;
            let path = numbered(&self.path, self.number, now);
            match File::create_new(&path) {
                Ok(file) => {
                    let meta = file.metadata().with_context(|| cannot_write(&path))?;
                    self.kept.push_back(Kept { path: path.clone(), id: id(&meta) });
                    return Ok(Made { path, file, ours: true });
                }
                // Of another run that began in the same second.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| cannot_write(&path)),
            }
        }
    }

    fn make_room(&mut self) -> anyhow::Result<()> {
        while self.most.is_some_and(|most| self.kept.len() >= most) {
            let Some(oldest) = self.kept.pop_front() else { break };
            oldest.remove().with_context(|| {
                format!("cannot remove {}, the oldest file of --files", oldest.path.display())
            })?;
        }
        Ok(())
    }
}

impl Kept {
    /// Removes the file, unless somebody was faster or it is another one by now.
    fn remove(&self) -> io::Result<()> {
        let removed = match fs::symlink_metadata(&self.path) {
            Ok(meta) if id(&meta) == self.id => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

fn id(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

pub(super) fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", super::name(path))
}

/// The path of a file of a rotation.
fn numbered(path: &Path, number: u64, now: SystemTime) -> PathBuf {
    let time = humantime::format_rfc3339_seconds(now).to_string();
    let time: String = time.chars().filter(char::is_ascii_digit).collect();
    with(path, &format!("_{number:05}_{time}"))
}

/// What people read of all files of a rotation.
pub(super) fn pattern(path: &Path) -> PathBuf {
    with(path, "_*")
}

/// The path with this before its extension.
fn with(path: &Path, what: &str) -> PathBuf {
    let mut name: OsString = path.file_stem().unwrap_or_default().into();
    name.push(what);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn names_are_as_dumpcap_has_them_and_sort() {
        let time = UNIX_EPOCH + Duration::from_secs(1_796_000_000);
        for (given, number, expected) in [
            ("all.pcap", 1, "all_00001_20261130005320.pcap"),
            ("/var/a.b/x.y.pcapng", 123, "/var/a.b/x.y_00123_20261130005320.pcapng"),
            ("bare", 100_000, "bare_100000_20261130005320"),
            (".hidden", 2, ".hidden_00002_20261130005320"),
        ] {
            assert_eq!(numbered(given.as_ref(), number, time), Path::new(expected));
        }
        assert_eq!(pattern("d/all.pcap".as_ref()), Path::new("d/all_*.pcap"));
    }

    fn ring(folder: &Path, files: u32) -> Files {
        let rotation = Rotation { files: Some(files), size: Some(1 << 20), time: None };
        Files::new(&folder.join("x.pcap"), &rotation)
    }

    fn listed(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = entries.collect();
        paths.sort();
        paths
    }

    #[test]
    fn a_ring_keeps_the_newest_and_removes_nothing_that_it_has_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("x_00000_20200101000000.pcap");
        fs::write(&other, "another run's").unwrap();
        let mut files = ring(folder.path(), 3);
        let made: Vec<PathBuf> = (0..5)
            .map(|_| {
                let made = files.next().unwrap().path;
                assert!(listed(folder.path()).len() <= 4);
                made
            })
            .collect();
        assert_eq!(listed(folder.path()), [std::slice::from_ref(&other), &made[2..]].concat());
        // Somebody took one away, and put another file in the next one's place.
        fs::remove_file(&made[2]).unwrap();
        fs::rename(&made[3], folder.path().join("kept")).unwrap();
        fs::write(&made[3], "not ours").unwrap();
        let more: Vec<PathBuf> = (0..2).map(|_| files.next().unwrap().path).collect();
        let there = [&[folder.path().join("kept"), other, made[3].clone()], &made[4..], &more[..]];
        assert_eq!(listed(folder.path()), there.concat());
        assert_eq!(files.made().load(Relaxed), 7);
    }

    #[test]
    fn runs_of_the_same_second_take_nothing_from_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (ring(folder.path(), 2), ring(folder.path(), 2));
        let made: Vec<PathBuf> =
            [&mut one, &mut other].into_iter().map(|files| files.next().unwrap().path).collect();
        assert_ne!(made[0], made[1]);
        for _ in 0..3 {
            one.next().unwrap();
        }
        assert!(made[1].exists() && !made[0].exists());
        assert_eq!(listed(folder.path()).len(), 3);
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = ring(folder.path(), 2);
        files.next().unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        let refused = files.next().map(drop).unwrap_err();
        let expected = format!("cannot write {}/x_00002_", folder.path().display());
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
}
