//! The threads of a packet command from their start to their end.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use xsk::Socket;

use super::csv::Csv;
use super::meter::{Drops, Meter, Meters, OnQueue, Totals, Traffic};
use super::options::Place;
use crate::args::RunArgs;
use crate::exit::Exit;
use crate::figures::per_second;
use crate::out;
use crate::run::{Ended, Followed, Foreground, View};
use crate::terminal;

/// When the threads are to end.
#[derive(Debug)]
pub(crate) struct Control {
    // Relaxed throughout: a thread that hears of the end a turn later is as good, and the counts
    // order nothing.
    stop: AtomicBool,
    /// Why they end by themselves.
    why: OnceLock<Ended>,
    limit: Option<u64>,
    claimed: AtomicU64,
    done: AtomicU64,
    /// Threads that have ended.
    ended: AtomicUsize,
}

impl Control {
    fn new(limit: Option<u64>) -> Control {
        Control {
            stop: AtomicBool::new(false),
            why: OnceLock::new(),
            limit,
            claimed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            ended: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// All threads are to end.
    pub(crate) fn end(&self) {
        self.stop.store(true, Relaxed);
    }

    /// The thread that calls this is about to end by itself, and this is why. The first reason
    /// counts.
    pub(crate) fn ends(&self, why: Ended) {
        let _ = self.why.set(why);
    }

    /// How many of `most` packets this thread may take of the number after which the run ends.
    #[inline]
    pub(crate) fn claim(&self, most: usize) -> usize {
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
    pub(crate) fn settle(&self, done: usize, not_come: usize) {
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
pub(crate) struct Context {
    pub(crate) control: Arc<Control>,
    meters: Meters,
    thread: usize,
    /// When it is written down next.
    publish: Instant,
    own: Totals,
    queues: Vec<OnQueue>,
}

impl Context {
    pub(crate) fn meter(&self) -> &Meter {
        self.meters.of(self.thread)
    }

    /// So much went through a socket's queue.
    #[inline]
    pub(crate) fn on_queue(&mut self, socket: &Socket, traffic: Traffic) {
        let (device, queue) = (socket.device(), socket.queue());
        let is_it = |one: &OnQueue| (one.device.index(), one.queue) == (device.index(), queue);
        match self.queues.iter_mut().find(|one| is_it(one)) {
            Some(one) => one.traffic.add(&traffic),
            None => self.queues.push(OnQueue { device: device.clone(), queue, traffic }),
        }
    }

    /// Packets were received.
    #[inline]
    pub(crate) fn received(&mut self, packets: usize, bytes: u64, now: Instant) {
        self.meter().traffic.rx_packets.add(packets as u64);
        self.meter().traffic.rx_bytes.add(bytes);
        self.saw_packets(now);
    }

    /// Packets have gone through.
    #[inline]
    pub(crate) fn saw_packets(&mut self, now: Instant) {
        let (first, _) = self.own.active.unwrap_or((now, now));
        self.own.active = Some((first, now));
    }

    /// So many were dropped over the quota so far.
    pub(crate) fn over_quota(&mut self, packets: u64) {
        self.own.over_quota = packets;
    }

    /// So many more did not match the filter.
    pub(crate) fn filtered(&mut self, packets: u64) {
        self.own.filtered += packets;
    }

    /// The connection to the lender was made anew.
    pub(crate) fn reconnected(&mut self) {
        self.own.reconnects += 1;
    }

    /// The device dropped so many so far, for whoever sends without a socket.
    pub(crate) fn tx_dropped(&mut self, packets: u64) {
        self.own.drops.tx_dropped = packets;
        self.meter().publish(self.own);
    }

    /// To be called in each turn of the loop: writes down what others want to see, now and then.
    #[inline]
    pub(crate) fn turn<'a>(&mut self, now: Instant, sockets: impl IntoIterator<Item = &'a Socket>) {
        const EVERY: Duration = Duration::from_millis(50);
        if now >= self.publish {
            self.publish = now + EVERY;
            self.write_down(sockets);
        }
    }

    /// Writes it down now.
    pub(crate) fn write_down<'a>(&mut self, sockets: impl IntoIterator<Item = &'a Socket>) {
        let sum = Totals::sum(sockets.into_iter().map(|socket| {
            // A socket that cannot be asked has failed, which its next call says.
            let statistics = socket.statistics().unwrap_or_default();
            let drops = Drops::of(statistics, socket.in_force().zero_copy);
            Totals { drops, rings: socket.outstanding().into(), ..Totals::default() }
        }));
        (self.own.drops, self.own.rings) = (sum.drops, sum.rings);
        self.meter().publish(self.own);
        self.meter().publish_queues(&self.queues);
    }
}

/// What a thread does until the control says that it is over.
pub(crate) type Work = Box<dyn FnOnce(&mut Context) -> anyhow::Result<()> + Send>;

/// How things stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Since the start.
    pub(crate) seconds: Duration,
    /// Since the sample before.
    pub(crate) span: Duration,
    pub(crate) totals: Totals,
    /// The sample before.
    pub(crate) before: Totals,
}

impl Sample {
    /// Received since the sample before, in packets and bits a second.
    pub(crate) fn rx(&self) -> (f64, f64) {
        self.rates(|traffic| [traffic.rx_packets, traffic.rx_bytes])
    }

    /// Sent since then.
    pub(crate) fn tx(&self) -> (f64, f64) {
        self.rates(|traffic| [traffic.tx_packets, traffic.tx_bytes])
    }

    fn rates(&self, read: fn(&Traffic) -> [u64; 2]) -> (f64, f64) {
        let [packets, bytes] = read(&self.totals.traffic);
        let before = read(&self.before.traffic);
        let rate = |now: u64, before| per_second(now.saturating_sub(before), self.span);
        (rate(packets, before[0]), rate(bytes, before[1]) * 8.0)
    }
}

/// What a command says of how it goes.
pub(crate) trait Show {
    /// For people, in at most `width` characters.
    fn line(&self, sample: &Sample, width: usize) -> String;

    /// For programs.
    fn object(&self, sample: &Sample) -> Value;

    /// The threads are about to end.
    fn ending(&self) {}
}

/// Threads that are to run, and what they count.
pub(crate) struct Session {
    foreground: Foreground,
    control: Arc<Control>,
    pub(crate) meters: Meters,
    csv: Option<Csv>,
    quiet: bool,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// What failed, if that ended it.
    pub(crate) error: Option<anyhow::Error>,
    pub(crate) seconds: f64,
    pub(crate) threads: Vec<Totals>,
    pub(crate) queues: Vec<OnQueue>,
}

impl Outcome {
    /// All threads' numbers, added up.
    pub(crate) fn totals(&self) -> Totals {
        Totals::sum(self.threads.iter().copied())
    }

    /// Prints it, and says how the command ends if nothing failed.
    pub(crate) fn finish(self, text: &str, exit: Exit) -> anyhow::Result<Exit> {
        let printed = out::print(text);
        self.error.map_or(printed.map(|()| exit), Err)
    }
}

impl Session {
    /// Catches signals; so many threads are to run until so many packets have gone through.
    pub(crate) fn new(
        threads: usize,
        count: Option<u64>,
        args: &RunArgs,
        quiet: bool,
    ) -> anyhow::Result<Session> {
        // A pipe that nobody reads is waited for, which signals end while nobody catches them.
        let csv = args.csv.as_deref().map(Csv::create).transpose()?;
        let (foreground, control) = (Foreground::new()?, Arc::new(Control::new(count)));
        Ok(Session { foreground, control, meters: Meters::new(threads), csv, quiet })
    }

    /// Runs the threads, called `name`, until one of them or what the user gave ends that.
    pub(crate) fn run(
        mut self,
        name: &str,
        threads: Vec<(Place, Work)>,
        announcement: &str,
        show: &dyn Show,
        args: &RunArgs,
    ) -> Outcome {
        let start = Instant::now();
        let threads = self.spawn(name, threads);
        tracing::info!("{announcement}");
        let followed = threads.as_ref().map_or(Ok(Ended::Error), |threads| {
            let mut view =
                View::new(args.json && args.interval.is_some(), args.interval, self.quiet);
            if self.csv.is_some() {
                view.keep_time(args.interval);
            }
            let mut running = Running {
                threads: threads.len(),
                control: &self.control,
                meters: &self.meters,
                show,
                view,
                csv: self.csv.as_mut(),
                before: Totals::default(),
                is_read: true,
            };
            self.foreground.follow(args.until.time, &mut running)
        });
        show.ending();
        self.control.end();
        let joined = threads.and_then(join);
        let totals = self.meters.totals();
        let last = self.csv.map_or(Ok(()), |mut csv| csv.row(start.elapsed(), totals));
        let followed = followed.and_then(|ended| last.map(|()| ended));
        // What a thread says tells more than that nobody could follow it.
        let (ended, error) = match joined.and(followed) {
            Ok(ended) => (ended, None),
            Err(error) => (Ended::Error, Some(error)),
        };
        let seconds = start.elapsed().as_secs_f64();
        let (threads, queues) = (self.meters.threads(), self.meters.queues());
        Outcome { ended, error, seconds, threads, queues }
    }

    fn spawn(&self, name: &str, threads: Vec<(Place, Work)>) -> anyhow::Result<Vec<Thread>> {
        let wake = Arc::new(self.foreground.waker()?);
        let spawn = |(thread, (place, work)): (usize, (Place, Work))| {
            let (ending, wake) = (Arc::clone(&self.control), Arc::clone(&wake));
            let (control, meters) = (Arc::clone(&self.control), self.meters.clone());
            let (publish, own) = (Instant::now(), Totals::default());
            let queues = Vec::new();
            let mut context = Context { control, meters, thread, publish, own, queues };
            let body = move || {
                // Also if it panics.
                scopeguard::defer! {
                    ending.ended.fetch_add(1, Relaxed);
                    wake();
                }
                pin(place)?;
                work(&mut context)
            };
            let named = std::thread::Builder::new().name(format!("{name}-{thread}"));
            named.spawn(body).context("cannot start a thread")
        };
        threads.into_iter().enumerate().map(spawn).collect()
    }
}

type Thread = JoinHandle<anyhow::Result<()>>;

fn pin(place: Place) -> anyhow::Result<()> {
    let Some(cpu) = place.cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin a thread to CPU {cpu}"))
}

/// Waits for all threads; the first error of them.
fn join(threads: Vec<Thread>) -> anyhow::Result<()> {
    let join = |thread: Thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
    threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
}

/// The threads while they run.
struct Running<'a> {
    threads: usize,
    control: &'a Control,
    meters: &'a Meters,
    show: &'a dyn Show,
    view: View,
    csv: Option<&'a mut Csv>,
    /// At the line before.
    before: Totals,
    /// Whether somebody reads what is printed.
    is_read: bool,
}

impl Running<'_> {
    fn sample(&self, span: Duration) -> Sample {
        let (seconds, totals) = (self.view.elapsed(), self.meters.totals());
        Sample { seconds, span, totals, before: self.before }
    }
}

impl Followed for Running<'_> {
    fn ended(&mut self) -> Option<Ended> {
        if !self.is_read {
            return Some(Ended::Reader);
        }
        let ended = self.control.ended.load(Relaxed);
        let why = self.control.why.get().copied();
        // A thread that has ended and does not say why has failed, which joining it tells.
        let over = if why.is_some() { ended == self.threads } else { ended > 0 };
        (over || self.control.is_over()).then(|| why.unwrap_or(Ended::Count))
    }

    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        if let Some(span) = self.view.due() {
            let sample = self.sample(span);
            self.before = sample.totals;
            if let Some(csv) = &mut self.csv {
                csv.row(sample.seconds, sample.totals)?;
            }
            self.view.show(self.show.line(&sample, terminal::live_width()));
            self.is_read = self.view.print(|| Ok(self.show.object(&sample)))?;
        }
        // A thread that ends, and a signal, wake it.
        Ok(if self.is_read { self.view.left() } else { Some(Duration::ZERO) })
    }

    fn log(&mut self) -> anyhow::Result<()> {
        let line = self.show.line(&self.sample(self.view.span()), usize::MAX);
        tracing::info!("{line}");
        Ok(())
    }
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
