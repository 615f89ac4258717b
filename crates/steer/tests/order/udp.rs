//! Numbered datagrams, and a consumer that counts those that come after a later one.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::thread::{self, Scope};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::world::{self, Exchange, Scenario, Sender, World};

/// Datagrams of a flow in a row.
const BURST: usize = 16;
/// Datagrams after which the sender pauses.
const BETWEEN_PAUSES: u64 = 128;
/// Datagrams after which the consumer goes to another CPU. Not as many as in a burst: flows that
/// always have a burst waiting would each be read on one CPU.
const BETWEEN_HOPS: u64 = 17;
/// How long a consumer waits for what may be on the way still.
const LAST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(crate) fn start<'scope>(
    world: &World,
    exchange: &'scope Exchange,
    scope: &'scope Scope<'scope, '_>,
) {
    let (senders, receivers) = sockets(world);
    let scenario = world.scenario;
    scope.spawn(move || send(&senders, &scenario, exchange));
    scope.spawn(move || receive(&receivers, exchange));
}

/// The connected sockets of each flow at its two ends.
fn sockets(world: &World) -> (Vec<UdpSocket>, Vec<UdpSocket>) {
    let (a, b) = (&world.link.a, &world.link.b);
    let bind = |end: &lab::End| {
        let address = world.address(end);
        end.host.run(|| UdpSocket::bind(address).unwrap()).unwrap()
    };
    let pair = |_| {
        let (sender, receiver) = (bind(a), bind(b));
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.connect(sender.local_addr().unwrap()).unwrap();
        receiver.set_nonblocking(true).unwrap();
        (sender, receiver)
    };
    (0..world.scenario.flows).map(pair).unzip()
}

fn send(sockets: &[UdpSocket], scenario: &Scenario, exchange: &Exchange) {
    let mut sent = 0_u64;
    let mut sender = Sender::new(scenario);
    while !exchange.is_over() {
        for socket in sockets {
            for _ in 0..BURST {
                sent += 1;
                // What is refused is missing at the other end, which is no disorder.
                let _ = socket.send(&sent.to_ne_bytes());
            }
            if sent.is_multiple_of(BETWEEN_PAUSES) {
                thread::sleep(scenario.pause);
                sender.hop();
            }
        }
    }
}

fn receive(sockets: &[UdpSocket], exchange: &Exchange) {
    let cpus = world::cpus();
    let mut last = vec![0; sockets.len()];
    let (mut received, mut hops) = (0_u64, 0);
    loop {
        let before = received;
        for (socket, last) in sockets.iter().zip(&mut last) {
            for number in datagrams(socket).take(BURST) {
                received += 1;
                if number < *last {
                    exchange.overtaken.fetch_add(1, Ordering::Relaxed);
                }
                *last = number.max(*last);
                if received.is_multiple_of(BETWEEN_HOPS) {
                    hops += 1;
                    lanes::pin(cpus[hops % cpus.len()]).unwrap();
                }
            }
        }
        exchange.received.store(received, Ordering::Relaxed);
        exchange.hops.store(hops as u64, Ordering::Relaxed);
        if received == before && !await_more(sockets) && exchange.is_over() {
            return;
        }
    }
}

/// The numbers of the datagrams that are there.
fn datagrams(socket: &UdpSocket) -> impl Iterator<Item = u64> + '_ {
    std::iter::from_fn(move || {
        let mut buffer = [0; 8];
        match socket.recv(&mut buffer) {
            Ok(8) => Some(u64::from_ne_bytes(buffer)),
            Ok(bytes) => panic!("a datagram of {bytes} bytes"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    })
}

fn await_more(sockets: &[UdpSocket]) -> bool {
    let mut waiting: Vec<_> =
        sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    poll(&mut waiting, Some(&LAST)).unwrap() > 0
}
