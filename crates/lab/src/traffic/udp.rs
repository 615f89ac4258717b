//! Datagrams at a rate, numbered so that whoever receives them sees what is lost and what
//! overtakes.
//!
//! A datagram is 64 bytes: a mark of 4, the flow's number (4, big-endian), and the datagram's number
//! within the flow (8), and zeros.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use super::threads::{Stop, Threads};
use crate::{Error, Host, Result};

const MARK: [u8; 4] = *b"CLud";
const SIZE: usize = 64;
/// Most datagrams sent before the thread looks up from its work.
const BATCH: u64 = 64;

/// A thread that sends datagrams until it is dropped.
#[derive(Debug)]
pub struct UdpSender {
    _threads: Threads,
}

impl UdpSender {
    /// Starts sending from `host` to `target`: `rate` datagrams a second over `flows` flows, each
    /// with a source port of its own, in turn.
    ///
    /// What the kernel refuses, for lack of buffers or because a router or the receiver said that
    /// nobody listens, is missing at the receiver.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for no flow or no rate;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the sockets cannot be made.
    pub fn start(host: &Host, target: SocketAddr, rate: u64, flows: u32) -> Result<Self> {
        if flows == 0 || rate == 0 {
            return Err(Error::invalid("datagrams of no flow or at no rate"));
        }
        super::reserve_fds(flows as usize)?;
        let sockets = host.run(|| connected(target, flows))?;
        let sockets = sockets.map_err(|error| Error::io(format!("sending to {target}"), error))?;
        let mut threads = Threads::new()?;
        threads.start(host, "udp-send", None, move |stop| send(stop, &sockets, rate as f64))?;
        Ok(Self { _threads: threads })
    }
}

fn connected(target: SocketAddr, flows: u32) -> io::Result<Vec<UdpSocket>> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    (0..flows)
        .map(|_| {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(target)?;
            Ok(socket)
        })
        .collect()
}

fn send(stop: &Stop, sockets: &[UdpSocket], rate: f64) {
    let mut datagram = [0; SIZE];
    datagram[..4].copy_from_slice(&MARK);
    let started = Instant::now();
    let flows = sockets.len() as u64;
    let mut next = 0u64;
    while !stop.is_set() {
        let due = (started.elapsed().as_secs_f64() * rate) as u64 + 1;
        let until = due.min(next + BATCH).max(next);
        for number in next..until {
            datagram[4..8].copy_from_slice(&((number % flows) as u32).to_be_bytes());
            datagram[8..16].copy_from_slice(&(number / flows).to_be_bytes());
            // A datagram that is refused is one that is lost.
            let _ = sockets[(number % flows) as usize].send(&datagram);
        }
        next = until;
        if next >= due {
            // At most a tenth of a second, so that a stop is seen.
            let wait = started + Duration::from_secs_f64(next as f64 / rate);
            let wait = wait.saturating_duration_since(Instant::now());
            thread::sleep(wait.min(Duration::from_millis(100)));
        }
    }
}
