//! A `cachelane relay` process in a test host, as a user would run it, and the hand on its knobs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use lab::{Host, Lab, Process};

use super::command;

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct RelayProcess {
    process: Process,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// Its control socket.
    pub(crate) control: PathBuf,
}

impl RelayProcess {
    /// Starts a relay in `host` that listens on `addr`, with more arguments as a user gives them.
    pub(crate) fn start(
        lab: &Lab,
        host: &Host,
        addr: SocketAddr,
        to: SocketAddr,
        more: &str,
    ) -> anyhow::Result<RelayProcess> {
        let args = format!("relay --listen {addr} --to {to} {more}");
        let mut process = command::start(lab, host, &args, Stdio::null())?;
        let (control, _) = command::await_control(lab, &mut process, "relay")?;
        Ok(RelayProcess { process, addr, control })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}
