//! How a relay comes by its listeners: by opening them, from a service manager, or from the relay that
//! it replaces.

use std::collections::HashSet;
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use relay::{Addr, Config, ErrorKind, Inherited, Predecessor, Relay, Target};

use crate::exit::usage;
use crate::member;
use crate::passed::{Passed, none_of_name};

/// Where to listen, as users say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// On this address.
    Address(relay::Listen),
    /// On all addresses of this name that are of this host.
    Name {
        /// The name of a host.
        host: String,
        /// A port of it.
        port: u16,
    },
    /// On the sockets of this name that the service manager passes.
    Passed(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(name) = text.strip_prefix("fd:") {
            return Ok(Listen::Passed(name.to_owned()));
        }
        let refused = match text.parse::<relay::Listen>() {
            Ok(listen) => return Ok(Listen::Address(listen)),
            Err(error) => error.to_string(),
        };
        Listen::name(text).ok_or_else(|| match text.starts_with("unix:") {
            true => refused,
            false => format!("{refused}, nor is it NAME:PORT or fd:NAME"),
        })
    }
}

impl Listen {
    /// As a backend's name is read, which says what is none.
    fn name(text: &str) -> Option<Listen> {
        match text.parse().ok()? {
            Target::Name { host, port } => Some(Listen::Name { host, port }),
            Target::Addr(_) => None,
        }
    }
}

/// The addresses of a name that are of this host.
fn resolve(host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let named = || format!("--listen {host}:{port}");
    let mut all: Vec<_> = (host, port).to_socket_addrs().with_context(named)?.collect();
    let mut seen = HashSet::new();
    all.retain(|addr| seen.insert(*addr));
    let list: Vec<_> = all.iter().map(|addr| addr.ip().to_string()).collect();
    all.retain(|addr| UdpSocket::bind((addr.ip(), 0)).is_ok());
    if all.is_empty() {
        return Err(usage(format!(
            "--listen {host}:{port}: none of its addresses is of this host: {} (expected a name of \
             this host, or :{port} for every address)",
            list.join(", ")
        )));
    }
    Ok(all)
}

/// The addresses to listen on, and those of the passed sockets that are on them: all where nothing
/// else is asked for.
pub(super) fn listeners(
    asked: &[Listen],
    passed: Vec<Passed>,
) -> anyhow::Result<(Vec<relay::Listen>, Vec<Inherited>)> {
    if asked.is_empty() && passed.is_empty() {
        return Err(usage(
            "no address to listen on (expected --listen ADDR, or sockets of a service manager)"
                .into(),
        ));
    }
    let on = |one: &Passed| relay::Listen::from(one.socket.addr().clone());
    let mut all: Vec<relay::Listen> = Vec::new();
    for listen in asked {
        match listen {
            // As the sockets are that are there already, passed or a predecessor's.
            Listen::Address(listen) => all.push(relay::on_this_host(listen.clone())),
            Listen::Name { host, port } => {
                all.extend(resolve(host, *port)?.into_iter().map(relay::Listen::from));
            }
            Listen::Passed(name) => {
                let named = passed.iter().filter(|one| one.name == *name);
                let before = all.len();
                all.extend(named.map(on));
                if all.len() == before {
                    return Err(none_of_name(name, &passed));
                }
            }
        }
    }
    if asked.is_empty() {
        all.extend(passed.iter().map(on));
    }
    // Several sockets may share an address.
    let mut seen = HashSet::new();
    let is_any = |addr: &Addr| addr.ip().is_some_and(|addr| addr.port() == 0);
    all.retain(|one| is_any(&one.addr) || seen.insert(one.addr.clone()));
    let is_used = |one: &Passed| all.iter().any(|listen| listen.addr == *one.socket.addr());
    let (used, unused): (Vec<_>, Vec<_>) = passed.into_iter().partition(is_used);
    for Passed { name, socket } in unused {
        let addr = socket.addr();
        tracing::warn!("socket '{name}' on {addr} was passed, and no --listen asks for it");
    }
    Ok((all, used.into_iter().map(|one| one.socket).collect()))
}

/// Starts a relay in the place of the one that listens on the same addresses; if there is none, as
/// usual on the passed `sockets`.
pub(super) fn replace(config: &Config, sockets: &[Inherited]) -> anyhow::Result<Relay> {
    /// How long to try while the other one ends, or is being replaced by a third.
    const PATIENCE: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(50);
    let start = Instant::now();
    let addrs: Vec<_> = config.listen.iter().map(|listen| listen.addr.clone()).collect();
    let (mut seen, mut is_last) = (false, false);
    loop {
        let sockets = sockets.iter().map(Inherited::duplicate).collect::<Result<_, _>>()?;
        let predecessor = Predecessor::find(&addrs)?;
        seen |= predecessor.is_some();
        let predecessor = predecessor.filter(|one| !one.is_draining);
        let relay = match &predecessor {
            Some(one) => (one.take_over(config.clone(), sockets))
                .inspect(|_| tracing::info!("took over from process {}", one.pid)),
            None => Relay::start_on(config.clone(), sockets),
        };
        let again = relay.as_ref().err().is_some_and(|error| match error.kind() {
            ErrorKind::Busy => seen,
            // One that ends may have it still; else it is somebody else's, who keeps it.
            ErrorKind::AddressInUse => seen && predecessor.is_none(),
            _ => false,
        });
        // What a predecessor said or did late is no reason to leave the addresses to nobody.
        let in_time = start.elapsed() < PATIENCE;
        let goes_on = in_time || predecessor.is_some() && !is_last;
        is_last = !in_time;
        match relay {
            Err(error) if again && goes_on => {
                tracing::debug!("tries again to replace: {error}");
                thread::sleep(PAUSE);
            }
            relay => {
                let relay = relay?;
                member::took_over(predecessor.map(|one| one.pid));
                return Ok(relay);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn passed(names: &[&str]) -> (Vec<Passed>, Vec<relay::Listen>) {
        let open = |name: &&str| {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            Passed { name: (*name).into(), socket: Inherited::of_manager(socket.into()).unwrap() }
        };
        let passed: Vec<_> = names.iter().map(open).collect();
        let addrs = passed.iter().map(|one| one.socket.addr().clone().into()).collect();
        (passed, addrs)
    }

    #[test]
    fn passed_sockets_are_all_taken_or_those_that_are_asked_for() {
        let (all, addrs) = passed(&["web", "db", "web"]);
        assert_eq!(listeners(&[], all).unwrap().0, addrs);

        let (all, addrs) = passed(&["web", "db", "web"]);
        let (on, sockets) = listeners(&["fd:web".parse().unwrap()], all).unwrap();
        assert_eq!((on, sockets.len()), (vec![addrs[0].clone(), addrs[2].clone()], 2));

        // By its address, beside one that was not passed.
        let (all, addrs) = passed(&["web", "db"]);
        let other: relay::Listen = "127.0.0.1:1".parse().unwrap();
        let asked = [Listen::Address(addrs[1].clone()), Listen::Address(other.clone())];
        let (on, sockets) = listeners(&asked, all).unwrap();
        assert_eq!((on, sockets.len()), (vec![addrs[1].clone(), other], 1));
    }

    #[test]
    fn a_name_stands_for_its_addresses_of_this_host() {
        let on = |text: &str| listeners(&[text.parse().unwrap()], Vec::new());
        let (all, _) = on("localhost:8080").unwrap();
        assert!(!all.is_empty());
        for listen in all {
            let addr = listen.addr.ip().unwrap();
            assert!(addr.ip().is_loopback() && addr.port() == 8080, "{addr}");
        }
        for (text, says) in [
            ("no-such-name.invalid:80", "--listen no-such-name.invalid:80"),
            ("localhost:0", "does not parse"),
            ("localhost", "nor is it NAME:PORT"),
        ] {
            let error = text.parse::<Listen>().map_err(anyhow::Error::msg);
            let error = error.and_then(|one| listeners(&[one], Vec::new())).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{text}: {error:#}");
        }
        assert!("10.0.0.300:80".parse::<Listen>().is_err());
    }

    #[test]
    fn a_socket_that_was_not_passed_is_named_with_those_that_were() {
        let (all, _) = passed(&["web", "db"]);
        let error = listeners(&["fd:www".parse().unwrap()], all).unwrap_err().to_string();
        assert!(error.contains("fd:www") && error.contains("passed: web, db"), "{error}");
        let error = listeners(&[], Vec::new()).unwrap_err().to_string();
        assert!(error.contains("--listen"), "{error}");
    }
}
