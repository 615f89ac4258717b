//! Sending without socket buffers: the kernel makes XDP frames and hands them to a device's driver.
//!
//! For devices that take frames which programs redirect to them (`ndo_xdp_xmit`). In copy mode an
//! AF_XDP socket has the kernel make a socket buffer for each packet, which is nine tenths of what
//! sending it costs.

use std::io;
use std::sync::Arc;

use bpf::{Link, Map, Program};
use kit::netlink::Xdp;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use rustix::thread::gettid;

use crate::{Device, Error, ErrorKind, Result};

include!(concat!(env!("OUT_DIR"), "/live.skel.rs"));

use skel::constants::{GAP_PARTS, HEAD_WORDS, PROBE};
use skel::types::{live_counts as Counts, live_state as State};

/// `BPF_F_TEST_XDP_LIVE_FRAMES` of linux/bpf.h.
const LIVE_FRAMES: u32 = 1 << 1;

/// `NETDEV_XDP_ACT_NDO_XMIT` and `NETDEV_XDP_ACT_XSK_ZEROCOPY` of linux/netdev.h.
const TAKES_FRAMES: u64 = 1 << 2;
const ZERO_COPY: u64 = 1 << 3;

/// The longest frame. A page of 4096 bytes has room for some 3400, beside what the kernel keeps in it,
/// which is not the same on all kernels.
pub const LIVE_LONGEST: usize = 3072;

/// Bytes of a UDP header.
const UDP: usize = 8;

/// UDP packets that a [`LiveSender`] sends.
#[derive(Clone, Debug)]
pub struct LivePackets {
    /// A packet whole, with the first of its ports, a right UDP checksum or none, and an empty probe
    /// if it is to carry one: 60 to [`LIVE_LONGEST`] bytes.
    pub packet: Vec<u8>,
    /// Where its UDP header begins: 34, or 54 over IPv6, and 4 more for each VLAN tag.
    pub udp: usize,
    /// The sum of all that the UDP checksum covers but the ports, not folded.
    pub fixed: u32,
    /// The first and the last port that packets come from and go to, in turn.
    pub sources: [u16; 2],
    /// Likewise.
    pub targets: [u16; 2],
    /// The ports of the first one.
    pub first: [u16; 2],
    /// The stream of their probes (22 bytes behind the UDP header: a magic number, the packet's number
    /// in the stream, a time, the stream in 48 bits, and a guard that makes their sum zero); none: they
    /// carry none.
    pub probes: Option<u64>,
    /// Packets a second, at least [`LIVE_SLOWEST`]; 0: as many as can be.
    pub rate: f64,
}

/// The lowest rate. The thread waits for each packet where no softirq can run, and the kernel has it
/// make 64 at a time.
pub const LIVE_SLOWEST: f64 = 100_000.0;

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveSent {
    /// The device took it.
    pub sent: u64,
    /// The device did not: its queue was full, it has no carrier, or nobody takes frames behind it.
    pub dropped: u64,
}

/// Sends from the thread that made it.
#[derive(Debug)]
pub struct LiveSender {
    program: Program,
    counts: Map,
    stop: LiveStop,
    packet: Vec<u8>,
    _link: Link,
}

/// Stops a [`LiveSender`] from another thread.
#[derive(Clone, Debug)]
pub struct LiveStop(Arc<Map>);

/// Whether live frames can be sent out of a device.
///
/// # Errors
/// `Unsupported` of [`ErrorKind`], with what to do about it: the device takes no frames.
pub fn check_live(device: &Device) -> Result<()> {
    if features(device)? & TAKES_FRAMES != 0 {
        return Ok(());
    }
    let remedy = match device.kind()?.as_deref() {
        Some("veth") => {
            "the other end of a veth takes them only with an XDP program in its driver, or GRO \
             (`ethtool -K PEER gro on`)"
        }
        _ => "some drivers take them only while an XDP program is on the device",
    };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("{device} takes no frames that a program redirects to it: {remedy}"),
    ))
}

/// Whether sending live is the best that there is: the device takes frames and has no zero-copy.
pub fn prefers_live(device: &Device) -> bool {
    features(device).is_ok_and(|has| has & TAKES_FRAMES != 0 && has & ZERO_COPY == 0)
}

fn features(device: &Device) -> Result<u64> {
    let asked = Xdp::of(device.index());
    let failed = |error| Error::io(format!("{device}: cannot ask for its XDP"), error);
    asked.map(|xdp| xdp.features).map_err(failed)
}

impl LiveSender {
    /// Loads the programs for the calling thread.
    ///
    /// # Errors
    /// `NotPermitted`, or `Unsupported` if the kernel does not load them (live frames: Linux 5.18), of
    /// [`ErrorKind`].
    pub fn new(device: &Device, packets: &LivePackets) -> Result<Self> {
        let loaded = bpf::load(|storage| {
            let mut open = skel::LiveSkelBuilder::default().open(storage)?;
            if let Some(constants) = &mut open.maps.rodata_data {
                constants.device = device.index();
                constants.thread = gettid().as_raw_pid().cast_unsigned();
                set(constants, packets);
            }
            let skel = open.load()?;
            let [make, sent] = [&skel.progs.cachelane_make, &skel.progs.cachelane_sent];
            Ok((Program::of(make)?, Program::of(sent)?, skel::Maps::of(&skel.maps)?))
        });
        let (program, sent, maps) = loaded.map_err(|error| match error.is_permission() {
            true => Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "sending live frames needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN: {error:#}"
                ),
            ),
            false => Error::new(
                ErrorKind::Unsupported,
                format!("the kernel does not load what sends live frames: {error:#}"),
            ),
        })?;
        let begin = || -> io::Result<Link> {
            let [source, target] = packets.first;
            let state = State { source, target, ..State::default() };
            maps.state.set(&0_u32, &state)?;
            sent.attach_tracepoint(c"xdp_devmap_xmit")
        };
        let link = begin().map_err(|error| Error::io("cannot count live frames", error))?;
        let stop = LiveStop(Arc::new(maps.stopped));
        Ok(Self { program, counts: maps.counts, stop, packet: packets.packet.clone(), _link: link })
    }

    /// Sends so many packets, fewer if it is stopped or a signal comes. A call costs tens of
    /// milliseconds besides, since the kernel waits for an RCU grace period.
    ///
    /// # Errors
    /// What the system reports.
    pub fn send(&mut self, packets: u32) -> Result<()> {
        match self.program.repeat(&self.packet, packets, LIVE_FRAMES) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(Error::io("cannot send live frames", error)),
            Ok(()) => Ok(()),
        }
    }

    /// To stop it by, for good.
    pub fn stop(&self) -> LiveStop {
        self.stop.clone()
    }

    /// What became of them so far.
    ///
    /// # Errors
    /// What the system reports.
    pub fn sent(&self) -> Result<LiveSent> {
        let counts = self.counts.get::<Counts>(&0_u32);
        let counts = counts.map_err(|error| Error::io("cannot read the counts", error))?;
        Ok(LiveSent { sent: counts.sent, dropped: counts.dropped })
    }
}

impl LiveStop {
    /// What is left of a run is not sent.
    ///
    /// # Errors
    /// What the system reports.
    pub fn stop(&self) -> io::Result<()> {
        self.0.set(&0_u32, &1_u32)
    }
}

/// Writes into a program what is fixed at its load.
fn set(constants: &mut skel::types::rodata, packets: &LivePackets) {
    let LivePackets { packet, udp, fixed, sources, targets, probes, rate, .. } = packets;
    let varies = udp + UDP + if probes.is_some() { PROBE as usize } else { 0 };
    // Whole words: behind a short packet is nothing to write into.
    let words = varies.div_ceil(8).min(packet.len() / 8).min(HEAD_WORDS as usize);
    for (word, bytes) in constants.head.iter_mut().zip(packet.as_chunks::<8>().0).take(words) {
        *word = u64::from_ne_bytes(*bytes);
    }
    (constants.words, constants.udp) = (words as u32, *udp as u32);
    (constants.fixed, constants.sources, constants.targets) = (*fixed, *sources, *targets);
    constants.probes = probes.is_some();
    constants.stream = probes.unwrap_or_default();
    constants.gap = if *rate > 0.0 { (1e9 * f64::from(GAP_PARTS) / rate) as u64 } else { 0 };
}
