//! Backends that are the relay itself: each connection would come back to it, until files run out.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::addr::{Addr, UnixAddr};
use crate::config::{Config, Target};

/// Refuses a relay to itself, and an address that is listened on twice.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    let listen: Vec<_> = config.listen.iter().map(|one| one.addr.clone()).collect();
    for backend in &config.backends {
        if let Target::Addr(addr) = &backend.target
            && is_own(&listen, addr)
        {
            return Err(Error::invalid(format!(
                "backend {addr} is what the relay listens on: it would connect to itself (expected \
                 another address or port)"
            )));
        }
    }
    for (n, addr) in listen.iter().enumerate() {
        if listen[..n].iter().any(|other| is_same_addr(other, addr)) {
            return Err(Error::invalid(format!(
                "listen address {addr} is given twice (expected each address once)"
            )));
        }
    }
    Ok(())
}

/// Whether a connection to `backend` would arrive at one of the addresses that the relay listens on.
pub(crate) fn is_own(listen: &[Addr], backend: &Addr) -> bool {
    let ip = match backend {
        Addr::Ip(ip) => *ip,
        Addr::Unix(_) => return listen.iter().any(|own| is_same_addr(own, backend)),
    };
    let to = ip.ip().to_canonical();
    listen.iter().filter_map(Addr::ip).any(|own| {
        let on = own.ip().to_canonical();
        // Who connects to no address in particular connects to this host.
        let meets = to == on
            || (on.is_unspecified() && is_here(ip))
            || (to.is_unspecified() && on.is_loopback());
        own.port() == ip.port() && own.port() != 0 && meets
    })
}

fn is_same_addr(a: &Addr, b: &Addr) -> bool {
    match (a, b) {
        (Addr::Ip(a), Addr::Ip(b)) => is_same(*a, *b),
        (Addr::Unix(a), Addr::Unix(b)) => a == b || is_same_path(a, b),
        (Addr::Ip(_), Addr::Unix(_)) | (Addr::Unix(_), Addr::Ip(_)) => false,
    }
}

/// Whether two paths lead to one place, whether or not there is a file yet.
fn is_same_path(a: &UnixAddr, b: &UnixAddr) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    };
    let (a, b) = (a.path().and_then(place), b.path().and_then(place));
    a.is_some() && a == b
}

fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    let (ip, other) = (a.ip().to_canonical(), b.ip().to_canonical());
    a.port() == b.port()
        && a.port() != 0
        && (ip == other || (ip.is_unspecified() && other.is_unspecified()))
}

/// Whether an address is one of this host's.
fn is_here(addr: SocketAddr) -> bool {
    let ip = addr.ip();
    ip.is_unspecified() || ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_the_relay_is_found_through_wildcards_and_loopback() {
        for (listen, backend, own) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.0.0.2:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("0.0.0.0:80", "192.0.2.1:80", false),
            ("127.0.0.1:0", "127.0.0.1:80", false),
            ("unix:/tmp/x", "unix:/tmp/x", true),
            ("unix:/tmp/x", "unix:/tmp/../tmp/./x", true),
            ("unix:/tmp/x", "unix:/x", false),
            ("unix:@x", "unix:@x", true),
            ("unix:@x", "unix:@y", false),
            ("unix:@tmp", "unix:/tmp", false),
            ("unix:/tmp/x", "127.0.0.1:80", false),
        ] {
            let found = is_own(&[listen.parse().unwrap()], &backend.parse().unwrap());
            assert_eq!(found, own, "{listen} to {backend}");
        }
    }

    #[test]
    fn an_address_given_twice_is_refused_by_name() {
        let config = |listen: [&str; 2]| {
            let listen = listen.iter().map(|addr| addr.parse::<Addr>().unwrap()).collect();
            let backend: SocketAddr = "192.0.2.1:1".parse().unwrap();
            Config::new(listen, vec![backend], [0].into_iter().collect())
        };
        for twice in [["127.0.0.1:80"; 2], ["[::]:80", "0.0.0.0:80"], ["unix:/x", "unix:/tmp/../x"]]
        {
            let error = check(&config(twice)).unwrap_err().to_string();
            assert!(error.contains(twice[1]) && error.contains("twice"), "{error}");
        }
        for both in [["127.0.0.1:80", "127.0.0.2:80"], ["127.0.0.1:0"; 2], ["unix:/x", "unix:/y"]] {
            assert!(check(&config(both)).is_ok(), "{both:?}");
        }
    }
}
