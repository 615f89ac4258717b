//! The BPF object: loads it, and reads and writes its maps.
//!
//! `unsafe` here is the generated skeleton's, and the byte casts of its plain structs.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use libbpf_sys::bpf_test_run_opts;

#[cfg(feature = "measure")]
use crate::cost::{RunTime, RunTimes};
use crate::{Counters, Error, ErrorKind, Result, tick};

#[cfg(test)]
pub(crate) mod trying;

#[allow(unreachable_pub, unused_qualifications, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
}

use skel::types::{ago as Ago, sent as Sent, taken as Taken};
pub(crate) use skel::types::{
    counts as Counts, own as Own, settings as Settings, target as Target,
};

/// As in steer.h.
pub(crate) const CPUS_MAX: usize = 1024;
pub(crate) const WAYS: u32 = 8;
pub(crate) const TASK_UNKNOWN: u64 = 1;

/// What is fixed when the programs are loaded.
#[derive(Clone, Debug)]
pub(crate) struct Constants {
    /// A power of two.
    pub(crate) records: u32,
    /// One more than the highest CPU that there can be.
    pub(crate) cpus: u32,
    /// Of the device.
    pub(crate) queues: u32,
    /// The network namespace's inode.
    pub(crate) netns: u32,
    /// Odd multipliers, but for the first.
    pub(crate) hash_keys: [u64; 5],
    /// False only for a test that sees packets overtake each other.
    pub(crate) keep_order: bool,
    /// HZ is 1000 or more, or not known.
    pub(crate) gro_outlasts_poll: bool,
    pub(crate) limits: Limits,
    /// A test says what time it is.
    pub(crate) tried_time: bool,
}

/// What waits for how long, in packets and ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "the model has it")]
pub struct Limits {
    /// Packets of a queue that wait for a CPU at most.
    pub room: u32,
    /// After these a CPU that takes nothing is no target.
    pub stall: u32,
    /// For so long it is none then.
    pub away: u32,
    /// After these flows wait no longer for what they have at a CPU that is none.
    pub patience: u32,
    /// After these nothing is steered any more, unless that was renewed; 0: never.
    pub lease: u32,
}

/// The loaded programs and their maps. Nothing of it runs yet.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) programs: Programs,
    pub(crate) targets: MapHandle,
    pub(crate) entries: MapHandle,
    sent: MapHandle,
    taken: MapHandle,
    settings: MapHandle,
    own: MapHandle,
    /// One more than the highest CPU that there can be.
    pub(crate) cpus: u32,
    pub(crate) queues: u32,
    #[cfg(test)]
    pub(crate) trying: trying::Trying,
}

/// The programs, to be attached or asked for what they cost.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) steer: OwnedFd,
    pub(crate) taken: OwnedFd,
    recv: OwnedFd,
    send: OwnedFd,
    pub(crate) queued: OwnedFd,
    pub(crate) polled: OwnedFd,
    renew: OwnedFd,
}

impl Loaded {
    pub(crate) fn new(constants: &Constants) -> Result<Self> {
        Self::try_new(constants).map_err(|error| refused("steering", &error))
    }

    fn try_new(constants: &Constants) -> libbpf_rs::Result<Self> {
        let &Constants { records, cpus, queues, .. } = constants;
        let mut storage = MaybeUninit::uninit();
        let mut open = skel::SteerSkelBuilder::default().open(&mut storage)?;
        if let Some(fixed) = &mut open.maps.rodata_data {
            fixed.hash_keys = constants.hash_keys;
            fixed.set_mask = records / WAYS - 1;
            fixed.cpu_mask = cpus.next_power_of_two() - 1;
            (fixed.cpus, fixed.queues, fixed.netns) = (cpus, queues, constants.netns);
            fixed.gro_outlasts_poll = u32::from(constants.gro_outlasts_poll);
            fixed.keep_order = u32::from(constants.keep_order);
            let Limits { room, stall, away, patience, lease } = constants.limits;
            (fixed.room_of_queue, fixed.stall_ticks, fixed.away_ticks) = (room, stall, away);
            (fixed.patience_ticks, fixed.lease_ticks) = (patience, lease);
            fixed.tried_time = u32::from(constants.tried_time);
        }
        open.maps.records.set_max_entries(records / WAYS)?;
        open.maps.flows.set_max_entries(records / WAYS * queues)?;
        open.maps.sent.set_max_entries(cpus * queues)?;
        open.maps.taken.set_max_entries(cpus * (queues + 1))?;
        open.maps.passed.set_max_entries(queues)?;
        open.maps.entries.set_max_entries(cpus)?;
        open.progs.try_record.set_autoload(cfg!(test));
        open.progs.try_taken.set_autoload(cfg!(test));
        let skel = open.load()?;
        let (programs, maps) = (&skel.progs, &skel.maps);
        let program = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let programs = Programs {
            steer: program(programs.cachelane_steer.as_fd())?,
            taken: program(programs.cachelane_taken.as_fd())?,
            recv: program(programs.cachelane_recv.as_fd())?,
            send: program(programs.cachelane_send.as_fd())?,
            queued: program(programs.cachelane_queued.as_fd())?,
            polled: program(programs.cachelane_polled.as_fd())?,
            renew: program(programs.cachelane_renew.as_fd())?,
        };
        Ok(Self {
            programs,
            targets: MapHandle::try_from(&maps.targets)?,
            entries: MapHandle::try_from(&maps.entries)?,
            sent: MapHandle::try_from(&maps.sent)?,
            taken: MapHandle::try_from(&maps.taken)?,
            settings: MapHandle::try_from(&maps.settings)?,
            own: MapHandle::try_from(&maps.own)?,
            cpus,
            queues,
            #[cfg(test)]
            trying: trying::Trying::new(&skel)?,
        })
    }

    /// Sets what the programs read while they run.
    pub(crate) fn set(&self, llc_affinity: bool) -> Result<()> {
        let before = read::<Settings>(&self.settings, 0)?;
        let (llc_affinity, entries_id) = (u32::from(llc_affinity), self.entries_id()?);
        // Who renews meanwhile does so again soon.
        write(&self.settings, 0, &Settings { llc_affinity, entries_id, ..before })
    }

    /// The host was looked after so long ago: steering goes on for the length of the lease from
    /// then.
    pub(crate) fn renew(&self, ago: Duration) -> Result<()> {
        let ago = Ago { ticks: u64::from(tick::ticks_in(ago)) };
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
            ctx_in: (&raw const ago).cast(),
            ctx_size_in: size_of::<Ago>() as u32,
            ..Default::default()
        };
        run(self.programs.renew.as_fd(), &mut options)
            .map(drop)
            .map_err(|error| Error::io("cannot renew the lease", error))
    }

    /// Nothing is under way to a CPU, whatever was before.
    pub(crate) fn start_counts(&self, cpu: u32) -> Result<()> {
        for queue in 0..self.queues {
            let packets = read::<Taken>(&self.taken, cpu * self.queues + queue)?.packets;
            let row = Sent { packets, seen: packets, ..Sent::default() };
            write(&self.sent, queue * self.cpus + cpu, &row)?;
        }
        Ok(())
    }

    /// The cpumap's number.
    pub(crate) fn entries_id(&self) -> Result<u32> {
        let info = self.entries.info().map_err(|error| system("cannot read a map", &error))?;
        Ok(info.info.id)
    }

    /// Whether a record is rewritten only when its flow's consumer left the lane.
    pub(crate) fn llc_affinity(&self) -> Result<bool> {
        Ok(read::<Settings>(&self.settings, 0)?.llc_affinity != 0)
    }

    /// Packets that were sent to a CPU and that it has not taken. Those that it has may not be
    /// delivered.
    pub(crate) fn waiting(&self, cpu: u32) -> Result<u32> {
        let mut waiting = 0;
        for queue in 0..self.queues {
            let sent = read::<Sent>(&self.sent, queue * self.cpus + cpu)?.packets;
            let taken = read::<Taken>(&self.taken, cpu * self.queues + queue)?.packets;
            waiting += sent.wrapping_sub(taken).cast_signed().max(0).unsigned_abs();
        }
        Ok(waiting)
    }

    /// What happened so far, over all CPUs.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let mut sum = Counters::default();
        self.counters_by_cpu()?.iter().for_each(|one| sum.add(one));
        Ok(sum)
    }

    /// The same by possible CPU, in their order.
    pub(crate) fn counters_by_cpu(&self) -> Result<Vec<Counters>> {
        let per_cpu = self.own.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let per_cpu = per_cpu.map_err(|error| system("cannot read the counters", &error))?;
        let counts = |bytes: &Vec<u8>| cast::<Own>(bytes).map(|own| Counters::from(&own.counts));
        Ok(per_cpu.iter().flatten().filter_map(counts).collect())
    }
}

impl Programs {
    /// What they cost so far.
    #[cfg(feature = "measure")]
    pub(crate) fn run_times(&self) -> Result<RunTimes> {
        let of = |program: &OwnedFd| RunTime::of(program.as_fd());
        Ok(RunTimes {
            steer: of(&self.steer)?,
            record: of(&self.recv)? + of(&self.send)?,
            taken: of(&self.taken)?,
            polled: of(&self.polled)?,
            queued: of(&self.queued)?,
        })
    }

    /// Lets the record side run, for as long as the descriptors are open.
    pub(crate) fn attach_tracepoints(&self) -> Result<Vec<OwnedFd>> {
        [
            (&self.queued, c"xdp_cpumap_enqueue"),
            (&self.polled, c"napi_poll"),
            (&self.recv, c"sock_recv_length"),
            (&self.send, c"sock_send_length"),
        ]
        .into_iter()
        .map(|(program, name)| attach_tracepoint(program, name))
        .collect()
    }
}

/// Runs a program once, on this CPU.
fn run(program: BorrowedFd<'_>, options: &mut bpf_test_run_opts) -> io::Result<u32> {
    // SAFETY: the caller has set `options` to slices and structs that outlive this call, with
    // their sizes; the kernel writes no more than these say.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), options) } {
        0 => Ok(options.retval),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Writes an element of a map whose values are of type `T`.
pub(crate) fn write<T: Copy>(map: &MapHandle, key: u32, value: &T) -> Result<()> {
    debug_assert_eq!(map.value_size() as usize, size_of::<T>());
    // SAFETY: plain data without padding, read as bytes for the length of the call.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>())
    };
    map.update(&key.to_ne_bytes(), bytes, MapFlags::ANY)
        .map_err(|error| system(&format!("cannot write element {key} of a map"), &error))
}

/// Reads an element of a map whose values are of type `T`.
pub(crate) fn read<T: Copy>(map: &MapHandle, key: u32) -> Result<T> {
    let found = map
        .lookup(&key.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| system(&format!("cannot read element {key} of a map"), &error))?;
    found.as_deref().and_then(cast).ok_or_else(|| {
        Error::new(ErrorKind::Io, format!("a map has no element {key} of the expected size"))
    })
}

fn cast<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length was just checked, the generated types are numbers, which any bytes make,
    // and the read asks for no alignment.
    (bytes.len() >= size_of::<T>())
        .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Programs that the kernel did not load.
pub(crate) fn refused(which: &str, error: &libbpf_rs::Error) -> Error {
    let (kind, why) = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => (
            ErrorKind::NotPermitted,
            format!(
                "loading the {which} programs needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: \
                 {error:#}"
            ),
        ),
        _ => (
            ErrorKind::Unsupported,
            format!("the kernel does not load the {which} programs: {error:#}"),
        ),
    };
    Error::new(kind, why)
}

pub(crate) fn attach_tracepoint(program: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
    // SAFETY: both live as long as the call.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) };
    if fd < 0 {
        let error = io::Error::from_raw_os_error(-fd);
        return Err(Error::io(format!("cannot attach to the tracepoint {name:?}"), error));
    }
    // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn system(what: &str, error: &libbpf_rs::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {error}"))
}
