//! From the start of the threads to their end: signals, the time that is up, the live line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use frames::FramePool;
use knobs::Registry;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use xsk::{Program, ProgramCounters, Socket};

use super::meter::{Meter, Meters, Published, Totals};
use super::options::{Place, RunArgs};
use super::view::View;
use crate::cmd::{control, frames_knob};

/// When the threads are to end.
#[derive(Debug)]
pub(in crate::cmd) struct Control {
    // Relaxed throughout: a thread that hears of the end a turn later is as good, and the counts
    // order nothing.
    stop: AtomicBool,
    limit: Option<u64>,
    claimed: AtomicU64,
    done: AtomicU64,
}

impl Control {
    pub(in crate::cmd) fn new(limit: Option<u64>) -> Control {
        let (claimed, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Control { stop: AtomicBool::new(false), limit, claimed, done }
    }

    #[inline]
    pub(in crate::cmd) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn end(&self) {
        self.stop.store(true, Relaxed);
    }

    /// How many of `most` packets this thread may take of the number after which the run ends.
    #[inline]
    pub(in crate::cmd) fn claim(&self, most: usize) -> usize {
        let Some(limit) = self.limit else { return most };
        let share = |claimed: u64| (limit - claimed).min(most as u64);
        let update = |claimed| Some(claimed + share(claimed));
        // The update never gives up.
        let before = self.claimed.fetch_update(Relaxed, Relaxed, update).unwrap_or(limit);
        share(before) as usize
    }

    /// Of those claimed, so many have been dealt with, and so many did not come. The last one ends
    /// the run.
    #[inline]
    pub(in crate::cmd) fn settle(&self, done: usize, not_come: usize) {
        let Some(limit) = self.limit else { return };
        if not_come > 0 {
            self.claimed.fetch_sub(not_come as u64, Relaxed);
        }
        if done > 0 && self.done.fetch_add(done as u64, Relaxed) + done as u64 >= limit {
            self.end();
        }
    }
}

/// What a thread has besides its sockets.
#[derive(Debug)]
pub(in crate::cmd) struct Context {
    pub(in crate::cmd) control: Arc<Control>,
    meters: Meters,
    thread: usize,
    publish: Instant,
    published: Published,
}

impl Context {
    pub(in crate::cmd) fn meter(&self) -> &Meter {
        self.meters.of(self.thread)
    }

    /// Packets have gone through.
    #[inline]
    pub(in crate::cmd) fn saw_packets(&mut self, now: Instant) {
        let (first, _) = self.published.active.unwrap_or((now, now));
        self.published.active = Some((first, now));
    }

    pub(in crate::cmd) fn tally(&mut self, tally: super::check::Tally) {
        self.published.tally = tally;
    }

    /// To be called in each turn of the loop: writes down what others want to see, now and then.
    #[inline]
    pub(in crate::cmd) fn turn<'a>(
        &mut self,
        now: Instant,
        sockets: impl IntoIterator<Item = &'a Socket>,
    ) {
        const EVERY: Duration = Duration::from_millis(50);
        if now >= self.publish {
            self.publish = now + EVERY;
            self.write_down(sockets);
        }
    }

    /// Writes it down now.
    pub(in crate::cmd) fn write_down<'a>(&mut self, sockets: impl IntoIterator<Item = &'a Socket>) {
        let mut sum = Totals::default();
        for socket in sockets {
            let outstanding = socket.outstanding();
            // A socket that cannot be asked has failed, which its next call says.
            let statistics = socket.statistics().unwrap_or_default();
            sum.add(&Published { outstanding, statistics, ..Published::default() });
        }
        let (outstanding, statistics) = (sum.outstanding, sum.statistics);
        self.published = Published { outstanding, statistics, ..self.published };
        self.meter().publish(self.published);
    }
}

/// What a thread does until the control says that it is over.
pub(in crate::cmd) type Work = Box<dyn FnOnce(&mut Context) -> anyhow::Result<()> + Send>;

/// What a command has beside its sockets.
pub(in crate::cmd) trait Beside {
    /// Adds its knobs and counters.
    ///
    /// # Errors
    /// A name that the registry holds already.
    fn register(&self, _registry: &Registry) -> Result<(), knobs::Error> {
        Ok(())
    }

    /// A part of the live line.
    fn words(&self) -> Option<String> {
        None
    }

    /// Fields of each interval's JSON.
    fn fields(&self) -> Map<String, Value> {
        Map::new()
    }

    /// The threads are about to end.
    fn ending(&self) {}
}

/// Nothing.
impl Beside for () {}

/// The program on a device, for those who put sockets into it and take them out.
pub(in crate::cmd) type SharedProgram = Arc<Mutex<Program>>;

/// Everything that runs.
pub(in crate::cmd) struct Session<'a> {
    /// What its control socket says it is: `xsk` or `lend`.
    pub(in crate::cmd) process: &'static str,
    /// `send`, `drop`, `forward` or `lend`.
    pub(in crate::cmd) command: &'static str,
    pub(in crate::cmd) interfaces: Vec<String>,
    pub(in crate::cmd) pool: FramePool,
    pub(in crate::cmd) control: Arc<Control>,
    pub(in crate::cmd) programs: Vec<SharedProgram>,
    /// What each thread does, and where.
    pub(in crate::cmd) threads: Vec<(Place, Work)>,
    /// What it says once everything runs.
    pub(in crate::cmd) announcement: String,
    pub(in crate::cmd) beside: &'a dyn Beside,
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cmd) enum Ended {
    Count,
    Time,
    Signal,
    /// Something failed.
    Error,
}

impl Ended {
    pub(in crate::cmd) fn name(self) -> &'static str {
        match self {
            Ended::Count => "count",
            Ended::Time => "time",
            Ended::Signal => "signal",
            Ended::Error => "error",
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(in crate::cmd) struct Outcome {
    pub(in crate::cmd) command: &'static str,
    pub(in crate::cmd) interfaces: Vec<String>,
    pub(in crate::cmd) ended: Ended,
    /// What failed, if that ended it.
    pub(in crate::cmd) error: Option<anyhow::Error>,
    pub(in crate::cmd) seconds: f64,
    pub(in crate::cmd) totals: Totals,
    pub(in crate::cmd) program: Option<ProgramCounters>,
    pub(in crate::cmd) pool: frames::Counters,
    pub(in crate::cmd) alien_free: frames::AlienFree,
    pub(in crate::cmd) frames: u32,
    /// Frames that did not come back, and what is known of them.
    pub(in crate::cmd) leak: Option<(u32, String)>,
}

impl Session<'_> {
    /// Runs the threads until the count is reached, the time is up or a signal comes, and takes
    /// everything down.
    pub(in crate::cmd) fn run(self, run: &RunArgs, quiet: bool) -> anyhow::Result<Outcome> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("cannot catch signals")?;
        let Session { process, command, interfaces, pool, control, programs, threads, .. } = self;
        let meters = Meters::new(threads.len());
        let server = control::open(process, |registry| {
            meters.register(registry)?;
            self.beside.register(registry)?;
            frames_knob::register(&pool, registry)
        });
        let start = Instant::now();
        let threads = spawn(threads, &control, &meters);
        tracing::info!("{}", self.announcement);
        let mut view = View::new(command, run, quiet, &meters, &pool, self.beside);
        let ended = threads.as_ref().map_or(Ok(Ended::Signal), |threads| {
            follow(threads, &control, start, run.time, &mut signals, &mut view)
        });
        self.beside.ending();
        control.end();
        let outcome = threads.and_then(join);
        view.close();
        let seconds = start.elapsed().as_secs_f64();
        let program = sum(&programs);
        drop((server, programs));
        // What a thread says tells more than that nobody could follow it.
        let (ended, error) = match (outcome, ended) {
            (Err(error), _) | (Ok(()), Err(error)) => (Ended::Error, Some(error)),
            (Ok(()), Ok(ended)) => (ended, None),
        };
        let (counters, alien_free) = (pool.counters(), pool.alien_free());
        let frames = pool.area().frames();
        let leak = pool.close().err().map(|leak| (leak.frames, leak.to_string()));
        Ok(Outcome {
            command,
            interfaces,
            ended,
            error,
            seconds,
            totals: meters.totals(),
            program,
            pool: counters,
            alien_free,
            frames,
            leak,
        })
    }
}

type Thread = JoinHandle<anyhow::Result<()>>;

fn spawn(
    threads: Vec<(Place, Work)>,
    control: &Arc<Control>,
    meters: &Meters,
) -> anyhow::Result<Vec<Thread>> {
    let spawn = |(thread, (place, work)): (usize, (Place, Work))| {
        let (control, meters) = (Arc::clone(control), meters.clone());
        let (publish, published) = (Instant::now(), Published::default());
        let mut context = Context { control, meters, thread, publish, published };
        let body = move || {
            if let Some(cpu) = place.cpu {
                lanes::pin(cpu)?;
            }
            work(&mut context)
        };
        let name = format!("xsk-{thread}");
        std::thread::Builder::new().name(name).spawn(body).context("cannot start a thread")
    };
    threads.into_iter().enumerate().map(spawn).collect()
}

/// Waits for the first of: a signal, the time, the count, a thread's own end.
fn follow(
    threads: &[Thread],
    control: &Control,
    start: Instant,
    time: Option<Duration>,
    signals: &mut Signals,
    view: &mut View<'_>,
) -> anyhow::Result<Ended> {
    /// How soon all but the time is heeded.
    const LOOK: Duration = Duration::from_millis(20);
    loop {
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => view.log(),
                _ => return Ok(Ended::Signal),
            }
        }
        // A thread that ends by itself has failed, which is found out when they are joined.
        if control.is_over() || threads.iter().any(JoinHandle::is_finished) {
            return Ok(Ended::Count);
        }
        let left = time.map(|time| time.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Ended::Time);
        }
        view.turn()?;
        std::thread::sleep(left.map_or(LOOK, |left| left.min(LOOK)));
    }
}

/// Waits for all threads; the first error of them.
fn join(threads: Vec<Thread>) -> anyhow::Result<()> {
    let results: Vec<anyhow::Result<()>> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
        .collect();
    results.into_iter().collect()
}

fn sum(programs: &[SharedProgram]) -> Option<ProgramCounters> {
    let counters = |program: &SharedProgram| program.lock().counters().ok();
    let mut all = programs.iter().filter_map(counters);
    let mut sum = all.next()?;
    for one in all {
        sum.redirected += one.redirected;
        sum.not_chosen += one.not_chosen;
        sum.no_socket += one.no_socket;
        sum.unattended += one.unattended;
        sum.malformed += one.malformed;
        sum.fragment += one.fragment;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_count_to_the_last_packet() {
        let control = Arc::new(Control::new(Some(100_000)));
        let work = |control: Arc<Control>| {
            let mut done = 0;
            while !control.is_over() {
                let claimed = control.claim(64);
                // Every other one does not come.
                let came = claimed.div_ceil(2);
                control.settle(came, claimed - came);
                done += came;
            }
            done
        };
        let threads: Vec<_> = (0..3)
            .map(|_| Arc::clone(&control))
            .map(|control| std::thread::spawn(move || work(control)))
            .collect();
        let done: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert_eq!(done, 100_000);
        assert_eq!(Control::new(None).claim(64), 64);
    }
}
