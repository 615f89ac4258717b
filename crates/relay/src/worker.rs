//! One worker: a thread pinned to a CPU, with listeners of its own, that relays what it accepts.
//!
//! Events are edge-triggered, each leg is registered once, and a turn is bounded, so that one
//! busy connection does not starve the others. A connection costs nothing while it idles: its
//! timeouts are a place in a wheel ([`timers`]).

mod admit;
mod ending;
mod exposure;
mod gate;
mod header;
mod hello;
mod leaving;
mod looks;
mod queue;
pub(crate) mod reserve;
mod telling;
mod timeouts;
mod timers;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::pulse::Pulse;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use crate::Error;
use crate::access_log::{Port, Writer};
use crate::backends::Pool;
use crate::cause::Cause;
use crate::config::Engine;
use crate::connection::{Connection, Handed, Next, Phase};
use crate::counters::Counters;
use crate::flow::Resources;
use crate::listeners::Own;
use crate::placement::Place;
use crate::shared::{Shared, Stage};
use crate::statistics::Tallies;
use exposure::InForce;
pub(crate) use looks::Look;
use looks::Looks;
use queue::Queue;
use reserve::Shortage;
use telling::note_moved;
use timeouts::Limits;
use timers::Timers;
use watch::{LEG, SOURCE_IN_KERNEL, Token, modify, note};

/// How often a worker looks at connections that may have work without an event.
pub(crate) const POLL: Duration = Duration::from_micros(500);
/// How long a worker waits for an event of which it is in doubt that it will come, in multiples of
/// [`POLL`]: 250 ms, after which the kernel has sent again what is not acknowledged.
const DOUBT: u64 = 500;
/// Granularity of timeouts.
const TICK: Duration = Duration::from_millis(100);

pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    listeners: Own,
    accepting: bool,
    /// Places that it holds of all that the limit allows.
    places: usize,
    /// Since when nobody has come, while it drains.
    quiet_since: Option<Instant>,
    index: usize,
    /// Tick at which accepting is tried again after open files ran out.
    accept_again: Option<u32>,
    shortage: Shortage,
    connections: Slab<Connection>,
    timers: Timers,
    limits: Limits,
    resources: Resources,
    tallies: Arc<Tallies>,
    log: Option<Port>,
    /// The CPU that it was given, which the relay changes.
    place: Arc<Place>,
    /// Connections with work left.
    again: Vec<(usize, u32)>,
    looks: Looks,
    generation: u32,
    pool: Pool,
    queue: Queue,
    started: Instant,
    now: Instant,
    /// Ticks since the worker started, as of the last event.
    tick: u32,
    /// Tick at which timers were last looked at.
    swept: u32,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        wake: Arc<OwnedFd>,
        counters: Arc<Counters>,
        place: Arc<Place>,
        index: usize,
    ) -> Result<Worker, Error> {
        let epoll = new_epoll(&wake)?;
        let resources =
            Resources::new(shared.shares, counters, shared.sockmap(), shared.files.part());
        let limits = Limits::of(&shared.config);
        let tallies = shared.new_tallies();
        let log = shared.access_log.as_ref().and_then(Writer::port);
        let pool = Pool::new(Arc::clone(&shared.backends), index);
        let now = Instant::now();
        Ok(Worker {
            shared,
            epoll,
            wake,
            listeners: Own::new(),
            accepting: false,
            places: 0,
            quiet_since: None,
            index,
            accept_again: None,
            shortage: Shortage::default(),
            connections: Slab::new(),
            timers: Timers::new(),
            limits,
            resources,
            tallies,
            log,
            place,
            again: Vec::new(),
            looks: Looks::default(),
            generation: 0,
            pool,
            queue: Queue::default(),
            started: now,
            now,
            tick: 0,
            swept: 0,
        })
    }

    /// Takes these clients from now on.
    pub(crate) fn listen(&mut self, listeners: Own) {
        self.listeners = listeners;
    }

    /// Relays until it is told to stop, or to drain and has.
    ///
    /// # Errors
    /// The worker's epoll failed.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        let mut events = Vec::with_capacity(256);
        let pulse = Pulse::of_this_thread();
        loop {
            match self.shared.stage() {
                Stage::Begin => {}
                Stage::Run => {
                    self.set_accepting(self.may_accept());
                    if self.resources.sockmap.is_none() {
                        self.resources.sockmap = self.shared.sockmap();
                    }
                }
                Stage::Drain => {
                    self.empty_queues();
                    if self.listeners.is_empty() && self.connections.is_empty() {
                        return Ok(());
                    }
                }
                Stage::Stop => {
                    self.end_all();
                    return Ok(());
                }
            }
            events.clear();
            let timeout = self.timeout().and_then(|t| t.try_into().ok());
            let room = rustix::buffer::spare_capacity(&mut events);
            match pulse.wait(|| epoll::wait(&self.epoll, room, timeout.as_ref())) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("a worker's epoll failed", e)),
            }
            self.read_clock();
            for event in &events {
                self.handle(Token::decode(event.data), event.flags);
            }
            self.finish_turn();
        }
    }

    fn handle(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Wake => {
                // Drains the eventfd; what there is to do is in `shared`.
                let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
                #[cfg(feature = "fuzzing")]
                self.panic_if_asked();
            }
            Token::Listener(index) => self.accept(index, flags),
            Token::Client { key, generation } => {
                if let Some(connection) = self.live(key, generation) {
                    note(&mut connection.client, flags);
                    self.step(key);
                }
            }
            Token::Backend { key, generation } => {
                let Some(connection) = self.live(key, generation) else { return };
                match &mut connection.phase {
                    Phase::Relaying(relaying) => {
                        note(&mut relaying.backend, flags);
                        self.step(key);
                    }
                    Phase::Connecting(_) => self.connected(key, flags),
                    Phase::Header(_) | Phase::Hello(_) | Phase::Queued(_) | Phase::Moving => {}
                }
            }
        }
    }

    fn live(&mut self, key: usize, generation: u32) -> Option<&mut Connection> {
        self.connections.get_mut(key).filter(|c| c.generation == generation)
    }

    /// What is left after the events: unfinished turns, polls, timeouts.
    fn finish_turn(&mut self) {
        for (key, generation) in std::mem::take(&mut self.again) {
            if let Some(connection) = self.live(key, generation) {
                connection.queued = false;
                self.step(key);
            }
        }
        self.look();
        if self.tick != self.swept {
            self.swept = self.tick;
            self.look_at_timers();
            if !self.queue.is_empty() {
                self.look_at_offer();
            }
        }
        if !self.queue.is_empty() {
            self.serve_queue();
        }
    }

    /// Steps connections whose look is due.
    fn look(&mut self) {
        let slot = self.slot();
        self.resources.looking = true;
        while let Some((at, key, generation)) = self.looks.due(slot) {
            if let Some(connection) = self.live(key, generation)
                && connection.look.is_due(at)
            {
                connection.look.taken();
                self.step(key);
            }
        }
        self.resources.looking = false;
    }

    fn ask_for_look(&mut self, key: usize, wait: u64) {
        let at = self.slot() + wait;
        let connection = &mut self.connections[key];
        self.looks.ask(&mut connection.look, at, key, connection.generation);
    }

    /// The present time in multiples of [`POLL`] since the worker started.
    fn slot(&self) -> u64 {
        (self.now.duration_since(self.started).as_nanos() / POLL.as_nanos()) as u64
    }

    fn read_clock(&mut self) {
        self.now = Instant::now();
        self.tick = (self.now.duration_since(self.started).as_millis() / TICK.as_millis()) as u32;
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() || self.queue.is_choosing() {
            Some(Duration::ZERO)
        } else if let Some(slot) = self.looks.next() {
            Some(looks::left(slot, self.now.duration_since(self.started)).min(TICK))
        } else {
            let timers = self.timers.wait(self.tick).map(|ticks| TICK * ticks.max(1));
            let looks_again =
                self.accept_again.is_some() || self.quiet_since.is_some() || !self.queue.is_empty();
            looks_again.then_some(TICK).into_iter().chain(timers).min()
        }
    }

    // Relaying.

    fn step(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let relaying = match &mut connection.phase {
            Phase::Relaying(relaying) => relaying,
            Phase::Header(_) => return self.read_header(key),
            Phase::Hello(_) => return self.read_hello(key),
            Phase::Connecting(_) | Phase::Queued(_) => return self.heed_leaving(key),
            Phase::Moving => return,
        };
        let (before, limit) = (relaying.moved(), self.limits.of_relaying(relaying));
        let next = relaying.advance(&mut connection.client, &mut self.resources);
        if relaying.moved() != before {
            connection.active = self.tick;
            connection.look.moved();
            let in_force = InForce::now(&self.shared, &self.place);
            in_force.count(connection.origin, relaying, before, &self.resources.counters);
            note_moved(&self.tallies, &mut connection.session, relaying, before, self.now);
        }
        let has_another_limit = self.limits.of_relaying(relaying) != limit;
        let next = match next {
            Next::Wait | Next::Doubt | Next::Poll
                if connection.origin.engine == Engine::Sockmap =>
            {
                match relaying.hand_over(&connection.client, &self.resources) {
                    Some(handed) => self.handed_over(key, handed),
                    None => match relaying.rewatch() {
                        Some((handed, true)) => self.watch(key, handed, LEG, next),
                        Some((handed, false)) => self.watch(key, handed, SOURCE_IN_KERNEL, next),
                        None => next,
                    },
                }
            }
            _ => next,
        };
        if has_another_limit {
            self.set_timer(key);
        }
        self.follow(key, next);
    }

    /// Watches the source of a flow that the kernel now moves for its end alone.
    fn handed_over(&mut self, key: usize, handed: Handed) -> Next {
        self.resources.counters.sockmap_taken.add(1);
        // At once: what came between the last read and the hand-over has raised no event.
        self.watch(key, handed, SOURCE_IN_KERNEL, Next::Again)
    }

    /// Watches the source of that direction for something else, and goes on with `next`.
    fn watch(&mut self, key: usize, handed: Handed, flags: EventFlags, next: Next) -> Next {
        let connection = &self.connections[key];
        let Phase::Relaying(relaying) = &connection.phase else { return Next::Wait };
        let generation = connection.generation;
        let (source, token) = match handed {
            Handed::Up => (&connection.client, Token::Client { key, generation }),
            Handed::Down => (&relaying.backend, Token::Backend { key, generation }),
        };
        let watched = modify(&self.epoll, &source.socket, token, flags);
        if watched { next } else { Next::Reset(Cause::Resource) }
    }

    fn follow(&mut self, key: usize, next: Next) {
        let counters = &self.resources.counters;
        match next {
            Next::Wait => {}
            Next::Again => {
                let connection = &mut self.connections[key];
                if !std::mem::replace(&mut connection.queued, true) {
                    self.again.push((key, connection.generation));
                }
            }
            Next::Poll => self.ask_for_look(key, self.connections[key].look.wait()),
            Next::Doubt => self.ask_for_look(key, DOUBT),
            Next::Close => {
                counters.closed.add(1);
                self.end(key, Cause::Normal);
            }
            Next::Reset(cause) => self.refuse(key, cause),
        }
    }

    // Ending.

    /// Ends a connection by a reset.
    fn refuse(&mut self, key: usize, cause: Cause) {
        self.resources.counters.reset.add(1);
        self.end(key, cause);
    }

    fn end(&mut self, key: usize, cause: Cause) {
        let reset = cause != Cause::Normal;
        self.timers.clear(key);
        let connection = self.connections.remove(key);
        if let Phase::Queued(queued) = &connection.phase {
            self.queue.remove(queued);
        }
        self.tell(&connection, cause);
        connection.end(reset, &mut self.resources);
        self.leave();
    }
}

fn new_epoll(wake: &OwnedFd) -> Result<OwnedFd, Error> {
    let fail = |e: Errno| Error::io("cannot set up a worker's epoll", e);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
    epoll::add(&epoll, wake, Token::Wake.encode(), EventFlags::IN).map_err(fail)?;
    Ok(epoll)
}
