//! What a service manager has passed to this process: sockets that listen, and where to tell it how
//! things stand.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::Context as _;
use relay::Inherited;
use sd_notify::NotifyState;

use crate::exit::usage;

/// A socket with the name that the manager gives it (`FileDescriptorName=`).
pub(crate) struct Passed {
    pub(crate) name: String,
    pub(crate) socket: Inherited,
}

/// The sockets of `LISTEN_FDS`, which are taken once.
pub(crate) fn sockets() -> anyhow::Result<Vec<Passed>> {
    let all = sd_listen_fds::get().context("LISTEN_FDS and LISTEN_PID make no sense")?;
    all.into_iter().map(|(name, socket)| passed(name, socket.into_std())).collect()
}

fn passed(name: Option<String>, socket: OwnedFd) -> anyhow::Result<Passed> {
    let name = name.unwrap_or_default();
    let number = socket.as_raw_fd();
    let socket = Inherited::of_manager(socket);
    let socket = socket.map_err(|e| usage(format!("passed socket {number} '{name}': {e}")))?;
    Ok(Passed { name, socket })
}

/// The error where `--listen fd:NAME` asks for a socket that is none of these.
pub(crate) fn none_of_name(name: &str, passed: &[Passed]) -> anyhow::Error {
    let names: Vec<_> = passed.iter().map(|one| one.name.as_str()).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    usage(format!("--listen fd:{name}: no such socket was passed (passed: {names})"))
}

/// Tells the service manager, if there is one that wants to know. One that does not read, because it is
/// stopped, is waited for a moment.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    const LOOKS: u32 = 50;
    let text: String = states.iter().map(|state| format!("{state}\n")).collect();
    for _ in 0..LOOKS {
        match send(&text) {
            Ok(true) => return,
            Ok(false) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => {
                return tracing::warn!("the service manager cannot be told {states:?}: {error}");
            }
        }
    }
    tracing::warn!("the service manager does not read {states:?}");
}

/// Tells it that this process is not stuck, which is not worth waiting for.
pub(crate) fn notify_alive(and_ready: bool) {
    let text = if and_ready { "READY=1\nWATCHDOG=1\n" } else { "WATCHDOG=1\n" };
    if let Err(error) = send(text) {
        tracing::debug!("the service manager is not told that this process is alive: {error}");
    }
}

/// Whether it was sent: not, if it would have to wait. Not by sd-notify, which would wait.
fn send(text: &str) -> io::Result<bool> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(true) };
    let path = path.as_encoded_bytes();
    let addr = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match socket.send_to_addr(text.as_bytes(), &addr) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        sent => sent.map(|_| true),
    }
}

/// How often it wants to be told, if it does.
pub(crate) fn alive_every() -> Option<Duration> {
    // As its manual says: twice as often as it looks.
    sd_notify::watchdog_enabled().map(|longest| longest / 2)
}
