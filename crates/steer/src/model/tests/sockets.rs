//! Which receives of real sockets are recorded, and that their packets find the record.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::steered::{Steered, pin};
use super::*;

/// Messages after which a flow must have left the kernel path: each takes a poll at least.
const MESSAGES: usize = 1000;

/// Addresses to bind to and connect to, as a program would write them.
#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
    /// IPv4 by a socket of IPv6.
    Mapped,
}

impl Family {
    const ALL: [Family; 3] = [Family::V4, Family::V6, Family::Mapped];

    fn server(self, on: &Steered) -> IpAddr {
        match self {
            Self::V4 => on.link.b.v4.into(),
            Self::V6 => on.link.b.v6.into(),
            Self::Mapped => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// The server, as the client says it.
    fn remote(self, on: &Steered) -> IpAddr {
        match self {
            Self::V4 | Self::Mapped => on.link.b.v4.into(),
            Self::V6 => on.link.b.v6.into(),
        }
    }

    /// The client, as the server says it.
    fn client(self, on: &Steered) -> IpAddr {
        match self {
            Self::V4 => on.link.a.v4.into(),
            Self::V6 => on.link.a.v6.into(),
            Self::Mapped => on.link.a.v4.to_ipv6_mapped().into(),
        }
    }
}

/// A flow's two ends.
trait Ends {
    fn flow(&self) -> Tuple;
    fn send(&self);
    fn receive(&self);
    fn reply(&self);
}

struct Tcp {
    client: TcpStream,
    server: TcpStream,
}

struct Udp {
    client: UdpSocket,
    server: UdpSocket,
}

impl Tcp {
    fn new(on: &Steered, family: Family, port: u16) -> Self {
        let address = SocketAddr::new(family.server(on), port);
        let listener = on.b.run(|| TcpListener::bind(address)).expect("it runs").expect("it binds");
        let to = SocketAddr::new(family.remote(on), port);
        let client = on.a.run(|| TcpStream::connect(to)).expect("it runs").expect("it connects");
        let (server, _) = listener.accept().expect("it is accepted");
        server.set_read_timeout(Some(Duration::from_secs(10))).expect("it is set");
        Self { client, server }
    }
}

impl Udp {
    fn new(on: &Steered, family: Family, port: u16) -> Self {
        let address = SocketAddr::new(family.server(on), port);
        let server = on.b.run(|| UdpSocket::bind(address)).expect("it runs").expect("it binds");
        let from = SocketAddr::new(family.client(on).to_canonical(), port + 1);
        let client = on.a.run(|| UdpSocket::bind(from)).expect("it runs").expect("it binds");
        client.connect(SocketAddr::new(family.remote(on), port)).expect("it connects");
        server.connect(SocketAddr::new(family.client(on), port + 1)).expect("it connects");
        server.set_read_timeout(Some(Duration::from_secs(10))).expect("it is set");
        Self { client, server }
    }
}

impl Ends for Tcp {
    fn flow(&self) -> Tuple {
        let peer = self.server.peer_addr().expect("it is connected");
        Tuple::of_socket(peer, self.server.local_addr().expect("it is bound"), Protocol::Tcp)
    }

    fn send(&self) {
        (&self.client).write_all(b"x").expect("it is sent");
    }

    fn receive(&self) {
        assert_eq!((&self.server).read(&mut [0; 1]).expect("it is received"), 1);
    }

    fn reply(&self) {
        (&self.server).write_all(b"y").expect("it is sent");
    }
}

impl Ends for Udp {
    fn flow(&self) -> Tuple {
        let peer = self.server.peer_addr().expect("it is connected");
        Tuple::of_socket(peer, self.server.local_addr().expect("it is bound"), Protocol::Udp)
    }

    fn send(&self) {
        self.client.send(b"x").expect("it is sent");
    }

    fn receive(&self) {
        assert_eq!(self.server.recv(&mut [0; 8]).expect("it is received"), 1);
    }

    fn reply(&self) {
        self.server.send(b"y").expect("it is sent");
    }
}

fn follows_its_consumer(on: &Steered, ends: &dyn Ends) {
    let flow = ends.flow();
    assert_eq!(on.recorded(&flow), None, "{flow:?}");
    for cpu in on.cpus.iter().copied() {
        pin(cpu);
        ends.send();
        let receives = on.receives(|| ends.receive());
        assert_eq!((receives, on.recorded(&flow)), (1, Some(cpu)), "{flow:?}");
        // What arrives on the consumer's own CPU stays there.
        let Some(other) = on.cpus.iter().copied().find(|other| *other != cpu) else { continue };
        let arrives = |_: &usize| {
            pin(other);
            ends.send();
            pin(cpu);
            ends.receive();
            on.cpus_of(&flow).contains(&cpu)
        };
        let found = (0..MESSAGES).find(arrives);
        assert!(found.is_some(), "{flow:?} at {:?}, not at CPU {cpu}", on.cpus_of(&flow));
    }
    // A send says as well where the flow is handled.
    pin(on.cpus[0]);
    assert_eq!(on.receives(|| ends.reply()), 1, "{flow:?}");
    assert_eq!(on.recorded(&flow), Some(on.cpus[0]), "{flow:?}");
}

#[test]
fn root_a_socket_s_record_is_the_one_that_its_packets_look_for() {
    if !lab::testing::root("root_a_socket_s_record_is_the_one_that_its_packets_look_for") {
        return;
    }
    for queues in [1, 3] {
        let on = Steered::new(queues);
        for (port, family) in (7000..).step_by(10).zip(Family::ALL) {
            follows_its_consumer(&on, &Tcp::new(&on, family, port));
            follows_its_consumer(&on, &Udp::new(&on, family, port));
        }
        let counters = on.loaded.counters().expect("the counters are read");
        assert!(counters.steered >= 6 && counters.overflows == 0, "{counters:?}");
    }
}

#[test]
fn root_looks_failures_ends_and_strangers_are_not_recorded() {
    if !lab::testing::root("root_looks_failures_ends_and_strangers_are_not_recorded") {
        return;
    }
    let on = Steered::new(1);
    let tcp = Tcp::new(&on, Family::V4, 7000);
    tcp.send();
    let peek = || assert_eq!(tcp.server.peek(&mut [0; 8]).expect("it is there"), 1);
    assert_eq!((on.receives(peek), on.recorded(&tcp.flow())), (0, None), "a look");
    assert_eq!(on.receives(|| tcp.receive()), 1);
    tcp.server.set_nonblocking(true).expect("it is set");
    let fail = || {
        let error = (&tcp.server).read(&mut [0; 8]).expect_err("nothing is there");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    };
    assert_eq!(on.receives(fail), 0, "a failure");
    tcp.server.set_nonblocking(false).expect("it is set");
    // The client's end is on the other host: its receives are none of ours.
    tcp.reply();
    let elsewhere = || assert_eq!((&tcp.client).read(&mut [0; 8]).expect("it is received"), 1);
    assert_eq!(on.receives(elsewhere), 0, "another network namespace");
    tcp.client.shutdown(Shutdown::Write).expect("it is shut down");
    let end = || assert_eq!((&tcp.server).read(&mut [0; 8]).expect("the end"), 0);
    assert_eq!(on.receives(end), 0, "the end");
    let udp = Udp::new(&on, Family::V4, 7200);
    udp.client.send(&[]).expect("it is sent");
    let nothing = || assert_eq!(udp.server.recv(&mut [0; 8]).expect("it is received"), 0);
    assert_eq!((on.receives(nothing), on.recorded(&udp.flow())), (0, None), "no bytes");
    let address = SocketAddr::new(on.link.b.v4.into(), 7500);
    let server = on.b.run(|| UdpSocket::bind(address)).expect("it runs").expect("it binds");
    let client = on.a.run(|| UdpSocket::bind((on.link.a.v4, 7501))).expect("it runs");
    client.expect("it binds").send_to(b"x", address).expect("it is sent");
    server.set_read_timeout(Some(Duration::from_secs(10))).expect("it is set");
    let unconnected = || assert_eq!(server.recv_from(&mut [0; 8]).expect("it is received").0, 1);
    assert_eq!(on.receives(unconnected), 0, "a socket of many flows");
    let counters = on.loaded.counters().expect("the counters are read");
    assert_eq!(counters.receives, 2, "{counters:?}");
}
