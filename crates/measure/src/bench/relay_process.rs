//! A `cachelane relay` process in a test host, as a user would run it, and the hand on its knobs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use knobs::Client;
use lab::{Host, Lab, Process};

/// How long a relay may take to start.
const START: Duration = Duration::from_secs(30);

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct RelayProcess {
    process: Process,
    addr: SocketAddr,
    control: PathBuf,
}

impl RelayProcess {
    /// Starts a relay in `host` that listens on `addr`, with more arguments as a user gives them.
    pub(crate) fn start(
        lab: &Lab,
        host: &Host,
        addr: SocketAddr,
        to: SocketAddr,
        more: &[&str],
    ) -> anyhow::Result<RelayProcess> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let dir = lab.dir().join("run");
        // env, because the runtime directory is the lab's, not the host's /run/cachelane.
        let process = host
            .command("env")
            .arg(format!("CACHELANE_RUNTIME_DIR={}", dir.display()))
            .arg(program)
            .args(["--quiet", "relay", "--listen", &addr.to_string(), "--to", &to.to_string()])
            .args(more)
            .spawn()?;
        let control = dir.join(format!("relay-{}.sock", process.pid()));
        let mut relay = RelayProcess { process, addr, control };
        relay.wait()?;
        Ok(relay)
    }

    /// Its control socket is the last thing that it opens.
    fn wait(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while Client::connect(&self.control).is_err() {
            if let Some(status) = self.process.try_wait()? {
                bail!("the relay on {} ended at once: {status}", self.addr);
            }
            if Instant::now() > deadline {
                bail!("the relay on {} did not start in {START:?}", self.addr);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its control socket.
    pub(crate) fn control(&self) -> &Path {
        &self.control
    }
}
