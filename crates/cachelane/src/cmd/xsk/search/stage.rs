//! Trials: the same threads send packets of one size at one rate after the other, and one thread says
//! which.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use frames::LaneCache;
use parking_lot::Mutex;
use serde_json::Value;
use xsk::Packet;

use super::super::maker::{Make, Streams, Templated};
use super::super::sender::Echoes;
use super::super::template::Template;
use crate::packets::session::Control;

/// A trial that is to be made.
struct Trial {
    template: Arc<Template>,
    /// Packets a second of each thread; 0: as many as can be.
    rate: f64,
    streams: Streams,
    time: Duration,
    /// Threads that have sent all of it, and how many packets that was.
    done: AtomicUsize,
    sent: AtomicU64,
}

/// What the threads are to send now.
pub(super) struct Stage {
    threads: usize,
    now: Mutex<Option<Arc<Trial>>>,
    /// How many trials there have been.
    number: AtomicUsize,
    pub(super) echoes: Echoes,
}

/// What came of a trial.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Packets a second, as they were sent.
    pub(super) rate: f64,
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) corrupt: u64,
    /// Microseconds there (and back), by quantile.
    pub(super) latency: Option<Value>,
    /// The process was, and the kernel may have dropped what nobody took.
    was_stopped: bool,
}

impl Found {
    /// The share of packets that were lost.
    pub(super) fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}

/// How long nothing has to come before what has not come is lost.
const SILENCE: Duration = Duration::from_millis(500);

/// Waits a moment; whether the process was stopped meanwhile.
fn waits() -> bool {
    const LOOK: Duration = Duration::from_millis(2);
    let before = Instant::now();
    sleep(LOOK);
    before.elapsed() > SILENCE / 2
}

impl Stage {
    pub(super) fn new(threads: usize) -> Arc<Stage> {
        let (now, number) = (Mutex::new(None), AtomicUsize::new(0));
        Arc::new(Stage { threads, now, number, echoes: Echoes::new() })
    }

    /// Has the threads send packets at a rate for so long, and waits for the last of them. None if the run
    /// is over before that. A trial in which the process was stopped says nothing, and is made again.
    pub(super) fn trial(
        &self,
        control: &Control,
        template: &Arc<Template>,
        rate: Option<f64>,
        time: Duration,
    ) -> anyhow::Result<Option<Found>> {
        /// On a machine that holds it up all the time, the last one counts.
        const MOST: u32 = 5;
        let mut trials = 1..MOST;
        loop {
            match self.once(control, template, rate, time)? {
                Some(found) if found.was_stopped && trials.next().is_some() => {
                    tracing::warn!("this process did not run for a while: the trial is made again");
                }
                found => return Ok(found),
            }
        }
    }

    fn once(
        &self,
        control: &Control,
        template: &Arc<Template>,
        rate: Option<f64>,
        time: Duration,
    ) -> anyhow::Result<Option<Found>> {
        let streams = Streams::new(self.threads);
        self.echoes.renew(streams);
        let trial = Arc::new(Trial {
            template: Arc::clone(template),
            rate: rate.unwrap_or(0.0) / self.threads as f64,
            streams,
            time,
            done: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
        });
        *self.now.lock() = Some(Arc::clone(&trial));
        self.number.fetch_add(1, Relaxed);
        let mut was_stopped = false;
        while trial.done.load(Relaxed) < self.threads {
            if control.is_over() {
                return Ok(None);
            }
            was_stopped |= waits();
        }
        let sent = trial.sent.load(Relaxed);
        ensure!(sent > 0, "nothing could be sent in {time:?}");
        let (mut came, mut since) = (0, Instant::now());
        loop {
            if control.is_over() {
                return Ok(None);
            }
            let now = self.echoes.came();
            if now >= sent || (now == came && since.elapsed() >= SILENCE) {
                break;
            }
            if now > came {
                (came, since) = (now, Instant::now());
            }
            if waits() {
                // Those who receive have to run first.
                (was_stopped, since) = (true, Instant::now());
            }
        }
        *self.now.lock() = None;
        let (came, corrupt, latency) = self.echoes.found();
        let lost = sent.saturating_sub(came);
        // Each thread sends one packet at the very beginning, which makes little of a short trial more.
        let sent_at = sent as f64 / time.as_secs_f64();
        let rate = rate.map_or(sent_at, |asked| sent_at.min(asked));
        Ok(Some(Found { rate, sent, lost, corrupt, latency, was_stopped }))
    }
}

/// Makes the packets of one thread, trial by trial.
pub(super) struct Staged {
    stage: Arc<Stage>,
    thread: usize,
    /// The number of the latest trial; until when it lasts, and its packets.
    number: usize,
    now: Option<(Arc<Trial>, Instant, Templated)>,
}

impl Staged {
    pub(super) fn new(stage: &Arc<Stage>, thread: usize) -> Staged {
        Staged { stage: Arc::clone(stage), thread, number: 0, now: None }
    }

    /// Takes up a new trial, if there is one.
    fn look(&mut self) {
        let number = self.stage.number.load(Relaxed);
        if number == self.number {
            return;
        }
        if let Some(trial) = self.stage.now.lock().clone() {
            self.number = number;
            let thread = (self.thread, self.stage.threads);
            let maker = Templated::new(&trial.template, thread, trial.streams, trial.rate, true);
            let until = Instant::now() + trial.time;
            self.now = Some((trial, until, maker));
        }
    }
}

impl Make for Staged {
    fn due(&mut self, now: Instant, most: usize) -> anyhow::Result<usize> {
        self.look();
        match &mut self.now {
            Some((_, until, maker)) if now < *until => maker.due(now, most),
            Some((trial, _, maker)) => {
                trial.sent.fetch_add(maker.number, Relaxed);
                trial.done.fetch_add(1, Relaxed);
                self.now = None;
                Ok(0)
            }
            None => Ok(0),
        }
    }

    fn make(
        &mut self,
        now: Instant,
        count: usize,
        cache: &mut LaneCache,
        packets: &mut Vec<Packet>,
    ) -> usize {
        self.now.as_mut().map_or(0, |(.., maker)| maker.make(now, count, cache, packets))
    }

    fn wait(&self, now: Instant) -> Duration {
        const IDLE: Duration = Duration::from_millis(1);
        self.now.as_ref().map_or(IDLE, |(.., maker)| maker.wait(now).min(IDLE))
    }

    fn end(&mut self) {}
}
