//! The thread that follows the bridge.
//!
//! It sleeps until netlink says something, a station shows up on another port, or somebody asks.
//!
//! What the kernel announces to have changed is left to the kernel path at once, before anything is
//! read: a port's flags are cleared, or, where it concerns every port, the whole packet path is
//! turned off. Then that port, or that setting, is read again and alone. Notifications are taken
//! between the ports of any longer look, so that a bridge with many ports keeps nobody waiting.
//!
//! What the kernel does not announce is looked for: packet sockets, tcx programs and sysctls four
//! times a second, an XDP program that was attached to a peer by a link once a second; less often
//! where the ports are so many that it would cost more than a fiftieth of a CPU. What is announced
//! may cost a tenth; what comes faster waits, on the kernel path.

mod arrivals;
mod attention;
mod ports;
mod report;
mod settling;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use libbpf_rs::{RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd as _;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::accelerator::{Command, Config, Control, Shared, bpf};
use crate::decide::decide;
use crate::host::{Reader, Watch};
use crate::lease::Longest;
use crate::mirror::{Mirror, StationMap};
use crate::owner;
use crate::priority::Priority;
use crate::program::{self, Program, Station};
use crate::rules;
use crate::state::{Mac, State};
use crate::tcx;
use crate::{Change, Error, ErrorKind, Result};
use arrivals::Arrivals;
use ports::Placed;
use report::Report;
use settling::Unsettled;

/// How often to look for what the kernel does not announce, where that is cheap.
const GLANCE: Duration = Duration::from_millis(250);
/// When to glance again after something has changed under a glance.
const AGAIN: Duration = Duration::from_millis(10);
/// How often to look at everything.
const LOOK: Duration = Duration::from_secs(1);
/// Each of the two takes at most one part in so many of a CPU.
const SHARE: u32 = 50;
/// Looks that may fail in a row.
const PATIENCE: u32 = 20;
/// What may fail with netfilter's rules.
const RULES: &str = "reading netfilter's rules";
/// Stations that there is room for, however few the bridge knows at the start.
const FEWEST: u32 = 8192;
/// Room for at most so many, as many as there are slots.
const MOST: u32 = 1 << 20;

/// The worker's own state.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: u32,
    reader: Reader,
    /// The host as of the last look.
    state: State,
    watch: Watch,
    mirror: Mirror,
    /// Our place on each port's ingress.
    links: HashMap<u32, ports::Link>,
    /// What the packet path's map of ports holds, by slot.
    ports: HashMap<u16, Placed>,
    /// Ports by interface index that our program cannot be attached to, and why.
    refused: HashMap<u32, String>,
    arrivals: Arrivals,
    /// Stations whose entries are not believed yet.
    unsettled: Unsettled,
    next_look: Instant,
    next_glance: Instant,
    /// When to read the table again, as an entry may have been hidden from the last reading.
    next_reading: Option<Instant>,
    /// When to say again that all is as the packet path was told.
    next_renewal: Instant,
    /// Since when there was no renewal while the thread was at work.
    at_work: Instant,
    longest: Longest,
    /// When to look at what was announced: later than now where that has cost too much of late.
    next_attention: Instant,
    /// Looks that failed in a row.
    failures: u32,
    report: Report,
    /// The mirror may not hold what the kernel has.
    stale: bool,
    changes: Vec<Change>,
}

impl Worker {
    /// Reads the bridge, mirrors its table, and attaches to its ports.
    pub(crate) fn new(bridge: &str, config: Config) -> Result<(Worker, Arc<Shared>)> {
        let mut reader = Reader::new()?;
        let state = reader.state(bridge)?;
        let index = state.bridge.index;
        tcx::needed(index)?;
        // Before all that costs time; and once more when it is known whose program came first.
        owner::refuse_second(&state.bridge, None)?;
        // Before the first dump, so that no change after it is missed.
        let watch = Watch::new(index)?;
        let capacity = match config.max_stations {
            None => default_capacity(reader.stations(index)?.len()),
            Some(stations) => capacity(stations)?,
        };
        let plan = decide(&state, None);
        let Config { fastpath, table, .. } = config;
        let control =
            Control { fastpath, table, trusted: false, alarmed: false, unread: false, plan };
        let program = Program::load(capacity, owner::claim(index)?)?;
        owner::refuse_second(&state.bridge, Some(&program))?;
        let shared = Arc::new(Shared::new(index, program, control)?);
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            index,
            reader,
            state,
            watch,
            mirror: Mirror::new(capacity),
            links: HashMap::new(),
            ports: HashMap::new(),
            refused: HashMap::new(),
            arrivals: Arrivals::default(),
            unsettled: Unsettled::default(),
            next_look: Instant::now(),
            next_glance: Instant::now(),
            next_reading: None,
            next_renewal: Instant::now(),
            at_work: Instant::now(),
            next_attention: Instant::now(),
            longest: Longest::default(),
            failures: 0,
            report: Report::new(),
            stale: true,
            changes: Vec::new(),
        };
        worker.look()?;
        worker.rebuild()?;
        worker.tend()?;
        Ok((worker, shared))
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Follows the bridge until it is told to stop, or the bridge is gone. Detaches at the end.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) -> Result<()> {
        let seen = RefCell::new(Vec::new());
        let shared = self.shared();
        let ring = ring(&shared.program, &seen)?;
        let mut priority = Priority::new();
        loop {
            priority.review();
            self.sleep()?;
            self.at_work = Instant::now();
            let followed = self.follow(&ring, &seen);
            self.bear(followed)?;
            while let Ok(command) = commands.try_recv() {
                match command {
                    Command::Stop => return Ok(()),
                    Command::Attach(reply) => answer(&reply, self.attach_and_trust()),
                    Command::Sync(reply) => {
                        let result = self.catch_up(&ring, &seen);
                        answer(&reply, result);
                    }
                }
            }
        }
    }

    fn attach_and_trust(&mut self) -> Result<()> {
        self.attach()?;
        self.rebuild_if_stale()
    }

    /// Waits for something to do.
    fn sleep(&self) -> Result<()> {
        let often = Some(self.next_glance.min(self.next_renewal));
        let attention = self.watch.heard().is_something().then_some(self.next_attention);
        let next = [self.unsettled.next(), self.next_reading, often, attention];
        let until = next.into_iter().flatten().fold(self.next_look, Instant::min);
        let timeout = until.saturating_duration_since(Instant::now());
        // Rounded up: a wake-up just before its time would spin.
        let timeout = timeout.saturating_add(Duration::from_micros(999));
        let timeout = rustix::time::Timespec::try_from(timeout).ok();
        let mut fds = vec![
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.program.moved().as_fd(), PollFlags::IN),
        ];
        let watched = self.watch.fds();
        fds.extend(watched.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("cannot wait for notifications", error)),
        }
        let mut count = [0; 8];
        // Nothing there: nobody woke us.
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        Ok(())
    }

    /// Takes in what has come, and does what is due.
    fn follow(&mut self, ring: &RingBuffer<'_>, seen: &RefCell<Vec<Mac>>) -> Result<()> {
        self.take_moves(ring, seen)?;
        self.tend()?;
        if self.watch.heard().is_something() && Instant::now() >= self.next_attention {
            self.attend()?;
        }
        let now = Instant::now();
        if now >= self.next_look {
            self.look()?;
            self.failures = 0;
        } else if now >= self.next_glance {
            self.glance()?;
        }
        if self.failures == 0 {
            self.rebuild_if_stale()?;
            if self.next_reading.is_some_and(|next| Instant::now() >= next) {
                self.read_table()?;
            }
            self.settle()?;
        }
        self.publish();
        self.tend()
    }

    /// A host that is being changed may not make sense for a moment: everything takes the kernel
    /// path until it does.
    fn bear(&mut self, followed: Result<()>) -> Result<()> {
        match followed {
            Err(error) if error.kind() == ErrorKind::Io && self.failures < PATIENCE => {
                tracing::warn!("{error}; all is left to the kernel path until that is over");
                self.failures += 1;
                self.next_look = Instant::now() + GLANCE;
                self.next_glance = self.next_look;
                self.distrust()
            }
            followed => followed,
        }
    }

    /// Takes in all that the kernel has had to say until now, and looks at what it does not
    /// announce.
    fn catch_up(&mut self, ring: &RingBuffer<'_>, seen: &RefCell<Vec<Mac>>) -> Result<()> {
        self.at_work = Instant::now();
        self.take_moves(ring, seen)?;
        self.tend()?;
        self.look()?;
        self.failures = 0;
        self.rebuild_if_stale()?;
        self.tend()?;
        if self.watch.heard().is_something() {
            self.attend()?;
        }
        // Twice: an entry that turned out to be wrong has been written anew.
        for _ in 0..2 {
            if let Some(due) = self.unsettled.last() {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                self.take_moves(ring, seen)?;
                self.tend()?;
                self.settle()?;
            }
        }
        self.publish();
        Ok(())
    }

    fn take_moves(&mut self, ring: &RingBuffer<'_>, seen: &RefCell<Vec<Mac>>) -> Result<()> {
        ring.consume().map_err(|e| bpf("reading moved stations", &e))?;
        let seen = std::mem::take(&mut *seen.borrow_mut());
        self.unsettle(seen.into_iter())
    }

    /// Mirrors the changes of the forwarding table, and leaves to the kernel path what else has
    /// changed.
    fn drain(&mut self) -> Result<()> {
        let mut changes = std::mem::take(&mut self.changes);
        let drained = self.watch.drain(&mut changes);
        let applied = self.apply(changes.drain(..));
        self.changes = changes;
        applied?;
        match drained {
            Err(error) if error.kind() == ErrorKind::Overrun => {
                tracing::warn!("{error}; reading the whole forwarding table again");
                self.shared.gauges.overruns.fetch_add(1, Relaxed);
                self.distrust()
            }
            Ok(true) => self.close(),
            other => other.map(drop),
        }
    }

    fn apply(&mut self, mut changes: impl Iterator<Item = Change>) -> Result<()> {
        self.mirror(|mirror, table| changes.try_for_each(|change| mirror.apply(change, table)))
    }

    /// Changes the mirror, and the packet path's table with it.
    fn mirror(
        &mut self,
        change: impl FnOnce(&mut Mirror, &mut Writer<'_>) -> io::Result<()>,
    ) -> Result<()> {
        let mut table = Writer { program: &self.shared.program, written: &mut self.unsettled };
        change(&mut self.mirror, &mut table)
            .map_err(|error| Error::io("mirroring the forwarding table", error))
    }

    /// Leaves everything to the kernel path until the mirror is rebuilt.
    fn distrust(&mut self) -> Result<()> {
        self.stale = true;
        self.shared.change(|control| control.trusted = false)
    }

    fn rebuild_if_stale(&mut self) -> Result<()> {
        if self.stale { self.rebuild() } else { Ok(()) }
    }

    /// Mirrors the kernel's whole table, and trusts the mirror from then on; if notifications are
    /// lost on the way, that is for the next look.
    fn rebuild(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.distrust()?;
        let complete = self.read_table()?;
        if complete {
            let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.shared.gauges.mirror_nanos.store(nanos, Relaxed);
            self.stale = false;
            self.shared.change(|control| control.trusted = true)?;
        }
        Ok(())
    }

    /// Makes the mirror equal to the kernel's whole table. Returns whether it is: not where
    /// notifications were lost on the way.
    fn read_table(&mut self) -> Result<bool> {
        let begin = cpu_time();
        self.next_reading = None;
        let entries = self.reader.stations(self.index)?;
        self.mirror(|mirror, table| mirror.rebuild(&entries, table))?;
        // What was announced meanwhile may be older than what was read, or newer: applied to its
        // end, in order, it comes to what the kernel has.
        let mut changes = Vec::new();
        let drained = self.watch.drain(&mut changes);
        if changes.iter().any(|change| matches!(change, Change::Removed(_))) {
            // It may have hidden another entry, which takes the kernel path until it is read.
            self.next_reading = Some(later(begin, LOOK));
        }
        self.apply(changes.into_iter())?;
        self.publish();
        // Reading a table of any length is no look at the host.
        self.at_work = Instant::now();
        match drained {
            Err(error) if error.kind() == ErrorKind::Overrun => {
                self.shared.gauges.overruns.fetch_add(1, Relaxed);
                self.distrust()?;
                Ok(false)
            }
            Ok(true) => self.close().map(|()| true),
            other => other.map(|_| true),
        }
    }

    /// Reads all of the host that matters, and acts on what has changed.
    fn look(&mut self) -> Result<()> {
        let begin = cpu_time();
        let rules = self.begin_rules()?;
        // What was announced before is seen by this look; what comes while it goes on is not.
        let _ = self.watch.take_heard();
        let mut survey = self.reader.survey(self.index)?;
        while self.reader.survey_port(&mut survey)? {
            self.tend()?;
        }
        self.state = self.reader.finish(survey)?;
        self.state.longest_look = self.longest.lease().longest_look;
        self.watch.follow(&self.state);
        self.count_arrivals()?;
        self.act()?;
        self.longest.turn();
        self.next_look = later(begin, LOOK);
        self.next_glance = later(begin, GLANCE);
        self.believe(rules)
    }

    /// Reads what changes in silence, and acts on it.
    fn glance(&mut self) -> Result<()> {
        let begin = cpu_time();
        let rules = self.begin_rules()?;
        self.reader.glance(&mut self.state)?;
        self.act()?;
        self.next_glance = later(begin, GLANCE);
        self.believe(rules)
    }

    fn begin_rules(&self) -> Result<rules::Reading> {
        rules::Reading::begin(&self.shared.program).map_err(|e| Error::io(RULES, e))
    }

    /// Has the packet path believe the rules that were read, where they leave bridged packets alone.
    fn believe(&mut self, rules: rules::Reading) -> Result<()> {
        let program = &self.shared.program;
        let held = rules.end(program).map_err(|e| Error::io(RULES, e))?;
        if held.is_none() {
            // Of what changed meanwhile, either may have been read.
            self.next_glance = Instant::now() + AGAIN;
        }
        let harmless = held.filter(|_| self.state.netfilter.bridge.is_empty());
        program.believe(harmless).map_err(|e| bpf(RULES, &e))
    }

    /// Brings the packet path in line with the host.
    fn act(&mut self) -> Result<()> {
        self.tend()?;
        self.plan()?;
        if self.attach()? {
            self.plan()?;
        }
        Ok(())
    }

    /// Decides anew, and tells the packet path.
    fn plan(&mut self) -> Result<()> {
        for port in &mut self.state.ports {
            port.refused = self.refused.get(&port.index).cloned();
            port.unseen = self.arrivals.keeps_all(port.index);
        }
        let plan = decide(&self.state, Some(self.shared.program.id()));
        self.place(&plan)?;
        self.report.changes(&self.shared.control().plan, &plan);
        // What was announced while the host was read is not in the plan.
        let heard = self.watch.heard();
        let (alarmed, unread) = (heard.concerns_all(), !heard.ports.is_empty());
        self.shared.change(|control| {
            (control.plan, control.alarmed, control.unread) = (plan, alarmed, unread);
        })
    }

    fn publish(&self) {
        let gauges = &self.shared.gauges;
        gauges.stations.store(self.mirror.mapped().into(), Relaxed);
        let left_out = self.mirror.left_out() as u64;
        if gauges.left_out.swap(left_out, Relaxed) == 0 && left_out > 0 {
            tracing::warn!("no room for {left_out} stations: they take the kernel path");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // First turn the packet path off: the links are closed one by one, and for each the kernel
        // waits until no packet is under way. If this fails, closing them does the same, later.
        let _ = self.distrust();
    }
}

/// The packet path's map of stations.
struct Writer<'a> {
    program: &'a Program,
    /// What is written has yet to be settled.
    written: &'a mut Unsettled,
}

impl StationMap for Writer<'_> {
    type Error = io::Error;

    fn set(&mut self, mac: Mac, station: Station) -> io::Result<bool> {
        let written = self.program.set_station(mac, station)?;
        if written {
            self.written.add(mac, station.unsettled);
        }
        Ok(written)
    }

    fn remove(&mut self, mac: Mac) -> io::Result<()> {
        self.program.remove_station(mac)
    }
}

/// A reader of the ring of moved stations that puts them into `seen`.
fn ring<'a>(program: &'a Program, seen: &'a RefCell<Vec<Mac>>) -> Result<RingBuffer<'a>> {
    let mut builder = RingBufferBuilder::new();
    let take = |key: &[u8]| {
        seen.borrow_mut().extend(program::mac_of(key));
        0
    };
    builder.add(program.moved(), take).map_err(|e| bpf("the ring of moved stations", &e))?;
    builder.build().map_err(|e| bpf("the ring of moved stations", &e))
}

fn answer(reply: &Sender<Result<()>>, result: Result<()>) {
    // Who asked may have given up.
    let _ = reply.send(result);
}

/// When to do again what began at this CPU time and has ended now: after `time`, or as much later
/// as it takes to keep within its share of a CPU.
fn later(begin: Duration, time: Duration) -> Instant {
    Instant::now() + time.max(cpu_time().saturating_sub(begin).saturating_mul(SHARE))
}

/// The CPU time of this thread: what it spends while it is stopped, or waits, is nobody's.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn default_capacity(known: usize) -> u32 {
    // No more than that: the table is made for so many, and a smaller one stays in the caches.
    let known = u32::try_from(known).unwrap_or(MOST);
    known.saturating_add(known / 4).clamp(FEWEST, MOST)
}

fn capacity(wanted: u32) -> Result<u32> {
    if (1..=MOST).contains(&wanted) {
        return Ok(wanted);
    }
    let message = format!("{wanted} stations: expected 1 to {MOST}");
    Err(Error::new(ErrorKind::Invalid, message))
}

#[cfg(test)]
mod tests;
