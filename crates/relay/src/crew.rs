//! The workers' threads: starting them, and where they run.
//!
//! A worker's thread is there until the relay is dropped, also when the worker has returned: so its
//! thread id is its own for as long as somebody may move it.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use lanes::CpuSet;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Pid;
use rustix::thread::gettid;

use crate::counters::{Counters, Stats};
use crate::listeners::Own;
use crate::placement::Place;
use crate::repeated::say;
use crate::shared::Shared;
use crate::waiting::Waiting;
use crate::worker::Worker;
use crate::{Error, ErrorKind, placement};

/// The workers' threads, and where they are to run.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    cpus: CpuSet,
    hands: Vec<Hand>,
}

#[derive(Debug)]
pub(crate) struct Hand {
    thread: JoinHandle<()>,
    tid: Pid,
    counters: Arc<Counters>,
    place: Arc<Place>,
    waiting: Waiting,
    /// Its listeners, once; dropped to let its thread end.
    orders: Sender<Own>,
}

impl Crew {
    pub(crate) fn len(&self) -> usize {
        self.hands.len()
    }

    pub(crate) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    pub(crate) fn stats(&self) -> Vec<Stats> {
        self.hands.iter().map(|hand| Stats::from(&*hand.counters)).collect()
    }

    pub(crate) fn threads(&self) -> Vec<u32> {
        self.hands.iter().map(|hand| hand.tid.as_raw_nonzero().get() as u32).collect()
    }

    /// Moves all to `cpus`, with `recruits` besides, who then have `listeners` and belong to it.
    ///
    /// # Errors
    /// A CPU that no worker may run on, or what `listeners` says. All are where they were then.
    pub(crate) fn move_to(
        &mut self,
        cpus: &CpuSet,
        recruits: Vec<Hand>,
        listeners: impl FnOnce(usize) -> Result<Vec<Own>, Error>,
    ) -> Result<(), Error> {
        let before: Vec<_> = self.hands.iter().map(|hand| hand.place.cpu()).collect();
        let wanted = || placement::round(cpus);
        let all = self.hands.iter().chain(&recruits);
        let moved = all.zip(wanted()).try_for_each(|(hand, cpu)| hand.pin(cpu));
        let hired = moved.map_err(unusable).and_then(|()| match recruits.len() {
            0 => Ok(Vec::new()),
            workers => listeners(workers),
        });
        let listeners = hired.inspect_err(|_| {
            for (hand, cpu) in self.hands.iter().zip(before) {
                // It was there a moment ago; if its CPU has gone since, `follow` finds it another.
                let _ = hand.pin(cpu);
            }
        })?;
        for (hand, own) in recruits.into_iter().zip(listeners) {
            // It waits for them.
            let _ = hand.orders.send(own);
            self.hands.push(hand);
        }
        self.cpus = cpus.clone();
        Ok(())
    }

    /// Brings workers back to their CPUs where they are not on them, or to another of the set where
    /// theirs is gone, or lets them have others besides for as long as theirs is taken.
    pub(crate) fn follow(&mut self) {
        for (index, (hand, wanted)) in
            self.hands.iter_mut().zip(placement::round(&self.cpus)).enumerate()
        {
            let given = hand.place.cpu();
            let is_there = placement::is_kept_to(hand.tid, &hand.room(&self.cpus));
            if is_there && given == wanted {
                hand.heed_others(index, &self.cpus);
                continue;
            }
            let place = placement::place(wanted, is_there.then_some(given), &self.cpus, |cpu| {
                // The kernel says yes to a sleeping thread's own CPU also while that is offline.
                lanes::pin_thread(hand.tid, cpu).is_ok()
                    && placement::is_kept_to(hand.tid, &CpuSet::from_iter([cpu]))
            });
            hand.place.give(place.unwrap_or(usize::MAX));
            match place {
                Some(cpu) if cpu == wanted => {
                    tracing::info!("worker {index} is back on CPU {cpu}");
                }
                Some(cpu) if cpu != given => {
                    tracing::warn!("CPU {wanted} is gone: worker {index} runs on CPU {cpu}");
                }
                None if given != usize::MAX => tracing::warn!(
                    "no CPU of {} may be used any more: worker {index} runs where the kernel \
                     has it",
                    self.cpus
                ),
                _ => {}
            }
        }
    }

    /// Waits for all threads, whose workers return.
    pub(crate) fn join(&mut self) {
        for hand in self.hands.drain(..) {
            drop(hand.orders);
            // What a worker says when it panics, it has said.
            let _ = hand.thread.join();
        }
    }
}

impl Hand {
    /// Starts a thread for one more worker, which is not pinned and waits for its listeners. When it
    /// has returned, `announce` says so.
    pub(crate) fn hire(
        index: usize,
        shared: &Arc<Shared>,
        announce: Sender<()>,
    ) -> Result<Hand, Error> {
        let wake = new_wake()?;
        let counters = Arc::new(Counters::default());
        let place = Arc::new(Place::new());
        let (counts, own) = (Arc::clone(&counters), Arc::clone(&place));
        let worker = Worker::new(Arc::clone(shared), Arc::clone(&wake), counts, own, index)?;
        let (say, hear) = mpsc::channel();
        let (orders, ordered) = mpsc::channel();
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name(format!("relay-{index}"))
            .spawn(move || {
                shared.speaker.speaks();
                // The receiver waits for it.
                let _ = say.send(gettid());
                if let Ok(listeners) = ordered.recv() {
                    shared.add_wake(wake);
                    work(worker, listeners, &shared);
                    // It is heard until the relay is dropped.
                    let _ = announce.send(());
                    stay(&ordered);
                }
            })
            .map_err(|e| Error::io("cannot start a worker's thread", e))?;
        let tid = hear.recv().map_err(|_| Error::new(ErrorKind::Io, "a worker did not start"))?;
        Ok(Hand { thread, tid, counters, place, waiting: Waiting::new(), orders })
    }

    fn pin(&self, cpu: usize) -> lanes::Result<()> {
        if cpu != usize::MAX {
            lanes::pin_thread(self.tid, cpu)?;
        }
        self.place.give(cpu);
        Ok(())
    }

    /// The CPUs that it is kept to: its own, or while it is loose those of `all` in its lane.
    fn room(&self, all: &CpuSet) -> CpuSet {
        let own = self.place.cpu();
        if !self.place.is_loose() {
            return [own].into_iter().collect();
        }
        // Where the lanes cannot be read, one lane is all.
        let map = lanes::LaneMap::detect().ok();
        let is_near = |cpu: &usize| map.as_ref().is_none_or(|map| map.same_lane(*cpu, own));
        all.iter().filter(is_near).collect()
    }

    /// Loosens it if it waits for its CPU, and pins it when it no longer does.
    fn heed_others(&mut self, index: usize, all: &CpuSet) {
        let (cpu, waits) = (self.place.cpu(), self.waiting.look(self.tid));
        if waits == self.place.is_loose() {
            return;
        }
        self.place.loosen(waits);
        let room = self.room(all);
        if room.len() == 1 && waits {
            return self.place.loosen(false);
        }
        match lanes::keep_thread(self.tid, &room) {
            Ok(()) if waits => tracing::info!(
                "worker {index} waits for CPU {cpu}, which others use: it runs on CPUs {room} \
                 until that is over"
            ),
            Ok(()) => tracing::info!("worker {index} has CPU {cpu} again"),
            // Its CPU has gone since: the next look finds it another.
            Err(error) => tracing::debug!("worker {index}: {error}"),
        }
    }
}

/// Runs a worker to its end. One that panics loses its connections, which are reset, and begins anew:
/// its listeners have clients in their queues, who must not wait for nobody.
fn work(mut worker: Worker, listeners: Own, shared: &Shared) {
    worker.listen(listeners);
    loop {
        let failure = match catch_unwind(AssertUnwindSafe(|| worker.run())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a worker panicked".to_string(),
        };
        say!(ERROR, "{failure}: its connections are reset, and it begins anew");
        let recovered = catch_unwind(AssertUnwindSafe(|| worker.recover()));
        if !matches!(recovered, Ok(Ok(()))) {
            return shared.fail(format!("{failure}, and it cannot begin anew"));
        }
    }
}

/// Until the relay is dropped: see the head of this module.
fn stay(ordered: &Receiver<Own>) {
    while ordered.recv().is_ok() {}
}

fn new_wake() -> Result<Arc<OwnedFd>, Error> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::io("cannot create an eventfd", e))?;
    Ok(Arc::new(fd))
}

fn unusable(cpu: lanes::Error) -> Error {
    Error::invalid(cpu.to_string())
}
