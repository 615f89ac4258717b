//! The BPF object: loads it, and reads and writes its maps.

use std::io;
use std::time::Duration;

use bpf::{Link, Map, Plain, Program};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::Context as _;
#[cfg(feature = "measure")]
use crate::run_times::RunTimes;
use crate::steering::LONGEST_TICK;
use crate::{Counters, Error, ErrorKind, Result};

include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));

use skel::types::{ago as Ago, sent as Sent, taken as Taken};
pub(crate) use skel::types::{
    counts as Counts, own as Own, settings as Settings, target as Target,
};

use skel::Maps;
pub(crate) use skel::constants;
/// The most CPUs that there can be.
pub(crate) const CPUS_MAX: usize = constants::CPUS_MAX as usize;
pub(crate) const WAYS: u32 = constants::WAYS;

/// What is fixed for as long as the tables last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "the model has it")]
pub struct Shape {
    /// Records of flows, and states of flows for each queue: a power of two, at least `WAYS`.
    pub records: u32,
    /// CPUs that there can be: 1 to `CPUS_MAX`.
    pub cpus: u32,
    /// Receive queues: 1 or more.
    pub queues: u32,
    /// What the hash is keyed with: all but the first are multipliers, and odd.
    pub hash_keys: [u64; 5],
    /// Whether a flow stays where its packets go until they are delivered. False only for a test
    /// that sees packets overtake each other.
    pub keep_order: bool,
    /// Whether a NAPI poll that used its budget leaves packets in GRO, and so does a CPU's thread
    /// that has more to do: where ticks are of a millisecond or less, or not known.
    pub gro_outlasts_poll: bool,
    /// What waits for how long.
    pub limits: Limits,
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
    pub(crate) maps: Maps,
    /// As in the [`Shape`].
    pub(crate) cpus: u32,
    pub(crate) queues: u32,
}

/// The programs, to be attached or asked for what they cost.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) steer: Program,
    pub(crate) taken: Program,
    recv: Program,
    send: Program,
    pub(crate) queued: Program,
    pub(crate) polled: Program,
    renew: Program,
    #[cfg(test)]
    pub(crate) try_record: Program,
    #[cfg(test)]
    pub(crate) try_taken: Program,
}

impl Loaded {
    /// For sockets of the network namespace with this inode; `tried_time`: a test says what time it
    /// is.
    pub(crate) fn new(shape: &Shape, netns: u32, tried_time: bool) -> Result<Self> {
        let &Shape { records, cpus, queues, limits, .. } = shape;
        let loaded = bpf::load(|storage| {
            let mut open = skel::SteerSkelBuilder::default().open(storage)?;
            if let Some(fixed) = &mut open.maps.rodata_data {
                fixed.hash_keys = shape.hash_keys;
                fixed.set_mask = records / WAYS - 1;
                fixed.cpu_mask = cpus.next_power_of_two() - 1;
                (fixed.cpus, fixed.queues, fixed.netns) = (cpus, queues, netns);
                fixed.gro_outlasts_poll = shape.gro_outlasts_poll.into();
                fixed.keep_order = shape.keep_order.into();
                fixed.room_of_queue = limits.room;
                (fixed.stall_ticks, fixed.away_ticks) = (limits.stall, limits.away);
                (fixed.patience_ticks, fixed.lease_ticks) = (limits.patience, limits.lease);
                fixed.tried_time = tried_time.into();
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
            Ok(Self {
                programs: Programs::of(&skel.progs)?,
                maps: Maps::of(&skel.maps)?,
                cpus,
                queues,
            })
        });
        loaded.map_err(|error| refused(&error))
    }

    /// Sets what the programs read while they run.
    pub(crate) fn set(&self, llc_affinity: bool) -> Result<()> {
        let before = read::<Settings>(&self.maps.settings, 0)?;
        let (llc_affinity, entries_id) = (u32::from(llc_affinity), self.entries_id()?);
        // Who renews meanwhile does so again soon.
        write(&self.maps.settings, 0, &Settings { llc_affinity, entries_id, ..before })
    }

    /// The host was looked after so long ago: steering goes on for the length of the lease from
    /// then.
    pub(crate) fn renew(&self, ago: Duration) -> Result<()> {
        let mut ago = Ago { ticks: u64::from(bpf::ticks(ago, LONGEST_TICK)) };
        let run = self.programs.renew.run(&mut ago);
        run.map(drop).context("cannot renew the lease")
    }

    /// Nothing is under way to a CPU, whatever was before.
    pub(crate) fn start_counts(&self, cpu: u32) -> Result<()> {
        for queue in 0..self.queues {
            let packets = read::<Taken>(&self.maps.taken, cpu * self.queues + queue)?.packets;
            let row = Sent { packets, seen: packets, ..Sent::default() };
            write(&self.maps.sent, queue * self.cpus + cpu, &row)?;
        }
        Ok(())
    }

    /// The cpumap's number.
    pub(crate) fn entries_id(&self) -> Result<u32> {
        self.maps.entries.id().context("cannot read a map")
    }

    /// Whether a record is rewritten only when its flow's consumer left the lane.
    pub(crate) fn llc_affinity(&self) -> Result<bool> {
        Ok(read::<Settings>(&self.maps.settings, 0)?.llc_affinity != 0)
    }

    /// Packets that were sent to a CPU and that it has not taken. Those that it has may not be
    /// delivered.
    pub(crate) fn waiting(&self, cpu: u32) -> Result<u32> {
        let mut waiting = 0;
        for queue in 0..self.queues {
            let sent = read::<Sent>(&self.maps.sent, queue * self.cpus + cpu)?.packets;
            let taken = read::<Taken>(&self.maps.taken, cpu * self.queues + queue)?.packets;
            waiting += sent.wrapping_sub(taken).cast_signed().max(0).unsigned_abs();
        }
        Ok(waiting)
    }

    /// What happened so far, over all CPUs.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let own = self.maps.own.sum::<Own>(&0_u32).context("cannot read the counters")?;
        Ok(Counters::from(&own.counts))
    }

    /// The same by possible CPU, in their order.
    pub(crate) fn counters_by_cpu(&self) -> Result<Vec<Counters>> {
        let all = self.maps.own.per_cpu::<Own>(&0_u32).context("cannot read the counters")?;
        Ok(all.iter().map(|own| Counters::from(&own.counts)).collect())
    }
}

impl Programs {
    fn of(programs: &skel::SteerProgs<'_>) -> io::Result<Self> {
        Ok(Self {
            steer: Program::of(&programs.cachelane_steer)?,
            taken: Program::of(&programs.cachelane_taken)?,
            recv: Program::of(&programs.cachelane_recv)?,
            send: Program::of(&programs.cachelane_send)?,
            queued: Program::of(&programs.cachelane_queued)?,
            polled: Program::of(&programs.cachelane_polled)?,
            renew: Program::of(&programs.cachelane_renew)?,
            #[cfg(test)]
            try_record: Program::of(&programs.try_record)?,
            #[cfg(test)]
            try_taken: Program::of(&programs.try_taken)?,
        })
    }

    /// What they cost so far.
    #[cfg(feature = "measure")]
    pub(crate) fn run_times(&self) -> Result<RunTimes> {
        let read = || -> io::Result<RunTimes> {
            Ok(RunTimes {
                steer: self.steer.run_time()?,
                record: self.recv.run_time()? + self.send.run_time()?,
                taken: self.taken.run_time()?,
                polled: self.polled.run_time()?,
                queued: self.queued.run_time()?,
            })
        };
        read().context("cannot read a program's statistics")
    }

    /// Lets the record side run, for as long as the descriptors are open.
    pub(crate) fn attach_tracepoints(&self) -> Result<Vec<Link>> {
        [
            (&self.queued, c"xdp_cpumap_enqueue"),
            (&self.polled, c"napi_poll"),
            (&self.recv, c"sock_recv_length"),
            (&self.send, c"sock_send_length"),
        ]
        .map(|(program, name)| {
            let attached = program.attach_tracepoint(name);
            attached.context(format_args!("cannot attach to the tracepoint {name:?}"))
        })
        .into_iter()
        .collect()
    }
}

/// Writes an element of a map whose values are of type `T`.
pub(crate) fn write<T: Plain>(map: &Map, key: u32, value: &T) -> Result<()> {
    map.set(&key, value).context(format_args!("cannot write element {key} of a map"))
}

/// Reads an element of a map whose values are of type `T`.
pub(crate) fn read<T: Plain>(map: &Map, key: u32) -> Result<T> {
    map.get(&key).context(format_args!("cannot read element {key} of a map"))
}

/// Programs that the kernel did not load.
fn refused(error: &bpf::Error) -> Error {
    let (kind, why) = match error.is_permission() {
        true => (
            ErrorKind::NotPermitted,
            "loading the steering programs needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
        ),
        false => (ErrorKind::Unsupported, "the kernel does not load the steering programs"),
    };
    Error::new(kind, format!("{why}: {error:#}"))
}

#[cfg(test)]
pub(crate) mod tests;
