//! Everything at once, for minutes: nine relays with every engine, ends that die, engines and CPUs
//! that change, relays that start anew, and programs that spin beside it all. A direct connection and
//! HAProxy carry the same streams at the same time, as controls: every byte must be right, and no
//! stream through a relay may stand still for longer than theirs do on this machine.
//!
//! `RELAY_SOAK_SECONDS` sets how long it takes (default 600), and `RELAY_INTEGRITY_SEED` repeats a
//! seed that was printed.

mod common;
#[allow(unreachable_pub)]
mod endpoint;

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use cachelane_relay::{Config, Engine, Relay};
use common::pattern::Rng;
use common::{Pair, accept, connect, own_cpus, send_all};
use endpoint::{Endpoint, Plan, judge, seed};
use lab::Lab;
use lab::peer::{Peer, Program, Proxy, ProxyOptions, installed};
use lab::testing::End;

/// Engine and budget of each relay.
const RELAYS: [(Engine, usize); 9] = [
    (Engine::Copy, 1 << 20),
    (Engine::Copy, 8 << 20),
    (Engine::Splice, 1 << 20),
    (Engine::Splice, 8 << 20),
    (Engine::Sockmap, 1 << 20),
    (Engine::Sockmap, 8 << 20),
    (Engine::Auto, Config::MIN_BUDGET),
    (Engine::Auto, 1 << 20),
    (Engine::Auto, 8 << 20),
];
/// Connections at a time through each relay, and through each of the two controls: as many through
/// the controls as through the relays, so that the longest of each are of samples of one size.
const CROWD: [u64; 2] = [2, 9];
/// Programs that spin.
const SPINNERS: usize = 6;
/// How often one of the relays starts anew.
const RESTARTS: Duration = Duration::from_secs(5);
/// A stream through a relay may stand still for so many times as long as the controls' longest: the
/// largest of two samples of one kind differ that much by chance. And for so long in any case.
const LONGER: u32 = 2;
const ALWAYS: Duration = Duration::from_secs(2);

/// What carries streams: nothing, HAProxy or a relay.
struct Service {
    name: String,
    /// Where clients connect.
    addr: SocketAddr,
    backend: TcpListener,
    relay: Option<(Config, Mutex<Option<Relay>>)>,
    /// Its ends are judged. Not HAProxy's, which is there for its times: it passes a reset on as a FIN.
    judged: bool,
    /// Held while a connection is opened, so that its two ends find each other, and while the relay
    /// starts anew.
    opening: Mutex<()>,
    /// How often the relay has started anew.
    epoch: AtomicU64,
    seen: Mutex<Seen>,
}

/// What came of the streams.
#[derive(Debug, Default)]
struct Seen {
    connections: u64,
    bytes: u64,
    /// The longest that an end waited for its socket, by connection.
    waits: Vec<Duration>,
}

#[test]
#[ignore = "slow: takes ten minutes"]
fn nothing_is_lost_or_stalls_where_everything_happens_at_once_root() {
    if !lab::testing::root("nothing_is_lost_or_stalls_where_everything_happens_at_once_root") {
        return;
    }
    assert!(installed(Program::Haproxy).is_some(), "haproxy is not installed (make peers)");
    let seconds = std::env::var("RELAY_SOAK_SECONDS").map_or(600, |v| v.parse().unwrap());
    let seed = seed();
    println!("seed {seed}, {seconds} s");
    let lab = Lab::new("relay-soak").unwrap();
    let host = lab.host("host").unwrap();
    let control = |name: &str| {
        let backend = host.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        Service::new(name, backend.local_addr().unwrap(), backend, None)
    };
    let (direct, mut haproxy) = (control("direct"), control("haproxy"));
    let options = ProxyOptions::new("127.0.0.1:900".parse().unwrap(), haproxy.addr);
    (haproxy.addr, haproxy.judged) = (options.listen, false);
    let _peer = Peer::proxy(&lab, &host, Proxy::Haproxy { splice: false }, &options).unwrap();
    // Whatever the relays start from here on is in the host, as its threads are.
    host.run(|| soak(&[direct, haproxy], seed, Duration::from_secs(seconds))).unwrap();
}

fn soak(controls: &[Service], seed: u64, time: Duration) {
    let relays: Vec<Service> =
        RELAYS.iter().map(|&(engine, budget)| relay(engine, budget)).collect();
    let over = AtomicBool::new(false);
    let end = Instant::now() + time;
    thread::scope(|scope| {
        let _end = End(&over);
        for _ in 0..SPINNERS {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let disturber = scope.spawn(|| disturb(&relays, &over, seed));
        let sets = [(&relays[..], CROWD[0]), (controls, CROWD[1])];
        let mut crowd = Vec::new();
        for (services, places) in sets {
            for (service, place) in services.iter().flat_map(|s| (0..places).map(move |i| (s, i))) {
                crowd.push(scope.spawn(move || service.carry(seed, place, end)));
            }
        }
        let fine = crowd.into_iter().map(thread::ScopedJoinHandle::join).all(|r| r.is_ok());
        over.store(true, Relaxed);
        assert!(disturber.join().is_ok() && fine, "seed {seed}");
    });
    let [relayed, controlled] = [&relays[..], controls].map(longest);
    let most = (controlled * LONGER).max(ALWAYS);
    assert!(relayed <= most, "a stream stood still for {relayed:?}, of controls {controlled:?}");
}

/// The longest that any stream of these stood still; prints what each has carried.
fn longest(services: &[Service]) -> Duration {
    let longest = services.iter().map(|service| {
        let mut seen = service.seen.lock().unwrap();
        assert!(seen.bytes > 0, "{} carried nothing", service.name);
        seen.waits.sort_unstable();
        let at = |share: f64| seen.waits[((seen.waits.len() - 1) as f64 * share) as usize];
        println!(
            "{:22} {:7} connections {:9.1} MB, longest waits: median {:?}, p99 {:?}, all {:?}; \
             started {} times",
            service.name,
            seen.connections,
            seen.bytes as f64 / 1e6,
            at(0.5),
            at(0.99),
            at(1.0),
            service.epoch.load(Relaxed) + 1
        );
        at(1.0)
    });
    longest.max().expect("some service")
}

fn relay(engine: Engine, budget: usize) -> Service {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let cpus = own_cpus().into_iter().take(2).collect();
    let any = vec!["127.0.0.1:0".parse().unwrap()];
    let backends = [backend.local_addr().unwrap()];
    let mut config = common::config(engine, &backends);
    (config.listen, config.cpus, config.budget) = (any, cpus, budget);
    let relay = Relay::start(config.clone()).unwrap();
    let addr = relay.addrs()[0];
    // The same port at every start.
    config.listen = common::on(&[addr]);
    let name = format!("relay {engine} {} KiB", budget >> 10);
    Service::new(&name, addr, backend, Some((config, Mutex::new(Some(relay)))))
}

/// Sets engines and CPUs, and starts relays anew, until it is over.
fn disturb(relays: &[Service], over: &AtomicBool, seed: u64) {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut rng = Rng::new(seed);
    let cpus = own_cpus();
    let mut restart = Instant::now() + RESTARTS;
    while !over.load(Relaxed) {
        let service = &relays[rng.below(relays.len() as u64) as usize];
        if Instant::now() >= restart {
            service.start_anew();
            restart += RESTARTS;
        }
        let relay = service.relay.as_ref().expect("a relay").1.lock().unwrap();
        let relay = relay.as_ref().expect("it runs");
        if rng.one_in(2) {
            let from = rng.below(cpus.len() as u64) as usize;
            let to = from + 1 + rng.below((cpus.len() - from) as u64) as usize;
            relay.set_cpus(&cpus[from..to].iter().copied().collect()).unwrap();
        } else {
            relay.set_engine(Engine::ALL[rng.below(4) as usize]).unwrap();
        }
        thread::sleep(PAUSE);
    }
}

impl Service {
    fn new(
        name: &str,
        addr: SocketAddr,
        backend: TcpListener,
        relay: Option<(Config, Mutex<Option<Relay>>)>,
    ) -> Service {
        let name = name.to_owned();
        let (opening, epoch, seen) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        Service { name, addr, backend, relay, judged: true, opening, epoch, seen }
    }

    /// Carries one connection after another until `end`.
    fn carry(&self, seed: u64, place: u64, end: Instant) {
        let mut number = place << 32;
        while Instant::now() < end {
            number += 1;
            self.converse(seed, number);
        }
    }

    /// One connection from beginning to end, with all that may be said of it.
    fn converse(&self, seed: u64, number: u64) {
        let mut rng = Rng::new(seed ^ number << 20 ^ u64::from(self.addr.port()));
        let plans = [(); 2].map(|()| Plan::new(&mut rng, true));
        let (up, down) = (rng.next(), rng.next());
        let name = |end: &str| format!("{}, seed {seed}, connection {number}, {end}", self.name);
        let (pair, epoch) = self.open(number);
        let stats = || self.stats();
        let (client, backend) = thread::scope(|scope| {
            let backend = Endpoint::new(pair.backend, name("backend"), plans[1], down, up);
            let backend = scope.spawn(|| backend.run(&stats));
            let client = Endpoint::new(pair.client, name("client"), plans[0], up, down);
            (client.run(&stats), backend.join().unwrap_or_else(|_| panic!("seed {seed}")))
        });
        let may_reset = plans.iter().any(Plan::dies) || epoch != self.epoch.load(Relaxed);
        if self.judged {
            judge(&client, &backend, may_reset, &name("client to backend"));
            judge(&backend, &client, may_reset, &name("backend to client"));
        }
        let mut seen = self.seen.lock().unwrap();
        seen.connections += 1;
        seen.bytes += client.received + backend.received;
        seen.waits.push(client.longest_wait.max(backend.longest_wait));
    }

    /// A connection, and how often the relay had started anew by then. Its first bytes say which it is:
    /// HAProxy, where it waited long for a CPU, connects to the backend once more.
    fn open(&self, number: u64) -> (Pair, u64) {
        let _opening = self.opening.lock().unwrap();
        let client = connect(self.addr);
        send_all(&client, &number.to_ne_bytes());
        let is_ours = |mut backend: &TcpStream| {
            let mut first = [0; 8];
            backend.read_exact(&mut first).is_ok() && u64::from_ne_bytes(first) == number
        };
        let backend = std::iter::repeat_with(|| accept(&self.backend)).find(is_ours).unwrap();
        (Pair { client, backend }, self.epoch.load(Relaxed))
    }

    /// Resets every connection of the relay and starts it again on its address.
    fn start_anew(&self) {
        let Some((config, relay)) = &self.relay else { return };
        let _opening = self.opening.lock().unwrap();
        self.epoch.fetch_add(1, Relaxed);
        let mut relay = relay.lock().unwrap();
        relay.take();
        *relay = Some(Relay::start(config.clone()).unwrap());
    }

    fn stats(&self) -> String {
        let Some((_, relay)) = &self.relay else { return String::new() };
        relay.lock().unwrap().as_ref().map_or_else(String::new, |r| format!("{:?}", r.stats()))
    }
}
