//! Where connections to backends come from.

mod common;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use cachelane_relay::{Backend, Config, Engine, ErrorKind, Relay, Source, proxy};
use common::*;
use lab::{Host, Lab, LinkOptions};

fn sources(all: &str) -> Vec<Source> {
    all.split_whitespace().map(|source| source.parse().unwrap()).collect()
}

fn peer(backend: &TcpStream) -> IpAddr {
    backend.peer_addr().unwrap().ip()
}

/// `n` connections through a relay, each from a client's address of its own.
fn pairs(relay: &Relay, listeners: &[TcpListener], n: u8) -> Vec<Pair> {
    let pair = |n: u8| {
        let client = connect_from(&format!("127.0.1.{n}"), relay.addrs()[0]).unwrap();
        let mut backend = None;
        await_that("it reaches a backend", || {
            backend = listeners.iter().find_map(|one| try_accept(one, Duration::ZERO));
            backend.is_some()
        });
        Pair { client, backend: backend.unwrap() }
    };
    (1..=n).map(pair).collect()
}

#[test]
fn connections_and_checks_come_from_the_addresses_of_their_backend_by_turns() {
    let (common, own) = (backend(), backend());
    let mut config = config(Engine::Auto, &[common.1]);
    config.source = sources("127.0.0.5 127.0.0.6 ::1");
    config.cpus = own_cpus().into_iter().take(1).collect();
    config.backends.push(format!("{},source=127.0.0.7,check,inter=50ms", own.1).parse().unwrap());
    let relay = Relay::start(config).unwrap();
    // The check's, closed at once.
    assert_eq!(peer(&accept(&own.0)), IpAddr::from([127, 0, 0, 7]));
    let clients: Vec<_> = (0..12).map(|_| connect(relay.addrs()[0])).collect();
    let mut turns: Vec<_> = (0..6).map(|_| peer(&accept(&common.0))).collect();
    turns.sort();
    let (five, six) = (IpAddr::from([127, 0, 0, 5]), IpAddr::from([127, 0, 0, 6]));
    assert_eq!(turns, [five, five, five, six, six, six]);
    for _ in 0..6 {
        assert_eq!(peer(&accept(&own.0)), IpAddr::from([127, 0, 0, 7]));
    }
    drop(clients);
}

#[test]
fn a_source_that_is_none_of_this_host_is_refused_at_the_start() {
    let source = sources("192.0.2.9");
    let config = Config { source, ..config(Engine::Auto, &["192.0.2.1:80".parse().unwrap()]) };
    for error in [Relay::check(&config, &[]).unwrap_err(), Relay::start(config).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::AddressNotAvailable);
        assert!(error.to_string().contains("source 192.0.2.9"), "{error}");
    }
}

/// A host whose kernel has ten ports to give away.
#[test]
fn a_port_serves_each_backend_and_more_sources_have_more_ports_root() {
    if !lab::testing::root("a_port_serves_each_backend_and_more_sources_have_more_ports_root") {
        return;
    }
    let lab = Lab::new("ports").unwrap();
    let host = lab.host("host").unwrap();
    let bind = || (0..2).map(|_| backend()).collect::<Vec<_>>();
    let all = host.run(bind).unwrap();
    host.set_sysctl("net.ipv4.ip_local_port_range", "40000 40009").unwrap();
    for (backends, source) in [(2, "127.0.0.5"), (1, "127.0.0.5 127.0.0.6")] {
        host.run(|| {
            let addrs: Vec<_> = all[..backends].iter().map(|one| one.1).collect();
            let listeners: Vec<_> = all.iter().map(|one| one.0.try_clone().unwrap()).collect();
            // No other port: the clients' addresses have their own.
            let mut config = config(Engine::Auto, &addrs);
            config.source = sources(source);
            config.listen = vec!["127.0.0.1:39999".parse().unwrap()];
            let relay = Relay::start(config).unwrap();
            let pairs = pairs(&relay, &listeners, 20);
            pairs.iter().for_each(converse);
            // Not one more.
            expect_refusal_of("127.0.2.1", relay.addrs()[0]);
            let stats = relay.stats();
            assert!(stats.connect_local > 0 && stats.connect_failed == 0, "{stats:?}");
            // Without a port that waits for stragglers.
            for Pair { client, backend } in pairs {
                abort(client);
                abort(backend);
            }
            await_that("all have ended", || relay.active() == 0);
        })
        .unwrap();
    }
}

/// A client, a relay and a backend, each a host. What the backend sends comes back to the relay, and is
/// delivered there whoever it is for.
struct Path {
    _lab: Lab,
    hosts: [Host; 3],
    client: [IpAddr; 2],
    relay: [IpAddr; 2],
    backend: [IpAddr; 2],
}

impl Path {
    fn new(name: &str) -> Path {
        let lab = Lab::new(name).unwrap();
        let hosts = ["client", "relay", "backend"].map(|name| lab.host(name).unwrap());
        let [client, relay, backend] = &hosts;
        let front = lab.link(client, relay, LinkOptions::default()).unwrap();
        let back = lab.link(relay, backend, LinkOptions::default()).unwrap();
        let device = &back.a.device;
        for (family, via) in [("-4", IpAddr::from(back.a.v4)), ("-6", back.a.v6.into())] {
            backend.ip([family, "route", "add", "default", "via", &via.to_string()]).unwrap();
            let rule = format!("{family} rule add iif {device} ipproto tcp lookup 100");
            relay.ip(rule.split(' ')).unwrap();
            let route = format!("{family} route add local default dev lo table 100");
            relay.ip(route.split(' ')).unwrap();
        }
        Path {
            client: [front.a.v4.into(), front.a.v6.into()],
            relay: [front.b.v4.into(), front.b.v6.into()],
            backend: [back.b.v4.into(), back.b.v6.into()],
            _lab: lab,
            hosts,
        }
    }

    /// A relay to a backend of this family, and the backend.
    fn start(&self, family: usize, adjust: impl FnOnce(&mut Config) + Send) -> Rig {
        let [_, relay, backend] = &self.hosts;
        let listen = || TcpListener::bind((self.backend[family], 0)).unwrap();
        let listener = backend.run(listen).unwrap();
        let mut config = config(Engine::Auto, &[listener.local_addr().unwrap()]);
        config.listen = vec!["[::]:0".parse().unwrap()];
        config.source = vec![Source::Client];
        let relay = relay.run(|| {
            adjust(&mut config);
            Relay::start(config).unwrap()
        });
        Rig { relay: relay.unwrap(), listener }
    }

    fn at(&self, rig: &Rig, family: usize) -> SocketAddr {
        SocketAddr::new(self.relay[family], rig.relay.addrs()[0].port())
    }

    fn connect(&self, rig: &Rig, family: usize) -> TcpStream {
        let at = self.at(rig, family);
        self.hosts[0].run(|| connect(at)).unwrap()
    }
}

#[test]
fn backends_see_the_clients_own_address_root() {
    if !lab::testing::root("backends_see_the_clients_own_address_root") {
        return;
    }
    let path = Path::new("transparent");
    for family in [0, 1] {
        let rig = path.start(family, |config| {
            let Backend { check, .. } = &mut config.backends[0];
            *check = Some(Default::default());
        });
        // A check has no client.
        let check = accept(&rig.listener);
        assert_ne!(peer(&check), path.client[family]);
        for _ in 0..3 {
            let client = path.connect(&rig, family);
            let backend = loop {
                let backend = accept(&rig.listener);
                if peer(&backend) != peer(&check) {
                    break backend;
                }
            };
            assert_eq!(peer(&backend), path.client[family]);
            let pair = Pair { client, backend };
            converse(&pair);
            part(pair);
        }
        // A client of the other family has no address for this backend.
        let at = path.at(&rig, 1 - family);
        path.hosts[0].run(|| expect_refusal(at)).unwrap();
        let stats = rig.relay.stats();
        assert!(stats.connect_local > 0 && stats.connect_failed == 0, "{stats:?}");
    }
}

#[test]
fn backends_see_the_address_that_a_proxy_header_names_root() {
    if !lab::testing::root("backends_see_the_address_that_a_proxy_header_names_root") {
        return;
    }
    let path = Path::new("transparent-proxy");
    let rig = path.start(0, |config| config.accept_proxy = true);
    let (from, to) = ("198.51.100.7:4711".parse().unwrap(), "192.0.2.1:80".parse().unwrap());
    for (header, expected) in
        [(proxy::write(Some((from, to))), from.ip()), (proxy::write(None), path.client[0])]
    {
        let client = path.connect(&rig, 0);
        send_all(&client, &header);
        let pair = Pair { client, backend: accept(&rig.listener) };
        assert_eq!(peer(&pair.backend), expected);
        converse(&pair);
        part(pair);
    }
}
