//! What the programs cost, by the kernel's own count, and the least that such programs can cost.

use std::io;
use std::ops::{Add, Sub};
use std::os::fd::AsFd as _;

pub use bpf::RunTime;
use bpf::{Link, Map, Program};
use lanes::LaneMap;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use xsk::{Attach, Device, Hook};

use crate::program::refused;
use crate::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/least.skel.rs"));

/// Packets that wait for a CPU at most.
const QUEUE: u32 = 1024;

/// Has the kernel count how often and how long BPF programs run, for as long as this is there. All
/// programs of the machine run some 20 ns longer meanwhile.
#[derive(Debug)]
pub struct Statistics(#[expect(dead_code, reason = "held on")] bpf::Statistics);

/// What each side costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// The program that chooses where a packet goes: once a packet.
    pub steer: RunTime,
    /// The record side: once a receive or send.
    pub record: RunTime,
    /// The program at the CPU that a packet was sent to: once a packet.
    pub taken: RunTime,
    /// The program after NAPI polls: once a poll, on any device.
    pub polled: RunTime,
    /// The program that counts what had no room: once for up to eight packets.
    pub queued: RunTime,
}

/// Whose sockets the record side's programs look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// Those of the caller's network namespace.
    Ours,
    /// Nobody's: they find so for each, as for those of other namespaces.
    Nobodys,
}

/// Programs on a device and on the machine's sockets that do the least that such programs can do:
/// one reads a packet's flow and sends it to the CPU that the peer's port says, the other reads a
/// socket's flow and hashes it. For measuring against, for as long as this is there.
#[derive(Debug)]
pub struct Least {
    _hook: Hook,
    _tracepoints: [Link; 2],
    steer: Program,
    record: [Program; 2],
}

impl Statistics {
    /// From now on.
    ///
    /// # Errors
    /// `NotPermitted` of [`ErrorKind`](crate::ErrorKind) without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self> {
        let on = bpf::Statistics::enable();
        let failed = |e| Error::io("cannot switch the statistics of BPF programs on", e);
        on.map(Self).map_err(failed)
    }
}

impl Add for RunTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            steer: self.steer + other.steer,
            record: self.record + other.record,
            taken: self.taken + other.taken,
            polled: self.polled + other.polled,
            queued: self.queued + other.queued,
        }
    }
}

impl Sub for RunTimes {
    type Output = Self;

    /// What came since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            steer: self.steer - before.steer,
            record: self.record - before.record,
            taken: self.taken - before.taken,
            polled: self.polled - before.polled,
            queued: self.queued - before.queued,
        }
    }
}

impl Least {
    /// Puts them on a device of the network namespace that the caller is in, and on its sockets.
    ///
    /// # Errors
    /// As [`Steering::attach`](crate::Steering::attach).
    pub fn attach(device: &Device, lanes: &LaneMap, sockets: Sockets) -> Result<Self> {
        let netns = match sockets {
            Sockets::Ours => crate::steering::netns()?,
            Sockets::Nobodys => 0,
        };
        let [steer, recv, send] = load(lanes, netns).map_err(|error| refused("least", &error))?;
        let failed = |e| Error::io("cannot attach to a tracepoint of sockets", e);
        let tracepoints = [
            recv.attach_tracepoint(c"sock_recv_length").map_err(failed)?,
            send.attach_tracepoint(c"sock_send_length").map_err(failed)?,
        ];
        let hook = Hook::attach(device, steer.as_fd(), Attach::Native, true)?;
        Ok(Self { _hook: hook, _tracepoints: tracepoints, steer, record: [recv, send] })
    }

    /// What they cost since they were attached, while [`Statistics`] were on; nothing where there
    /// is no program.
    ///
    /// # Errors
    /// What the system reports.
    pub fn run_times(&self) -> Result<RunTimes> {
        let [recv, send] = &self.record;
        let read = || -> io::Result<RunTimes> {
            let record = recv.run_time()? + send.run_time()?;
            Ok(RunTimes { steer: self.steer.run_time()?, record, ..RunTimes::default() })
        };
        read().map_err(|error| Error::io("cannot read a program's statistics", error))
    }
}

/// The three programs. Packets can be sent to every CPU that is online.
fn load(lanes: &LaneMap, netns: u32) -> std::result::Result<[Program; 3], bpf::Error> {
    let online = lanes.online();
    let cpus = online.iter().max().map_or(1, |last| last + 1) as u32;
    bpf::load(|storage| {
        let mut open = skel::LeastSkelBuilder::default().open(storage)?;
        if let Some(fixed) = &mut open.maps.rodata_data {
            (fixed.cpus, fixed.netns) = (cpus, netns);
            fixed.hash_keys = std::array::from_fn(|_| rand::random::<u64>() | 1);
        }
        open.maps.entries.set_max_entries(cpus)?;
        let skel = open.load()?;
        let entries = Map::of(&skel.maps.entries)?;
        for cpu in online.iter() {
            entries.set(&(cpu as u32), &[QUEUE, 0])?;
        }
        Ok([
            Program::of(&skel.progs.least_steer)?,
            Program::of(&skel.progs.least_recv)?,
            Program::of(&skel.progs.least_send)?,
        ])
    })
}
