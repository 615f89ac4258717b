//! What a service manager has passed to this process: sockets that listen, and where to tell it how
//! things stand.

use std::ffi::OsStr;
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

/// Tells the service manager, if there is one that wants to know.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told {states:?}: {error}");
    }
}

/// Tells the service manager, if it wants to know, that this process is not stuck. That is not worth
/// waiting for: a manager that does not read may be stopped itself.
pub(crate) fn notify_alive() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || {
        let path = path.as_encoded_bytes();
        let addr = match path.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(b"WATCHDOG=1", &addr)
    };
    if let Err(error) = send() {
        tracing::debug!("the service manager is not told that this process is alive: {error}");
    }
}

/// How often it wants to be told, if it does.
pub(crate) fn alive_every() -> Option<Duration> {
    // As its manual says: twice as often as it looks.
    sd_notify::watchdog_enabled().map(|longest| longest / 2)
}
