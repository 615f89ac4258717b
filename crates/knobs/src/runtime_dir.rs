//! Where control sockets are, and which processes they belong to.
//!
//! The directory is the first line of defence: it belongs to one user, and nobody else may write
//! to it, so nobody else can put a socket there that pretends to be a process.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, geteuid, test_kill_process};

use crate::{Error, ErrorKind, Result};

/// The directory of this user's control sockets: `$CACHELANE_RUNTIME_DIR`, else `/run/cachelane`
/// for root, else `$XDG_RUNTIME_DIR/cachelane`, else `/tmp/cachelane-UID`. It need not exist.
pub fn runtime_dir() -> PathBuf {
    choose(|name| env::var_os(name), geteuid().as_raw())
}

/// A process with a control socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Process {
    /// Such as `relay`.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
}

/// The processes of this user whose control sockets answer, by name and process id. Sockets that
/// dead processes left behind are removed.
///
/// # Errors
/// [`ErrorKind::NotPermitted`] where others could have put sockets into the [`runtime_dir`];
/// [`ErrorKind::Io`] where it cannot be read. Where there is no directory, there is no process.
pub fn discover() -> Result<Vec<Process>> {
    discover_in(&runtime_dir())
}

/// As [`discover`], in a directory of the caller's choice.
///
/// # Errors
/// As for [`discover`].
pub fn discover_in(dir: &Path) -> Result<Vec<Process>> {
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        _ => check(dir)?,
    }
    let list = |error| Error::io(format!("list {}", dir.display()), error);
    let mut processes = Vec::new();
    for entry in fs::read_dir(dir).map_err(list)? {
        let path = entry.map_err(list)?.path();
        let Some((name, pid)) = parse_file_name(&path) else { continue };
        if !remove_if_stale(&path) {
            processes.push(Process { name, pid, path });
        }
    }
    processes.sort();
    Ok(processes)
}

/// Creates the directory if need be, and refuses one that others could tamper with.
pub(crate) fn prepare(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| Error::io(format!("create {}", dir.display()), error))?;
    check(dir)
}

/// The socket of a process, such as `relay-42.sock`.
pub(crate) fn socket_path(dir: &Path, name: &str, pid: u32) -> Result<PathBuf> {
    if is_process_name(name) {
        return Ok(dir.join(format!("{name}-{pid}.sock")));
    }
    let message = format!("process name {name:?} is not lowercase letters, digits, - and _");
    Err(Error::new(ErrorKind::BadName, message))
}

/// A socket connected to `path`; without a timeout it does not wait for a place in a full queue.
pub(crate) fn open(path: &Path, timeout: Option<Duration>) -> rustix::io::Result<OwnedFd> {
    let flags = match timeout {
        None => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(_) => SocketFlags::CLOEXEC,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The send timeout also bounds connect.
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Removes a socket that nobody listens to and whose process is gone; true if nobody listens.
///
/// Both are asked for: a socket that is bound but does not listen yet refuses connections too, and
/// a process of another PID namespace looks gone.
pub(crate) fn remove_if_stale(path: &Path) -> bool {
    let Some((_, pid)) = parse_file_name(path) else { return false };
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = match open(path, None) {
        Err(rustix::io::Errno::CONNREFUSED) => true,
        // It went away between listing and looking.
        Err(rustix::io::Errno::NOENT) => return true,
        _ => false,
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let gone = pid.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
    if refused && gone && is_socket && fs::remove_file(path).is_ok() {
        tracing::debug!(path = %path.display(), "removed the control socket of a dead process");
    }
    refused
}

fn choose(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("CACHELANE_RUNTIME_DIR") {
        return dir;
    }
    match set("XDG_RUNTIME_DIR") {
        _ if uid == 0 => PathBuf::from("/run/cachelane"),
        Some(dir) if dir.is_absolute() => dir.join("cachelane"),
        _ => PathBuf::from(format!("/tmp/cachelane-{uid}")),
    }
}

/// Refuses a directory that others could tamper with.
pub(crate) fn check(dir: &Path) -> Result<()> {
    // Not following a link: in /tmp, somebody else may have planted one.
    let metadata = fs::symlink_metadata(dir)
        .map_err(|error| Error::io(format!("look at {}", dir.display()), error))?;
    let (uid, mode) = (geteuid().as_raw(), metadata.permissions().mode() & 0o7777);
    let trouble = if !metadata.is_dir() {
        "is not a directory".to_owned()
    } else if metadata.uid() != uid {
        format!("belongs to uid {} (expected {uid})", metadata.uid())
    } else if mode & 0o022 != 0 {
        format!("can be written by others (mode {mode:04o}, expected 0700)")
    } else {
        return Ok(());
    };
    let message = format!(
        "runtime directory {} {trouble}; set CACHELANE_RUNTIME_DIR to one of your own",
        dir.display()
    );
    Err(Error::new(ErrorKind::NotPermitted, message))
}

fn parse_file_name(path: &Path) -> Option<(String, u32)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    let (name, pid) = stem.rsplit_once('-')?;
    let pid = pid.parse().ok().filter(|_| is_process_name(name))?;
    Some((name.to_owned(), pid))
}

fn is_process_name(name: &str) -> bool {
    let fits = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
    };
    !name.is_empty() && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    #[test]
    fn the_directory_follows_the_environment_and_the_user() {
        for (ours, xdg, uid, expected) in [
            ("/x", "/run/user/7", 0, "/x"),
            ("/x", "", 7, "/x"),
            ("", "/run/user/0", 0, "/run/cachelane"),
            ("", "/run/user/7", 7, "/run/user/7/cachelane"),
            ("", "", 7, "/tmp/cachelane-7"),
            ("", "relative", 7, "/tmp/cachelane-7"),
        ] {
            let variable = |name: &str| match name {
                "CACHELANE_RUNTIME_DIR" => Some(OsString::from(ours)),
                "XDG_RUNTIME_DIR" => Some(OsString::from(xdg)),
                _ => None,
            };
            assert_eq!(choose(variable, uid), Path::new(expected), "{ours:?} {xdg:?} {uid}");
        }
    }

    #[test]
    fn socket_names_are_read_as_they_are_written() {
        for (name, pid) in [("relay", 1), ("lend-rx_0", 4_000_000)] {
            let path = socket_path(Path::new("/run"), name, pid).unwrap();
            assert_eq!(parse_file_name(&path), Some((name.to_owned(), pid)));
        }
        for name in ["", "Relay", "a/b", "a.b", "..", "é"] {
            let error = socket_path(Path::new("/run"), name, 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName, "{name:?}");
        }
        for file in ["relay.sock", "relay-x.sock", "relay-1", "-1.sock", "Relay-1.sock"] {
            assert_eq!(parse_file_name(Path::new(file)), None, "{file}");
        }
    }

    #[test]
    fn a_new_directory_is_private() {
        let parent = TempDir::new().unwrap();
        let dir = parent.path().join("a/b");
        prepare(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, 0o700);
        prepare(&dir).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_tamper_with_is_refused() {
        let parent = TempDir::new().unwrap();
        let (dir, link, file) =
            (parent.path().join("dir"), parent.path().join("link"), parent.path().join("file"));
        fs::create_dir(&dir).unwrap();
        for mode in [0o770, 0o702, 0o1777] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(prepare(&dir).unwrap_err().kind(), ErrorKind::NotPermitted, "{mode:o}");
            assert_eq!(discover_in(&dir).unwrap_err().kind(), ErrorKind::NotPermitted);
        }
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&dir).unwrap();
        symlink(&dir, &link).unwrap();
        assert_eq!(prepare(&link).unwrap_err().kind(), ErrorKind::NotPermitted);
        fs::write(&file, "").unwrap();
        assert_eq!(discover_in(&file).unwrap_err().kind(), ErrorKind::NotPermitted);
    }

    #[test]
    fn root_refuses_the_directory_of_another_user() {
        if !geteuid().is_root() {
            eprintln!("skipped: root_refuses_the_directory_of_another_user: needs root");
            return;
        }
        let dir = TempDir::new().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        let error = prepare(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.to_string().contains("belongs to uid 65534 (expected 0)"), "{error}");
    }

    #[test]
    fn where_there_is_no_directory_there_is_no_process() {
        let parent = TempDir::new().unwrap();
        assert_eq!(discover_in(&parent.path().join("none")).unwrap(), []);
    }
}
