//! The lender's socket, and its place in the file system.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, chownat, fchmod, flock, fstat, open,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::geteuid;

use super::LenderOptions;
use super::passing::refuse_descriptors;
use crate::reaper::{Reaped, Reaper};
use crate::{Error, ErrorKind, Result};

/// Connections that wait to be accepted; the kernel turns others away.
const BACKLOG: i32 = 64;

/// How long another lender that starts at the same time is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket that borrowers connect to. Its path is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Reaped<OwnedFd>,
    _place: Place,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// The file's device and number, by which it is known to be ours.
    file: (u64, u64),
}

impl Listener {
    /// A socket at the path, in the place of one that a lender left which did not end well.
    pub(super) fn open(options: &LenderOptions, reaper: &Reaper) -> Result<Self> {
        let path = &options.socket;
        let address = address(path)?;
        let failed = |what: &str, e: io::Error| Error::io(format!("{what} {}", path.display()), e);
        // Held until there is a socket that others can connect to, so that of two lenders that find
        // a stale path not both replace it.
        let _lock = Lock::of(path)?;
        remove_stale(path, &address)?;
        let socket = new().map_err(|e| failed("a socket for", e.into()))?;
        refuse_descriptors(&socket);
        // Nobody can connect before `listen`; and a file that is bound has no more than this mode.
        fchmod(&socket, Mode::from_raw_mode(options.mode & 0o600))
            .and_then(|()| bind(&socket, &address))
            .map_err(|e| failed("bind", e.into()))?;
        let (handle, file) = bound(path)?;
        let place = Place { path: path.clone(), file };
        // Who waits to be accepted has a socket too.
        let listener = Self { socket: reaper.keep(socket), _place: place };
        let group = options.group.map(Gid::from_raw);
        chownat(&handle, "", None, group, AtFlags::EMPTY_PATH)
            .map_err(|e| failed("give the group", e.into()))?;
        // A handle that opens nothing has no mode to change; its name in /proc is the file itself.
        let name = format!("/proc/self/fd/{}", handle.as_raw_fd());
        fs::set_permissions(name, fs::Permissions::from_mode(options.mode))
            .map_err(|e| failed("set the mode of", e))?;
        listen(&listener.socket, BACKLOG).map_err(|e| failed("listen at", e.into()))?;
        Ok(listener)
    }

    /// Accepts a connection; it does not wait.
    pub(super) fn accept(&self) -> rustix::io::Result<OwnedFd> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let file = fs::symlink_metadata(&self.path);
        if file.is_ok_and(|file| (file.dev(), file.ino()) == self.file) {
            // Gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    // The kernel takes one more, which C programs cannot end with a zero.
    let fits = (1..=107).contains(&path.as_os_str().len());
    let address = SocketAddrUnix::new(path).ok().filter(|_| fits);
    address.ok_or_else(|| {
        let shown = path.display();
        Error::new(ErrorKind::Invalid, format!("{shown}: a socket's path has 1 to 107 bytes"))
    })
}

fn new() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A handle of the socket that we have just bound, and by what it is known. Whoever may write the
/// directory can put another file in its place at any time: nothing is followed, and what is not a
/// new socket of ours is left alone.
fn bound(path: &Path) -> Result<(OwnedFd, (u64, u64))> {
    let shown = path.display();
    let failed = |e: Errno| Error::io(format!("look at {shown}"), e);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = open(path, flags, Mode::empty()).map_err(failed)?;
    let file = fstat(&handle).map_err(failed)?;
    let is_socket = FileType::from_raw_mode(file.st_mode) == FileType::Socket;
    if !is_socket || file.st_uid != geteuid().as_raw() || file.st_nlink != 1 {
        let message = format!("{shown}: somebody has put another file there");
        return Err(Error::new(ErrorKind::InUse, message));
    }
    Ok((handle, (file.st_dev, file.st_ino)))
}

/// A locked file beside a socket, there while a lender starts.
struct Lock {
    file: OwnedFd,
    path: PathBuf,
}

impl Lock {
    /// Waits for it. A file of its own, that nobody else can open: what others can open, such as
    /// the directory, they can also lock.
    fn of(socket: &Path) -> Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let shown = path.display();
        let in_use = |why: &str| Err(Error::new(ErrorKind::InUse, format!("{shown}: {why}")));
        let until = Instant::now() + PATIENCE;
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = open(&path, flags, Mode::RUSR | Mode::WUSR);
            let file = opened.map_err(|e| Error::io(format!("open {shown}"), e))?;
            let failed = |e: Errno| Error::io(format!("lock {shown}"), e);
            let ours = fstat(&file).map_err(failed)?;
            if ours.st_uid != geteuid().as_raw() {
                return in_use("it is another user's");
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // Whoever had it has removed it meanwhile, perhaps, and it is another one now.
                    let there = fs::symlink_metadata(&path);
                    if there.is_ok_and(|it| (it.dev(), it.ino()) == (ours.st_dev, ours.st_ino)) {
                        return Ok(Self { file, path });
                    }
                }
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK) => return in_use("another lender is starting"),
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before it is unlocked, so that whoever waits for it sees that it is gone.
        let _ = fs::remove_file(&self.path);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Removes a socket at the path whose lender is gone.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let shown = path.display();
    let in_use = |why: &str| Err(Error::new(ErrorKind::InUse, format!("{shown}: {why}")));
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(format!("look at {shown}"), e)),
        Ok(file) if !file.file_type().is_socket() => return in_use("it is not a socket"),
        Ok(_) => {}
    }
    let probe = new().map_err(|e| Error::io(format!("a socket for {shown}"), e))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {shown}"), e))
            }
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => in_use("another lender has it"),
        Err(Errno::PROTOTYPE) => in_use("another program listens there"),
        Err(e) => Err(Error::io(format!("connect to {shown}"), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_the_place_of_our_socket_is_not_followed_or_changed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let (handle, file) = bound(&at("socket")).unwrap();
        let status = fs::symlink_metadata(at("socket")).unwrap();
        assert_eq!(file, (status.dev(), status.ino()));
        drop(handle);
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("socket"), at("link")).unwrap();
        for other in ["file", "link"] {
            assert_eq!(bound(&at(other)).unwrap_err().kind(), ErrorKind::InUse, "{other}");
        }
        // A second name of another one of our sockets.
        fs::hard_link(at("socket"), at("second")).unwrap();
        assert_eq!(bound(&at("second")).unwrap_err().kind(), ErrorKind::InUse);
    }
}
