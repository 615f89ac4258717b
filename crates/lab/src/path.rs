//! A long path between two hosts: frames take their time, at a rate.
//!
//! A veth pair leads from each of them to a host in between, where one thread takes the frames from
//! one device and puts them on the other when they are due. GSO packets stay whole, so that it carries
//! some hundred megabytes a second. It is for kernels without netem, and needs none of its privileges
//! in the machine's own namespace.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use nix::{
    libc,
    sys::socket::{SockProtocol, setsockopt, sockopt},
};
use nix::{setsockopt_impl, sockopt_impl};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::{
    End, Error, Host, LinkOptions, Result,
    link::{Subnet, pair},
    traffic::{
        packet_socket,
        threads::{EventFlags, Poller, Stop, Threads},
    },
};

/// The longest frame, with the header that says how it is to be cut.
const LONGEST: usize = 66 * 1024;
/// Kernel memory for frames that the thread has yet to take, of each device, in bytes.
const WAITING: usize = 64 << 20;
/// Frames that are taken from one device before the others have their turn.
const TURN: usize = 64;

sockopt_impl!(VnetHeader, SetOnly, libc::SOL_PACKET, libc::PACKET_VNET_HDR, libc::c_int);
/// linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
sockopt_impl!(IgnoreSent, SetOnly, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, libc::c_int);

/// What a path is like, in each direction.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// How long a frame is under way.
    pub delay: Duration,
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that may wait for that rate; more are dropped.
    pub queue: usize,
}

impl Default for PathOptions {
    /// 50 ms, 10 Gbit/s, and a queue of 16 MiB.
    fn default() -> Self {
        Self { delay: Duration::from_millis(50), rate: 1_250_000_000, queue: 16 << 20 }
    }
}

/// A path between two hosts. It carries nothing any more once it is dropped.
#[derive(Debug)]
pub struct Path {
    /// The end at the first host.
    pub a: End,
    /// The end at the second host.
    pub b: End,
    shared: Arc<Shared>,
    _thread: Threads,
}

/// Relaxed: each number stands on its own.
#[derive(Debug, Default)]
struct Shared {
    /// Nanoseconds.
    delay: AtomicU64,
    dropped: AtomicU64,
}

impl Path {
    pub(crate) fn new(
        subnet: Subnet,
        a: &Host,
        b: &Host,
        middle: &Host,
        options: PathOptions,
    ) -> Result<Self> {
        if options.rate == 0 {
            return Err(Error::invalid("a path of 0 bytes a second"));
        }
        let (a, b) = (subnet.end(a, a.next_device(), 0, 1), subnet.end(b, b.next_device(), 0, 2));
        let [toward_a, toward_b] = [("to-a", 1), ("to-b", 2)]
            .map(|(device, number)| subnet.end(middle, device.into(), 1, number));
        if std::path::Path::new("/proc/sys/net/ipv6").exists() {
            // It is to say nothing of its own.
            middle.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
        }
        for (end, inner) in [(&a, &toward_a), (&b, &toward_b)] {
            pair(end, inner, &LinkOptions::default())?;
            end.set_addresses()?;
            end.set_up()?;
            inner.set_up()?;
        }
        let [from_a, from_b] = [device(&toward_a)?, device(&toward_b)?];
        let shared = Arc::new(Shared::default());
        let (counts, directions) = (shared.clone(), [(0, 1), (1, 0)]);
        let mut thread = Threads::new()?;
        thread.start(middle, "path", None, move |stop| {
            let sockets = [from_a, from_b];
            let mut ways = directions.map(|(from, to)| Way::new(from, to, options));
            // It ends by itself only if the system has no epoll for it, which nobody can mend.
            let _ = carry(&sockets, &mut ways, &counts, stop);
        })?;
        let path = Self { a, b, shared, _thread: thread };
        path.set_delay(options.delay);
        Ok(path)
    }

    /// How long frames are under way that are sent from now on. None overtakes an earlier one.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay.store(delay.as_nanos().try_into().unwrap_or(u64::MAX), Relaxed);
    }

    /// Frames that were dropped: because the queue was full, or a device went down.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Relaxed)
    }
}

/// One direction.
struct Way {
    from: usize,
    to: usize,
    options: PathOptions,
    /// When all that has come will have been passed on at the rate, but for the delay.
    free_at: Instant,
    /// Frames, and when each is due.
    under_way: VecDeque<(Instant, Vec<u8>)>,
}

impl Way {
    fn new(from: usize, to: usize, options: PathOptions) -> Self {
        Self { from, to, options, free_at: Instant::now(), under_way: VecDeque::new() }
    }

    /// A frame has come.
    fn take(&mut self, frame: &[u8], now: Instant, shared: &Shared) {
        let at_rate =
            |bytes: usize| Duration::from_secs_f64(bytes as f64 / self.options.rate as f64);
        let free_at = self.free_at.max(now) + at_rate(frame.len());
        if free_at - now > at_rate(self.options.queue) {
            shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.free_at = free_at;
        let delay = Duration::from_nanos(shared.delay.load(Relaxed));
        self.under_way.push_back((free_at + delay, frame.into()));
    }

    /// Puts what is due on its device.
    fn pass_on(&mut self, to: &OwnedFd, now: Instant, shared: &Shared) {
        while self.under_way.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, frame)) = self.under_way.pop_front()
        {
            let sent = send(to, &frame, SendFlags::DONTWAIT);
            shared.dropped.fetch_add(u64::from(sent.is_err()), Relaxed);
        }
    }
}

fn carry(sockets: &[OwnedFd; 2], ways: &mut [Way; 2], shared: &Shared, stop: &Stop) -> Result<()> {
    let poller = Poller::new(stop)?;
    for (token, socket) in sockets.iter().enumerate() {
        let added = poller.add(socket, token as u64, EventFlags::IN);
        added.map_err(|error| Error::io("watching a device", error))?;
    }
    let (mut events, mut frame) = (Vec::new(), vec![0; LONGEST]);
    while !stop.is_set() {
        let now = Instant::now();
        ways.iter_mut().for_each(|way| way.pass_on(&sockets[way.to], now, shared));
        let due = ways.iter().filter_map(|way| Some(way.under_way.front()?.0)).min();
        let limit = due.map(|due| due.saturating_duration_since(Instant::now()));
        for token in poller.wait(&mut events, limit)? {
            for way in ways.iter_mut().filter(|way| way.from as u64 == token) {
                read(&sockets[way.from], &mut frame, way, shared);
            }
        }
    }
    Ok(())
}

/// Takes what a device has, up to a turn's worth.
fn read(socket: &OwnedFd, frame: &mut [u8], way: &mut Way, shared: &Shared) {
    let now = Instant::now();
    for _ in 0..TURN {
        match recv(socket, &mut *frame, RecvFlags::DONTWAIT) {
            Ok((length, _)) => way.take(&frame[..length], now, shared),
            Err(Errno::INTR) => {}
            // Nothing more, or a device that is going.
            Err(_) => return,
        }
    }
}

/// A socket that takes the frames which a device receives, and sends by it.
fn device(End { host, device, .. }: &End) -> Result<OwnedFd> {
    let (socket, _) = host.run(|| packet_socket(host, device, Some(SockProtocol::EthAll)))??;
    let set_up = || {
        setsockopt(&socket, IgnoreSent, &1)?;
        setsockopt(&socket, VnetHeader, &1)?;
        setsockopt(&socket, sockopt::RcvBufForce, &WAITING)?;
        setsockopt(&socket, sockopt::SndBuf, &WAITING)
    };
    set_up().map_err(|error| Error::io(format!("a packet socket on {device} of {host}"), error))?;
    Ok(socket)
}
