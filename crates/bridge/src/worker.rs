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
mod inlets;
mod looking;
mod mirroring;
mod ports;
mod report;
mod settling;
mod unsettled;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kit::pulse::Pulse;
use libbpf_rs::RingBuffer;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::AsFd as _;
use rustix::io::Errno;

use crate::decide::decide;
use crate::error::Context as _;
use crate::host::{ROOM, Reader, Watch};
use crate::lease::Longest;
use crate::mirror::Mirror;
use crate::owner;
use crate::priority::Priority;
use crate::program::{Program, tcx_needed};
use crate::shared::{Command, Gate, Gauges, Shared};
use crate::state::{Key, State};
use crate::{Change, Config, Error, ErrorKind, Result};
use arrivals::Arrivals;
use inlets::Inlets;
use looking::GLANCE;
pub(crate) use looking::cpu_time;
use ports::{Attachment, Placed};
use report::Report;
use unsettled::Unsettled;

/// Looks that may fail in a row.
const PATIENCE: u32 = 20;
/// Stations that there is room for, however few the bridge knows at the start.
const FEWEST: u32 = 8192;
/// Room for at most so many, as many as there are slots.
const MOST: u32 = 1 << 20;

/// There is room for the VLANs of twice as many ports as there are, but of no fewer than this, and
/// no more than a bridge can have (BR_MAX_PORTS).
const FEWEST_PORTS: u32 = 128;
const MOST_PORTS: u32 = 1024;

/// The worker's own state.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    reader: Reader,
    /// The host as of the last look.
    state: State,
    watch: Watch,
    mirror: Mirror,
    /// Our place on each port's ingress.
    links: HashMap<u32, Attachment>,
    /// What the packet path's map of ports holds, by slot.
    ports: HashMap<u16, Placed>,
    /// Ports by interface index that our program cannot be attached to, and why.
    refused: HashMap<u32, String>,
    arrivals: Arrivals,
    inlets: Inlets,
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
    /// Of the thread that [runs](Self::run) it.
    pulse: Option<Pulse>,
    /// The mirror may not hold what the kernel has.
    stale: bool,
    changes: Vec<Change>,
}

impl Worker {
    /// Reads the bridge, mirrors its table, and attaches to its ports.
    pub(crate) fn new(bridge: &str, config: Config) -> Result<Worker> {
        let mut reader = Reader::new()?;
        let state = reader.state(bridge)?;
        let index = state.bridge.index;
        tcx_needed(index)?;
        // Before all that costs time; and once more when it is known whose program came first.
        owner::refuse_second(&state.bridge, None)?;
        // Before the first dump, so that no change after it is missed.
        let watch = Watch::new(index, ROOM)?;
        let capacity = match config.max_stations {
            // No more than that: the table is made for so many, and a smaller one stays in the caches.
            None => {
                let known = u32::try_from(reader.stations(index)?.len()).unwrap_or(MOST);
                known.saturating_add(known / 4).clamp(FEWEST, MOST)
            }
            Some(stations) if (1..=MOST).contains(&stations) => stations,
            Some(stations) => {
                let message = format!("{stations} stations: expected 1 to {MOST}");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        let plan = decide(&state, None);
        let Config { fastpath, table, .. } = config;
        let gate = Gate { fastpath, table, trusted: false, alarmed: false, unread: false, plan };
        let highest = state.ports.iter().map(|port| u32::from(port.number)).max();
        let ports = (highest.unwrap_or(0) * 2).clamp(FEWEST_PORTS, MOST_PORTS);
        let program = Program::load(capacity, ports, owner::claim(index)?)?;
        owner::refuse_second(&state.bridge, Some(&program))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared {
            bridge: index,
            program,
            wake: wake.context("cannot make an eventfd")?,
            gate: Mutex::new(gate),
            failure: OnceLock::new(),
            gauges: Gauges::default(),
        });
        let mut worker = Worker {
            shared,
            reader,
            state,
            watch,
            mirror: Mirror::new(capacity),
            links: HashMap::new(),
            ports: HashMap::new(),
            refused: HashMap::new(),
            arrivals: Arrivals::default(),
            inlets: Inlets::new(ports),
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
            pulse: None,
            stale: true,
            changes: Vec::new(),
        };
        worker.look()?;
        worker.rebuild()?;
        worker.tend()?;
        Ok(worker)
    }

    /// Follows the bridge until it is told to stop, or the bridge is gone. Detaches at the end.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) -> Result<()> {
        let seen = RefCell::new(Vec::new());
        let shared = Arc::clone(&self.shared);
        let ring = shared.program.moved(&seen)?;
        let mut priority = Priority::new();
        let pulse = Pulse::of_this_thread();
        self.pulse = Some(pulse.clone());
        loop {
            priority.review();
            pulse.wait(|| self.sleep())?;
            self.at_work = Instant::now();
            let followed = self.follow(&ring, &seen);
            self.bear(followed)?;
            while let Ok(command) = commands.try_recv() {
                let (reply, done) = match command {
                    Command::Stop => return Ok(()),
                    Command::Attach(reply) => {
                        (reply, self.attach().and_then(|_| self.rebuild_if_stale()))
                    }
                    Command::Sync(reply) => (reply, self.catch_up(&ring, &seen)),
                };
                // Who asked may have given up.
                let _ = reply.send(done);
            }
        }
    }

    /// Waits for something to do.
    fn sleep(&self) -> Result<()> {
        let often = Some(self.next_glance.min(self.next_renewal));
        let attention = self.watch.heard.is_something().then_some(self.next_attention);
        let next = [self.unsettled.next(), self.next_reading, often, attention];
        let until = next.into_iter().flatten().fold(self.next_look, Instant::min);
        let timeout = until.saturating_duration_since(Instant::now());
        // Rounded up: a wake-up just before its time would spin.
        let timeout = timeout.saturating_add(Duration::from_micros(999));
        let timeout = rustix::time::Timespec::try_from(timeout).ok();
        let mut fds = vec![
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.program.maps.moved.as_fd(), PollFlags::IN),
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
    fn follow(&mut self, ring: &RingBuffer<'_>, seen: &RefCell<Vec<Key>>) -> Result<()> {
        self.take_moves(ring, seen)?;
        self.tend()?;
        if self.watch.heard.is_something() && Instant::now() >= self.next_attention {
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
    fn catch_up(&mut self, ring: &RingBuffer<'_>, seen: &RefCell<Vec<Key>>) -> Result<()> {
        self.at_work = Instant::now();
        self.take_moves(ring, seen)?;
        self.tend()?;
        self.look()?;
        self.failures = 0;
        self.rebuild_if_stale()?;
        self.tend()?;
        if self.watch.heard.is_something() {
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
}

impl Drop for Worker {
    fn drop(&mut self) {
        // First turn the packet path off: the links are closed one by one, and for each the kernel
        // waits until no packet is under way. If this fails, closing them does the same, later.
        let _ = self.distrust();
    }
}

#[cfg(test)]
mod tests;
