//! What cachelane is compared with, run inside a host: HAProxy and nginx as TCP proxies, and the
//! kernel's sockmap used plainly.
//!
//! They are configured as their own documentation advises for a TCP proxy on a given number of
//! threads; what is set and why is said in the modules that write the configurations. The
//! configuration and what the program wrote to stderr lie in the lab's folder while the lab
//! lives.

mod haproxy;
mod nginx;
mod sockmap;

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

use tempfile::TempDir;

pub use sockmap::{Redirect, StockSockmap};

use crate::{
    Command, Error, ErrorKind, Host, Lab, Process, Result, command, traffic::bound, usage,
};

/// How long a program may take to listen, and to end when asked to.
const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// The file that it writes to.
const STDERR: &str = "stderr";
/// How often it is looked whether it listens.
const LOOK: Duration = Duration::from_millis(5);

/// A program that peers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Program {
    /// `haproxy`.
    Haproxy,
    /// `nginx`, with its stream module.
    Nginx,
}

impl Program {
    /// The command's name.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Where a program is, or none if it is not installed, so that a bench can report it as absent.
pub fn installed(program: Program) -> Option<PathBuf> {
    command::installed(program.name().as_ref()).ok()
}

/// A TCP proxy and its way of moving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// HAProxy in TCP mode.
    Haproxy {
        /// Let it splice where it finds that worth it (`option splice-auto`).
        splice: bool,
    },
    /// nginx's stream module.
    Nginx {
        /// `proxy_buffer_size` in bytes; none leaves nginx's default of 16 KiB.
        buffer: Option<usize>,
    },
}

impl Proxy {
    /// The program that it is.
    pub fn program(self) -> Program {
        match self {
            Self::Haproxy { .. } => Program::Haproxy,
            Self::Nginx { .. } => Program::Nginx,
        }
    }
}

/// Where a proxy listens, where it connects to, and on what it runs.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// The backend.
    pub to: SocketAddr,
    /// Threads of HAProxy, worker processes of nginx; 1 to 64.
    pub threads: usize,
    /// Connections that it must be able to hold. Each costs it two open files, and two more
    /// with splicing; capped by this process's hard limit on open files.
    pub connections: usize,
    /// Have it write a line for each connection to a file.
    pub log: bool,
}

impl ProxyOptions {
    /// One thread, with room for 4,000 connections, without a log.
    pub fn new(listen: SocketAddr, to: SocketAddr) -> Self {
        Self { listen, to, threads: 1, connections: 4_000, log: false }
    }

    fn check(&self) -> Result<()> {
        if !(1..=64).contains(&self.threads) || self.connections == 0 {
            let (threads, connections) = (self.threads, self.connections);
            let message = format!("a proxy of {threads} threads and {connections} connections");
            return Err(Error::invalid(format!("{message}: expected 1 to 64 and at least 1")));
        }
        if self.listen.port() == 0 || self.to.port() == 0 {
            return Err(Error::invalid("a proxy needs a port to listen on and one to connect to"));
        }
        Ok(())
    }

    /// The connections that the limit on open files allows, at `fds` a connection.
    fn connections(&self, fds: usize) -> usize {
        /// Listeners, logs, event descriptors.
        const OTHERS: u64 = 256;
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let most = most.saturating_sub(OTHERS) / fds as u64;
        self.connections.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
    }
}

/// A running program that listens. Dropping it ends it and what it started.
#[derive(Debug)]
pub struct Peer {
    process: Process,
    listen: SocketAddr,
    /// For its configuration and what it writes to stderr.
    dir: TempDir,
}

impl Peer {
    /// Starts a proxy in `host` and waits until it listens.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if it is not installed; [`ErrorKind::Invalid`] for options out of
    /// range or an address that is listened on already; [`ErrorKind::Command`], with what it
    /// wrote to stderr, if it ends; [`ErrorKind::TimedOut`] if it does not listen in 10 s.
    pub fn proxy(lab: &Lab, host: &Host, proxy: Proxy, options: &ProxyOptions) -> Result<Self> {
        options.check()?;
        let dir = tempfile::tempdir_in(lab.dir())
            .map_err(|error| Error::io("a folder for a peer", error))?;
        let (command, processes) = match proxy {
            Proxy::Haproxy { splice } => (haproxy::command(host, options, splice, dir.path())?, 1),
            // The master and its workers.
            Proxy::Nginx { buffer } => {
                (nginx::command(host, options, buffer, dir.path())?, 1 + options.threads)
            }
        };
        Self::start(host, command, options.listen, dir, processes)
    }

    /// The PIDs: first the program's own, then those of the processes that it started.
    pub fn pids(&self) -> Vec<u32> {
        let own = self.process.pid();
        std::iter::once(own).filter(|pid| *pid != 0).chain(usage::descendants(own)).collect()
    }

    /// Memory of all its processes, as [`usage::process_memory`] counts it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it has ended.
    pub fn memory(&self) -> Result<u64> {
        self.pids().into_iter().map(usage::process_memory).sum()
    }

    /// The address that it listens on.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// What it has written to stderr.
    pub fn stderr(&self) -> String {
        let text = fs::read(self.dir.path().join(STDERR)).unwrap_or_default();
        String::from_utf8_lossy(&text).into()
    }

    fn start(
        host: &Host,
        command: Command,
        listen: SocketAddr,
        dir: TempDir,
        processes: usize,
    ) -> Result<Self> {
        if listens(host, listen)? {
            return Err(Error::invalid(format!("{host}: {listen} is listened on already")));
        }
        let stderr = dir.path().join(STDERR);
        let file = File::create(&stderr)
            .map_err(|error| Error::io(stderr.display().to_string(), error))?;
        let process = command.stderr(file).spawn()?;
        let mut peer = Self { process, listen, dir };
        peer.wait_ready(host, processes)?;
        Ok(peer)
    }

    /// Waits for the listening socket and the worker processes.
    fn wait_ready(&mut self, host: &Host, processes: usize) -> Result<()> {
        let until = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.process.try_wait()? {
                let message = format!("{status} before it listened: {}", self.stderr().trim());
                return Err(Error::new(ErrorKind::Command, message));
            }
            if listens(host, self.listen)? && self.pids().len() >= processes {
                return Ok(());
            }
            if Instant::now() > until {
                let (listen, stderr) = (self.listen, self.stderr());
                let message = format!("nobody listens on {listen} after {START_LIMIT:?}");
                return Err(Error::timed_out(format!("{message}: {}", stderr.trim())));
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Nobody is left to tell; the process's own drop kills what this leaves.
        let _ = self.process.stop(STOP_LIMIT);
    }
}

fn write_config(dir: &Path, text: &str) -> Result<PathBuf> {
    let path = dir.join("conf");
    fs::write(&path, text).map_err(|error| Error::io(path.display().to_string(), error))?;
    Ok(path)
}

/// Whether a TCP socket of the host listens on this address. Not tried by a connection, which a
/// proxy would pass on to its backend.
fn listens(host: &Host, address: SocketAddr) -> Result<bool> {
    let bound = host.run(|| bound(address))?;
    Ok(bound.is_err_and(|error| error == Errno::ADDRINUSE))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr, TcpListener};

    use super::*;
    use crate::testing::within;

    #[test]
    fn a_listener_is_found_by_its_address() {
        let here = Host::here().expect("a host");
        for ip in [IpAddr::from([127, 0, 0, 1]), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((ip, 0)).expect("a listener");
            let address = listener.local_addr().expect("its address");
            assert!(listens(&here, address).expect("it is tried"), "{address}");
            let other = IpAddr::from([127, 0, 0, 2]);
            assert!(!listens(&here, (other, address.port()).into()).expect("it is tried"));
            drop(listener);
            // A child of another test holds the listener too, until it has become its program.
            let mut free = None;
            within(START_LIMIT, || {
                free = bound(address).ok();
                free.is_some()
            });
            // Bound is not listening.
            let _bound = free.expect("the address is free");
            assert!(!listens(&here, address).expect("it is tried"), "{address}");
        }
    }
}
