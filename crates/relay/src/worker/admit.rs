//! From the listen queue to two legs: accepting within the limit, and connecting to a backend, with
//! others tried if one refuses.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags};

use super::telling::note_connected;
use super::timeouts::is_past;
use super::watch::{CONNECTING, LEG, Token, modify, register};
use super::{TICK, Worker};
use crate::backend::{Lease, Tried};
use crate::cause::Cause;
use crate::connection::{Connecting, Connection, Phase, Relaying, Search};
use crate::flow::Leg;
use crate::repeated::say;
use crate::socket;

/// Connections accepted in one go, before those already there have their turn.
const ACCEPTS: usize = 64;
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
                epoll::add(&self.epoll, listener, Token::Listener(index).encode(), EventFlags::IN)
            } else {
                epoll::delete(&self.epoll, listener)
            };
            if let Err(e) = result {
                say!(ERROR, "cannot change what a worker listens to: {e}");
            }
        }
    }

    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            if !self.accepting {
                return;
            }
            if !self.shared.enter() {
                self.resources.counters.limit_reached.add(1);
                return self.set_accepting(false);
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::acceptfrom_with(&self.listeners[index], flags) {
                Ok((client, addr)) => {
                    self.shortage.is_over(&self.shared.reserve);
                    self.welcome(client, addr, index);
                }
                Err(e) => {
                    self.leave();
                    match e {
                        Errno::AGAIN => return,
                        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => {
                            return self.pause_accepting(index, e);
                        }
                        // The client went away in the queue: accept(2) says try again.
                        _ => {}
                    }
                }
            }
        }
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

    fn welcome(&mut self, client: OwnedFd, addr: Option<SocketAddrAny>, listener: usize) {
        let addr = addr.and_then(|addr| addr.try_into().ok());
        self.resources.counters.accepted.add(1);
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let key = self.connections.insert(Connection {
            client: Leg::new(client),
            phase: Phase::Header(None),
            origin: self.shared.origin(),
            session: self.begin(addr, listener),
            generation,
            active: self.tick,
            queued: false,
            polled: false,
        });
        if self.shared.config.accept_proxy {
            let connection = &self.connections[key];
            let token = Token::Client { key, generation };
            if !register(&self.epoll, &connection.client.socket, token, LEG) {
                return self.refuse(key, Cause::Resource);
            }
            self.set_timer(key);
        } else {
            self.begin_connecting(key, self.own_greeting(key));
        }
    }

    // Connecting.

    pub(super) fn begin_connecting(&mut self, key: usize, greeting: Vec<u8>) {
        let deadline = self.tick.wrapping_add(self.limits.deadline);
        let search = Search { tried: Tried::default(), deadline, failed: Cause::Server, greeting };
        self.connect(key, search);
    }

    /// Connects to a backend that was not tried yet.
    fn connect(&mut self, key: usize, mut search: Search) {
        self.turn = self.turn.wrapping_add(1);
        self.connections[key].session.seeks(self.now);
        while let Some(lease) = self.next_backend(&search) {
            search.tried.add(&lease);
            self.connections[key].session.asks(lease.index());
            match socket::start_connect(lease.addr(), &self.shared.setup) {
                Ok(socket) => {
                    let connection = &mut self.connections[key];
                    let token = Token::Backend { key, generation: connection.generation };
                    if !register(&self.epoll, &socket, token, CONNECTING) {
                        return self.refuse(key, Cause::Resource);
                    }
                    connection.active = self.tick;
                    let connecting = Connecting { socket, lease, search };
                    connection.phase = Phase::Connecting(Box::new(connecting));
                    return self.set_timer(key);
                }
                Err(e) if is_exhausted(e) => {
                    self.resources.counters.no_files.add(1);
                    self.resources.counters.turned_away.add(1);
                    say!(WARN, "a client was refused: no socket for its backend: {e}");
                    return self.refuse(key, Cause::Resource);
                }
                // Of another family, or by another route, the next one may do.
                Err(e) if is_local(e) => {
                    self.resources.counters.connect_local.add(1);
                    say!(WARN, "this host cannot connect to backend {}: {e}", lease.addr());
                    search.failed = Cause::Resource;
                }
                Err(e) => {
                    search.failed = Cause::Server;
                    self.connect_failed(lease, &e.to_string());
                }
            }
        }
        self.resources.counters.no_backend.add(1);
        say!(DEBUG, "a client was refused: no backend could be reached");
        self.refuse(key, search.failed);
    }

    fn next_backend(&mut self, search: &Search) -> Option<Lease> {
        if is_past(search.deadline, self.tick) {
            return None;
        }
        self.shared.backends.choose(self.turn, &search.tried, self.now)
    }

    fn connect_failed(&self, lease: Lease, reason: &str) {
        self.resources.counters.connect_failed.add(1);
        self.note_failed(lease.index());
        if lease.failed(self.now) {
            say!(WARN, burst 10, "backend {} is down: {reason}", lease.addr());
        }
    }

    /// An attempt to connect has come to something.
    pub(super) fn connected(&mut self, key: usize, flags: EventFlags) {
        let connection = &mut self.connections[key];
        let phase = std::mem::replace(&mut connection.phase, Phase::Moving);
        let Phase::Connecting(connecting) = phase else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            let reason = match rustix::net::sockopt::socket_error(&connecting.socket) {
                Ok(Err(e)) | Err(e) => e.to_string(),
                Ok(Ok(())) => "the connection was closed".to_string(),
            };
            return self.retry(key, *connecting, Cause::Server, &reason);
        }
        if connecting.lease.succeeded() {
            say!(INFO, burst 10, "backend {} is up again", connecting.lease.addr());
        }
        connection.session.is_connected(self.now);
        note_connected(&self.tallies, connecting.lease.index());
        let generation = connection.generation;
        let fresh = !self.shared.config.accept_proxy;
        let relaying = Relaying::new(*connecting, connection.origin.engine);
        let (client, backend) =
            (Token::Client { key, generation }, Token::Backend { key, generation });
        let watched = modify(&self.epoll, &relaying.backend.socket, backend, LEG)
            && (!fresh || register(&self.epoll, &connection.client.socket, client, LEG));
        // The client has often sent its first bytes by now.
        connection.client.readable = true;
        connection.phase = Phase::Relaying(Box::new(relaying));
        connection.active = self.tick;
        if !watched {
            return self.refuse(key, Cause::Resource);
        }
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
        search.failed = failed;
        self.connect(key, search);
    }
}

/// Whether there is nothing left to make a socket of, for whatever backend.
fn is_exhausted(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// Whether an error that connect(2) returns at once is this host's: no port, no route, no such
/// family, a rule of its own. Nobody has asked the backend.
fn is_local(e: Errno) -> bool {
    !matches!(e, Errno::CONNREFUSED | Errno::CONNRESET | Errno::TIMEDOUT)
}
