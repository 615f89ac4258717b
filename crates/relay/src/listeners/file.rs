//! The file of a Unix socket that a relay listens on: claimed for it alone, and removed with it.
//!
//! # Protocol
//!
//! A socket has its file from `bind` on, and refuses connections until it listens, as a dead process's
//! does. So whoever wants a path takes a lock beside it (flock on `.NAME.lock`) before it looks what is
//! there, and lets go when it listens: under the lock, a socket that refuses connections is a dead
//! process's, and is removed. Whoever ends takes the lock too, looks whether the file is still its own,
//! and removes it.
//!
//! Whoever has the lock removes its file before it lets go. Whoever gets the lock of a file that was
//! removed takes it anew.
//!
//! What is no socket is never removed. A file is known by its inode, whose number belongs to it for as
//! long as its socket is open, whatever happens to the path.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid, chmod, chownat, fchmod, flock,
    fstat, lstat, open,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::addr::UnixAddr;
use crate::config::Listen;
use crate::error::Context as _;
use crate::{Error, ErrorKind, socket};

/// How long another relay may have the lock: it may wait for the first answers of its resolver.
const PATIENCE: Duration = Duration::from_secs(4);

/// How soon the lock is tried again.
const PAUSE: Duration = Duration::from_millis(5);

/// A Unix socket that is bound and does not listen yet. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct Claim {
    socket: Option<OwnedFd>,
    file: Option<SocketFile>,
    /// Given up last.
    lock: Option<Lock>,
}

/// The file that a socket was bound to.
#[derive(Clone, Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// A file's device and inode.
pub(crate) type FileId = [u64; 2];

#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: OwnedFd,
}

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A socket that nobody listens on.
    Stale,
    /// A socket that is in use, or may be.
    Live,
    NoSocket,
}

impl Claim {
    /// Binds a socket to the address of `listen`, with the permissions that it says.
    ///
    /// # Errors
    /// Somebody listens there, or is about to; what is there is no socket; permissions that this
    /// process cannot give.
    pub(crate) fn new(listen: &Listen, addr: &UnixAddr) -> Result<Claim, Error> {
        let failed = || format!("cannot listen on {addr}");
        let Some(path) = addr.path() else {
            let socket = bind(addr, None).context(failed())?;
            return Ok(Claim { socket: Some(socket), file: None, lock: None });
        };
        let lock = Some(Lock::take(addr, path)?);
        if free(addr, path)? == Found::Stale {
            tracing::info!("replaces {addr}, which a process that is gone has left");
            let removed = fs::remove_file(path);
            removed.context(format!("{}: what is left there cannot be removed", failed()))?;
        }
        // Nobody may use it before it is its owner's.
        let at_first = listen.mode.map(|_| Mode::empty());
        let socket = Some(bind(addr, at_first).context(failed())?);
        let mut claim = Claim { socket, file: None, lock };
        let file = SocketFile::open(listen, path)?;
        claim.file = Some(file.0);
        permit(listen, &file.1)?;
        Ok(claim)
    }

    /// Lets clients come from now on, if only to wait.
    pub(crate) fn listen(
        mut self,
        backlog: i32,
    ) -> rustix::io::Result<(OwnedFd, Option<SocketFile>)> {
        let socket = self.socket.take().ok_or(Errno::BADF)?;
        rustix::net::listen(&socket, backlog)?;
        Ok((socket, self.file.take()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Under its own lock.
        self.file.iter().for_each(SocketFile::remove_own);
        self.lock = None;
    }
}

/// Checks that a relay could listen there, and changes nothing.
///
/// # Errors
/// As of [`Claim::new`], as far as that can be foreseen.
pub(crate) fn check(addr: &UnixAddr) -> Result<(), Error> {
    let Some(path) = addr.path() else {
        return bind(addr, None).map(drop).context(format!("cannot listen on {addr}"));
    };
    free(addr, path)?;
    let dir = path.parent().unwrap_or(path);
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .context(format!("cannot listen on {addr}: cannot write into {}", dir.display()))
}

/// What is at a path that may be had.
fn free(addr: &UnixAddr, path: &Path) -> Result<Found, Error> {
    match look(addr, path) {
        Found::Live => {
            let message = format!("cannot listen on {addr}: another process listens there");
            Err(Error::new(ErrorKind::AddressInUse, message))
        }
        Found::NoSocket => {
            let message = "there is something else than a socket, which is left alone (expected a \
                           socket or nothing)";
            Err(Error::new(ErrorKind::AddressInUse, format!("cannot listen on {addr}: {message}")))
        }
        found => Ok(found),
    }
}

fn look(addr: &UnixAddr, path: &Path) -> Found {
    match fs::symlink_metadata(path) {
        // What forbids to look forbids to bind, too.
        Err(_) => return Found::Nothing,
        Ok(file) if !file.file_type().is_socket() => return Found::NoSocket,
        Ok(_) => {}
    }
    let asked =
        socket::unix_socket().and_then(|socket| rustix::net::connect(&socket, &addr.to_kernel()?));
    match asked {
        Err(Errno::CONNREFUSED) => Found::Stale,
        Err(Errno::NOENT) => Found::Nothing,
        // Whoever cannot be asked may be there.
        Ok(()) | Err(_) => Found::Live,
    }
}

fn bind(addr: &UnixAddr, mode: Option<Mode>) -> rustix::io::Result<OwnedFd> {
    let socket = socket::unix_socket()?;
    // The file gets the mode of its socket.
    mode.map_or(Ok(()), |mode| fchmod(&socket, mode))?;
    rustix::net::bind(&socket, &addr.to_kernel()?)?;
    Ok(socket)
}

impl SocketFile {
    /// The file of a socket that another relay has bound.
    pub(crate) fn of(addr: &UnixAddr, id: FileId) -> Option<SocketFile> {
        addr.path().map(|path| SocketFile { path: path.into(), id })
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The file at `path`, which was made a moment ago.
    fn open(listen: &Listen, path: &Path) -> Result<(SocketFile, OwnedFd), Error> {
        let failed = |what| format!("cannot listen on {}: {what}", listen.addr);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).context(failed("cannot open it"))?;
        let status = fstat(&file).context(failed("cannot look at it"))?;
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        if !is_socket || status.st_uid != geteuid().as_raw() {
            let message = failed("another process has put something there");
            return Err(Error::new(ErrorKind::AddressInUse, message));
        }
        Ok((SocketFile { path: path.into(), id: [status.st_dev, status.st_ino] }, file))
    }

    /// Removes the file, if it is still the socket's, which is still open.
    pub(crate) fn remove(&self) {
        let name = self.path.display();
        match Lock::of(&self.path) {
            Ok(_lock) => self.remove_own(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => tracing::warn!("{name} is left behind: {e}"),
        }
    }

    fn remove_own(&self) {
        let is_own = lstat(&self.path).is_ok_and(|file| [file.st_dev, file.st_ino] == self.id);
        if is_own && let Err(e) = fs::remove_file(&self.path) {
            tracing::warn!("{} is left behind: {e}", self.path.display());
        }
    }
}

/// Gives a file its owner and its permissions.
fn permit(listen: &Listen, file: &OwnedFd) -> Result<(), Error> {
    let Listen { addr, mode, user, group } = listen;
    if user.is_some() || group.is_some() {
        let (uid, gid) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        let failed = "cannot give it to that user or group (user=, group=)";
        chownat(file, "", uid, gid, AtFlags::EMPTY_PATH)
            .context(format!("cannot listen on {addr}: {failed}"))?;
    }
    if let Some(mode) = mode {
        let failed = format!("cannot give it the permissions {mode:o} (mode=)");
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(*mode))
            .context(format!("cannot listen on {addr}: {failed}"))?;
    }
    Ok(())
}

impl Lock {
    fn take(addr: &UnixAddr, path: &Path) -> Result<Lock, Error> {
        Lock::of(path).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => {
                let message = format!("cannot listen on {addr}: another relay is about to");
                Error::new(ErrorKind::AddressInUse, message)
            }
            io::ErrorKind::NotFound => {
                Error::io(format!("cannot listen on {addr}: no such folder"), e)
            }
            _ => Error::io(
                format!("cannot listen on {addr}: cannot lock {}", beside(path).display()),
                e,
            ),
        })
    }

    fn of(path: &Path) -> io::Result<Lock> {
        let path = beside(path);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => return Ok(Lock { path, _file: file }),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever finds it there takes it over.
        let _ = fs::remove_file(&self.path);
    }
}

/// The file that a lock on `path` is taken on.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.lock"))
}

fn is_at(file: impl AsFd, path: &Path) -> bool {
    let (Ok(file), Ok(there)) = (fstat(file), lstat(path)) else { return false };
    (file.st_dev, file.st_ino) == (there.st_dev, there.st_ino)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    fn at(dir: &tempfile::TempDir, name: &str) -> (PathBuf, UnixAddr) {
        let path = dir.path().join(name);
        (path.clone(), format!("unix:{}", path.display()).parse().unwrap())
    }

    fn claim(addr: &UnixAddr) -> Result<Claim, Error> {
        Claim::new(&addr.clone().into(), addr)
    }

    fn names(dir: &tempfile::TempDir) -> Vec<String> {
        let name =
            |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(dir.path()).unwrap().map(name).collect()
    }

    #[test]
    fn a_claim_that_comes_to_nothing_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, addr) = at(&dir, "x");
        drop(UnixListener::bind(&path).unwrap());
        let stale = fs::metadata(&path).unwrap().ino();
        check(&addr).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), stale, "a check changes nothing");
        drop(claim(&addr).unwrap());
        assert_eq!(names(&dir), [""; 0]);
    }

    #[test]
    fn a_file_is_removed_by_whose_it_is_and_by_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let (path, addr) = at(&dir, "x");
        let (_first, file) = claim(&addr).unwrap().listen(1).unwrap();
        let file = file.unwrap();
        assert_eq!(names(&dir), ["x"], "the lock is gone");
        let error = claim(&addr).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
        fs::remove_file(&path).unwrap();
        let (_second, others) = claim(&addr).unwrap().listen(1).unwrap();
        file.remove();
        assert_eq!(names(&dir), ["x"]);
        others.unwrap().remove();
        assert_eq!(names(&dir), [""; 0]);
    }

    #[test]
    fn what_is_no_socket_or_another_kind_of_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, folder, link) = (at(&dir, "file"), at(&dir, "folder"), at(&dir, "link"));
        fs::write(&file.0, "kept").unwrap();
        fs::create_dir(&folder.0).unwrap();
        std::os::unix::fs::symlink(&file.0, &link.0).unwrap();
        let (datagrams, of_datagrams) = at(&dir, "datagrams");
        let _socket = UnixDatagram::bind(&datagrams).unwrap();
        for addr in [&file.1, &folder.1, &link.1, &of_datagrams] {
            for error in [claim(addr).unwrap_err(), check(addr).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
                assert!(error.to_string().contains(&addr.to_string()), "{error}");
            }
        }
        assert_eq!(fs::read(&file.0).unwrap(), b"kept");
        assert!(link.0.is_symlink() && folder.0.is_dir() && datagrams.exists());
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let addr: UnixAddr = "unix:/nowhere/at/all".parse().unwrap();
        for error in [claim(&addr).unwrap_err(), check(&addr).unwrap_err()] {
            let error = error.to_string();
            assert!(
                error.contains("unix:/nowhere/at/all: ") && error.contains("No such"),
                "{error}"
            );
        }
    }
}
