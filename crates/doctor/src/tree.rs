//! Reading the files of a host, and keeping what was read, so that it can be written down.
//!
//! A file that is not there is nothing to speak of: kernels and machines differ. A file that is
//! there and cannot be read is remembered with the reason. What is private goes out of a text as it
//! is read: a finding never sees it, and so a record never has it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fd::AsRawFd as _;
use rustix::fd::OwnedFd;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::Result;
use crate::error::Context as _;

/// The longest file that is read, in bytes: `/proc/cpuinfo` of a thousand CPUs has 2 MiB.
const LONGEST: u64 = 16 << 20;

/// What was read at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file with this text.
    Text(String),
    /// A link whose target has this last part.
    Link(String),
    /// A folder.
    Folder,
}

/// The files of a host, this one or a recorded one.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// sysfs of the caller's network namespace, where that may be mounted.
    sysfs: Option<OwnedFd>,
    read: RefCell<BTreeMap<String, Entry>>,
    not_seen: RefCell<BTreeSet<String>>,
}

impl Tree {
    /// This host's. The devices are those of the network namespace that the caller is in, also
    /// where `/sys` is another one's, if the caller may mount (CAP_SYS_ADMIN).
    pub(crate) fn here() -> Self {
        let mount = || -> rustix::io::Result<OwnedFd> {
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&sysfs)?;
            fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        };
        Self { sysfs: mount().ok(), ..Self::at(Path::new("/")) }
    }

    /// That of a folder with the same paths.
    pub(crate) fn at(root: &Path) -> Self {
        let (read, not_seen) = Default::default();
        Self { root: root.to_owned(), sysfs: None, read, not_seen }
    }

    /// A file's text without blanks around it; none if it is not there or cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.filtered(path, path, str::to_owned)
    }

    /// The part of a file that `keep` keeps, which is all that a record has; it is recorded at
    /// `record_at`. `keep` leaves what it has kept as it is.
    pub(crate) fn filtered(
        &self,
        path: &str,
        record_at: &str,
        keep: impl Fn(&str) -> String,
    ) -> Option<String> {
        let read = || -> io::Result<String> {
            let mut bytes = Vec::new();
            fs::File::open(self.at_path(path))?.take(LONGEST).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        self.kept(path, record_at, keep, read())
    }

    fn kept(
        &self,
        path: &str,
        record_at: &str,
        keep: impl Fn(&str) -> String,
        read: io::Result<String>,
    ) -> Option<String> {
        let text = keep(self.seen(path, read)?.trim());
        self.remember(record_at, Entry::Text(text.clone()));
        Some(text)
    }

    /// The same of a file that is compressed by gzip.
    pub(crate) fn unzipped(
        &self,
        path: &str,
        record_at: &str,
        keep: impl Fn(&str) -> String,
    ) -> Option<String> {
        let read = || -> io::Result<String> {
            let mut text = String::new();
            let file = fs::File::open(self.at_path(path))?;
            flate2::read::GzDecoder::new(file).take(LONGEST).read_to_string(&mut text)?;
            Ok(text)
        };
        self.kept(path, record_at, keep, read())
    }

    /// What a file says, if that has this form.
    pub(crate) fn value<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        let text = self.text(path)?;
        let value = text.parse().ok();
        if value.is_none() {
            self.note(format!("/{path} says {text:?}, which makes no sense to doctor"));
        }
        value
    }

    /// The names in a folder, in order; none if it is not there.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let list = || -> io::Result<Vec<String>> {
            let entries = fs::read_dir(self.at_path(path))?;
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        };
        let mut names = self.seen(path, list()).unwrap_or_default();
        names.sort_unstable();
        names
    }

    /// The numbers N of the names `prefixN` in a folder, ascending.
    pub(crate) fn numbered(&self, path: &str, prefix: &str) -> Vec<u32> {
        let names = self.names(path);
        let numbers = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }

    /// Whether something is there. What it holds is not read.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let there = self.at_path(path).exists();
        if there {
            self.remember(path, Entry::Text(String::new()));
        }
        there
    }

    /// Says that a folder is there, so that a record has it even if nothing in it is read.
    pub(crate) fn folder(&self, path: &str) {
        self.remember(path, Entry::Folder);
    }

    /// The last part of a link's target.
    pub(crate) fn target(&self, path: &str) -> Option<String> {
        let target = self.seen(path, fs::read_link(self.at_path(path)))?;
        let name = target.file_name()?.to_string_lossy().into_owned();
        self.remember(path, Entry::Link(name.clone()));
        Some(name)
    }

    /// The folder that stands for a path of the host.
    pub(crate) fn at_path(&self, path: &str) -> PathBuf {
        match (&self.sysfs, path.strip_prefix("sys/class/net")) {
            (Some(sysfs), Some(rest)) => {
                format!("/proc/self/fd/{}/class/net{rest}", sysfs.as_raw_fd()).into()
            }
            _ => self.root.join(path),
        }
    }

    /// Drops what was read of a folder and all below it, which is gone.
    pub(crate) fn forget(&self, path: &str) {
        let is_below = |entry: &str| {
            entry.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.read.borrow_mut().retain(|entry, _| !is_below(entry));
    }

    /// Remembers what could not be read.
    pub(crate) fn note(&self, what: String) {
        self.not_seen.borrow_mut().insert(what);
    }

    /// What could not be read, and why, in order.
    pub(crate) fn not_seen(&self) -> Vec<String> {
        self.not_seen.borrow().iter().cloned().collect()
    }

    /// Writes what was read below a folder, each thing at its own path.
    ///
    /// # Errors
    /// What the system reports, with the path.
    pub(crate) fn write(&self, folder: &Path, hide: impl Fn(&str) -> String) -> Result<()> {
        for (path, entry) in &*self.read.borrow() {
            let path = folder.join(hide(path));
            let parent = match entry {
                Entry::Folder => Some(path.as_path()),
                _ => path.parent(),
            };
            let made = parent.map_or(Ok(()), fs::create_dir_all);
            made.context(format_args!("cannot make the folder of {}", path.display()))?;
            let written = match entry {
                Entry::Text(text) => fs::write(&path, hide(text) + "\n"),
                Entry::Link(target) => std::os::unix::fs::symlink(hide(target), &path),
                Entry::Folder => Ok(()),
            };
            written.context(format_args!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn remember(&self, path: &str, entry: Entry) {
        self.read.borrow_mut().insert(path.to_owned(), entry);
    }

    /// What was read; none, and a note if it is there, where that failed. What goes away while it
    /// is read (a device, a process) was not there.
    fn seen<T>(&self, path: &str, read: io::Result<T>) -> Option<T> {
        use rustix::io::Errno;
        let gone = |error: &io::Error| {
            matches!(
                Errno::from_io_error(error),
                // A device that goes down or has one queue answers with the last three.
                Some(
                    Errno::NOENT
                        | Errno::NOTDIR
                        | Errno::SRCH
                        | Errno::NODEV
                        | Errno::INVAL
                        | Errno::OPNOTSUPP
                )
            )
        };
        match read {
            Ok(value) => return Some(value),
            Err(error) if gone(&error) => {}
            Err(error) => self.note(format!("cannot read /{path}: {error}")),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_silent_and_what_cannot_be_read_is_said() {
        let dir = tempfile::TempDir::new().expect("a folder");
        fs::create_dir(dir.path().join("folder")).expect("a folder");
        fs::write(dir.path().join("number"), "many\n").expect("a file");
        let tree = Tree::at(dir.path());
        assert_eq!((tree.text("absent"), tree.names("absent").len()), (None, 0));
        assert_eq!(tree.text("number/below"), None);
        assert!(tree.not_seen().is_empty(), "{:?}", tree.not_seen());
        // A folder opens as a file does, and cannot be read.
        assert_eq!(tree.text("folder"), None);
        assert_eq!(tree.value::<u32>("number"), None);
        let said = tree.not_seen();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("/number says \"many\""), "{said:?}");
        assert!(said[1].starts_with("cannot read /folder: "), "{said:?}");
    }

    #[test]
    fn only_what_was_kept_is_written_down() {
        let (from, to) = [(); 2].map(|()| tempfile::TempDir::new().expect("a folder")).into();
        fs::write(from.path().join("list"), "secret 1\nopen 2\n").expect("a file");
        fs::write(from.path().join("other"), "never read").expect("a file");
        std::os::unix::fs::symlink("../some/where/driver", from.path().join("link")).expect("may");
        let tree = Tree::at(from.path());
        let open = |text: &str| {
            let lines = text.lines().filter(|line| line.starts_with("open"));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(tree.filtered("list", "a/list", open).as_deref(), Some("open 2"));
        assert_eq!(tree.target("link").as_deref(), Some("driver"));
        tree.write(to.path(), |text| text.replace('2', "two")).expect("it writes");
        assert_eq!(fs::read_to_string(to.path().join("a/list")).expect("it"), "open two\n");
        let again = Tree::at(to.path());
        assert_eq!(again.target("link").as_deref(), Some("driver"));
        let names: Vec<_> = fs::read_dir(to.path()).expect("it").collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }
}
