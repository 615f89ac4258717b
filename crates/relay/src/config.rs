//! What a relay is told: addresses, engine, CPUs, limits.

mod backend;
mod listen;

use std::time::Duration;

use lanes::CpuSet;
use strum::{Display, EnumString, IntoStaticStr, VariantNames};

use crate::access::AddressEntry;
use crate::access_log::AccessLog;
use crate::clients::{ClientMask, Rate};
use crate::{CongestionControl, Error, Source, loops};
pub use backend::{Backend, Check, Target};
pub use listen::Listen;

/// How bytes move from one leg of a connection to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_engine)]
#[repr(u8)]
pub enum Engine {
    /// Read into a buffer that stays in the worker's cache, and write from it.
    Copy = 0,
    /// Move pages through a pipe, never into user space.
    Splice = 1,
    /// Let a BPF verdict move one direction's bulk inside the kernel, under a governor.
    Sockmap = 2,
    /// Start with copy, change to what the flow turns out to need.
    Auto = 3,
}

impl Engine {
    /// Every engine, in the order in which they are shown.
    pub const ALL: [Engine; 4] = [Engine::Copy, Engine::Splice, Engine::Sockmap, Engine::Auto];

    /// The engine's name, as in `relay.engine`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    pub(crate) fn from_u8(value: u8) -> Engine {
        Engine::ALL[usize::from(value) % Engine::ALL.len()]
    }
}

fn unknown_engine(name: &str) -> Error {
    let expected = kit::or(Engine::ALL.map(Engine::name));
    Error::invalid(format!("engine '{name}' is not known (expected {expected})"))
}

/// How a backend is chosen for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, VariantNames)]
#[strum(parse_err_ty = Error, parse_err_fn = unknown_balance)]
pub enum Balance {
    /// One after the other.
    #[default]
    #[strum(serialize = "roundrobin")]
    RoundRobin,
    /// The one with the fewest connections from this relay.
    #[strum(serialize = "leastconn")]
    LeastConnections,
    /// Of two that are drawn, the one with the fewer connections.
    #[strum(serialize = "random")]
    Random,
    /// By the client's address, the same one each time.
    #[strum(serialize = "source")]
    Source,
}

/// A version of the PROXY protocol's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

fn unknown_balance(name: &str) -> Error {
    let expected = kit::or(Balance::VARIANTS.iter().copied());
    Error::invalid(format!("balance '{name}' is not known (expected {expected})"))
}

/// Everything a relay needs to start. [`Config::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to accept clients.
    pub listen: Vec<Listen>,
    /// Where connections go.
    pub backends: Vec<Backend>,
    /// How a backend is chosen.
    pub balance: Balance,
    /// How bytes move.
    pub engine: Engine,
    /// CPUs that forward; one worker is pinned to each.
    pub cpus: CpuSet,
    /// The most memory, kernel and user together, that one connection may hold, in bytes.
    /// At least [`Config::MIN_BUDGET`].
    pub budget: usize,
    /// The most connections at a time; more wait in the listen queue. `None`: as many as the
    /// limit on open files allows, divided among the relays of this process that have `None`.
    pub max_connections: Option<usize>,
    /// How long one backend may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long all attempts together may take to find a backend for a client, before the client
    /// gets a reset.
    pub connect_deadline: Duration,
    /// The most connections that wait for a place while all backends that are up are full.
    pub max_queue: usize,
    /// How long one waits for that before it is reset.
    pub queue_timeout: Duration,
    /// How often the names of backends are resolved.
    pub resolve_every: Duration,
    /// A connection without a byte in either direction for this long is reset. `None`: never.
    pub idle_timeout: Option<Duration>,
    /// A connection in which the client neither sends nor takes a byte for this long is reset.
    pub client_timeout: Option<Duration>,
    /// A connection in which the backend neither sends nor takes a byte for this long is reset.
    pub server_timeout: Option<Duration>,
    /// A connection of which one side has ended is reset after this long without a byte.
    pub half_closed_timeout: Option<Duration>,
    /// A peer that has been quiet for this long is asked whether it is there, on both legs: one
    /// that does not answer four times is gone. `None`: it is not asked.
    pub keepalive: Option<Duration>,
    /// A peer that has not acknowledged sent bytes, or has kept its window shut, for this long is
    /// gone (`TCP_USER_TIMEOUT`), on both legs. `None`: as the host has it (`net.ipv4.tcp_retries2`).
    pub user_timeout: Option<Duration>,
    /// How long a backend that refused is left alone before it is tried again.
    pub retry_after: Duration,
    /// Clients that are let in: see [`deny`](Self::deny). If there is none of these, all are that no
    /// other entry refuses; and if there is one, all others are refused.
    pub allow: Vec<AddressEntry>,
    /// Clients that are reset before a backend is looked for. Of the entries of both lists that have a
    /// client's address, that of the smallest network decides; of the same one in both, this. The
    /// address is that in the client's PROXY header, where it has one.
    pub deny: Vec<AddressEntry>,
    /// The most connections of one client at a time; more are reset.
    pub client_connections: Option<u32>,
    /// How fast one client may make new connections; more are reset.
    pub client_rate: Option<Rate>,
    /// What one client is.
    pub client_mask: ClientMask,
    /// Expect a PROXY protocol header from clients, of version 1 or 2.
    pub accept_proxy: bool,
    /// From these peers alone; the bytes of all others are passed on as they are. Empty: from all.
    pub proxy_from: Vec<AddressEntry>,
    /// Send a PROXY protocol header to backends.
    pub send_proxy: Option<ProxyHeader>,
    /// Congestion control of both legs.
    pub congestion_control: CongestionControl,
    /// What a bench sets otherwise than the relay would.
    #[cfg(feature = "measure")]
    pub tuning: crate::Tuning,
    /// Length of the listen queue, of each worker.
    pub backlog: i32,
    /// Where connections to backends come from, by turns: [`Source::Client`] alone, or addresses of this
    /// host, of which each backend gets those of its family. Empty: as the kernel chooses.
    pub source: Vec<Source>,
    /// Log each connection at its end.
    pub access_log: Option<AccessLog>,
}

impl Config {
    /// The smallest budget with which every engine still moves data.
    pub const MIN_BUDGET: usize = 256 * 1024;

    /// The default budget: see `docs/mechanisms/relay.md`, "Memory".
    pub const DEFAULT_BUDGET: usize = 8 << 20;

    /// A configuration with the defaults for everything but the addresses and the CPUs.
    pub fn new<L, B>(listen: Vec<L>, backends: Vec<B>, cpus: CpuSet) -> Config
    where
        L: Into<Listen>,
        B: Into<Backend>,
    {
        Config {
            listen: listen.into_iter().map(Into::into).collect(),
            backends: backends.into_iter().map(Into::into).collect(),
            balance: Balance::RoundRobin,
            engine: Engine::Auto,
            cpus,
            budget: Config::DEFAULT_BUDGET,
            max_connections: None,
            connect_timeout: Duration::from_secs(5),
            connect_deadline: Duration::from_secs(15),
            max_queue: 1024,
            queue_timeout: Duration::from_secs(5),
            resolve_every: Duration::from_secs(30),
            idle_timeout: Some(Duration::from_secs(3600)),
            client_timeout: None,
            server_timeout: None,
            half_closed_timeout: None,
            keepalive: Some(Duration::from_secs(60)),
            user_timeout: Some(Duration::from_secs(300)),
            retry_after: Duration::from_secs(2),
            allow: Vec::new(),
            deny: Vec::new(),
            client_connections: None,
            client_rate: None,
            client_mask: ClientMask::default(),
            accept_proxy: false,
            proxy_from: Vec::new(),
            send_proxy: None,
            congestion_control: CongestionControl::Auto,
            #[cfg(feature = "measure")]
            tuning: crate::Tuning::default(),
            backlog: 4096,
            source: Vec::new(),
            access_log: None,
        }
    }

    /// Whether some of the lists of addresses are in files, which may change.
    pub fn has_address_files(&self) -> bool {
        let mut all = [&self.allow, &self.deny, &self.proxy_from].into_iter().flatten();
        all.any(|entry| matches!(entry, AddressEntry::File(_)))
    }

    /// Whether it listens on one, or has one for a backend.
    pub(crate) fn has_unix_sockets(&self) -> bool {
        let is_unix = |target: &Target| matches!(target, Target::Addr(addr) if addr.is_unix());
        self.listen.iter().any(|listen| listen.addr.is_unix())
            || self.backends.iter().any(|backend| is_unix(&backend.target))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let (budget, least) = (self.budget, Config::MIN_BUDGET);
        let wrong = if self.listen.is_empty() {
            "no address to listen on".into()
        } else if self.backends.is_empty() {
            "no backend to relay to".into()
        } else if self.cpus.is_empty() {
            "the set of CPUs is empty (expected at least one CPU)".into()
        } else if budget < least {
            format!("a budget of {budget} bytes is too small (expected at least {least})")
        } else if self.max_connections == Some(0) {
            "a limit of 0 connections (expected at least 1)".into()
        } else if self.client_connections == Some(0) {
            "a limit of 0 connections of a client (expected at least 1)".into()
        } else if !self.client_mask.is_valid() {
            format!("{:?} is too long (expected at most 32 and 128 bits)", self.client_mask)
        } else {
            return loops::check(self);
        };
        Err(Error::invalid(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_and_balances_parse_by_name_and_nothing_else() {
        for engine in Engine::ALL {
            assert_eq!(engine.name().parse::<Engine>().unwrap(), engine);
            assert_eq!(Engine::from_u8(engine as u8), engine);
        }
        assert!("Copy".parse::<Engine>().is_err());
        assert!("first".parse::<Balance>().is_err());
    }
}
