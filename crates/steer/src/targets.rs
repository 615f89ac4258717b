//! The CPUs that flows are sent to.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread;
use std::time::{Duration, Instant};

use lanes::{CpuSet, LaneMap};
use parking_lot::Mutex;

use crate::error::Context as _;
use crate::program::{self, Loaded, Target, constants};
use crate::threads::Threads;
use crate::{Error, ErrorKind, Result, SteerOptions};

/// The CPUs that flows are sent to, and the maps that say so.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) loaded: Loaded,
    wanted: CpuSet,
    queue_size: u32,
    /// Held while the maps are written, so that there is one writer; it is changed CPU by CPU, as
    /// they are.
    pub(crate) current: Mutex<Current>,
}

#[derive(Debug)]
pub(crate) struct Current {
    /// The machine that was followed last.
    lanes: Option<LaneMap>,
    pub(crate) active: CpuSet,
    /// No targets any more, but their threads still have packets. These would count as taken of
    /// those that are sent to the next thread of such a CPU, so it has to wait.
    leaving: CpuSet,
    pub(crate) threads: Threads,
}

impl Targets {
    /// None so far.
    pub(crate) fn new(loaded: Loaded, options: &SteerOptions) -> Result<Self> {
        let threads = Threads::new(loaded.entries_id()?, options.priority);
        let (wanted, queue_size) = (options.targets.clone(), options.queue_of_all(loaded.queues));
        let (active, leaving) = (CpuSet::new(), CpuSet::new());
        let current = Mutex::new(Current { lanes: None, active, leaving, threads });
        Ok(Self { loaded, wanted, queue_size, current })
    }

    pub(crate) fn look(&self) -> Result<()> {
        let mut current = self.current.lock();
        current.threads.look(|cpu| self.loaded.waiting(cpu as u32));
        let waiting = current.leaving.iter().map(|cpu| self.loaded.waiting(cpu as u32));
        let one_is_gone = waiting.collect::<Result<Vec<_>>>()?.contains(&0);
        if one_is_gone { self.follow_in(&mut current) } else { Ok(()) }
    }

    pub(crate) fn follow(&self, lanes: &LaneMap) -> Result<()> {
        let mut current = self.current.lock();
        current.lanes = Some(lanes.clone());
        self.follow_in(&mut current)
    }

    fn follow_in(&self, current: &mut Current) -> Result<()> {
        let Current { lanes: Some(lanes), active: current, leaving, threads } = current else {
            return Ok(());
        };
        for cpu in leaving.clone().iter() {
            if self.loaded.waiting(cpu as u32)? == 0 {
                self.remove(cpu as u32)?;
                leaving.remove(cpu);
            }
        }
        let cpus = self.loaded.cpus as usize;
        let wanted = self.wanted.intersection(lanes.online());
        let active: CpuSet = wanted.difference(leaving).iter().filter(|cpu| *cpu < cpus).collect();
        // What fails leaves the CPUs before it as they are now, and those after it as they were.
        let came = active.difference(current);
        // There, and with its priority, before it is used.
        came.iter().try_for_each(|cpu| self.enter(cpu as u32))?;
        threads.start(&came)?;
        for cpu in came.iter() {
            self.loaded.start_counts(cpu as u32)?;
            current.insert(cpu);
            self.write(lanes, cpu, true, 0)?;
        }
        // A record may name a CPU that is no target, of any lane.
        for cpu in lanes.present().difference(&came).iter().filter(|cpu| *cpu < cpus) {
            let was = current.contains(cpu);
            let task = if was { self.task(cpu)? } else { 0 };
            self.write(lanes, cpu, was, task)?;
        }
        let gone = current.difference(&active);
        // Their threads are waited for, also those that have not run yet.
        for cpu in gone.iter() {
            self.write(lanes, cpu, false, self.task(cpu)?.max(constants::TASK_UNKNOWN.into()))?;
        }
        self.drain(&gone)?;
        for cpu in gone.iter() {
            current.remove(cpu);
            threads.forget(cpu);
            leaving.insert(cpu);
            // Not waited for any more before it goes, so that nobody asks for a thread that ended.
            self.write(lanes, cpu, false, 0)?;
            if self.loaded.waiting(cpu as u32)? == 0 {
                self.remove(cpu as u32)?;
                leaving.remove(cpu);
            }
        }
        Ok(())
    }

    /// Its thread, as the programs know it.
    fn task(&self, cpu: usize) -> Result<u64> {
        Ok(program::read::<Target>(&self.loaded.maps.targets, cpu as u32)?.task)
    }

    fn write(&self, lanes: &LaneMap, cpu: usize, active: bool, task: u64) -> Result<()> {
        let lane = lanes.lane_of(cpu).map_or(u32::MAX, |lane| u32::from(lane.0));
        let target = Target { task, active: u32::from(active), lane };
        program::write(&self.loaded.maps.targets, cpu as u32, &target)
    }

    /// Waits until flows that had packets at these CPUs have had the time to leave them in order,
    /// which they do as soon as these have delivered all of them. What keeps up a backlog for longer
    /// is overtaken.
    fn drain(&self, cpus: &CpuSet) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(100);
        const LOOK: Duration = Duration::from_millis(1);
        /// One may fall between two packets of a flow that is held.
        const LOOKS: u32 = 5;

        let end = Instant::now() + PATIENCE;
        let mut empty = if cpus.is_empty() { LOOKS } else { 0 };
        while empty < LOOKS && Instant::now() < end {
            let waiting = cpus.iter().map(|cpu| self.loaded.waiting(cpu as u32));
            let none = waiting.sum::<Result<u32>>()? == 0;
            empty = if none { empty + 1 } else { 0 };
            thread::sleep(LOOK);
        }
        Ok(())
    }

    pub(crate) fn enter(&self, cpu: u32) -> Result<()> {
        let program = self.loaded.programs.taken.as_fd().as_raw_fd();
        // struct bpf_cpumap_val: the queue's size, and the program on it.
        let value = [self.queue_size, program.cast_unsigned()];
        let set = self.loaded.maps.entries.set(&cpu, &value);
        set.context(format_args!("cannot make CPU {cpu} a target"))
    }

    fn remove(&self, cpu: u32) -> Result<()> {
        match self.loaded.maps.entries.remove(&cpu) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.context(format_args!("cannot stop sending to CPU {cpu}")),
        }
    }
}

/// A set of CPUs that the kernel names: `present`, `possible`.
pub(crate) fn cpus(which: &str) -> Result<CpuSet> {
    let path = format!("/sys/devices/system/cpu/{which}");
    let text = std::fs::read_to_string(&path).context(&path)?;
    let cpus = text.trim().parse::<CpuSet>();
    cpus.map_err(|error| Error::new(ErrorKind::Io, format!("{path}: {error}")))
}
