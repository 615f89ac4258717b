//! The least that programs at steering's places can do, to measure against.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use bpf::{Link, Map, Program};
use lanes::LaneMap;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use steer::RunTimes;
use xsk::{Attach, Device, Hook};

include!(concat!(env!("OUT_DIR"), "/least.skel.rs"));

/// Packets that wait for a CPU at most.
const QUEUE: u32 = 1024;

/// Whose sockets the record side's programs look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    /// Those of the caller's network namespace.
    Ours,
    /// Nobody's: they find so for each, as for those of other namespaces.
    Nobodys,
}

/// Programs on a device and on the machine's sockets that do the least that such programs can do:
/// one reads a packet's flow and sends it to the CPU that the peer's port says, the other reads a
/// socket's flow and hashes it. For measuring against, for as long as this is there.
#[derive(Debug)]
pub(super) struct Least {
    _hook: Hook,
    _tracepoints: [Link; 2],
    steer: Program,
    record: [Program; 2],
}

impl Least {
    /// Puts them on a device of the network namespace that the caller is in, and on its sockets.
    pub(super) fn attach(
        device: &Device,
        lanes: &LaneMap,
        sockets: Sockets,
    ) -> anyhow::Result<Self> {
        let netns = match sockets {
            // Programs see the lower half of an inode's number.
            Sockets::Ours => std::fs::metadata("/proc/thread-self/ns/net")?.ino() as u32,
            Sockets::Nobodys => 0,
        };
        let [steer, recv, send] = load(lanes, netns).context("the least programs")?;
        let failed = "cannot attach to a tracepoint of sockets";
        let tracepoints = [
            recv.attach_tracepoint(c"sock_recv_length").context(failed)?,
            send.attach_tracepoint(c"sock_send_length").context(failed)?,
        ];
        let hook = Hook::attach(device, steer.as_fd(), Attach::Native, true)?;
        Ok(Self { _hook: hook, _tracepoints: tracepoints, steer, record: [recv, send] })
    }

    /// What they cost since they were attached, while the kernel's statistics were on; nothing
    /// where there is no program.
    pub(super) fn run_times(&self) -> anyhow::Result<RunTimes> {
        let [recv, send] = &self.record;
        let read = || -> io::Result<RunTimes> {
            let record = recv.run_time()? + send.run_time()?;
            Ok(RunTimes { steer: self.steer.run_time()?, record, ..RunTimes::default() })
        };
        read().context("cannot read a program's statistics")
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
