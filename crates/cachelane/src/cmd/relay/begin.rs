//! How a relay comes by its listeners: by opening them, from a service manager, or from the relay that
//! it replaces.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use relay::{Config, ErrorKind, Inherited, Predecessor, Relay};

use crate::exit::usage;
use crate::passed::Passed;

/// Where to listen, as users say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// On this address.
    Address(SocketAddr),
    /// On the sockets of this name that the service manager passes.
    Passed(String),
}

impl FromStr for Listen {
    type Err = relay::Error;

    fn from_str(text: &str) -> Result<Listen, relay::Error> {
        match text.strip_prefix("fd:") {
            Some(name) => Ok(Listen::Passed(name.to_owned())),
            None => relay::parse_listen(text).map(Listen::Address),
        }
    }
}

/// The addresses to listen on, and those of the passed sockets that are on them: all where nothing
/// else is asked for.
pub(super) fn listeners(
    asked: &[Listen],
    passed: Vec<Passed>,
) -> anyhow::Result<(Vec<SocketAddr>, Vec<Inherited>)> {
    if asked.is_empty() && passed.is_empty() {
        return Err(usage(
            "no address to listen on (expected --listen ADDR, or sockets of a service manager)"
                .into(),
        ));
    }
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for listen in asked {
        match listen {
            Listen::Address(addr) => addrs.push(*addr),
            Listen::Passed(name) => {
                let named = passed.iter().filter(|one| one.name == *name);
                let before = addrs.len();
                addrs.extend(named.map(|one| one.socket.addr()));
                if addrs.len() == before {
                    let names: Vec<_> = passed.iter().map(|one| one.name.as_str()).collect();
                    return Err(usage(format!(
                        "--listen fd:{name}: no such socket was passed (passed: {})",
                        if names.is_empty() { "none".into() } else { names.join(", ") }
                    )));
                }
            }
        }
    }
    if asked.is_empty() {
        addrs.extend(passed.iter().map(|one| one.socket.addr()));
    }
    // Several sockets may share an address.
    let mut seen = HashSet::new();
    addrs.retain(|addr| addr.port() == 0 || seen.insert(*addr));
    let (used, unused): (Vec<_>, Vec<_>) =
        passed.into_iter().partition(|one| addrs.contains(&one.socket.addr()));
    for Passed { name, socket } in unused {
        let addr = socket.addr();
        tracing::warn!("socket '{name}' on {addr} was passed, and no --listen asks for it");
    }
    Ok((addrs, used.into_iter().map(|one| one.socket).collect()))
}

/// Starts a relay in the place of the one that listens on the same addresses; if there is none, as
/// usual on the passed `sockets`.
pub(super) fn replace(config: &Config, sockets: &[Inherited]) -> anyhow::Result<Relay> {
    /// How long to try while the other one ends, or is being replaced by a third.
    const PATIENCE: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(50);
    let start = Instant::now();
    let (mut seen, mut is_last) = (false, false);
    loop {
        let sockets = sockets.iter().map(Inherited::duplicate).collect::<Result<_, _>>()?;
        let predecessor = Predecessor::find(&config.listen)?;
        seen |= predecessor.is_some();
        let predecessor = predecessor.filter(|one| !one.is_draining);
        let relay = match &predecessor {
            Some(one) => (one.take_over(config.clone(), sockets))
                .inspect(|_| tracing::info!("took over from process {}", one.pid)),
            None => Relay::start_on(config.clone(), sockets),
        };
        // What a predecessor said or did late is no reason to leave the addresses to nobody.
        let in_time = start.elapsed() < PATIENCE;
        let goes_on = in_time || predecessor.is_some() && !is_last;
        is_last = !in_time;
        match relay {
            Err(error)
                if seen
                    && goes_on
                    && matches!(error.kind(), ErrorKind::Busy | ErrorKind::AddressInUse) =>
            {
                tracing::debug!("tries again to replace: {error}");
                thread::sleep(PAUSE);
            }
            relay => return Ok(relay?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn passed(names: &[&str]) -> (Vec<Passed>, Vec<SocketAddr>) {
        let open = |name: &&str| {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            Passed { name: (*name).into(), socket: Inherited::of_manager(socket.into()).unwrap() }
        };
        let passed: Vec<_> = names.iter().map(open).collect();
        let addrs = passed.iter().map(|one| one.socket.addr()).collect();
        (passed, addrs)
    }

    #[test]
    fn passed_sockets_are_all_taken_or_those_that_are_asked_for() {
        let (all, addrs) = passed(&["web", "db", "web"]);
        assert_eq!(listeners(&[], all).unwrap().0, addrs);

        let (all, addrs) = passed(&["web", "db", "web"]);
        let (on, sockets) = listeners(&["fd:web".parse().unwrap()], all).unwrap();
        assert_eq!((on, sockets.len()), (vec![addrs[0], addrs[2]], 2));

        // By its address, beside one that was not passed.
        let (all, addrs) = passed(&["web", "db"]);
        let other: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let asked = [Listen::Address(addrs[1]), Listen::Address(other)];
        let (on, sockets) = listeners(&asked, all).unwrap();
        assert_eq!((on, sockets.len()), (vec![addrs[1], other], 1));
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
