//! Unix sockets by their paths, however long those are, and how a control socket gets its name.
//!
//! # A name always listens
//!
//! A control socket is bound to a name of its own, listens, and only then takes the name that others
//! look for, by a rename that replaces nothing. So a socket with such a name that refuses connections
//! is a dead process's, in whatever PID namespace that was, and may be removed. Whoever removes one
//! has the directory locked (flock) and looks again under the lock: meanwhile another process may have
//! taken the name.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, open, renameat_with};
use rustix::io::{Errno, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use crate::Peer;

/// The end of the name of a socket that does not listen yet.
const NEW: &str = ".new";

/// When such a socket has been left there by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(60);

/// The most names that are tried: so many processes of one name and one process id, each in a PID
/// namespace of its own.
const NAMES: u32 = 10_000;

/// What is at the path of a control socket.
pub(crate) enum Found {
    /// Somebody listens, who is told as far as that could be found out.
    Live(Option<Peer>),
    /// A socket that nobody listens to, or nothing.
    Stale,
}

/// A socket connected to `path`; without a timeout it does not wait for a place in a full queue.
pub(crate) fn connect(path: &Path, timeout: Option<Duration>) -> Result<OwnedFd> {
    let flags = match timeout {
        None => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(_) => SocketFlags::CLOEXEC,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The send timeout also bounds connect.
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    at(path, |address| rustix::net::connect(&socket, address))?;
    Ok(socket)
}

/// Looks without waiting, and removes what a dead process left.
pub(crate) fn probe(path: &Path) -> Found {
    match connect(path, None) {
        Ok(socket) => Found::Live(Peer::of(&UnixStream::from(socket)).ok()),
        Err(Errno::CONNREFUSED) => {
            remove_stale(path);
            Found::Stale
        }
        // It went away between listing and looking.
        Err(Errno::NOENT) => Found::Stale,
        Err(_) => Found::Live(None),
    }
}

/// Removes a socket of this user's that refuses connections, if it still does.
pub(crate) fn remove_stale(path: &Path) {
    let Some(dir) = path.parent() else { return };
    let is_ours = fs::symlink_metadata(dir).is_ok_and(|dir| dir.uid() == geteuid().as_raw());
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if !is_ours || !is_socket {
        return;
    }
    let lock = open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    // Somebody else who has it may be stopped; then what is left stays for another time.
    let Ok(lock) = lock else { return };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        && connect(path, None).is_err_and(|error| error == Errno::CONNREFUSED)
        && fs::remove_file(path).is_ok()
    {
        tracing::debug!(path = %path.display(), "removed the control socket of a dead process");
    }
}

/// Whether the file at `path` is a control socket in the making, which is removed if nobody makes it
/// any more.
pub(crate) fn is_new(path: &Path) -> bool {
    let is_new =
        path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(NEW.as_bytes()));
    let made = fs::symlink_metadata(path).and_then(|file| file.modified());
    let age = made.ok().and_then(|made| SystemTime::now().duration_since(made).ok());
    if is_new && age.is_some_and(|age| age > ABANDONED) {
        remove_stale(path);
    }
    is_new
}

/// Listens as `STEM.sock` in `dir` or, where a process that lives has that name, as `STEM.2.sock` and
/// so on. Gives the path too; none where this process has the name itself.
pub(crate) fn listen(dir: &Path, stem: &str) -> Result<Option<(UnixListener, PathBuf)>> {
    let (listener, new) = listen_new(dir, stem)?;
    let named = take_name(dir, stem, &new);
    if !matches!(named, Ok(Some(_))) {
        // It was of use to nobody.
        let _ = fs::remove_file(&new);
    }
    Ok(named?.map(|path| (listener, path)))
}

fn listen_new(dir: &Path, stem: &str) -> Result<(UnixListener, PathBuf)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before bind, so that the file never exists with more rights: bind takes the mode from here.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    for number in 0..NAMES {
        let new = dir.join(format!(".{stem}.{number}{NEW}"));
        match at(&new, |address| rustix::net::bind(&socket, address)) {
            Err(Errno::ADDRINUSE) => {}
            bound => {
                bound?;
                rustix::net::listen(&socket, 128)?;
                return Ok((UnixListener::from(socket), new));
            }
        }
    }
    Err(Errno::ADDRINUSE)
}

fn take_name(dir: &Path, stem: &str, new: &Path) -> Result<Option<PathBuf>> {
    for number in 1..NAMES {
        let path = dir.join(match number {
            1 => format!("{stem}.sock"),
            _ => format!("{stem}.{number}.sock"),
        });
        for _ in 0..2 {
            match renameat_with(CWD, new, CWD, &path, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(Some(path)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            match probe(&path) {
                Found::Live(Some(peer)) if peer.pid == std::process::id() => return Ok(None),
                Found::Live(_) => break,
                Found::Stale => {}
            }
        }
    }
    Err(Errno::EXIST)
}

/// Calls with the address of `path`, one that reaches it through its directory if it is too long.
fn at<T>(path: &Path, call: impl FnOnce(&SocketAddrUnix) -> Result<T>) -> Result<T> {
    match SocketAddrUnix::new(path) {
        Err(Errno::NAMETOOLONG) => {
            let (dir, name) = path.parent().zip(path.file_name()).ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = open(dir, flags, Mode::empty())?;
            let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
            call(&SocketAddrUnix::new(&short)?)
        }
        address => call(&address?),
    }
}
