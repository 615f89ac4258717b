//! Where to listen: an address of IP, a Unix socket, or a socket that a service manager has passed.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use relay::Addr;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::passed::{Passed, none_of_name};

/// Where to listen, as users say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// On this address.
    Address(Addr),
    /// On the sockets of this name that the service manager passes.
    Passed(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(name) = text.strip_prefix("fd:") {
            return Ok(Listen::Passed(name.to_owned()));
        }
        if text.starts_with(':') {
            let any = text.parse::<relay::Listen>().map_err(|error| error.to_string())?;
            // Of IPv4 alone where there is no IPv6.
            return Ok(Listen::Address(relay::on_this_host(any).addr));
        }
        text.parse().map(Listen::Address).map_err(|error: relay::Error| {
            format!("{error}; or :PORT for every address, or fd:NAME")
        })
    }
}

/// A socket that listens, and where.
pub(super) struct Listener {
    pub(super) addr: Addr,
    pub(super) socket: OwnedFd,
    pub(super) file: Option<File>,
}

/// The file of a Unix socket, which goes with it unless another has its place by then.
pub(super) struct File {
    path: PathBuf,
    inode: u64,
}

/// Opens all, or takes those that were passed where nothing else is asked for.
pub(super) fn open(asked: &[Listen], passed: Vec<Passed>) -> anyhow::Result<Vec<Listener>> {
    let mut all = Vec::new();
    for listen in asked {
        if let Listen::Address(addr) = listen {
            let opened = bind(addr);
            let opened = opened.with_context(|| format!("cannot listen on {addr} (--listen)"))?;
            all.push(opened);
        } else if let Listen::Passed(name) = listen
            && !passed.iter().any(|one| one.name == *name)
        {
            return Err(none_of_name(name, &passed));
        }
    }
    let is_asked = |one: &Passed| asked.contains(&Listen::Passed(one.name.clone()));
    let taken = passed.into_iter().filter(|one| asked.is_empty() || is_asked(one));
    all.extend(taken.map(|Passed { socket, .. }| {
        let addr = socket.addr().clone();
        Listener { addr, socket: socket.into_socket(), file: None }
    }));
    Ok(all)
}

fn bind(addr: &Addr) -> io::Result<Listener> {
    let (addr, socket, file) = match addr {
        Addr::Ip(addr) => {
            let listener = TcpListener::bind(addr)?;
            listener.set_nonblocking(true)?;
            (listener.local_addr()?.into(), OwnedFd::from(listener), None)
        }
        Addr::Unix(name) => {
            let (listener, file) = match name.path() {
                Some(path) => bind_path(path).map(|(listener, file)| (listener, Some(file)))?,
                None => {
                    let text = addr.to_string();
                    let name = text.strip_prefix("unix:@").unwrap_or(&text);
                    let name = UnixAddr::from_abstract_name(name)?;
                    (UnixListener::bind_addr(&name)?, None)
                }
            };
            listener.set_nonblocking(true)?;
            (addr.clone(), OwnedFd::from(listener), file)
        }
    };
    Ok(Listener { addr, socket, file })
}

/// Listens at a path, where nothing is yet, or the socket of a dead process. A socket has its path only
/// once it listens, so that one that refuses connections is a dead process's.
fn bind_path(path: &Path) -> io::Result<(UnixListener, File)> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    let listener = UnixListener::bind(&new)?;
    let take = || renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE);
    let taken = match take() {
        Err(Errno::EXIST) if is_stale(path) => fs::remove_file(path).and_then(|()| Ok(take()?)),
        Err(Errno::EXIST) => Err(ErrorKind::AddrInUse.into()),
        taken => taken.map_err(io::Error::from),
    };
    let inode = taken.and_then(|()| fs::symlink_metadata(path).map(|file| file.ino()));
    match inode {
        Ok(inode) => Ok((listener, File { path: path.to_owned(), inode })),
        Err(error) => {
            // It was of use to nobody.
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

/// Whether there is a socket that nobody listens on.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

impl Drop for File {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            // Somebody may have removed it meanwhile.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_what_is_none_is_named() {
        let read = |text: &str| text.parse::<Listen>();
        assert_eq!(read("fd:web"), Ok(Listen::Passed("web".into())));
        for (text, expected) in
            [("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:80", "[::1]:80"), ("unix:@x", "unix:@x")]
        {
            let Ok(Listen::Address(addr)) = read(text) else { panic!("{text}") };
            assert_eq!(addr.to_string(), expected);
        }
        let Ok(Listen::Address(any)) = read(":80") else { panic!("every address") };
        assert!(any.ip().is_some_and(|addr| addr.ip().is_unspecified() && addr.port() == 80));
        for text in ["", "80", ":x", ":99999", "localhost:80", "unix:"] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(&format!("'{text}'")), "{text}: {refused}");
        }
    }

    #[test]
    fn the_socket_of_a_dead_process_is_replaced_and_one_that_lives_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        drop(UnixListener::bind(&path).unwrap());
        let addr: Addr = format!("unix:{}", path.display()).parse().unwrap();
        let first = bind(&addr).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(bind(&addr).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        fs::write(&path, "no socket").unwrap();
        assert_eq!(bind(&addr).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the file");
    }
}
