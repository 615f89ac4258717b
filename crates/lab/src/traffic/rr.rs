//! Requests and responses on connections that stay open.

use std::{net::SocketAddr, time::Duration};

use super::{ExchangeWindow, exchange::Session, slot::Plan};
use crate::{Host, Result};

/// What is exchanged. The server is an [`EchoServer`](super::EchoServer) with the same sizes.
#[derive(Clone, Debug)]
pub struct RrOptions {
    /// Connections, all served by one thread, each with one request in flight.
    pub connections: usize,
    /// Bytes a request, 1 or more.
    pub request: usize,
    /// Bytes a response, 1 or more.
    pub response: usize,
    /// Compare the response with the request, which must be as long and is echoed.
    pub verify: bool,
    /// The CPU that the thread is pinned to; none: not pinned.
    pub cpu: Option<usize>,
    /// How long it may take to open all connections.
    pub connect_limit: Duration,
}

impl Default for RrOptions {
    fn default() -> Self {
        Self {
            connections: 1,
            request: 64,
            response: 64,
            verify: false,
            cpu: None,
            connect_limit: Duration::from_secs(10),
        }
    }
}

/// Exchanges going on; dropping it ends them.
#[derive(Debug)]
pub struct RrSession(Session);

impl RrSession {
    /// Opens the connections from `host` to `target` and, once all are open, starts the first
    /// window.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range or more
    /// connections than this process may open files;
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), with the last reason, if not all
    /// connections can be opened.
    pub fn start(host: &Host, target: SocketAddr, options: &RrOptions) -> Result<Self> {
        let plan = Plan {
            target,
            connections: options.connections,
            request: options.request,
            response: options.response,
            verify: options.verify,
            close: None,
            cpus: options.cpu.into_iter().collect(),
        };
        let session = Session::start(host, plan)?;
        session.wait_established(options.connect_limit)?;
        session.take_window();
        Ok(Self(session))
    }

    /// What happened since the start or the last window taken.
    pub fn take_window(&self) -> ExchangeWindow {
        self.0.take_window()
    }

    /// What happens in the next `time`.
    pub fn measure(&self, time: Duration) -> ExchangeWindow {
        self.0.measure(time)
    }
}
