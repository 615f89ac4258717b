//! Where borrowers come in: the listener, connections that have not said hello, and what those are
//! told that become no borrowers.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::FromZeros as _;

use super::admission::Refusal;
use super::listener::Listener;
use super::rate::Rate;
use super::roster::Roster;
use super::users::Peer;
use super::waiting::first_of_most;
use crate::layout::{Hello, MAGIC, Status, VERSIONS, Welcome};
use crate::reaper::{Reaped, Reaper};
use crate::wire::{Received, peek, receive, send};

/// Connections that are accepted in a second: what is beyond waits in the socket's queue, or is
/// turned away by the kernel. One costs some 13 microseconds (`tests/lender_siege.rs`).
pub(super) const ACCEPTS_PER_SECOND: u32 = 1000;

/// As many connections may be without their hello.
pub(super) const CONNECTIONS: usize = 64;

/// As many connections are accepted before anything else is looked at.
const ACCEPTS_AT_ONCE: u32 = 32;

/// How long nothing is accepted when there were too many; what may be accepted then is accepted at
/// once.
const PAUSE: Duration = Duration::from_millis(20);

/// What the reaper has to do, sockets of those refused among it: beyond that nothing is accepted.
const UNREAPED: usize = 256;

/// How long nothing is accepted when there are no descriptors.
pub(super) const EXHAUSTED: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Door {
    listener: Listener,
    reaper: Reaper,
    roster: Arc<Roster>,
    /// How long a connection may be without its hello.
    handshake: Duration,
    /// In the order in which they came.
    connections: VecDeque<Connection>,
    accepts: Rate,
    /// Nothing is accepted before.
    paused_until: Option<Instant>,
}

/// A connection without its hello.
#[derive(Debug)]
struct Connection {
    socket: Reaped<OwnedFd>,
    deadline: Instant,
    peer: Peer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Listener,
    /// By place in the row.
    Connection(usize),
}

pub(super) struct Guest {
    pub(super) socket: Reaped<OwnedFd>,
    pub(super) peer: Peer,
    pub(super) hello: Hello,
}

impl Door {
    pub(super) fn new(
        listener: Listener,
        reaper: Reaper,
        roster: Arc<Roster>,
        handshake: Duration,
    ) -> Self {
        let accepts = Rate::new(ACCEPTS_PER_SECOND, ACCEPTS_AT_ONCE, Instant::now());
        let connections = VecDeque::new();
        Self { listener, reaper, roster, handshake, connections, accepts, paused_until: None }
    }

    pub(super) fn polled(&self, now: Instant) -> impl Iterator<Item = (At, BorrowedFd<'_>)> {
        let listens = self.pause_left(now).is_none();
        let listener = listens.then_some((At::Listener, self.listener.as_fd()));
        let connections = self.connections.iter().enumerate();
        let connections = connections.map(|(at, each)| (At::Connection(at), each.socket.as_fd()));
        listener.into_iter().chain(connections)
    }

    /// How long until there is something to do without an event.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        let first = self.connections.front();
        let deadline = first.map(|first| first.deadline.saturating_duration_since(now));
        self.pause_left(now).into_iter().chain(deadline).min()
    }

    fn pause_left(&self, now: Instant) -> Option<Duration> {
        self.paused_until.and_then(|until| until.checked_duration_since(now))
    }

    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let now = Instant::now();
            if !self.accepts.take(now) || self.reaper.pending() > UNREAPED {
                return self.pause(PAUSE);
            }
            match self.listener.accept() {
                Ok(socket) => {
                    let socket = self.reaper.keep(socket);
                    let Ok(peer) = Peer::of(&socket) else { continue };
                    if self.connections.len() == CONNECTIONS {
                        self.make_room();
                    }
                    let deadline = now + self.handshake;
                    self.connections.push_back(Connection { socket, deadline, peer });
                }
                Err(Errno::AGAIN) => return,
                // It is gone again.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors, or no memory: those who wait go on waiting.
                Err(_) => return self.pause(EXHAUSTED),
            }
        }
    }

    /// Gives up the connection that was silent for longest, of the user that has most of them.
    fn make_room(&mut self) {
        // They are in the order in which they came.
        let first = first_of_most(self.connections.iter().map(|each| each.peer.uid));
        let silent = first.and_then(|at| self.connections.remove(at));
        if let Some(Connection { socket, .. }) = silent {
            let reason = "too many connections without a hello";
            self.refuse(socket, &Refusal::new(Status::Busy, reason));
        }
    }

    /// Those who have said hello, of the connections at which something happened. Those who said
    /// something else, or nothing in time, are given up.
    pub(super) fn hear(&mut self, is_ready: impl Fn(At) -> bool) -> Vec<Guest> {
        let now = Instant::now();
        let mut guests = Vec::new();
        for at in (0..self.connections.len()).rev() {
            let Connection { socket, deadline, .. } = &self.connections[at];
            let is_ready = is_ready(At::Connection(at));
            let heard = if is_ready { peek::<Hello>(socket) } else { Err(Errno::AGAIN) };
            if let Err(Errno::AGAIN | Errno::INTR) = heard
                && now < *deadline
            {
                continue;
            }
            let Some(Connection { socket, peer, .. }) = self.connections.remove(at) else {
                continue;
            };
            match heard {
                Ok(Received::Message(hello, _)) => guests.push(Guest { socket, peer, hello }),
                Ok(Received::Garbage) => {
                    self.refuse(socket, &Refusal::new(Status::Invalid, "that is not a hello"));
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    let time = self.handshake.as_millis();
                    let reason = format!("no hello within {time} ms");
                    self.roster.refusals.late.add(1);
                    self.tell(socket, &Refusal::new(Status::Invalid, reason));
                }
                Ok(Received::Closed) | Err(_) => self.roster.refusals.gone.add(1),
            }
        }
        guests
    }

    /// Counts a refusal and says why: whoever has heard it finds it counted.
    pub(super) fn refuse(&self, socket: Reaped<OwnedFd>, refusal: &Refusal) {
        let refused = &self.roster.refusals;
        let count = match refusal.status {
            _ if refusal.user => &refused.user,
            Status::Version => &refused.version,
            Status::Full => &refused.full,
            Status::Quota => &refused.quota,
            Status::Busy => &refused.busy,
            Status::Mirror => &refused.mirror,
            Status::Closing => &refused.closing,
            // The last two are no answers for who is no user, or no refusal.
            Status::Invalid | Status::Denied | Status::Welcome => &refused.invalid,
        };
        count.add(1);
        self.tell(socket, refusal);
    }

    /// Says why not. A peer that does not listen misses it.
    pub(super) fn tell(&self, socket: Reaped<OwnedFd>, refusal: &Refusal) {
        let reason = field(&refusal.reason);
        let welcome = Welcome { status: refusal.status as u16, reason, ..blank() };
        self.reaper.run(move || {
            take_hello(&socket);
            let _ = send(&socket, &welcome, &[]);
        });
    }

    fn pause(&mut self, time: Duration) {
        self.paused_until = Some(Instant::now() + time);
        self.roster.own.counts.paused.add(1);
    }

    /// Tells those that have not said hello, and those that wait, that the lender ends.
    pub(super) fn close(mut self, waiting: impl Iterator<Item = Guest>) {
        let silent = std::mem::take(&mut self.connections).into_iter().map(|each| each.socket);
        for socket in silent.chain(waiting.map(|guest| guest.socket)) {
            self.refuse(socket, &Refusal::new(Status::Closing, CLOSING));
        }
    }
}

/// Why nobody is taken in any more.
pub(super) const CLOSING: &str = "the lender is about to end";

/// Takes what was peeked, if anything was: who is told something without is told of a reset first.
pub(super) fn take_hello(socket: &Reaped<OwnedFd>) {
    let _ = receive::<Hello>(socket);
}

/// Text as a welcome has it, as much of it as there is room for.
pub(super) fn field<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    // One byte stays 0, for those who read it as a C string.
    let mut end = text.len().min(BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = [0; BYTES];
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    bytes
}

/// A message that says which versions we speak, and nothing else.
pub(super) fn blank() -> Welcome {
    let (version_min, version_max) = VERSIONS;
    Welcome { magic: MAGIC, version_min, version_max, ..Welcome::new_zeroed() }
}
