//! From the listen queue to two legs: accepting within the limit, and connecting to a backend, with
//! others tried if one refuses.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags};

use super::leaving::has_left;
use super::telling::note_connected;
use super::timeouts::is_past;
use super::watch::{LEG, Token, note, register};
use super::{Look, TICK, Worker};
use crate::backends::routes::Route;
use crate::backends::{Choice, Lease, Tried};
use crate::cause::Cause;
use crate::connection::{Connecting, Connection, Phase, Relaying, Search};
use crate::flow::Leg;
use crate::repeated::say;
use crate::session::Client;
use crate::shared::Stage;
use crate::socket::{self, Started};

/// Connections accepted in one go, before those already there have their turn.
const ACCEPTS: usize = 64;
/// How long a backend whose queue is full is left alone, in multiples of `POLL`: 10 ms.
const FULL_PAUSE: u64 = 20;
/// How long accepting pauses when open files have run out.
const NO_FILES_PAUSE: u32 = 1;

impl Worker {
    pub(super) fn may_accept(&self) -> bool {
        let waits = self.accept_again.is_some_and(|tick| self.tick < tick);
        !waits && !self.shared.is_full()
    }

    pub(super) fn set_accepting(&mut self, accepting: bool) {
        if accepting == self.accepting {
            return;
        }
        self.accepting = accepting;
        self.accept_again = self.accept_again.filter(|_| !accepting);
        for (index, listener) in self.listeners.iter().enumerate() {
            let result = if accepting {
                epoll::add(
                    &self.epoll,
                    &**listener,
                    Token::Listener(index).encode(),
                    EventFlags::IN | EventFlags::RDHUP,
                )
            } else {
                epoll::delete(&self.epoll, &**listener)
            };
            if let Err(e) = result {
                say!(ERROR, "cannot change what a worker listens to: {e}");
            }
        }
    }

    pub(super) fn accept(&mut self, index: usize, flags: EventFlags) {
        // Another relay's turn, since this worker has last looked.
        if self.shared.stage() != Stage::Run && !self.listeners[index].is_in_charge() {
            return;
        }
        for _ in 0..ACCEPTS {
            // One that has gone had an event left.
            if !self.accepting || index >= self.listeners.len() {
                return;
            }
            if !self.enter() {
                self.resources.counters.limit_reached.add(1);
                return self.set_accepting(false);
            }
            let new = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::acceptfrom_with(&*self.listeners[index], new) {
                Ok((client, addr)) => {
                    self.shortage.is_over(&self.shared.reserve);
                    let listener = &self.listeners[index];
                    if listener.is_foreign() {
                        // It inherited another's options. What cannot be set stays as it was.
                        let _ = self.shared.setup.set_up_accepted(&client, listener.is_unix);
                    }
                    let (number, is_unix) = (listener.number, listener.is_unix);
                    self.limit_receive(&client, is_unix);
                    self.welcome(client, addr, number, is_unix);
                }
                Err(e) => {
                    self.leave_unused();
                    match e {
                        // A Unix socket that is shut down, which stays readable: nobody comes any more.
                        Errno::AGAIN
                            if flags.contains(EventFlags::RDHUP)
                                && !self.listeners[index].listens() =>
                        {
                            return self.forget_listener(index);
                        }
                        Errno::AGAIN => return self.listeners[index].is_empty(),
                        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => {
                            return self.pause_accepting(index, e);
                        }
                        // It does not listen any more: whoever was in charge of it has ended it.
                        Errno::INVAL => return self.forget_listener(index),
                        // The client went away in the queue: accept(2) says try again.
                        _ => {}
                    }
                }
            }
        }
    }

    /// Lets go of a listener that nobody can reach: its events would never end. Whether the relay may
    /// go on without it is for [`Relay::tend`](crate::Relay::tend) to say.
    fn forget_listener(&mut self, index: usize) {
        self.set_accepting(false);
        self.listeners.remove(index);
        self.set_accepting(self.may_accept());
    }

    /// Files may be there again in a moment, so clients wait in the queue at first. If there are none
    /// for a while, those who wait are told.
    fn pause_accepting(&mut self, index: usize, e: Errno) {
        let counters = &self.resources.counters;
        counters.no_files.add(1);
        let (reserve, listener) = (&self.shared.reserve, &self.listeners[index]);
        counters.turned_away.add(self.shortage.goes_on(self.now, reserve, listener, ACCEPTS));
        say!(WARN, "accepting pauses for {TICK:?}: {e}");
        self.set_accepting(false);
        self.accept_again = Some(self.tick + NO_FILES_PAUSE);
    }

    /// Bounds the receive buffer of a leg that has connected. What fails is a broken socket.
    fn limit_receive(&self, leg: &OwnedFd, is_unix: bool) {
        if !is_unix {
            let _ = socket::limit_receive(leg, self.shared.shares.receive);
        }
    }

    fn welcome(
        &mut self,
        client: OwnedFd,
        addr: Option<SocketAddrAny>,
        listener: usize,
        is_unix: bool,
    ) {
        let from = match is_unix {
            true => Some(socket::unix_peer(&client)),
            false => addr.and_then(|addr| addr.try_into().ok()).map(Client::Ip),
        };
        self.resources.counters.accepted.add(1);
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let key = self.connections.insert(Connection {
            client: Leg::new(client, is_unix),
            phase: Phase::Header(None),
            origin: self.shared.origin(),
            session: self.begin(from, listener),
            guest: None,
            generation,
            active: self.tick,
            queued: false,
            look: Look::default(),
        });
        let token = Token::Client { key, generation };
        if !register(&self.epoll, &self.connections[key].client.socket, token, LEG) {
            return self.refuse(key, Cause::Resource);
        }
        if self.names_another(key) {
            self.set_timer(key);
        } else if self.lets_in(key) {
            self.begin_connecting(key, None, self.own_greeting(key));
        }
    }

    // Connecting.

    pub(super) fn begin_connecting(
        &mut self,
        key: usize,
        client: Option<IpAddr>,
        greeting: Vec<u8>,
    ) {
        let deadline = self.tick.wrapping_add(self.limits.deadline);
        let (tried, failed) = (Tried::default(), Cause::Server);
        let route = Route::default();
        let search = Search { route, tried, client, deadline, failed, greeting };
        if self.shared.backends.routes.ask_for_name() {
            return self.await_hello(key, search);
        }
        self.seek_backend(key, search);
    }

    pub(super) fn seek_backend(&mut self, key: usize, mut search: Search) {
        match self.awaited_by_others(key, &mut search) {
            Some(place) => self.wait_for_place(key, search, Some(place)),
            None => self.connect(key, search),
        }
    }

    /// Connects to a backend that was not tried yet.
    fn connect(&mut self, key: usize, mut search: Search) {
        match self.next_backend(key, &mut search) {
            Choice::Try(lease) => self.connect_to(key, lease, search),
            Choice::Wait(_) => self.wait_for_place(key, search, None),
            Choice::Nobody => self.refuse_without_backend(key, search.failed),
        }
    }

    /// Connects to this backend; or to others, if that is refused at once.
    pub(super) fn connect_to(&mut self, key: usize, mut lease: Lease, mut search: Search) {
        self.connections[key].session.seeks(self.now);
        loop {
            self.connections[key].session.asks(lease.addr().clone());
            match self.start_connect(key, &lease) {
                Ok(started) => {
                    self.connections[key].active = self.tick;
                    let connecting = Connecting { socket: None, lease, search };
                    return self.await_backend(key, started, Box::new(connecting));
                }
                Err(e) if socket::is_exhausted(e) => return self.refuse_for_want(key, e),
                // Of another family, or by another route, the next one may do.
                Err(e) if socket::is_local(e, lease.addr()) => {
                    self.resources.counters.connect_local.add(1);
                    say!(WARN, "this host cannot connect to backend {}: {e}", lease.addr());
                    search.failed = Cause::Resource;
                    drop(lease);
                }
                Err(e) => {
                    search.failed = Cause::Server;
                    self.connect_failed(lease, &e.to_string());
                }
            }
            lease = match self.next_backend(key, &mut search) {
                Choice::Try(lease) => lease,
                Choice::Wait(_) => return self.wait_for_place(key, search, None),
                Choice::Nobody => return self.refuse_without_backend(key, search.failed),
            };
        }
    }

    fn start_connect(&self, key: usize, lease: &Lease) -> rustix::io::Result<Started> {
        let client = self.connections[key].session.client.and_then(Client::ip);
        socket::start_connect(lease.addr(), &self.shared.setup, lease.sources(), client)
    }

    /// There is no socket for a backend.
    fn refuse_for_want(&mut self, key: usize, e: Errno) {
        self.resources.counters.no_files.add(1);
        self.resources.counters.turned_away.add(1);
        say!(WARN, "a client was refused: no socket for its backend: {e}");
        self.refuse(key, Cause::Resource);
    }

    fn await_backend(&mut self, key: usize, started: Started, mut connecting: Box<Connecting>) {
        let connection = &mut self.connections[key];
        let token = Token::Backend { key, generation: connection.generation };
        match started {
            Started::Socket(socket) => {
                if !register(&self.epoll, &socket, token, LEG) {
                    return self.refuse(key, Cause::Resource);
                }
                connecting.socket = Some(socket);
            }
            Started::Full => self.ask_for_look(key, FULL_PAUSE),
        }
        self.connections[key].phase = Phase::Connecting(connecting);
        self.set_timer(key);
    }

    /// Asks a backend anew whose queue was full.
    pub(super) fn ask_again(&mut self, key: usize) {
        let phase = std::mem::replace(&mut self.connections[key].phase, Phase::Moving);
        let Phase::Connecting(connecting) = phase else { return };
        match self.start_connect(key, &connecting.lease) {
            // Its timer runs on.
            Ok(Started::Full) => {
                self.connections[key].phase = Phase::Connecting(connecting);
                self.ask_for_look(key, FULL_PAUSE);
            }
            Ok(started) => self.await_backend(key, started, connecting),
            Err(e) if socket::is_exhausted(e) => self.refuse_for_want(key, e),
            Err(e) => self.retry(key, *connecting, Cause::Server, &e.to_string()),
        }
    }

    pub(super) fn next_backend(&mut self, key: usize, search: &mut Search) -> Choice {
        if is_past(search.deadline, self.tick) {
            return Choice::Nobody;
        }
        let client = self.client_of(key, search);
        self.pool.choose(search.route, &mut search.tried, client, self.now)
    }

    pub(super) fn refuse_without_backend(&mut self, key: usize, failed: Cause) {
        self.connections[key].session.seeks(self.now);
        self.resources.counters.no_backend.add(1);
        say!(DEBUG, "a client was refused: no backend could be reached");
        self.refuse(key, failed);
    }

    fn connect_failed(&self, lease: Lease, reason: &str) {
        self.resources.counters.connect_failed.add(1);
        self.note_failed(lease.backend());
        if lease.failed(self.now) {
            say!(WARN, burst 10, "backend {} is down: {reason}", lease.addr());
        }
    }

    /// An attempt to connect has come to something.
    pub(super) fn connected(&mut self, key: usize, flags: EventFlags) {
        let connection = &mut self.connections[key];
        let phase = std::mem::replace(&mut connection.phase, Phase::Moving);
        let Phase::Connecting(mut connecting) = phase else { return };
        let is_unix = connecting.lease.addr().is_unix();
        // A Unix socket hangs up also if its peer has said all and closed.
        let failed = if is_unix { EventFlags::ERR } else { EventFlags::ERR | EventFlags::HUP };
        let socket = connecting.socket.take_if(|_| !flags.intersects(failed));
        let Some(socket) = socket else {
            let error = connecting.socket.as_ref().map(rustix::net::sockopt::socket_error);
            let reason = match error {
                Some(Ok(Err(e)) | Err(e)) => e.to_string(),
                Some(Ok(Ok(()))) | None => "the connection was closed".to_string(),
            };
            return self.retry(key, *connecting, Cause::Server, &reason);
        };
        if connecting.lease.succeeded(self.now) {
            say!(INFO, burst 10, "backend {} is up again", connecting.lease.addr());
        }
        connection.session.is_connected(self.now);
        note_connected(&self.tallies, connecting.lease.backend());
        self.limit_receive(&socket, is_unix);
        let connection = &mut self.connections[key];
        let mut backend = Leg::new(socket, is_unix);
        note(&mut backend, flags);
        let engine = connection.origin.engine;
        let relaying = Relaying::new(*connecting, &connection.client, backend, engine);
        // The client has often sent its first bytes by now.
        connection.client.readable = true;
        connection.phase = Phase::Relaying(Box::new(relaying));
        connection.active = self.tick;
        self.set_timer(key);
        self.step(key);
    }

    pub(super) fn retry(
        &mut self,
        key: usize,
        connecting: Connecting,
        failed: Cause,
        reason: &str,
    ) {
        let Connecting { socket, lease, mut search } = connecting;
        drop(socket);
        self.connect_failed(lease, reason);
        if has_left(&self.connections[key].client) {
            return self.refuse(key, Cause::Client);
        }
        search.failed = failed;
        self.connect(key, search);
    }
}
