//! What members say of themselves: datagrams of the protocol of `sd_notify`, with the kernel's word for
//! who has sent them.

use std::fs;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt, sockopt,
};

/// One thing that a member has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Ready,
    Alive,
    /// It is stuck, and is to be ended for that; its status says why.
    Stuck,
    /// Which process does its work: another one has taken over from it if it is not the one that says so.
    MainPid(u32),
    /// Why it is about to fail.
    Status(String),
    /// The process that it has taken over from.
    TookOver(Option<u32>),
}

/// Words of one process.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) pid: u32,
    pub(super) words: Vec<Word>,
}

/// The socket that members write to. Its file goes with it.
#[derive(Debug)]
pub(super) struct Inbox {
    path: PathBuf,
    socket: UnixDatagram,
}

impl Inbox {
    /// Opens one in this folder.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Inbox> {
        let path = dir.join(format!("up-{}.notify", std::process::id()));
        let open = || {
            sweep(dir);
            let _ = fs::remove_file(&path);
            let socket = UnixDatagram::bind(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            socket.set_nonblocking(true)?;
            setsockopt(&socket, sockopt::PassCred, &true)?;
            Ok::<_, std::io::Error>(socket)
        };
        let socket = open().with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Inbox { path, socket })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is readable when something was said.
    pub(super) fn socket(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone().map(OwnedFd::from)
    }

    /// What was said since.
    pub(super) fn take(&self) -> Vec<Said> {
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        let mut space = nix::cmsg_space!(UnixCredentials);
        loop {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let fd = self.socket.as_raw_fd();
            let received = match recvmsg::<UnixAddr>(fd, &mut parts, Some(&mut space), flags) {
                Ok(received) => received,
                Err(Errno::EINTR) => continue,
                Err(_) => return all,
            };
            let pid = received.cmsgs().ok().and_then(|mut all| {
                all.find_map(|one| match one {
                    ControlMessageOwned::ScmCredentials(who) => u32::try_from(who.pid()).ok(),
                    _ => None,
                })
            });
            let length = received.bytes;
            let text = String::from_utf8_lossy(&buffer[..length]);
            all.extend(pid.map(|pid| Said { pid, words: words(&text) }));
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the sockets of those that were killed.
fn sweep(dir: &Path) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with("up-") || !name.ends_with(".notify") {
            continue;
        }
        let refused = UnixDatagram::unbound().and_then(|socket| socket.connect(&path));
        if refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn words(text: &str) -> Vec<Word> {
    let word = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some(match key {
            "READY" => Word::Ready,
            "WATCHDOG" if value == "trigger" => Word::Stuck,
            "WATCHDOG" => Word::Alive,
            "MAINPID" => Word::MainPid(value.parse().ok()?),
            "STATUS" => Word::Status(value.to_owned()),
            "REPLACED" => Word::TookOver(value.parse().ok().filter(|pid| *pid > 0)),
            _ => return None,
        })
    };
    text.lines().filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_others_passed_over() {
        let text =
            "READY=1\nSTATUS=a=b\nREPLACED=7\nREPLACED=0\nX=1\nWATCHDOG=1\nWATCHDOG=trigger\nno";
        let expected = [
            Word::Ready,
            Word::Status("a=b".into()),
            Word::TookOver(Some(7)),
            Word::TookOver(None),
            Word::Alive,
            Word::Stuck,
        ];
        assert_eq!(words(text), expected);
    }
}
