//! The BPF object: loads it, and reads and writes its maps.

use std::io;
use std::time::Duration;

use bpf::{Link, Map, Plain, Program};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

#[cfg(feature = "measure")]
use crate::run_times::RunTimes;
use crate::{Counters, Error, ErrorKind, Result, tick};

#[cfg(test)]
pub(crate) mod trying;

include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));

use skel::types::{ago as Ago, sent as Sent, taken as Taken};
pub(crate) use skel::types::{
    counts as Counts, own as Own, settings as Settings, target as Target,
};

pub(crate) use skel::constants;
/// The most CPUs that there can be.
pub(crate) const CPUS_MAX: usize = constants::CPUS_MAX as usize;
pub(crate) const WAYS: u32 = constants::WAYS;

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
    pub(crate) targets: Map,
    pub(crate) entries: Map,
    sent: Map,
    taken: Map,
    settings: Map,
    own: Map,
    /// One more than the highest CPU that there can be.
    pub(crate) cpus: u32,
    pub(crate) queues: u32,
    #[cfg(test)]
    pub(crate) trying: trying::Trying,
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
}

impl Loaded {
    pub(crate) fn new(constants: &Constants) -> Result<Self> {
        let &Constants { records, cpus, queues, .. } = constants;
        let loaded = bpf::load(|storage| {
            let mut open = skel::SteerSkelBuilder::default().open(storage)?;
            if let Some(fixed) = &mut open.maps.rodata_data {
                constants.write(fixed);
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
            let maps = &skel.maps;
            Ok(Self {
                programs: Programs::of(&skel.progs)?,
                targets: Map::of(&maps.targets)?,
                entries: Map::of(&maps.entries)?,
                sent: Map::of(&maps.sent)?,
                taken: Map::of(&maps.taken)?,
                settings: Map::of(&maps.settings)?,
                own: Map::of(&maps.own)?,
                cpus,
                queues,
                #[cfg(test)]
                trying: trying::Trying::new(&skel)?,
            })
        });
        loaded.map_err(|error| refused("steering", &error))
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
        let mut ago = Ago { ticks: u64::from(tick::ticks_in(ago)) };
        let run = self.programs.renew.run(&mut ago);
        run.map(drop).context("cannot renew the lease")
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
        self.entries.id().context("cannot read a map")
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
        let own: Own = self.own.sum(&0_u32).map_err(unreadable)?;
        Ok(Counters::from(&own.counts))
    }

    /// The same by possible CPU, in their order.
    pub(crate) fn counters_by_cpu(&self) -> Result<Vec<Counters>> {
        let per_cpu = self.own.per_cpu(&0_u32).map_err(unreadable)?;
        Ok(per_cpu.iter().map(|own: &Own| Counters::from(&own.counts)).collect())
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::io("cannot read the counters", error)
}

impl Constants {
    fn write(&self, fixed: &mut skel::types::rodata) {
        let &Constants { records, cpus, queues, netns, .. } = self;
        fixed.hash_keys = self.hash_keys;
        fixed.set_mask = records / WAYS - 1;
        fixed.cpu_mask = cpus.next_power_of_two() - 1;
        (fixed.cpus, fixed.queues, fixed.netns) = (cpus, queues, netns);
        fixed.gro_outlasts_poll = u32::from(self.gro_outlasts_poll);
        fixed.keep_order = u32::from(self.keep_order);
        let Limits { room, stall, away, patience, lease } = self.limits;
        (fixed.room_of_queue, fixed.stall_ticks, fixed.away_ticks) = (room, stall, away);
        (fixed.patience_ticks, fixed.lease_ticks) = (patience, lease);
        fixed.tried_time = u32::from(self.tried_time);
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
        .into_iter()
        .map(|(program, name)| {
            let failed = |e| Error::io(format!("cannot attach to the tracepoint {name:?}"), e);
            program.attach_tracepoint(name).map_err(failed)
        })
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
fn refused(which: &str, error: &bpf::Error) -> Error {
    let (kind, why) = match error.is_permission() {
        true => (
            ErrorKind::NotPermitted,
            format!(
                "loading the {which} programs needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: \
                 {error:#}"
            ),
        ),
        false => (
            ErrorKind::Unsupported,
            format!("the kernel does not load the {which} programs: {error:#}"),
        ),
    };
    Error::new(kind, why)
}
