//! The lender's socket, and its place in the file system.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use super::LenderOptions;
use super::passing::refuse_descriptors;
use crate::{Error, ErrorKind, Result};

/// Connections that wait to be accepted; the kernel turns others away.
const BACKLOG: i32 = 64;

/// How long another lender that starts at the same time is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket that borrowers connect to. Its path is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// The file's device and number, by which it is known to be ours.
    file: (u64, u64),
}

impl Listener {
    /// A socket at the path, in the place of one that a lender left which did not end well.
    pub(super) fn open(options: &LenderOptions) -> Result<Self> {
        let path = &options.socket;
        let address = address(path)?;
        let failed = |what: &str, e: io::Error| Error::io(format!("{what} {}", path.display()), e);
        // Held until there is a socket that others can connect to, so that of two lenders that find
        // a stale path not both replace it.
        let _lock = lock(path)?;
        remove_stale(path, &address)?;
        let socket = new().map_err(|e| failed("a socket for", e.into()))?;
        refuse_descriptors(&socket);
        // Nobody can connect before `listen`; and a file that is bound has no more than this mode.
        fchmod(&socket, Mode::from_raw_mode(options.mode & 0o600))
            .and_then(|()| bind(&socket, &address))
            .map_err(|e| failed("bind", e.into()))?;
        let file = fs::symlink_metadata(path).map_err(|e| failed("look at", e))?;
        let listener = Self { socket, path: path.clone(), file: (file.dev(), file.ino()) };
        chown(path, None, options.group).map_err(|e| failed("give the group", e))?;
        fs::set_permissions(path, fs::Permissions::from_mode(options.mode))
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

impl Drop for Listener {
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

/// The lock of a directory in which a lender starts.
fn lock(path: &Path) -> Result<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let shown = directory.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty());
    let opened = opened.map_err(|e| Error::io(format!("open {shown}"), e))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(opened),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                let message = format!("{shown}: somebody else has it locked");
                return Err(Error::new(ErrorKind::InUse, message));
            }
            Err(e) => return Err(Error::io(format!("lock {shown}"), e)),
        }
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
