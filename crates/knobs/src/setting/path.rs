//! Where a setting's file is, and opening it without leaving the kernel's file systems.
//!
//! The program often runs as root, and others may own a directory or a link on the way. So the path
//! may have no link until it is on a file system of the kernel's, and from there on may lead
//! nowhere above that point. The file that is open in the end is looked at once more.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

const SYSCTLS: &str = "/proc/sys";

/// A path in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Below `/proc/sys`.
    Sysctl(PathBuf),
    /// Absolute.
    File(PathBuf),
}

/// A file, or why it is none that can be a setting.
type Opened = Result<File, String>;

impl Place {
    pub(super) fn of_sysctl(name: &str) -> Result<Self, String> {
        let swap = |c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        let path: String = match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
            Some(b'.') => name.chars().map(swap).collect(),
            _ => name.to_owned(),
        };
        check_parts(path.split('/')).map_err(|trouble| {
            format!("{trouble} (expected a sysctl's name, such as net.core.somaxconn)")
        })?;
        Ok(Self::Sysctl(path.into()))
    }

    pub(super) fn of_file(path: &str) -> Result<Self, String> {
        let parts = path.strip_prefix('/').ok_or("its path is not absolute")?;
        check_parts(parts.split('/'))?;
        Ok(Self::File(path.into()))
    }

    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Sysctl(name) => Path::new(SYSCTLS).join(name),
            Self::File(path) => path.clone(),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// What the system says; inside, what speaks against the file that there is.
    pub(super) fn open(&self, flags: OFlags) -> rustix::io::Result<Opened> {
        let (top, rest) = match self {
            Self::Sysctl(name) => (step(CWD, SYSCTLS)?, name.clone()),
            Self::File(path) => match kernel_part(path)? {
                Some(parts) => parts,
                None => {
                    return Ok(Err("it is not on a file system of the kernel's (expected sysfs, \
                                   procfs, cgroup, debugfs or tracefs)"
                        .to_owned()));
                }
            },
        };
        // What may be read and what may be written is asked with the file in hand, so that what is
        // opened for that is the file that was looked at.
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let within = match self {
            Self::Sysctl(_) => within | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
            Self::File(_) => within,
        };
        let looked = look(&top, &rest, within)?;
        if let Err(trouble) = check_file(&looked)? {
            return Ok(Err(trouble));
        }
        // Through /proc, which opens just what the descriptor is of.
        let itself = format!("/proc/self/fd/{}", looked.as_raw_fd());
        let file = rustix::fs::open(itself, flags, Mode::empty())?;
        Ok(Ok(File::from(file)))
    }
}

/// The path of an open file without links.
pub(super) fn of_open(file: &File) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether an open file is of the sysfs of this thread's network namespace. That has another device
/// number each time that it is mounted where it was mounted nowhere, as `ip netns exec` does for each
/// command.
pub(super) fn is_of_own_sysfs(file: &File) -> rustix::io::Result<bool> {
    if fstatfs(file)?.f_type != libc::SYSFS_MAGIC {
        return Ok(false);
    }
    let own = || {
        let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&sysfs)?;
        let flags = MountAttrFlags::MOUNT_ATTR_RDONLY;
        fstat(fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
    };
    let device = fstat(file)?.st_dev;
    // Who may not mount it has the one that is mounted.
    Ok(own().is_ok_and(|own| own.st_dev == device))
}

/// Whether a file of this path without links shows another thing in another network namespace.
/// (Of sysfs, each namespace has its own file system.)
pub(super) fn is_of_namespace(path: &Path) -> bool {
    path.starts_with("/proc/sys/net")
}

/// The number of this thread's network namespace.
pub(super) fn network_namespace() -> io::Result<u64> {
    fs::metadata("/proc/thread-self/ns/net").map(|namespace| namespace.ino())
}

/// Whether no thread is in a network namespace and no mount keeps it.
pub(super) fn is_gone(proc: &Path, namespace: u64) -> bool {
    let name = format!("net:[{namespace}]");
    let is_there = |thread: &Path| match fs::read_link(thread.join("ns/net")) {
        Ok(link) => link == Path::new(&name),
        // It has ended, or we may not look: then we do not know.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    };
    let threads = |process: PathBuf| fs::read_dir(process.join("task")).into_iter().flatten();
    let Ok(processes) = fs::read_dir(proc) else { return false };
    let mut threads = processes.flatten().flat_map(|process| threads(process.path())).flatten();
    let mounts = fs::read_to_string(proc.join("self/mountinfo"));
    !threads.any(|thread| is_there(&thread.path()))
        && mounts.is_ok_and(|mounts| !mounts.contains(&name))
}

fn check_parts<'a>(mut parts: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let trouble = parts.find_map(|part| match part {
        "" => Some("a part of its name is empty".to_owned()),
        "." | ".." => Some(format!("{part:?} is no part of a name")),
        part if part.contains(char::is_control) => Some(format!("{part:?} cannot be shown")),
        _ => None,
    });
    trouble.map_or(Ok(()), Err)
}

/// The first directory of the path that is on a file system of the kernel's, and what is below it.
fn kernel_part(path: &Path) -> rustix::io::Result<Option<(OwnedFd, PathBuf)>> {
    let mut directory = step(CWD, "/")?;
    let mut parts = path.strip_prefix("/").unwrap_or(path).components();
    while let Some(part) = parts.next() {
        directory = match step(&directory, part) {
            // The file itself, elsewhere than on one of the kernel's.
            Err(Errno::NOTDIR) => return Ok(None),
            stepped => stepped?,
        };
        if is_kernels(&directory)? {
            return Ok(Some((directory, parts.as_path().to_owned())));
        }
    }
    Ok(None)
}

/// Looks a file up. A link that goes up cannot be followed safely while a mount or a rename is under
/// way anywhere on the machine: the kernel then asks to try again.
fn look(top: &OwnedFd, path: &Path, within: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    const TRIES: u32 = 1_000;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let looks = || openat2(top, path, flags, Mode::empty(), within);
    for _ in 1..TRIES {
        match looks() {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            looked => return looked,
        }
    }
    looks()
}

/// A directory, not by a link.
fn step(from: impl AsFd, to: impl AsRef<Path>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(from, to.as_ref(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn is_kernels(file: impl AsFd) -> rustix::io::Result<bool> {
    let sort = fstatfs(file)?.f_type;
    let kernels = [
        libc::SYSFS_MAGIC,
        libc::PROC_SUPER_MAGIC,
        libc::CGROUP_SUPER_MAGIC,
        libc::CGROUP2_SUPER_MAGIC,
        libc::DEBUGFS_MAGIC,
        libc::TRACEFS_MAGIC,
    ];
    Ok(kernels.contains(&sort))
}

/// What speaks against a file.
fn check_file(file: &OwnedFd) -> rustix::io::Result<Result<(), String>> {
    if !is_kernels(file)? {
        return Ok(Err("it lies on another file system that is mounted there".to_owned()));
    }
    if FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Ok(Err("it is not a regular file".to_owned()));
    }
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let is_of_process = path.is_ok_and(|path| {
        let below = path.strip_prefix("/proc").ok().and_then(|below| below.iter().next());
        let first = below.and_then(|first| first.to_str()).unwrap_or_default();
        !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit())
    });
    Ok(match is_of_process {
        true => Err("it is a process's, and its id may be another's later".to_owned()),
        false => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sysctls_are_read_as_sysctl_reads_them() {
        for (name, path) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4.conf.eth0/1.rp_filter", "net/ipv4/conf/eth0.1/rp_filter"),
            ("net/ipv4/conf/eth0.1/rp_filter", "net/ipv4/conf/eth0.1/rp_filter"),
        ] {
            assert_eq!(Place::of_sysctl(name), Ok(Place::Sysctl(path.into())), "{name}");
        }
        for name in ["", ".", "/", "net..core", "../core", "net/../../etc/passwd", "net.", "a.\n"] {
            assert!(Place::of_sysctl(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn paths_of_files_are_absolute_and_plain() {
        let path = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
        assert_eq!(Place::of_file(path), Ok(Place::File(path.into())));
        for path in ["", "/", "sys/x", "/sys/../etc/passwd", "/sys//x", "/sys/./x", "/sys/x/"] {
            assert!(Place::of_file(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_namespace_is_gone_when_nobody_is_in_it_and_nothing_names_it() {
        let proc = tempfile::TempDir::new().unwrap();
        let write = |path: &str, link: Option<&str>, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match link {
                Some(to) => std::os::unix::fs::symlink(to, path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        };
        write("7/task/7/ns/net", Some("net:[1]"), "");
        write("7/task/8/ns/net", Some("net:[2]"), "");
        write("self/mountinfo", None, "25 21 0:4 net:[3] /run/netns/a rw - nsfs nsfs rw\n");
        let gone: Vec<u64> = (1..=5).filter(|&n| is_gone(proc.path(), n)).collect();
        assert_eq!(gone, [4, 5]);
        assert!(!is_gone(&proc.path().join("none"), 4), "what cannot be seen may be there");
    }
}
