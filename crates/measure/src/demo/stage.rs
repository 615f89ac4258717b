//! Where the mechanisms run: a test host with servers in it or, without root, this machine's
//! loopback.

use std::net::{SocketAddr, TcpListener};

use anyhow::Context as _;
use lab::peer::{Peer, Proxy};
use lab::traffic::{BulkOptions, BulkServer, EchoOptions, EchoServer};
use lab::{ErrorKind, Host, Lab};

use crate::bench::relay::targets::{EXCHANGE, peer_options};
use crate::bench::relay_process::RelayProcess;

/// The host, its servers, and the folder for everything else.
pub(super) struct Stage {
    /// Takes whatever it is sent.
    pub(super) bulk: BulkServer,
    /// Answers requests of [`EXCHANGE`] bytes with as many.
    pub(super) echo: EchoServer,
    pub(super) host: Host,
    /// For more hosts, where this is one.
    pub(super) lab: Lab,
    /// Whether the host is a network namespace of our own.
    pub(super) is_test_host: bool,
}

impl Stage {
    /// Builds it. Dropping it removes it.
    pub(super) fn build() -> anyhow::Result<Stage> {
        let lab = Lab::new("demo")?;
        let (host, is_test_host) = match lab.host("host") {
            Ok(host) => (host, true),
            Err(error) if error.kind() == ErrorKind::NotPermitted => (Host::here()?, false),
            Err(error) => return Err(error).context("cannot make a test host"),
        };
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let bulk = BulkServer::start(&host, any_port, &BulkOptions::default())?;
        let options = EchoOptions { request: EXCHANGE, ..EchoOptions::default() };
        let echo = EchoServer::start(&host, any_port, options)?;
        Ok(Stage { bulk, echo, host, lab, is_test_host })
    }

    /// Where it is, for people.
    pub(super) fn describe(&self) -> &'static str {
        match self.is_test_host {
            true => "All traffic stayed within a test host: a network namespace of its own.",
            false => {
                "Without root there is no test host: the traffic went over this machine's own \
                 loopback, beside whatever else uses it."
            }
        }
    }

    /// Starts a relay to `to`, with more arguments as a user gives them.
    pub(super) fn relay(&self, to: SocketAddr, more: &str) -> anyhow::Result<RelayProcess> {
        RelayProcess::start(&self.lab, &self.host, self.free_address()?, to, more)
    }

    /// Starts another proxy to `to`.
    pub(super) fn proxy(&self, proxy: Proxy, to: SocketAddr) -> anyhow::Result<Peer> {
        let options = peer_options(self.free_address()?, to);
        Ok(Peer::proxy(&self.lab, &self.host, proxy, &options)?)
    }

    /// An address that nobody listens on: these programs cannot say which port they were given.
    fn free_address(&self) -> anyhow::Result<SocketAddr> {
        let pick =
            || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        self.host.run(pick)?.context("cannot find a free port")
    }
}
