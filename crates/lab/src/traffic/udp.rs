//! Datagrams at a rate, numbered so that the receiver sees what is lost and what overtakes.
//!
//! A datagram starts with 16 bytes: a mark, the flow's number and the datagram's number within
//! the flow. Others are counted and left alone.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    check_cpus, pattern, pin,
    poller::{EventFlags, Poller},
};
use crate::{Error, Host, Result};

const HEADER: usize = 16;
const MARK: [u8; 4] = *b"CLud";
const MAX_SIZE: usize = 65_507;
/// Most datagrams sent or received before the thread looks up from its work.
const BATCH: u64 = 64;

/// What an [`UdpSender`] sends.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Bytes of payload of a datagram, 16 to 65,507.
    pub size: usize,
    /// Datagrams a second over all flows; none: as many as the sender can.
    pub rate: Option<u64>,
    /// Flows, each with a source port of its own, served in turn.
    pub flows: u32,
    /// How many datagrams to send in all; none: until dropped.
    pub count: Option<u64>,
    /// The CPU that the thread is pinned to; none: not pinned.
    pub cpu: Option<usize>,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self { size: 64, rate: None, flows: 1, count: None, cpu: None }
    }
}

/// A thread that sends datagrams until it is dropped or has sent its count.
#[derive(Debug)]
pub struct UdpSender {
    shared: Arc<Sending>,
    /// It ends by itself.
    counted: bool,
    thread: Option<thread::JoinHandle<()>>,
}

/// Relaxed: each stands on its own, and the last values are read after a join.
#[derive(Debug, Default)]
struct Sending {
    stop: AtomicBool,
    sent: AtomicU64,
    refused: AtomicU64,
}

impl UdpSender {
    /// Starts sending from `host` to `target`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the sockets cannot be made.
    pub fn start(host: &Host, target: SocketAddr, options: &UdpOptions) -> Result<Self> {
        if !(HEADER..=MAX_SIZE).contains(&options.size) {
            let size = options.size;
            return Err(Error::invalid(format!("{size} bytes: expected {HEADER} to {MAX_SIZE}")));
        }
        if options.flows == 0 || options.rate == Some(0) {
            return Err(Error::invalid("datagrams of no flow or at no rate"));
        }
        let cpus: Vec<usize> = options.cpu.into_iter().collect();
        check_cpus(&cpus)?;
        super::reserve_fds(options.flows as usize)?;
        let sockets = host.run(|| connected(target, options.flows))?;
        let sockets = sockets.map_err(|error| Error::io(format!("sending to {target}"), error))?;
        let (shared, counted) = (Arc::new(Sending::default()), options.count.is_some());
        let (sending, options) = (shared.clone(), options.clone());
        let thread = host.spawn_thread("udp-send", move || {
            // A CPU that is not there has been refused.
            if pin(&cpus, 0).is_ok() {
                send(&sending, &sockets, &options);
            }
        })?;
        Ok(Self { shared, counted, thread: Some(thread) })
    }

    /// Datagrams that the kernel took.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Relaxed)
    }

    /// Datagrams that the kernel refused, for lack of buffers or because a router or the
    /// receiver said that nobody listens. Their numbers are missing at the receiver.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Relaxed)
    }

    /// Ends sending, after the whole of a given [`count`](UdpOptions::count), and returns how
    /// many datagrams were sent.
    pub fn finish(mut self) -> u64 {
        if !self.counted {
            self.shared.stop.store(true, Relaxed);
        }
        self.join();
        self.sent()
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }
}

impl Drop for UdpSender {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.join();
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

fn send(sending: &Sending, sockets: &[UdpSocket], options: &UdpOptions) {
    let mut datagram = pattern(options.size);
    datagram.truncate(options.size);
    datagram[..4].copy_from_slice(&MARK);
    let started = Instant::now();
    let last = options.count.unwrap_or(u64::MAX);
    let mut next = 0u64;
    while next < last && !sending.stop.load(Relaxed) {
        let due = match options.rate {
            None => next + BATCH,
            Some(rate) => (started.elapsed().as_secs_f64() * rate as f64) as u64 + 1,
        };
        let until = due.min(last).min(next.saturating_add(BATCH));
        for number in next..until {
            let flow = number % sockets.len() as u64;
            datagram[4..8].copy_from_slice(&(flow as u32).to_be_bytes());
            datagram[8..16].copy_from_slice(&(number / sockets.len() as u64).to_be_bytes());
            match sockets[flow as usize].send(&datagram) {
                Ok(_) => sending.sent.fetch_add(1, Relaxed),
                Err(_) => sending.refused.fetch_add(1, Relaxed),
            };
        }
        next = next.max(until);
        if let Some(rate) = options.rate.filter(|_| next >= due) {
            // At most a tenth of a second, so that a stop is seen.
            let wait = started + Duration::from_secs_f64(next as f64 / rate as f64);
            let wait = wait.saturating_duration_since(Instant::now());
            thread::sleep(wait.min(Duration::from_millis(100)));
        }
    }
}

/// What an [`UdpReceiver`] has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Each flow by its number.
    pub flows: Vec<FlowCounters>,
    /// Datagrams that no [`UdpSender`] sent.
    pub foreign: u64,
}

/// What arrived of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Datagrams received, duplicates included.
    pub received: u64,
    /// Bytes of payload received.
    pub bytes: u64,
    /// Datagrams that arrived after one with a higher number.
    pub reordered: u64,
    /// Datagrams that arrived again. One whose number is more than 64 below the highest is
    /// taken for late, not for a duplicate.
    pub duplicates: u64,
    /// One more than the highest number received: how many were sent at least.
    pub span: u64,
    /// The 64 numbers below `span` that were received, the highest in the lowest bit.
    seen: u64,
}

impl FlowCounters {
    /// Datagrams missing below the highest number that arrived.
    pub fn missing(&self) -> u64 {
        self.span.saturating_sub(self.received - self.duplicates)
    }

    fn count(&mut self, number: u64, bytes: usize) {
        self.received += 1;
        self.bytes += bytes as u64;
        if number >= self.span {
            let step = number - self.span + 1;
            self.seen = if step < 64 { self.seen << step } else { 0 } | 1;
            self.span = number + 1;
            return;
        }
        let behind = self.span - 1 - number;
        let bit = if behind < 64 { 1 << behind } else { 0 };
        if self.seen & bit != 0 {
            self.duplicates += 1;
        } else {
            self.reordered += 1;
            self.seen |= bit;
        }
    }
}

impl UdpCounters {
    /// The sum over all flows; its `span` is how many were sent at least.
    pub fn total(&self) -> FlowCounters {
        self.flows.iter().fold(FlowCounters::default(), |sum, flow| FlowCounters {
            received: sum.received + flow.received,
            bytes: sum.bytes + flow.bytes,
            reordered: sum.reordered + flow.reordered,
            duplicates: sum.duplicates + flow.duplicates,
            span: sum.span + flow.span,
            seen: 0,
        })
    }
}

/// A thread that receives and counts datagrams until it is dropped.
#[derive(Debug)]
pub struct UdpReceiver {
    address: SocketAddr,
    shared: Arc<Receiving>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Receiving {
    socket: UdpSocket,
    poller: Poller,
    stop: AtomicBool,
    counters: Mutex<UdpCounters>,
}

impl UdpReceiver {
    /// Receives on `address` of `host`; port 0 takes a free one. `cpu`: where its thread is
    /// pinned to.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be received on.
    pub fn start(host: &Host, address: SocketAddr, cpu: Option<usize>) -> Result<Self> {
        let cpus: Vec<usize> = cpu.into_iter().collect();
        check_cpus(&cpus)?;
        let context = |error: io::Error| Error::io(format!("receiving on {address}"), error);
        let socket = host.run(|| UdpSocket::bind(address))?.map_err(context)?;
        socket.set_nonblocking(true).map_err(context)?;
        let bound = socket.local_addr().map_err(context)?;
        let poller = Poller::new()?;
        poller.add(&socket, 0, EventFlags::IN).map_err(|error| context(error.into()))?;
        let counters = Mutex::default();
        let shared = Arc::new(Receiving { socket, poller, stop: AtomicBool::new(false), counters });
        let receiving = shared.clone();
        let thread = host.spawn_thread("udp-receive", move || {
            // A CPU that is not there has been refused.
            if pin(&cpus, 0).is_ok() {
                receive(&receiving);
            }
        })?;
        Ok(Self { address: bound, shared, thread: Some(thread) })
    }

    /// The address that it receives on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn counters(&self) -> UdpCounters {
        self.shared.counters.lock().clone()
    }
}

impl Drop for UdpReceiver {
    fn drop(&mut self) {
        // Relaxed: the wake-up after it goes through the kernel.
        self.shared.stop.store(true, Relaxed);
        self.shared.poller.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }
}

fn receive(receiving: &Receiving) {
    let mut events = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while !receiving.stop.load(Relaxed) {
        // An epoll that fails ends the receiver, whose counters then stand still.
        let Ok(ready) = receiving.poller.wait(&mut events, None) else { return };
        if ready.count() == 0 {
            continue;
        }
        let mut counters = receiving.counters.lock();
        for _ in 0..BATCH {
            match receiving.socket.recv(&mut buffer) {
                Ok(bytes) => count(&mut counters, &buffer[..bytes]),
                Err(_) => break,
            }
        }
    }
}

fn count(counters: &mut UdpCounters, datagram: &[u8]) {
    /// More flows than a sender has ports.
    const MAX_FLOWS: usize = 1 << 16;
    let header = datagram.first_chunk::<HEADER>().filter(|header| header[..4] == MARK);
    let parsed = header.map(|&[_, _, _, _, f0, f1, f2, f3, n @ ..]| {
        (u32::from_be_bytes([f0, f1, f2, f3]) as usize, u64::from_be_bytes(n))
    });
    let Some((flow, number)) =
        parsed.filter(|(flow, number)| *flow < MAX_FLOWS && *number < u64::MAX)
    else {
        counters.foreign += 1;
        return;
    };
    if counters.flows.len() <= flow {
        counters.flows.resize(flow + 1, FlowCounters::default());
    }
    counters.flows[flow].count(number, datagram.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_tells_lost_late_and_repeated_datagrams_apart() {
        // Numbers that arrive; then reordered, duplicates, missing.
        let cases = [
            (&[0, 1, 2, 3][..], (0, 0, 0)),
            (&[0, 2, 3], (0, 0, 1)),
            (&[0, 2, 1, 3], (1, 0, 0)),
            (&[0, 1, 1, 3], (0, 1, 1)),
            (&[5], (0, 0, 5)),
            (&[0, 100, 99, 99, 100], (1, 2, 98)),
            (&[0, 63, 126, 63, 64], (1, 1, 123)),
        ];
        for (numbers, expected) in cases {
            let mut flow = FlowCounters::default();
            numbers.iter().for_each(|number| flow.count(*number, 10));
            let got = (flow.reordered, flow.duplicates, flow.missing());
            assert_eq!(got, expected, "{numbers:?}");
            assert_eq!(flow.received, numbers.len() as u64);
        }
    }

    #[test]
    fn only_datagrams_of_this_driver_are_counted_to_flows() {
        let mut counters = UdpCounters::default();
        let mut own = [0; HEADER];
        own[..4].copy_from_slice(&MARK);
        own[7] = 2;
        for datagram in [&own[..], &own[..15], b"", &[0; 64], &[b'C'; 64]] {
            count(&mut counters, datagram);
        }
        assert_eq!((counters.flows.len(), counters.flows[2].received), (3, 1));
        assert_eq!(counters.foreign, 4);
    }
}
