//! Backends that are names: who resolves them, and when.
//!
//! A thread for each name asks the system's resolver (`/etc/hosts`, DNS, whatever `nsswitch.conf`
//! says), at the start and from time to time. It may block for as long as the resolver does: nobody
//! waits for it, and another name's thread goes on. While a name does not resolve, the addresses that
//! it had are kept. The system's resolver tells no TTL.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Backends, Spec};
use crate::addr::Addr;
use crate::config::Target;
use crate::{Error, loops};

/// How long a start waits for the names' first addresses.
const FIRST: Duration = Duration::from_secs(2);

/// How names are resolved: the system's way, or a test's.
pub(crate) type Resolve = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The threads that resolve a relay's names. Dropping it ends them, when their resolver returns.
#[derive(Debug)]
pub(crate) struct Names {
    _stop: Vec<Sender<()>>,
}

struct Name {
    spec: Arc<Spec>,
    host: String,
    port: u16,
    resolve: Resolve,
    /// What it must not resolve to: the relay itself.
    listen: Arc<[Addr]>,
    /// Whether the last time was in vain; none before the first.
    failing: Option<bool>,
}

impl Names {
    /// Starts to resolve every backend that is a name, and waits a moment for the first answers.
    pub(crate) fn start(
        backends: &Arc<Backends>,
        listen: &[Addr],
        every: Duration,
        resolve: Resolve,
    ) -> Result<Names, Error> {
        let (first, answered) = channel();
        let listen: Arc<[Addr]> = listen.into();
        let mut stop = Vec::new();
        for spec in &backends.specs {
            let Target::Name { host, port } = &spec.backend.target else { continue };
            let name = Name {
                spec: Arc::clone(spec),
                host: host.clone(),
                port: *port,
                resolve,

                listen: Arc::clone(&listen),
                failing: None,
            };
            let (sender, stopped) = channel();
            let (backends, first) = (Arc::downgrade(backends), first.clone());
            thread::Builder::new()
                .name("relay-name".into())
                .spawn(move || name.follow(&backends, every, first, &stopped))
                .map_err(|e| Error::io("cannot start a thread that resolves names", e))?;
            stop.push(sender);
        }
        drop(first);
        let deadline = Instant::now() + FIRST;
        // Ends when all have answered, or the time is over.
        while answered.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        Ok(Names { _stop: stop })
    }
}

impl Name {
    fn follow(
        mut self,
        backends: &Weak<Backends>,
        every: Duration,
        first: Sender<()>,
        stopped: &Receiver<()>,
    ) {
        let mut first = Some(first);
        loop {
            let resolved = (self.resolve)(&self.host, self.port);
            let Some(backends) = backends.upgrade() else { return };
            self.note(&backends, resolved);
            drop(backends);
            // Nobody may wait for it any more.
            first.take().map(|first| first.send(()));
            if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn note(&mut self, backends: &Backends, resolved: io::Result<Vec<SocketAddr>>) {
        let target = &self.spec.backend.target;
        let failure = match resolved {
            Ok(mut addrs) => {
                addrs.sort_unstable();
                addrs.dedup();
                let found = addrs.len();
                let reach = |addr: &SocketAddr| self.spec.sources.reach(addr.ip());
                let is_own = |addr: &SocketAddr| loops::is_own(&self.listen, &(*addr).into());
                addrs.retain(|addr| !is_own(addr) && reach(addr));
                match addrs.len() {
                    0 if found > 0 => {
                        "it is this relay's own address, or of another family than its source"
                            .into()
                    }
                    0 => "the name has no address".to_string(),
                    _ => {
                        if backends.set_addresses(&self.spec, &addrs) {
                            let list: Vec<_> = addrs.iter().map(ToString::to_string).collect();
                            tracing::info!("backend {target} is {}", list.join(", "));
                        } else if self.failing == Some(true) {
                            tracing::info!("backend {target} resolves again");
                        }
                        self.failing = Some(false);
                        return;
                    }
                }
            }
            Err(e) => e.to_string(),
        };
        if self.failing.replace(true) != Some(true) {
            tracing::warn!("backend {target} does not resolve: {failure}");
        }
    }
}

/// As the system resolves.
pub(crate) fn system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::config::{Backend, Config};

    const EVERY: Duration = Duration::from_millis(10);

    fn addr(s: &str) -> SocketAddr {
        s.parse().unwrap()
    }

    fn backends(names: &[&str]) -> Arc<Backends> {
        let all = names.iter().map(|name| name.parse().unwrap()).collect::<Vec<Backend>>();
        let config = Config::new(vec![addr("127.0.0.1:1")], all, [0].into_iter().collect());
        Arc::new(Backends::new(&config))
    }

    fn addrs(backends: &Backends) -> Vec<SocketAddr> {
        backends.servers().iter().filter_map(|server| server.addr.ip()).collect()
    }

    fn await_addrs(backends: &Backends, expected: &[SocketAddr]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while addrs(backends) != expected {
            assert!(Instant::now() < deadline, "{:?} and not {expected:?}", addrs(backends));
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn addresses_follow_the_name_and_what_is_known_of_those_that_stay_is_kept() {
        static ROUND: AtomicUsize = AtomicUsize::new(0);
        fn resolve(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            let at = |ip: [u8; 4]| SocketAddr::from((ip, port));
            Ok(match ROUND.load(Relaxed) {
                0 => vec![at([10, 0, 0, 2]), at([10, 0, 0, 1]), at([10, 0, 0, 2])],
                1 => vec![at([10, 0, 0, 2]), at([10, 0, 0, 3])],
                2 => return Err(io::Error::other("no answer")),
                _ => Vec::new(),
            })
        }
        let backends = backends(&["db:5"]);
        let _names = Names::start(&backends, &[], EVERY, resolve).unwrap();
        await_addrs(&backends, &[addr("10.0.0.1:5"), addr("10.0.0.2:5")]);
        let kept = Arc::clone(&backends.servers()[1]);
        ROUND.store(1, Relaxed);
        await_addrs(&backends, &[addr("10.0.0.2:5"), addr("10.0.0.3:5")]);
        assert!(Arc::ptr_eq(&kept, &backends.servers()[0]));
        for vain in [2, 3] {
            ROUND.store(vain, Relaxed);
            thread::sleep(EVERY * 5);
            assert_eq!(addrs(&backends).len(), 2);
        }
    }

    #[test]
    fn a_resolver_that_does_not_answer_holds_up_neither_the_start_nor_another_name_nor_the_end() {
        fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            if host == "dead" {
                thread::sleep(Duration::from_secs(3600));
            }
            Ok(vec![SocketAddr::from(([10, 0, 0, 9], port))])
        }
        let backends = backends(&["dead:1", "live:2"]);
        let names = Names::start(&backends, &[], EVERY, resolve).unwrap();
        assert_eq!(addrs(&backends), [addr("10.0.0.9:2")]);
        drop(names);
    }

    #[test]
    fn a_name_of_the_relay_itself_is_left_out() {
        fn resolve(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            Ok(vec![
                SocketAddr::from(([127, 0, 0, 1], port)),
                SocketAddr::from(([10, 0, 0, 9], port)),
            ])
        }
        let backends = backends(&["self:80"]);
        let _names = Names::start(&backends, &[addr("0.0.0.0:80").into()], EVERY, resolve).unwrap();
        assert_eq!(addrs(&backends), [addr("10.0.0.9:80")]);
    }
}
