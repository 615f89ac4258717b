//! What the programs cost, by the kernel's own count, and the least that such programs can cost.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::{Add, Sub};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::{io, ptr};

use lanes::LaneMap;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags};
use xsk::{Attach, Device, Hook};

use crate::program::{attach_tracepoint, refused};
use crate::{Error, Result};

#[allow(unreachable_pub, unused_qualifications, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/least.skel.rs"));
}

/// Packets that wait for a CPU at most.
const QUEUE: u32 = 1024;

/// Has the kernel count how often and how long BPF programs run, for as long as this is there. All
/// programs of the machine run some 20 ns longer meanwhile.
#[derive(Debug)]
pub struct Statistics(#[expect(dead_code, reason = "held open")] OwnedFd);

/// How often and how long a program ran while statistics were on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Runs.
    pub runs: u64,
    /// Nanoseconds of all of them.
    pub nanoseconds: u64,
}

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
    _tracepoints: Vec<OwnedFd>,
    steer: OwnedFd,
    record: [OwnedFd; 2],
}

impl Statistics {
    /// From now on.
    ///
    /// # Errors
    /// `NotPermitted` of [`ErrorKind`](crate::ErrorKind) without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self> {
        // SAFETY: it takes a number and returns a descriptor or an error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            let error = io::Error::from_raw_os_error(-fd);
            return Err(Error::io("cannot switch the statistics of BPF programs on", error));
        }
        // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

impl RunTime {
    /// Nanoseconds of one run; none without runs.
    pub fn mean(self) -> Option<f64> {
        (self.runs > 0).then(|| self.nanoseconds as f64 / self.runs as f64)
    }

    /// Of a loaded program, since it was.
    pub(crate) fn of(program: BorrowedFd<'_>) -> Result<Self> {
        let mut info = MaybeUninit::<libbpf_sys::bpf_prog_info>::zeroed();
        let mut size = size_of::<libbpf_sys::bpf_prog_info>() as u32;
        // SAFETY: the kernel writes at most `size` bytes to `info`, which is as long; both live as
        // long as the call.
        let info = unsafe {
            let result = libbpf_sys::bpf_prog_get_info_by_fd(
                program.as_raw_fd(),
                info.as_mut_ptr(),
                ptr::from_mut(&mut size),
            );
            if result < 0 {
                let error = io::Error::from_raw_os_error(-result);
                return Err(Error::io("cannot read a program's statistics", error));
            }
            // SAFETY: it was zeros, which are a value of this plain struct.
            info.assume_init()
        };
        Ok(Self { runs: info.run_cnt, nanoseconds: info.run_time_ns })
    }
}

impl Add for RunTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            runs: self.runs.wrapping_add(other.runs),
            nanoseconds: self.nanoseconds.wrapping_add(other.nanoseconds),
        }
    }
}

impl Sub for RunTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            runs: self.runs.wrapping_sub(before.runs),
            nanoseconds: self.nanoseconds.wrapping_sub(before.nanoseconds),
        }
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
        let programs = load(lanes, netns).map_err(|error| refused("least", &error))?;
        let [steer, recv, send] = programs;
        let tracepoints = vec![
            attach_tracepoint(&recv, c"sock_recv_length")?,
            attach_tracepoint(&send, c"sock_send_length")?,
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
        let record = RunTime::of(recv.as_fd())? + RunTime::of(send.as_fd())?;
        Ok(RunTimes { steer: RunTime::of(self.steer.as_fd())?, record, ..RunTimes::default() })
    }
}

/// The three programs. Packets can be sent to every CPU that is online.
fn load(lanes: &LaneMap, netns: u32) -> libbpf_rs::Result<[OwnedFd; 3]> {
    let online = lanes.online();
    let cpus = online.iter().max().map_or(1, |last| last + 1) as u32;
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::LeastSkelBuilder::default().open(&mut storage)?;
    if let Some(fixed) = &mut open.maps.rodata_data {
        (fixed.cpus, fixed.netns) = (cpus, netns);
        fixed.hash_keys = std::array::from_fn(|_| rand::random::<u64>() | 1);
    }
    open.maps.entries.set_max_entries(cpus)?;
    let skel = open.load()?;
    let value = [QUEUE.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
    for cpu in online.iter() {
        skel.maps.entries.update(&(cpu as u32).to_ne_bytes(), &value, MapFlags::ANY)?;
    }
    let programs = &skel.progs;
    let program = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    Ok([
        program(programs.least_steer.as_fd())?,
        program(programs.least_recv.as_fd())?,
        program(programs.least_send.as_fd())?,
    ])
}
