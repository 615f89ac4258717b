//! Streams, whose receiver's kernel counts the segments that come out of order.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::thread::Scope;
use std::time::Duration;

use lab::Host;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::world::{self, Exchange, Scenario, Sender, World};

/// Bytes that may be on their way to a receiver: fewer packets than a veth's ring holds (256), for
/// what comes after a lost segment is out of order as well.
const WINDOW: usize = 64 << 10;
/// Bytes of memory that a receiver has for them, so many that it never has to drop a segment itself. With
/// twice the window it does now and then: it takes no window back, whatever memory the segments take.
const ROOM: usize = 8 << 20;
/// Bytes of a write.
const WRITE: usize = 32 << 10;
/// Bytes of a read; the consumer goes to another CPU after each.
const READ: usize = 16 << 10;
/// How long a read waits until it looks whether it is over.
const WAIT: Duration = Duration::from_millis(100);

pub(crate) fn start<'scope>(
    world: &World,
    exchange: &'scope Exchange,
    scope: &'scope Scope<'scope, '_>,
) {
    let (a, b) = (&world.link.a, &world.link.b);
    let (from, window) = (world.address(a).ip().to_string(), WINDOW.to_string());
    b.host.ip(["route", "add", &from, "dev", &b.device, "window", &window]).unwrap();
    for _ in 0..world.scenario.flows {
        let address = world.address(b);
        let listener = b.host.run(|| TcpListener::bind(address).unwrap()).unwrap();
        // Sockets that it accepts have its room.
        set_socket_recv_buffer_size_force(&listener, ROOM).unwrap();
        let address = listener.local_addr().unwrap();
        let sender = a.host.run(|| TcpStream::connect(address).unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let scenario = world.scenario;
        scope.spawn(move || send(sender, &scenario, exchange));
        scope.spawn(move || receive(receiver, exchange));
    }
}

/// Segments that came to a host out of order.
pub(crate) fn overtaken(host: &Host) -> u64 {
    let text = host.run(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counts = names.split_whitespace().zip(values.split_whitespace());
    let (_, count) = counts.find(|(name, _)| *name == "TCPOFOQueue").unwrap();
    count.parse().unwrap()
}

fn send(mut socket: TcpStream, scenario: &Scenario, exchange: &Exchange) {
    let bytes = [0; WRITE];
    let mut sender = Sender::new(scenario);
    socket.set_write_timeout(Some(WAIT)).unwrap();
    while !exchange.is_over() {
        sender.hop();
        match socket.write(&bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    socket.shutdown(Shutdown::Write).unwrap();
}

fn receive(mut socket: TcpStream, exchange: &Exchange) {
    let cpus = world::cpus();
    let mut buffer = [0; READ];
    let mut hops = 0;
    while socket.read(&mut buffer).unwrap() > 0 {
        exchange.received.fetch_add(1, Ordering::Relaxed);
        exchange.hops.fetch_add(1, Ordering::Relaxed);
        hops += 1;
        lanes::pin(cpus[hops % cpus.len()]).unwrap();
    }
}
