//! One client's connection: its two legs, the flow in each direction, and how it ends.
//!
//! It ends in one of two ways. **Closed**: each side sent a FIN, every byte before it was
//! written to the other side, and the FIN was passed on. **Reset**: anything else; both sides
//! see a reset, so that neither takes an incomplete stream for a complete one. A side whose FINs
//! have crossed gets what it is owed instead: its stream is complete.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::Shutdown;

use crate::backends::routes::Route;
use crate::backends::{Lease, Place, Tried, Waiting};
use crate::cause::Cause;
use crate::clients::Guest;
use crate::config::Engine;
use crate::counters::Counters;
use crate::flow::{Flow, FlowEngine, Leg, Resources, SourceReset, State, Turn};
use crate::grants::Grants;
use crate::proxy::Header;
use crate::session::Session;
use crate::socket;
use crate::sockmap::Opened;
use crate::worker::Look;

/// A client's connection in one of its phases.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Leg,
    pub(crate) phase: Phase,
    pub(crate) origin: Origin,
    pub(crate) session: Session,
    /// Counted as one of its client's, where that is limited.
    pub(crate) guest: Option<Guest>,
    /// Tells a late event of an earlier connection in the same slot from one of this.
    pub(crate) generation: u32,
    /// Worker's tick of the last move, or of the last step before the relaying began.
    pub(crate) active: u32,
    /// Already in the worker's list of connections with work left.
    pub(crate) queued: bool,
    /// When the worker looks at it without an event.
    pub(crate) look: Look,
}

/// What there was when the connection was accepted, which stays with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) engine: Engine,
    /// Workers that it might have come to.
    pub(crate) crew: usize,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Waiting for the client's PROXY header; or, once it is known what it says, for the rest of it,
    /// of which its length says how much that is.
    Header(Option<Box<Header>>),
    /// Waiting for a TLS client to say which name it asks for.
    Hello(Box<Hello>),
    /// Waiting for a place at a backend.
    Queued(Box<Queued>),
    /// Waiting for a backend to accept.
    Connecting(Box<Connecting>),
    /// Bytes flow.
    Relaying(Box<Relaying>),
    /// Between two phases; never seen from outside a transition.
    Moving,
}

/// What a connection has while it idles: there may be a hundred thousand of them.
const _: () = assert!(size_of::<Connection>() + size_of::<Relaying>() <= 560);

#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) search: Search,
    /// How often it was looked for.
    pub(crate) looks: u32,
}

#[derive(Debug)]
pub(crate) struct Connecting {
    /// None while the backend's queue is full: it is asked again.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) lease: Lease,
    pub(crate) search: Search,
}

#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) search: Search,
    /// What it waits for, and its number: lower ones came before.
    pub(crate) place: Place,
    pub(crate) ticket: u64,
    /// Counted as one that waits, for as long as it does.
    pub(crate) _waiting: Waiting,
}

/// What a connection's attempts to reach a backend have in common.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) route: Route,
    pub(crate) tried: Tried,
    /// The client's address, if its PROXY header says it.
    pub(crate) client: Option<IpAddr>,
    /// Worker's tick at which there are no more attempts.
    pub(crate) deadline: u32,
    /// What came of the last attempt.
    pub(crate) failed: Cause,
    /// What to send before the client's bytes: the PROXY header.
    pub(crate) greeting: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Relaying {
    pub(crate) backend: Leg,
    /// Client to backend.
    pub(crate) up: Flow,
    /// Backend to client.
    pub(crate) down: Flow,
    /// Held for as long as the backend is in use.
    pub(crate) lease: Lease,
    /// Whether the kernel was asked to find out if the backend is gone. That of a Unix socket always says so.
    pub(crate) watches_backend: bool,
    grants: Grants,
}

/// What a connection needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// An event.
    Wait,
    /// Another turn, after the others had theirs.
    Again,
    /// An event, or the worker's next look.
    Poll,
    /// An event, but it may not come: see `flow/relief.rs`.
    Doubt,
    /// Both directions ended well: close it.
    Close,
    /// Something was lost, or will not come: reset it.
    Reset(Cause),
}

/// A direction was handed to the sockmap engine: its source's leg has new events to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    Up,
    Down,
}

impl Relaying {
    pub(crate) fn new(
        connecting: Connecting,
        client: &Leg,
        backend: Leg,
        engine: Engine,
    ) -> Relaying {
        // The verdict moves bytes of TCP.
        let is_unix = client.is_unix || backend.is_unix;
        let engine = if engine == Engine::Sockmap && is_unix { Engine::Auto } else { engine };
        let mut up = Flow::new(engine);
        let greeting = connecting.search.greeting;
        if !greeting.is_empty() {
            up.prepend(greeting);
        }
        let grants = Grants::new(is_unix || engine == Engine::Sockmap);
        let watches_backend = backend.is_unix;
        let down = Flow::new(engine);
        Relaying { backend, up, down, lease: connecting.lease, watches_backend, grants }
    }

    /// Moves what can be moved in both directions.
    pub(crate) fn advance(&mut self, client: &mut Leg, resources: &mut Resources) -> Next {
        let Relaying { backend, up, down, .. } = self;
        let went = match up.pump(client, backend, |c: &Counters| &c.bytes_up, resources) {
            Ok(turn) => turn,
            Err(SourceReset) => return Next::Reset(Cause::Client),
        };
        let came = match down.pump(backend, client, |c: &Counters| &c.bytes_down, resources) {
            Ok(turn) => turn,
            Err(SourceReset) => return Next::Reset(Cause::Server),
        };
        // An end that cannot be passed on is that of the side which takes no bytes any more.
        if end_of(up, backend, down.state, resources).is_err()
            || is_cut_off(client, up, backend, down)
        {
            return Next::Reset(Cause::Client);
        }
        if end_of(down, client, up.state, resources).is_err()
            || is_cut_off(backend, down, client, up)
        {
            return Next::Reset(Cause::Server);
        }
        if resources.looking {
            self.up.relieve(client, &self.backend, resources);
            self.down.relieve(&mut self.backend, client, resources);
        }
        self.share_memory(client, resources);
        match self.next([went, came]) {
            Next::Wait
                if self.up.may_need_relief(client, &self.backend, resources)
                    || self.down.may_need_relief(&self.backend, client, resources) =>
            {
                Next::Doubt
            }
            next => next,
        }
    }

    /// Relief has its own use for the windows.
    fn share_memory(&mut self, client: &Leg, resources: &mut Resources) {
        if self.up.is_relieved() || self.down.is_relieved() {
            return self.grants.forget_windows();
        }
        let (legs, moved) = ([&client.socket, &self.backend.socket], self.moved());
        self.grants.look(legs, moved, resources.shares, &mut resources.memory);
    }

    fn next(&self, turns: [Turn; 2]) -> Next {
        match (self.up.state, self.down.state) {
            (State::Done, State::Done) => Next::Close,
            // Bytes of one are lost: its target takes none.
            (_, State::Lost) if self.up.is_over() => Next::Reset(Cause::Client),
            (State::Lost, _) if self.down.is_over() => Next::Reset(Cause::Server),
            _ if turns.contains(&Turn::Unfinished) => Next::Again,
            _ if turns.contains(&Turn::Polls) => Next::Poll,
            _ => Next::Wait,
        }
    }

    /// Hands the direction that carries bulk to the sockmap engine, if one does.
    pub(crate) fn hand_over(&mut self, client: &Leg, resources: &Resources) -> Option<Handed> {
        let sockmap = resources.sockmap.as_ref()?;
        if client.is_unix || self.backend.is_unix {
            return None;
        }
        let taken = |flow: &Flow| matches!(flow.engine, FlowEngine::Sockmap(_));
        if taken(&self.up) || taken(&self.down) {
            return None;
        }
        let Relaying { backend, up, down, .. } = self;
        let (flow, source, target, opened, handed) = if down.is_quiet_bulk(backend, client) {
            (down, &*backend, client, Opened::Passively, Handed::Down)
        } else if up.is_quiet_bulk(client, backend) {
            (up, client, &*backend, Opened::Actively, Handed::Up)
        } else {
            return None;
        };
        let (from, to) = (&source.socket, &target.socket);
        let taken = sockmap.take(from, to, opened, flow.written(), resources.shares);
        let handed = taken.is_some().then_some(handed);
        match taken {
            Some(taken) => flow.hand_over(taken, source),
            None => flow.stays(),
        }
        handed
    }

    /// One side has ended its stream, and the other has not.
    pub(crate) fn is_half_closed(&self) -> bool {
        (self.up.state == State::Done) != (self.down.state == State::Done)
    }

    /// The direction in the verdict's hands whose source's queue is to be watched from now on, or no
    /// more, if that has changed.
    pub(crate) fn rewatch(&mut self) -> Option<(Handed, bool)> {
        [(&mut self.up, Handed::Up), (&mut self.down, Handed::Down)]
            .into_iter()
            .find_map(|(flow, handed)| Some((handed, flow.taken()?.rewatch()?)))
    }

    /// Client to backend, and backend to client.
    pub(crate) fn flows(&self) -> [&Flow; 2] {
        [&self.up, &self.down]
    }

    /// Bytes that reached the other side in each of the [`flows`](Self::flows), by user space or in
    /// the kernel.
    pub(crate) fn moved(&self) -> [u64; 2] {
        self.flows().map(Flow::moved)
    }
}

/// Passes the source's FIN on once every byte before it is written. The target must not take
/// this end for a good one if the bytes of its own, those of the `reverse` flow, are lost: that is
/// an error.
fn end_of(
    flow: &mut Flow,
    target: &Leg,
    reverse: State,
    resources: &Resources,
) -> Result<(), SourceReset> {
    if !flow.is_drained(target, resources) {
        return Ok(());
    }
    if reverse == State::Lost {
        return Err(SourceReset);
    }
    if reverse != State::Done {
        // Refused only by a socket that is closed already, which its own flow finds out. The second end needs
        // no call of its own: the connection is closed next.
        let _ = rustix::net::shutdown(&target.socket, Shutdown::Write);
    }
    flow.state = State::Done;
    Ok(())
}

/// Whether a flow's source was reset and nobody is going to find out by reading from it: because
/// its FIN was read before, or because the target takes none of its bytes. A reset overtakes them.
fn is_cut_off(source: &Leg, flow: &Flow, target: &Leg, reverse: &Flow) -> bool {
    match flow.state {
        // Without an error, a leg is broken also when both ends have sent their FIN in peace.
        State::Open => {
            let reset = source.reset || (source.broken && reverse.state == State::Lost);
            reset && !target.writable
        }
        _ => source.broken && !reverse.is_over(),
    }
}

impl Connection {
    /// Ends the connection and gives back what it holds. The backend's lease ends with it.
    pub(crate) fn end(self, reset: bool, resources: &mut Resources) {
        let end = |socket: OwnedFd| if reset { socket::reset(socket) } else { drop(socket) };
        end(self.client.socket);
        match self.phase {
            Phase::Connecting(connecting) => connecting.socket.into_iter().for_each(end),
            Phase::Relaying(relaying) => {
                end(relaying.backend.socket);
                relaying.up.release(resources);
                relaying.down.release(resources);
            }
            Phase::Header(_) | Phase::Hello(_) | Phase::Queued(_) | Phase::Moving => {}
        }
    }
}
