//! What the tests of this crate share: two hosts and a link, pools, numbered packets.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use cachelane_xsk::{
    Device, Filter, Packet, Program, ProgramOptions, Result, Socket, SocketOptions, Umem,
};
use frames::{AreaOptions, FrameArea, FramePool, HugePages, LaneCache, PoolOptions};
use lab::{End, Host, Lab, Link, LinkOptions};

mod numbered;

// Each test program uses a part of it.
#[allow(unused_imports)]
pub(crate) use numbered::{EXPERIMENT, length, number, numbered};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a link.
pub(crate) struct Side {
    pub(crate) host: Host,
    pub(crate) end: End,
    pub(crate) device: Device,
    pub(crate) mac: [u8; 6],
}

impl Side {
    pub(crate) fn new(end: &End) -> Self {
        let device = end.host.run(|| Device::find(&end.device)).expect("the host");
        let (host, end, mac) = (end.host.clone(), end.clone(), end.mac.0);
        Self { host, end, device: device.expect("the device"), mac }
    }

    pub(crate) fn try_bind(&self, umem: &Umem, queue: u32, o: &SocketOptions) -> Result<Socket> {
        self.host.run(|| Socket::bind(umem, &self.device, queue, o)).expect("the host")
    }

    pub(crate) fn bind(&self, umem: &Umem, queue: u32, options: &SocketOptions) -> Socket {
        self.try_bind(umem, queue, options).expect("a socket")
    }

    pub(crate) fn try_attach(&self, options: &ProgramOptions) -> Result<Program> {
        self.host.run(|| Program::attach(&self.device, options)).expect("the host")
    }

    /// Attaches a program that chooses the tests' own packets.
    pub(crate) fn attach(&self, options: ProgramOptions) -> Program {
        let filter = Filter::EtherTypes(vec![EXPERIMENT]);
        self.try_attach(&options.filters(vec![filter])).expect("a program")
    }
}

/// Two hosts and a link between them.
pub(crate) struct Two {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) lab: Lab,
}

pub(crate) fn two(options: LinkOptions) -> Two {
    let lab = Lab::new("xsk").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let Link { a, b } = lab.link(&a, &b, options).expect("a link");
    Two { a: Side::new(&a), b: Side::new(&b), lab }
}

/// A pool and its registered area.
pub(crate) fn umem(frames: u32, frame_size: u32) -> Umem {
    Umem::new(pool(frames, frame_size)).expect("a registration")
}

pub(crate) fn pool(frames: u32, frame_size: u32) -> FramePool {
    let huge_pages = HugePages::Never;
    let options =
        AreaOptions::default().frames(frames).frame_size(frame_size).huge_pages(huge_pages);
    let area = FrameArea::new(&options);
    let options = PoolOptions::default().homes(vec![0, 0]);
    FramePool::new(area.expect("an area"), &options).expect("a pool")
}

/// Small rings, so that they come round often.
pub(crate) fn small() -> SocketOptions {
    SocketOptions::default().rx_size(64).tx_size(64).fill_size(64).completion_size(64)
}

/// Puts bytes into frames, as many as it takes at `part` bytes each.
pub(crate) fn pack(bytes: &[u8], part: usize, cache: &mut LaneCache, into: &mut Vec<Packet>) {
    let parts = bytes.chunks(part);
    let last = parts.len() - 1;
    for (at, bytes) in parts.enumerate() {
        let frame = cache.get().expect("a frame");
        let mut packet = Packet::new(frame, bytes.len() as u32);
        packet.more = at < last;
        packet.bytes_mut(cache.pool().area()).copy_from_slice(bytes);
        into.push(packet);
    }
}

/// Takes whole packets out of parts: their bytes, the frames back into the cache.
pub(crate) fn unpack(packets: &mut Vec<Packet>, cache: &mut LaneCache) -> Vec<Vec<u8>> {
    let (mut whole, mut open) = (Vec::new(), None::<Vec<u8>>);
    for packet in packets.drain(..) {
        let bytes = packet.bytes(cache.pool().area()).to_vec();
        open.get_or_insert_default().extend(bytes);
        if !packet.more {
            whole.extend(open.take());
        }
        cache.put(packet.frame);
    }
    assert!(open.is_none(), "a packet was cut");
    whole
}

/// Sends `count` numbered packets of `len` bytes from one socket to the other and checks that all
/// arrive, once each, in order. At most `window` are on the way.
pub(crate) fn transfer(
    (sender, from): (&mut Socket, [u8; 6]),
    (receiver, to): (&mut Socket, [u8; 6]),
    cache: &mut LaneCache,
    (count, len, window): (u64, usize, u64),
) {
    let part = cache.pool().area().frame_size() as usize;
    let (mut sent, mut seen, mut outgoing, mut incoming) = (0, 0, Vec::new(), Vec::new());
    let until = Instant::now() + PATIENCE;
    while seen < count {
        assert!(Instant::now() < until, "{seen} of {sent} packets arrived");
        receiver.fill(cache, 64);
        receiver.wake_rx().expect("a wake-up");
        while sent < count && sent - seen < window && outgoing.len() < 32 {
            pack(&numbered(from, to, sent, len), part, cache, &mut outgoing);
            sent += 1;
        }
        sender.send(&mut outgoing);
        sender.kick().expect("sent");
        sender.complete(cache, 64);
        receiver.wait(Some(Duration::from_millis(1))).expect("waited");
        receiver.receive(&mut incoming, 64);
        for packet in unpack(&mut incoming, cache) {
            assert_eq!((packet.len(), number(&packet)), (len, seen));
            seen += 1;
        }
        cache.maintain();
    }
}

/// Waits until the socket has received `count` parts, filling it on the way.
pub(crate) fn gather(socket: &mut Socket, cache: &mut LaneCache, count: usize) -> Vec<Packet> {
    let (mut packets, until) = (Vec::new(), Instant::now() + PATIENCE);
    while packets.len() < count {
        assert!(Instant::now() < until, "{} of {count} packets arrived", packets.len());
        socket.fill(cache, 64);
        socket.wait(Some(Duration::from_millis(5))).expect("waited");
        socket.receive(&mut packets, 64);
    }
    packets
}

/// Waits until everything that was posted is sent and taken back.
pub(crate) fn settle(socket: &mut Socket, cache: &mut LaneCache) {
    let until = Instant::now() + PATIENCE;
    while {
        let out = socket.outstanding();
        out.tx + out.completed > 0
    } {
        assert!(Instant::now() < until, "not sent: {:?}", socket.outstanding());
        socket.kick().expect("sent");
        socket.complete(cache, 64);
    }
}

/// Checks that every frame of the pool is at home or in a cache once all handles are dropped.
pub(crate) fn all_home(umem: &Umem, cache: LaneCache) {
    let pool = umem.pool();
    drop(cache);
    let census = pool.census();
    assert_eq!((census.released, census.held), (0, 0), "{census:?}");
    assert_eq!(pool.counters().refused, 0);
    pool.clone().close().expect("every frame is there");
}
