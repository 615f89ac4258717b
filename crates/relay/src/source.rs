//! From which addresses the relay connects to its backends: what the kernel chooses, some of this host's,
//! or each client's own.
//!
//! A socket is bound to an address alone; the kernel chooses its port when it connects, when it knows the
//! other end (`IP_BIND_ADDRESS_NO_PORT`). So a port may serve as many connections as there are backends.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use crate::addr::Addr;
use crate::config::{Config, Target};
use crate::{Error, ErrorKind};

/// Where a connection to a backend comes from. From text as an address or `client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This address of this host.
    Addr(IpAddr),
    /// The client's address, with a port that the kernel chooses. What answers must be routed back to
    /// this host and delivered here. Needs CAP_NET_ADMIN or CAP_NET_RAW.
    Client,
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(s: &str) -> Result<Source, Error> {
        match s {
            "client" => Ok(Source::Client),
            _ => s.parse().map(Source::Addr).map_err(|_| {
                Error::invalid(format!("source '{s}' does not parse (expected {EXPECTED})"))
            }),
        }
    }
}

/// What is expected of a source that is written.
pub(crate) const EXPECTED: &str = "an IP address of this host, or client";

/// The sources of one backend.
#[derive(Debug)]
pub(crate) struct Sources {
    all: Box<[Source]>,
    /// Which is the next one's turn. Relaxed: a count.
    turn: AtomicUsize,
}

impl Sources {
    /// `own` are the backend's; if there are none, `common` are.
    pub(crate) fn new(own: &[Source], common: &[Source]) -> Sources {
        let all = if own.is_empty() { common } else { own };
        Sources { all: all.into(), turn: AtomicUsize::new(0) }
    }

    /// Whether one of them may have a connection to this address.
    pub(crate) fn reach(&self, to: IpAddr) -> bool {
        self.all.is_empty()
            || self.all.iter().any(|source| match source {
                Source::Addr(from) => in_family(*from, to).is_some(),
                Source::Client => true,
            })
    }

    /// Connects a socket from the next of them, or from the `client`. If an address has no port left
    /// for that, from another.
    pub(crate) fn connect(
        &self,
        socket: &OwnedFd,
        to: SocketAddr,
        client: Option<IpAddr>,
    ) -> rustix::io::Result<()> {
        // A client that has no address is this host's own.
        let is_client = self.all.first() == Some(&Source::Client);
        if self.all.is_empty() || is_client && client.is_none() {
            return rustix::net::connect(socket, &to);
        }
        let addr = |source: &Source| match source {
            Source::Addr(addr) => in_family(*addr, to.ip()),
            Source::Client => client.and_then(|client| in_family(client, to.ip())),
        };
        let usable = self.all.iter().filter_map(addr);
        let count = usable.clone().count();
        let first = self.turn.fetch_add(1, Relaxed).checked_rem(count).unwrap_or(0);
        let mut failed = Errno::AFNOSUPPORT;
        for from in usable.cycle().skip(first).take(count) {
            bind(socket, from, is_client)?;
            match rustix::net::connect(socket, &to) {
                Err(Errno::ADDRNOTAVAIL) => failed = Errno::ADDRNOTAVAIL,
                connected => return connected,
            }
        }
        Err(failed)
    }
}

/// As what a socket that connects to `to` is bound to `from`, if it can be.
fn in_family(from: IpAddr, to: IpAddr) -> Option<IpAddr> {
    match (from.to_canonical(), to, to.to_canonical()) {
        (IpAddr::V4(_), IpAddr::V4(_), _) => Some(from.to_canonical()),
        (IpAddr::V4(from), IpAddr::V6(_), IpAddr::V4(_)) => Some(from.to_ipv6_mapped().into()),
        (IpAddr::V6(_), _, IpAddr::V6(_)) => Some(from),
        _ => None,
    }
}

fn bind(socket: &OwnedFd, from: IpAddr, transparent: bool) -> rustix::io::Result<()> {
    // Known to IPv6 sockets as well.
    setsockopt(socket, sockopt::IpBindAddressNoPort, &true).map_err(errno)?;
    if transparent {
        setsockopt(socket, sockopt::IpTransparent, &true).map_err(errno)?;
    }
    rustix::net::bind(socket, &SocketAddr::new(from, 0))
}

fn errno(e: nix::Error) -> Errno {
    Errno::from_raw_os_error(e as i32)
}

/// Whether connections can come from where `config` says.
///
/// # Errors
/// An address that is none of this host's, or of another family than the backend; a capability that is
/// missing.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    for backend in &config.backends {
        let own = &backend.source;
        let sources = if own.is_empty() { &config.source } else { own };
        if sources.len() > 1 && sources.contains(&Source::Client) {
            return Err(Error::invalid(
                "source client beside another one (expected client alone, or addresses of this host)",
            ));
        }
        for source in sources {
            match source {
                Source::Addr(addr) => try_out(*addr)?,
                Source::Client => try_client()?,
            }
        }
        if let Target::Addr(Addr::Ip(to)) = backend.target
            && !Sources::new(own, &config.source).reach(to.ip())
        {
            let (from, family) = (list(sources), if to.is_ipv4() { "IPv4" } else { "IPv6" });
            return Err(Error::invalid(format!(
                "backend {to} cannot be reached from source {from} (expected an {family} address)"
            )));
        }
    }
    Ok(())
}

fn list(sources: &[Source]) -> String {
    let addrs = sources.iter().filter_map(|source| match source {
        Source::Addr(addr) => Some(addr.to_string()),
        Source::Client => None,
    });
    addrs.collect::<Vec<_>>().join(" or ")
}

fn try_out(addr: IpAddr) -> Result<(), Error> {
    let tried = any_socket(addr).and_then(|socket| bind(&socket, addr, false));
    tried.map_err(|e| {
        Error::io(format!("source {addr} cannot be used (expected an address of this host)"), e)
    })
}

fn try_client() -> Result<(), Error> {
    let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    let tried = any_socket(any[0]).or_else(|_| any_socket(any[1]));
    let tried =
        tried.and_then(|socket| setsockopt(&socket, sockopt::IpTransparent, &true).map_err(errno));
    tried.map_err(|e| match e {
        Errno::PERM => Error::new(
            ErrorKind::PermissionDenied,
            "source client needs the capability CAP_NET_ADMIN or CAP_NET_RAW (IP_TRANSPARENT)",
        ),
        e => Error::io("source client cannot be used (IP_TRANSPARENT)", e),
    })
}

fn any_socket(addr: IpAddr) -> rustix::io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket(family, SocketType::STREAM, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    #[test]
    fn a_source_is_of_the_family_of_the_backend() {
        for (from, to, bound) in [
            ("10.0.0.1", "192.0.2.1", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", "192.0.2.1", Some("10.0.0.1")),
            ("10.0.0.1", "::ffff:192.0.2.1", Some("::ffff:10.0.0.1")),
            ("2001:db8::1", "2001:db8::2", Some("2001:db8::1")),
            ("10.0.0.1", "2001:db8::2", None),
            ("2001:db8::1", "192.0.2.1", None),
            ("2001:db8::1", "::ffff:192.0.2.1", None),
        ] {
            assert_eq!(in_family(ip(from), ip(to)), bound.map(ip), "{from} to {to}");
        }
    }

    #[test]
    fn sources_that_cannot_be_used_are_named_at_the_start() {
        let refused = |source: &str, backend: &str| {
            let listen: SocketAddr = "127.0.0.1:1".parse().unwrap();
            let backends: Vec<crate::Backend> = vec![backend.parse().unwrap()];
            let source = source.split_whitespace().map(|one| one.parse().unwrap()).collect();
            let cpus = [0].into_iter().collect();
            check(&Config { source, ..Config::new(vec![listen], backends, cpus) })
        };
        for (source, backend, named) in [
            ("192.0.2.9", "127.0.0.1:80", vec!["192.0.2.9", "of this host"]),
            ("127.0.0.1", "[::1]:80", vec!["127.0.0.1", "[::1]:80", "IPv6"]),
            ("::1", "127.0.0.1:80,source=127.0.0.1,source=192.0.2.9", vec!["192.0.2.9"]),
            ("127.0.0.1 client", "127.0.0.1:80", vec!["client beside"]),
        ] {
            let error = refused(source, backend).unwrap_err().to_string();
            assert!(named.iter().all(|word| error.contains(word)), "{source}: {error}");
        }
        for (source, backend) in [
            ("127.0.0.1 ::1", "[::1]:80"),
            ("::1", "127.0.0.1:80,source=127.0.0.2"),
            ("::1", "name:80"),
        ] {
            refused(source, backend).unwrap();
        }
        for bad in ["", "eth0", "127.0.0.1:80", "clientip"] {
            let error = bad.parse::<Source>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains(EXPECTED), "{error}");
        }
    }
}
