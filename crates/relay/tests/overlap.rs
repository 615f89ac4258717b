//! A packet that repeats bytes which arrived before, and goes on with new ones, is what a sender
//! makes of a retransmission. What it repeats must not be forwarded twice, whichever engine looks
//! at the packets.
//!
//! Such packets are made here by hand, by a raw socket, hence root. What the sender's kernel does
//! not know of, it sends again, which makes for a second overlap.

mod common;

use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use cachelane_relay::{Config, Engine, Relay};
use common::pattern::Pattern;
use common::*;
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};

#[test]
fn repeated_bytes_are_forwarded_once_root() {
    if !lab::testing::root("repeated_bytes_are_forwarded_once_root") {
        return;
    }
    for engine in Engine::ALL {
        for warmth in Warmth::ALL {
            for client_sends in [true, false] {
                // Addresses of its own, so that the forger does not see the rest of the host.
                let (listener, addr) = listener("127.77.0.2:0");
                let listen = vec!["127.77.0.1:0".parse().unwrap()];
                let relay = Relay::start(Config { listen, ..config(engine, &[addr]) }).unwrap();
                let rig = Rig { relay, listener };
                let Pair { client, backend } = rig.warm_pair(warmth);
                let (from, to) = if client_sends { (client, backend) } else { (backend, client) };
                repeat(&from, &to, &format!("{engine}, {warmth:?}, client sends: {client_sends}"));
                if (engine, warmth, client_sends) == (Engine::Sockmap, Warmth::Up, true) {
                    await_that("it was cut off", || rig.relay.stats().sockmap_trimmed > 0);
                }
            }
        }
    }
}

fn repeat(from: &TcpStream, to: &TcpStream, name: &str) {
    const OLD: usize = 30_000;
    const NEW: usize = 20_000;
    let pattern = Pattern::new(1);
    let forger = Forger::new(from);
    let mut offset = 0;
    for round in 0..5 {
        send_all(from, pattern.at(offset, OLD));
        pattern.check(offset, &receive(to, OLD));
        let (next, ack) = forger.await_end_of(pattern.at(offset, OLD));
        forger.send(next.wrapping_sub(OLD as u32), ack, pattern.at(offset, OLD + NEW));
        let seen = receive(to, NEW);
        assert!(seen == pattern.at(offset + OLD as u64, NEW), "{name}, round {round}: forged");
        // The kernel sends what the forged packet brought already, and something more.
        send_all(from, pattern.at(offset + OLD as u64, NEW + OLD));
        offset += (OLD + NEW) as u64;
        let seen = receive(to, OLD);
        assert!(seen == pattern.at(offset, OLD), "{name}, round {round}: sent again");
        offset += OLD as u64;
    }
    from.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive_to_end(to), b"", "{name}");
}

/// Sees a connection's packets, and sends packets in its name.
struct Forger {
    sees: OwnedFd,
    sends: OwnedFd,
    from: SocketAddr,
    to: SocketAddr,
}

impl Forger {
    fn new(stream: &TcpStream) -> Forger {
        let raw = || {
            rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP)).unwrap()
        };
        let (from, to) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let (sees, sends) = (raw(), raw());
        let any_port = |addr: SocketAddr| SocketAddr::new(addr.ip(), 0);
        rustix::net::bind(&sees, &any_port(to)).unwrap();
        rustix::net::connect(&sees, &any_port(from)).unwrap();
        rustix::net::bind(&sends, &any_port(from)).unwrap();
        Forger { sees, sends, from, to }
    }

    /// The sequence number right after the connection's last data, which is `last`, and what the
    /// sender has acknowledged.
    fn await_end_of(&self, last: &[u8]) -> (u32, [u8; 4]) {
        let mut packet = vec![0; 1 << 17];
        loop {
            assert!(ready(&self.sees, PollFlags::IN, PATIENCE), "no packet was seen");
            let (_, n) =
                rustix::net::recv(&self.sees, &mut packet[..], RecvFlags::DONTWAIT).unwrap();
            let tcp = &packet[usize::from(packet[0] & 15) * 4..n];
            let ports = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
            let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
            if tcp[..4] == ports && !data.is_empty() && last.ends_with(data) {
                let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
                let next = sequence.wrapping_add(data.len() as u32);
                return (next, tcp[8..12].try_into().unwrap());
            }
        }
    }

    /// Sends `data` as what comes from the sequence number `sequence` on.
    fn send(&self, sequence: u32, ack: [u8; 4], data: &[u8]) {
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(sequence.to_be_bytes());
        tcp.extend(ack);
        // A header of 5 words, PSH and ACK, the largest window; checksum and urgent pointer.
        tcp.extend([5 << 4, 0x18, 0xFF, 0xFF, 0, 0, 0, 0]);
        tcp.extend(data);
        let checksum = checksum(&tcp, self.from, self.to);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        let to = SocketAddr::new(self.to.ip(), 0);
        let sent = rustix::net::sendto(&self.sends, &tcp, SendFlags::empty(), &to).unwrap();
        assert_eq!(sent, tcp.len());
    }
}

/// TCP's checksum, with the pseudo header of IPv4 (RFC 9293, 3.1).
fn checksum(tcp: &[u8], from: SocketAddr, to: SocketAddr) -> u16 {
    let octets = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED.octets(),
    };
    let pseudo = [&octets(from)[..], &octets(to), &[0, 6], &(tcp.len() as u16).to_be_bytes()];
    let bytes = [&pseudo.concat()[..], tcp].concat();
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let sum = words.fold(0u32, |sum, word| {
        let sum = sum + word;
        (sum & 0xFFFF) + (sum >> 16)
    });
    !(sum as u16)
}
