//! One worker: a thread pinned to a CPU, with listeners of its own, that relays what it accepts.
//!
//! Events are edge-triggered, each leg is registered once, and a turn is bounded, so that one
//! busy connection does not starve the others. Timeouts come from a sweep over the connections
//! every [`TICK`], not from a timer each: a connection costs nothing while it idles.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use slab::Slab;

use crate::config::Engine;
use crate::connection::{Connecting, Connection, Handed, Next, Phase, Relaying};
use crate::counters::Counters;
use crate::flow::{Leg, Resources};
use crate::proxy::{self, Parsed};
use crate::shared::{Mode, Shared};
use crate::{Error, socket};

/// How often a worker looks at connections that may have work without an event.
pub(crate) const POLL: Duration = Duration::from_micros(500);
/// Granularity of timeouts.
const TICK: Duration = Duration::from_millis(100);
/// Connections accepted in one go, before those already there have their turn.
const ACCEPTS: usize = 64;
/// How long accepting pauses when open files have run out.
const NO_FILES_PAUSE: u32 = 1;

const LEG: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
/// A leg whose data the sockmap engine takes: waking up for it would be for nothing.
const SOURCE_IN_KERNEL: EventFlags = EventFlags::OUT.union(EventFlags::RDHUP).union(EventFlags::ET);
const CONNECTING: EventFlags = EventFlags::OUT.union(EventFlags::ET);

/// What an event is about, in the 64 bits that epoll carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Client { key: usize, generation: u32 },
    Backend { key: usize, generation: u32 },
    Listener(usize),
    Wake,
}

impl Token {
    const KEY_BITS: u64 = (1 << 30) - 1;

    fn encode(self) -> EventData {
        let pack = |kind: u64, key: usize, generation: u32| {
            EventData::new_u64(
                u64::from(generation) << 32 | (key as u64 & Token::KEY_BITS) << 2 | kind,
            )
        };
        match self {
            Token::Client { key, generation } => pack(0, key, generation),
            Token::Backend { key, generation } => pack(1, key, generation),
            Token::Listener(index) => pack(2, index, 0),
            Token::Wake => pack(3, 0, 0),
        }
    }

    fn decode(data: EventData) -> Token {
        let bits = data.u64();
        let (key, generation) = ((bits >> 2 & Token::KEY_BITS) as usize, (bits >> 32) as u32);
        match bits & 3 {
            0 => Token::Client { key, generation },
            1 => Token::Backend { key, generation },
            2 => Token::Listener(key),
            _ => Token::Wake,
        }
    }
}

/// The state of one worker's thread.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    listeners: Vec<OwnedFd>,
    accepting: bool,
    /// Tick at which accepting is tried again after open files ran out.
    accept_again: Option<u32>,
    connections: Slab<Connection>,
    resources: Resources,
    /// Connections with work left.
    again: Vec<(usize, u32)>,
    /// Connections to look at every [`POLL`], and when the next look is due.
    polls: Vec<(usize, u32)>,
    look_at: Instant,
    generation: u32,
    turn: usize,
    started: Instant,
    now: Instant,
    /// Ticks since the worker started, as of the last event.
    tick: u32,
    /// Tick of the last sweep.
    swept: u32,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        listeners: Vec<OwnedFd>,
        wake: Arc<OwnedFd>,
        counters: Arc<Counters>,
        turn: usize,
    ) -> Result<Worker, Error> {
        let fail = |e: Errno| Error::io("cannot set up a worker's epoll", e);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        epoll::add(&epoll, &*wake, Token::Wake.encode(), EventFlags::IN).map_err(fail)?;
        let resources = Resources::new(shared.shares, counters, shared.sockmap());
        let now = Instant::now();
        Ok(Worker {
            shared,
            epoll,
            wake,
            listeners,
            accepting: false,
            accept_again: None,
            connections: Slab::new(),
            resources,
            again: Vec::new(),
            polls: Vec::new(),
            look_at: now,
            generation: 0,
            turn,
            started: now,
            now,
            tick: 0,
            swept: 0,
        })
    }

    /// Relays until it is told to stop, or to drain and has.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            match self.shared.mode() {
                Mode::Run => {
                    self.set_accepting(self.may_accept());
                    if self.resources.sockmap.is_none() {
                        self.resources.sockmap = self.shared.sockmap();
                    }
                }
                Mode::Drain => {
                    self.close_listeners();
                    if self.connections.is_empty() {
                        return;
                    }
                }
                Mode::Stop => {
                    self.close_listeners();
                    return self.end_all();
                }
            }
            events.clear();
            let timeout = self.timeout().and_then(|t| t.try_into().ok());
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("a worker's epoll failed: {e}");
                    return self.end_all();
                }
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
            }
            Token::Listener(index) => self.accept(index),
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
                    Phase::Header | Phase::Moving => {}
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
        if !self.polls.is_empty() && self.now >= self.look_at {
            self.look_at = self.now + POLL;
            self.resources.looking = true;
            for (key, generation) in std::mem::take(&mut self.polls) {
                if let Some(connection) = self.live(key, generation) {
                    connection.polled = false;
                    self.step(key);
                }
            }
            self.resources.looking = false;
        }
        if self.tick != self.swept {
            self.swept = self.tick;
            self.sweep();
        }
    }

    fn read_clock(&mut self) {
        self.now = Instant::now();
        self.tick = (self.now.duration_since(self.started).as_millis() / TICK.as_millis()) as u32;
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            Some(Duration::ZERO)
        } else if !self.polls.is_empty() {
            Some(self.look_at.saturating_duration_since(self.now))
        } else if self.needs_sweep() || self.accept_again.is_some() {
            Some(TICK)
        } else {
            None
        }
    }

    fn needs_sweep(&self) -> bool {
        !self.connections.is_empty()
    }

    // Accepting.

    fn may_accept(&self) -> bool {
        let waits = self.accept_again.is_some_and(|tick| self.tick < tick);
        !waits && !self.shared.is_full()
    }

    fn set_accepting(&mut self, accepting: bool) {
        if accepting == self.accepting {
            return;
        }
        self.accepting = accepting;
        self.accept_again = self.accept_again.filter(|_| !accepting);
        for (index, listener) in self.listeners.iter().enumerate() {
            let result = if accepting {
                epoll::add(&self.epoll, listener, Token::Listener(index).encode(), EventFlags::IN)
            } else {
                epoll::delete(&self.epoll, listener)
            };
            if let Err(e) = result {
                tracing::error!("cannot change what a worker listens to: {e}");
            }
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            if !self.accepting {
                return;
            }
            if !self.shared.enter() {
                Counters::bump(&self.resources.counters.limit_reached);
                return self.set_accepting(false);
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listeners[index], flags) {
                Ok(client) => self.welcome(client),
                Err(e) => {
                    self.leave();
                    match e {
                        Errno::AGAIN => return,
                        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => {
                            return self.pause_accepting(e);
                        }
                        // The client went away in the queue: accept(2) says try again.
                        _ => {}
                    }
                }
            }
        }
    }

    fn pause_accepting(&mut self, e: Errno) {
        Counters::bump(&self.resources.counters.no_files);
        tracing::warn!("accepting pauses for {TICK:?}: {e}");
        self.set_accepting(false);
        self.accept_again = Some(self.tick + NO_FILES_PAUSE);
    }

    fn welcome(&mut self, client: OwnedFd) {
        Counters::bump(&self.resources.counters.accepted);
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let key = self.connections.insert(Connection {
            client: Leg::new(client),
            phase: Phase::Header,
            engine: self.shared.engine(),
            generation,
            active: self.tick,
            queued: false,
            polled: false,
        });
        if self.shared.accept_proxy {
            let connection = &self.connections[key];
            let token = Token::Client { key, generation };
            if !register(&self.epoll, &connection.client.socket, token, LEG) {
                self.refuse(key);
            }
        } else {
            self.connect(key, self.first_greeting(key), 0);
        }
    }

    // The PROXY header.

    fn first_greeting(&self, key: usize) -> Vec<u8> {
        if !self.shared.send_proxy {
            return Vec::new();
        }
        let client = &self.connections[key].client.socket;
        proxy::write(ends(client))
    }

    fn read_header(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let scratch = self.resources.scratch();
        let peeked = rustix::net::recv(
            &connection.client.socket,
            &mut *scratch,
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        let parsed = match peeked {
            Ok((0, _)) => Parsed::Invalid("the client closed before its PROXY header was whole"),
            Ok((n, _)) => proxy::parse(&scratch[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => Parsed::Invalid("the client reset its connection before its PROXY header"),
        };
        match parsed {
            Parsed::Incomplete if connection.client.hup => {
                Counters::bump(&self.resources.counters.bad_proxy_header);
                self.refuse(key);
            }
            Parsed::Incomplete => {}
            Parsed::Invalid(reason) => {
                tracing::debug!("a client was refused: {reason}");
                Counters::bump(&self.resources.counters.bad_proxy_header);
                self.refuse(key);
            }
            Parsed::Header(header) => {
                // Seen a moment ago by the peek: it is there in full.
                let _ = rustix::net::recv(
                    &connection.client.socket,
                    &mut scratch[..header.length],
                    RecvFlags::DONTWAIT,
                );
                let greeting = match (self.shared.send_proxy, header.addresses) {
                    (false, _) => Vec::new(),
                    (true, Some(addresses)) => proxy::write(Some(addresses)),
                    (true, None) => self.first_greeting(key),
                };
                self.connect(key, greeting, 0);
            }
        }
    }

    // Connecting.

    fn connect(&mut self, key: usize, greeting: Vec<u8>, mut tried: u64) {
        self.turn = self.turn.wrapping_add(1);
        while let Some(lease) = self.shared.backends.choose(self.turn, tried, self.now) {
            tried = lease.mark_tried(tried);
            match socket::start_connect(lease.addr(), self.shared.shares) {
                Ok(socket) => {
                    let connection = &mut self.connections[key];
                    let token = Token::Backend { key, generation: connection.generation };
                    if !register(&self.epoll, &socket, token, CONNECTING) {
                        return self.refuse(key);
                    }
                    connection.active = self.tick;
                    connection.phase =
                        Phase::Connecting(Connecting { socket, lease, tried, greeting });
                    return;
                }
                Err(e @ (Errno::MFILE | Errno::NFILE)) => {
                    Counters::bump(&self.resources.counters.no_files);
                    tracing::warn!("a client was refused: no socket for its backend: {e}");
                    return self.refuse(key);
                }
                Err(e) => self.connect_failed(lease, &e.to_string()),
            }
        }
        Counters::bump(&self.resources.counters.no_backend);
        tracing::debug!("a client was refused: no backend could be reached");
        self.refuse(key);
    }

    fn connect_failed(&self, lease: crate::backend::Lease, reason: &str) {
        Counters::bump(&self.resources.counters.connect_failed);
        if lease.failed(self.now) {
            tracing::warn!("backend {} is down: {reason}", lease.addr());
        }
    }

    /// An attempt to connect has come to something.
    fn connected(&mut self, key: usize, flags: EventFlags) {
        let connection = &mut self.connections[key];
        let phase = std::mem::replace(&mut connection.phase, Phase::Moving);
        let Phase::Connecting(connecting) = phase else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            let reason = match rustix::net::sockopt::socket_error(&connecting.socket) {
                Ok(Err(e)) | Err(e) => e.to_string(),
                Ok(Ok(())) => "the connection was closed".to_string(),
            };
            return self.retry(key, connecting, &reason);
        }
        if connecting.lease.succeeded() {
            tracing::info!("backend {} is up again", connecting.lease.addr());
        }
        let generation = connection.generation;
        let fresh = !self.shared.accept_proxy;
        let relaying = Relaying::new(connecting, connection.engine);
        let (client, backend) =
            (Token::Client { key, generation }, Token::Backend { key, generation });
        let watched = modify(&self.epoll, &relaying.backend.socket, backend, LEG)
            && (!fresh || register(&self.epoll, &connection.client.socket, client, LEG));
        // The client has often sent its first bytes by now.
        connection.client.readable = true;
        connection.phase = Phase::Relaying(Box::new(relaying));
        if watched { self.step(key) } else { self.refuse(key) }
    }

    fn retry(&mut self, key: usize, connecting: Connecting, reason: &str) {
        let Connecting { socket, lease, tried, greeting } = connecting;
        drop(socket);
        self.connect_failed(lease, reason);
        self.connect(key, greeting, tried);
    }

    // Relaying.

    fn step(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let relaying = match &mut connection.phase {
            Phase::Relaying(relaying) => relaying,
            Phase::Header => return self.read_header(key),
            Phase::Connecting(_) | Phase::Moving => return,
        };
        let before = relaying.moved();
        let next = relaying.advance(&mut connection.client, &mut self.resources);
        if relaying.moved() != before {
            connection.active = self.tick;
        }
        let next = match next {
            Next::Wait | Next::Poll if connection.engine == Engine::Sockmap => {
                match relaying.hand_over(&connection.client, &self.resources) {
                    Some(handed) => self.handed_over(key, handed),
                    None => next,
                }
            }
            _ => next,
        };
        self.follow(key, next);
    }

    /// Watches the source of a flow that the kernel now moves for its end alone.
    fn handed_over(&mut self, key: usize, handed: Handed) -> Next {
        Counters::bump(&self.resources.counters.sockmap_taken);
        let connection = &self.connections[key];
        let Phase::Relaying(relaying) = &connection.phase else { return Next::Wait };
        let generation = connection.generation;
        let watched = match handed {
            Handed::Up => {
                let token = Token::Client { key, generation };
                modify(&self.epoll, &connection.client.socket, token, SOURCE_IN_KERNEL)
            }
            Handed::Down => {
                let token = Token::Backend { key, generation };
                modify(&self.epoll, &relaying.backend.socket, token, SOURCE_IN_KERNEL)
            }
        };
        // At once: what came between the last read and the hand-over has raised no event.
        if watched { Next::Again } else { Next::Reset }
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
            Next::Poll => {
                let connection = &mut self.connections[key];
                if !std::mem::replace(&mut connection.polled, true) {
                    if self.polls.is_empty() {
                        self.look_at = self.now + POLL;
                    }
                    self.polls.push((key, connection.generation));
                }
            }
            Next::Close => {
                Counters::bump(&counters.closed);
                self.end(key, false);
            }
            Next::Reset => {
                Counters::bump(&counters.reset);
                self.end(key, true);
            }
        }
    }

    // Ending.

    /// Turns one client away by a reset, before any byte of it was taken.
    fn refuse(&mut self, key: usize) {
        Counters::bump(&self.resources.counters.reset);
        self.end(key, true);
    }

    fn end(&mut self, key: usize, reset: bool) {
        self.connections.remove(key).end(reset, &mut self.resources);
        self.leave();
    }

    /// Gives a place back, also one that was taken in vain: others may wait for it.
    fn leave(&self) {
        if self.shared.leave() {
            self.shared.wake_all();
        }
    }

    fn end_all(&mut self) {
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.follow(key, Next::Reset);
        }
    }

    fn close_listeners(&mut self) {
        self.set_accepting(false);
        self.listeners.clear();
    }

    fn sweep(&mut self) {
        let ticks = |d: Duration| d.as_millis().div_ceil(TICK.as_millis()) as u32;
        let connect = ticks(self.shared.connect_timeout);
        let idle = self.shared.idle_timeout.map(ticks);
        let overdue: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, c)| {
                let quiet = self.tick.wrapping_sub(c.active);
                match c.phase {
                    Phase::Relaying(_) => idle.is_some_and(|idle| quiet > idle),
                    _ => quiet > connect,
                }
            })
            .map(|(key, _)| key)
            .collect();
        for key in overdue {
            self.time_out(key);
        }
    }

    fn time_out(&mut self, key: usize) {
        let counters = &self.resources.counters;
        let connection = &mut self.connections[key];
        match std::mem::replace(&mut connection.phase, Phase::Moving) {
            Phase::Header => {
                Counters::bump(&counters.bad_proxy_header);
                self.refuse(key);
            }
            Phase::Connecting(connecting) => self.retry(key, connecting, "no answer in time"),
            relaying => {
                // By a reset: neither side has ended its stream, so neither may see a good end.
                Counters::bump(&counters.idle_timeout);
                connection.phase = relaying;
                self.follow(key, Next::Reset);
            }
        }
    }
}

/// The client's address and the one that it connected to.
fn ends(client: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    Some((socket::peer_addr(client).ok()?, socket::local_addr(client).ok()?))
}

fn note(leg: &mut Leg, flags: EventFlags) {
    let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
    leg.hup |= broken || flags.contains(EventFlags::RDHUP);
    leg.broken |= broken;
    leg.reset |= flags.contains(EventFlags::ERR);
    leg.urgent |= flags.contains(EventFlags::PRI);
    leg.readable |= leg.hup || flags.contains(EventFlags::IN);
    leg.writable |= broken || flags.contains(EventFlags::OUT);
}

fn register(epoll: &OwnedFd, socket: impl AsFd, token: Token, flags: EventFlags) -> bool {
    epoll::add(epoll, socket, token.encode(), flags)
        .inspect_err(|e| tracing::warn!("a connection cannot be watched: {e}"))
        .is_ok()
}

fn modify(epoll: &OwnedFd, socket: impl AsFd, token: Token, flags: EventFlags) -> bool {
    epoll::modify(epoll, socket, token.encode(), flags)
        .inspect_err(|e| tracing::warn!("a connection cannot be watched: {e}"))
        .is_ok()
}
