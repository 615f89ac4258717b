//! Many short connections: connect, one exchange, close.
//!
//! The side that closes first keeps the connection's ports in TIME_WAIT for a minute. A lab's
//! hosts have 55,000 local ports for each destination and reuse one that has been in TIME_WAIT
//! for a second, so a client can open about 55,000 connections a second to one address. Where
//! that is not enough or not wanted, let the server close first or reset the connections.

use std::{net::SocketAddr, time::Duration};

use super::{
    ExchangeWindow,
    exchange::Session,
    slot::{Close, Plan},
};
use crate::{Host, Result};

/// What a connection is.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Connections at a time, all served by one thread. One that is closed is followed by the
    /// next at once.
    pub concurrent: usize,
    /// Bytes of the request, 1 or more.
    pub request: usize,
    /// Bytes of the response, 1 or more.
    pub response: usize,
    /// Who closes, and how.
    pub close: Close,
    /// Compare the response with the request, which must be as long and is echoed.
    pub verify: bool,
    /// The CPU that the thread is pinned to; none: not pinned.
    pub cpu: Option<usize>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let close = Close::Client;
        Self { concurrent: 16, request: 64, response: 64, close, verify: false, cpu: None }
    }
}

/// Connections coming and going; dropping it ends them.
#[derive(Debug)]
pub struct ConnectSession(Session);

impl ConnectSession {
    /// Starts connecting from `host` to `target`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range or more
    /// connections than this process may open files. Connections that fail are counted in the
    /// windows.
    pub fn start(host: &Host, target: SocketAddr, options: &ConnectOptions) -> Result<Self> {
        let plan = Plan {
            target,
            connections: options.concurrent,
            request: options.request,
            response: options.response,
            verify: options.verify,
            close: Some(options.close),
            cpus: options.cpu.into_iter().collect(),
        };
        Session::start(host, plan).map(Self)
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
