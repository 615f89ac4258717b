//! Steering on a device.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use lanes::{CpuSet, LaneMap};
use rustix::thread::sched_getcpu;
use xsk::{Attach, Device, Hook};

use crate::error::Context as _;
use crate::host::needs_kernel;
use crate::program::{CPUS_MAX, Limits, Loaded, Shape};
#[cfg(feature = "measure")]
use crate::run_times::RunTimes;
use crate::size::{RECORDS, records_for};
use crate::targets::{Targets, cpus};
use crate::threads;
use crate::{Counters, Error, ErrorKind, Result};

/// How often to call [`Steering::look`]: so soon a CPU that came or went is noticed.
pub const LOOK: Duration = Duration::from_millis(50);
/// A tick with HZ of 100, the least that there is on what this runs on.
pub(crate) const LONGEST_TICK: Duration = Duration::from_millis(10);
/// The most packets that the kernel has wait for a CPU (kernel/bpf/cpumap.c).
const QUEUE_MAX: u32 = 16384;

/// How flows are steered.
#[derive(Clone, Debug)]
pub struct SteerOptions {
    /// Records of flows: a power of two from 2^8 to 2^24. Flows that find no place displace each
    /// other; [`records_for`] says how many are enough.
    pub records: u32,
    /// Packets of a receive queue that wait for a CPU at most, from 1 to 16384, as far as there is
    /// room for those of all queues in 16384.
    pub queue_size: u32,
    /// The real-time priority (SCHED_FIFO, 1 to 99) of the kernel's threads that take packets for
    /// CPUs. With 0 they are ordinary threads, and packets wait beside busy programs.
    pub priority: u8,
    /// Steering ends by itself if [`Steering::look`] was not called for so long, and goes on when it
    /// is: a process that is stopped does not follow the host. None: it does not end.
    pub lease: Option<Duration>,
    /// The CPUs that flows may be sent to, as far as they are online.
    pub targets: CpuSet,
    /// Whether a flow's record is rewritten only when its consumer left the lane.
    pub llc_affinity: bool,
    /// False only to see what happens then: packets overtake each other.
    #[cfg(feature = "measure")]
    pub keep_order: bool,
}

impl Default for SteerOptions {
    /// Records for 512 flows, and 1024 packets for a CPU, about what its backlog holds
    /// (`net.core.netdev_max_backlog`).
    fn default() -> Self {
        Self {
            records: records_for(512),
            queue_size: 1024,
            priority: threads::PRIORITY,
            lease: Some(Duration::from_secs(2)),
            targets: (0..=CpuSet::MAX).collect(),
            llc_affinity: true,
            #[cfg(feature = "measure")]
            keep_order: true,
        }
    }
}

impl SteerOptions {
    /// Whether they are in range.
    ///
    /// # Errors
    /// `Invalid` of [`ErrorKind`], with what was expected.
    pub fn check(&self) -> Result<()> {
        let records = self.records;
        if !(records.is_power_of_two() && RECORDS.contains(&records)) {
            let expected = "expected a power of two from 256 to 16777216";
            return Err(Error::invalid(format!("{records} records: {expected}")));
        }
        let packets = self.queue_size;
        if !(1..=QUEUE_MAX).contains(&packets) {
            let expected = format!("expected 1 to {QUEUE_MAX}");
            return Err(Error::invalid(format!("a queue of {packets} packets: {expected}")));
        }
        if self.priority > threads::HIGHEST {
            let (priority, highest) = (self.priority, threads::HIGHEST);
            return Err(Error::invalid(format!("priority {priority}: expected 0 to {highest}")));
        }
        Ok(())
    }

    /// Packets that wait for a CPU at most, of all queues; one of each at least.
    pub(crate) fn queue_of_all(&self, queues: u32) -> u32 {
        self.queue_size.saturating_mul(queues).min(QUEUE_MAX).max(queues)
    }
}

/// Steering on a device, for as long as this is there: it goes with the process, however that
/// ends.
#[derive(Debug)]
pub struct Steering {
    // Dropped in this order: packets go to the kernel first.
    hook: Hook,
    _tracepoints: Vec<bpf::Link>,
    targets: Targets,
}

impl Steering {
    /// Steers the flows of a device of the network namespace that the caller is in, whose sockets
    /// are the flows' consumers. [`inspect`](crate::inspect) says whether it should be.
    ///
    /// # Errors
    /// As [`Hook::attach`]; `Invalid` for options that are out of range; `Unsupported` or
    /// `NotPermitted` of [`ErrorKind`] if the kernel does not load the programs.
    pub fn attach(device: &Device, lanes: &LaneMap, options: &SteerOptions) -> Result<Self> {
        Hook::refuse_if_taken(device)?;
        let loaded = load(device, options)?;
        loaded.set(options.llc_affinity)?;
        loaded.renew(Duration::ZERO)?;
        let targets = Targets::new(loaded, options)?;
        targets.follow(lanes)?;
        let tracepoints = targets.loaded.programs.attach_tracepoints()?;
        let program = targets.loaded.programs.steer.as_fd();
        let hook = Hook::attach(device, program, Attach::Native, true)
            .map_err(|error| refused_by_driver(device, error))?;
        Ok(Self { hook, _tracepoints: tracepoints, targets })
    }

    /// Whether the kernel would load the programs, and give a thread that takes packets its priority:
    /// does so with one, on the CPU that it is called on, and attaches nothing.
    ///
    /// # Errors
    /// As [`attach`](Self::attach) up to there.
    pub fn try_load(device: &Device, options: &SteerOptions) -> Result<()> {
        let targets = Targets::new(load(device, options)?, options)?;
        // The kernel waits until the thread has run, which may take long elsewhere.
        let cpu = sched_getcpu().min(targets.loaded.cpus as usize - 1);
        targets.enter(cpu as u32)?;
        targets.current.lock().threads.start(&[cpu].into_iter().collect())
    }

    /// Follows a change of the machine: CPUs that went are no targets any more, those that came
    /// are, and lanes are as given. Flows of a CPU that went take the kernel path until their
    /// consumers run elsewhere.
    pub fn follow(&self, lanes: &LaneMap) -> Result<()> {
        self.targets.follow(lanes)
    }

    /// The host was looked after: renews the [lease](SteerOptions::lease) from when that look
    /// `began`. And has the kernel's threads that never sleep share their CPUs with ordinary
    /// programs for some milliseconds now and then, so that it should be called every [`LOOK`], by
    /// a thread that [goes before them](Self::go_before). CPUs that were to be targets again
    /// before their threads had ended are.
    pub fn look(&self, began: Instant) -> Result<()> {
        self.targets.look()?;
        self.targets.loaded.renew(began.elapsed())
    }

    /// Gives the calling thread, but none that it makes, a priority above that of the threads that
    /// take packets: what it does for them is in time. With `priority` 0 it does nothing.
    ///
    /// # Errors
    /// `NotPermitted` of [`ErrorKind`] if this process may not.
    pub fn go_before(&self) -> Result<()> {
        self.targets.current.lock().threads.go_before()
    }

    /// Whether the program is still on its device: an administrator may have taken it off by
    /// force.
    ///
    /// # Errors
    /// `NoDevice` of [`ErrorKind`] if the device is gone, and what the system reports.
    pub fn is_attached(&self) -> Result<bool> {
        match Hook::refuse_if_taken(self.hook.device()) {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == xsk::ErrorKind::ProgramPresent => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes whether a record is rewritten only when its flow's consumer left the lane.
    pub fn set_llc_affinity(&self, on: bool) -> Result<()> {
        self.targets.loaded.set(on)
    }

    /// Whether it is so.
    pub fn llc_affinity(&self) -> Result<bool> {
        self.targets.loaded.llc_affinity()
    }

    /// What happened so far, over all CPUs.
    pub fn counters(&self) -> Result<Counters> {
        self.targets.loaded.counters()
    }

    /// What the programs cost so far, while the kernel's statistics of BPF programs were on.
    #[cfg(feature = "measure")]
    pub fn run_times(&self) -> Result<RunTimes> {
        self.targets.loaded.programs.run_times()
    }

    /// What happened so far, by the CPU that it happened on: packets are counted where they
    /// arrive, receives and records where the consumer runs. Of the CPUs that there can be, those
    /// that are there and those that were.
    pub fn counters_by_cpu(&self) -> Result<Vec<(usize, Counters)>> {
        let present = cpus("present")?;
        let all = cpus("possible")?.iter().collect::<Vec<_>>();
        // The kernel gives the counts of all possible CPUs, in their order.
        let counters = all.into_iter().zip(self.targets.loaded.counters_by_cpu()?);
        Ok(counters
            .filter(|(cpu, counters)| present.contains(*cpu) || *counters != Counters::default())
            .collect())
    }

    /// The CPUs that flows are sent to now.
    pub fn targets(&self) -> CpuSet {
        self.targets.current.lock().active.clone()
    }

    /// How often a CPU's thread never slept for several looks, and shared its CPU for a while.
    pub fn rests(&self) -> u64 {
        self.targets.current.lock().threads.rests
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.hook.device()
    }
}

/// Generic programs, which xsk proposes, run after the kernel has made a buffer: too late here.
fn refused_by_driver(device: &Device, error: xsk::Error) -> Error {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
    match error.kind() {
        xsk::ErrorKind::NoXdp => Error::new(
            ErrorKind::NoXdp,
            format!(
                "{device}: its driver does not take the XDP program{} (expected native XDP; \
                 `dmesg` may say why, `ethtool -i {device}` names the driver)",
                cause.unwrap_or_default()
            ),
        ),
        _ => error.into(),
    }
}

fn load(device: &Device, options: &SteerOptions) -> Result<Loaded> {
    /// Eight bytes each.
    const STATES_MAX: u32 = 1 << 28;

    options.check()?;
    needs_kernel()?;
    let (records, queues) = (options.records, device.queues()?);
    if records.checked_mul(queues).is_none_or(|states| states > STATES_MAX) {
        return Err(Error::invalid(format!(
            "{records} records: expected at most {} for the {queues} queues of {device}",
            1 << (STATES_MAX / queues.max(1)).max(1).ilog2()
        )));
    }
    let shape = Shape {
        records,
        cpus: cpus_max()? as u32,
        queues,
        hash_keys: std::array::from_fn(|_| rand::random::<u64>() | 1),
        #[cfg(feature = "measure")]
        keep_order: options.keep_order,
        #[cfg(not(feature = "measure"))]
        keep_order: true,
        gro_outlasts_poll: gro_outlasts_poll(),
        limits: limits(options, queues),
    };
    Loaded::new(&shape, netns()?, false)
}

fn limits(options: &SteerOptions, queues: u32) -> Limits {
    /// A CPU that takes nothing is no target after two ticks of 4 ms.
    const STALL: Duration = Duration::from_millis(8);
    /// What has to wait for one that is does so once a second.
    const AWAY: Duration = Duration::from_secs(1);
    /// Longer than the kernel lets ordinary threads go before real-time ones each second
    /// (`fair_server`), 50 ms.
    const PATIENCE: Duration = Duration::from_millis(60);

    Limits {
        room: options.queue_of_all(queues) / queues,
        stall: ticks(STALL),
        away: ticks(AWAY),
        patience: ticks(PATIENCE),
        lease: options.lease.map_or(0, ticks),
    }
}

/// Whether a NAPI poll that used its whole budget may leave packets in GRO: the kernel then
/// flushes only what is older than a tick if ticks are short, and else everything
/// (`gro_flush_normal(&n->gro, HZ >= 1000)` in net/core/dev.c, `napi_gro_flush` before 6.15). The
/// thread of a cpumap that has more to do does the same (`cpu_map_gro_flush` in
/// kernel/bpf/cpumap.c).
fn gro_outlasts_poll() -> bool {
    /// With HZ of 1000.
    const SHORT: Duration = Duration::from_millis(1);

    bpf::tick().is_none_or(|length| length <= SHORT)
}

/// So many ticks, at least two: of two that follow each other, the second may be just over. Where
/// ticks are of no known length they are taken for long ones, of which fewer have to pass.
fn ticks(time: Duration) -> u32 {
    bpf::ticks(time, LONGEST_TICK).max(2)
}

/// One more than the highest CPU that there can be, as far as the programs have room.
fn cpus_max() -> Result<usize> {
    Ok(cpus("possible")?.iter().max().map_or(1, |last| last + 1).min(CPUS_MAX))
}

/// The inode of the caller's network namespace.
fn netns() -> Result<u32> {
    use std::os::unix::fs::MetadataExt as _;

    let path = "/proc/thread-self/ns/net";
    let metadata = std::fs::metadata(path).context(path)?;
    u32::try_from(metadata.ino())
        .map_err(|_| Error::new(ErrorKind::Io, format!("{path}: inode {}", metadata.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_takes_two_ticks_at_least() {
        assert_eq!(ticks(Duration::from_nanos(1)), 2);
        let second = ticks(Duration::from_secs(1));
        assert!((10..=10_000).contains(&second), "HZ of {second}");
    }
}
