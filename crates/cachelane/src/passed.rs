//! What a service manager has passed to this process: sockets that listen, and where to tell it how
//! things stand.

use std::os::fd::{AsRawFd as _, OwnedFd};

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
