//! One direction of a connection: takes bytes from its source leg and puts them on its target
//! leg, by one of the engines, and never holds more than its share of the budget.
//!
//! A flow that holds bytes does not read, so the source's window closes and its sender slows
//! down. A flow ends when its source has sent a FIN and every byte is written; the connection
//! then passes the FIN on. If the target will not take what was read, the flow is lost, and the
//! connection ends by a reset, never by a FIN.

mod auto;
mod bulk;
mod copy;
mod relief;
mod sockmap;
mod splice;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use kit::Count;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::RecvFlags;

use crate::config::Engine;
use crate::counters::Counters;
use crate::files::Part;
use crate::memory::Memory;
use crate::socket::Shares;
use crate::sockmap::{Sockmap, Taken};

use auto::{Auto, Way};
use bulk::Bulk;
pub(crate) use splice::Pipe;

/// How many times a flow may read before others have their turn.
const ROUNDS: usize = 8;

/// Bytes after which the sockmap engine takes a flow over, once it is quiet: as much as a default
/// socket buffer holds, so that it is no request.
pub(crate) const TAKEN_OVER: u64 = 128 * 1024;

/// One end of a connection, and what is known of it since the last edge-triggered event.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) socket: OwnedFd,
    /// A Unix socket, not one of TCP.
    pub(crate) is_unix: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer sent a FIN or a reset: a short read does not mean that the queue is empty.
    pub(crate) hup: bool,
    /// The socket is closed or has an error.
    pub(crate) broken: bool,
    /// The socket has an error: the peer reset the connection, or is gone.
    pub(crate) reset: bool,
    /// The peer sent urgent data, which splice(2) never gets past and short reads stop at.
    pub(crate) urgent: bool,
}

/// A direction of a connection.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) state: State,
    pub(crate) engine: FlowEngine,
    held: Held,
    /// Bytes read after those that are held: see `flow/relief.rs`.
    relief: Vec<u8>,
    /// The source offers a small window meanwhile.
    clamped: bool,
    /// The auto engine's choice, where the engine follows what the flow turns out to need.
    auto: Option<Box<Auto>>,
    adapts: bool,
    /// The kernel did not take it over: it is not offered again.
    stays: bool,
    bulk: Bulk,
    /// Bytes written to the target by user space, over the connection's life.
    written: u64,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Bytes may come.
    Open,
    /// The source has ended; what is held has yet to be written.
    Ended,
    /// The target was told of the end.
    Done,
    /// The target does not take what was read.
    Lost,
}

/// How the flow moves bytes now.
#[derive(Debug)]
pub(crate) enum FlowEngine {
    Copy,
    Splice,
    Sockmap(Box<Taken>),
}

/// Bytes read and not yet written.
#[derive(Debug)]
enum Held {
    Nothing,
    Bytes { buffer: Box<[u8]>, from: usize, to: usize },
    Pipe { pipe: Pipe, length: usize },
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more to do until an event.
    Waits,
    /// The turn ended before the bytes did.
    Unfinished,
    /// Nothing more to do until an event, or until the worker next looks at its polled flows.
    Polls,
}

/// The source was reset: what it sent may be incomplete.
#[derive(Debug)]
pub(crate) struct SourceReset;

/// What the flows of one worker share.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) shares: Shares,
    pub(crate) counters: Arc<Counters>,
    pub(crate) sockmap: Option<Arc<Sockmap>>,
    pub(crate) memory: Memory,
    /// The worker is at its regular look at polled connections, not at an event.
    pub(crate) looking: bool,
    /// Read into by every flow, so that it stays in this CPU's cache.
    scratch: Box<[u8]>,
    spare: Vec<Box<[u8]>>,
    pipes: Vec<Pipe>,
    files: Arc<Part>,
}

impl Leg {
    pub(crate) fn new(socket: OwnedFd, is_unix: bool) -> Leg {
        Leg {
            socket,
            is_unix,
            readable: false,
            writable: true,
            hup: false,
            broken: false,
            reset: false,
            urgent: false,
        }
    }
}

impl Flow {
    pub(crate) fn new(engine: Engine) -> Flow {
        Flow {
            state: State::Open,
            // The sockmap engine, too, takes over only when a flow turns out to be bulk.
            engine: if engine == Engine::Splice { FlowEngine::Splice } else { FlowEngine::Copy },
            held: Held::Nothing,
            relief: Vec::new(),
            clamped: false,
            auto: None,
            adapts: engine == Engine::Auto,
            stays: false,
            bulk: Bulk::default(),
            written: 0,
        }
    }

    /// Puts `bytes` before everything that the source sends.
    pub(crate) fn prepend(&mut self, bytes: Vec<u8>) {
        let to = bytes.len();
        self.held = Held::Bytes { buffer: bytes.into_boxed_slice(), from: 0, to };
    }

    /// Moves what can be moved, for a bounded number of rounds.
    pub(crate) fn pump(
        &mut self,
        source: &mut Leg,
        target: &mut Leg,
        forwarded: impl Fn(&Counters) -> &Count + Copy,
        resources: &mut Resources,
    ) -> Result<Turn, SourceReset> {
        match self.state {
            State::Open | State::Ended => {}
            State::Lost => return Ok(self.discard(source, resources)),
            State::Done => return Ok(Turn::Waits),
        }
        if resources.looking && self.bulk.look(&source.socket) {
            source.readable = true;
        }
        self.adapt();
        let tries = self.auto.as_ref().is_some_and(|auto| auto.measures());
        let clock = (tries && self.bulk.is_batching()).then(auto::thread_time);
        let before = self.written;
        let turn = match self.engine {
            FlowEngine::Copy => self.pump_copy(source, target, resources),
            FlowEngine::Splice => self.pump_splice(source, target, resources),
            FlowEngine::Sockmap(_) => self.pump_sockmap(source, target, forwarded, resources),
        };
        self.end_relief(source, resources.shares);
        let counters = &resources.counters;
        let moved = self.written - before;
        forwarded(counters).add(moved);
        match self.engine {
            FlowEngine::Splice => counters.bytes_spliced.add(moved),
            _ => counters.bytes_copied.add(moved),
        }
        // A pipe that is still full of the last way's bytes says nothing about the next one.
        let is_spliced = matches!(self.engine, FlowEngine::Splice);
        let follows = |auto: &Auto| is_spliced == (auto.way() == Way::Splice);
        let auto = self.auto.as_deref_mut().filter(|auto| follows(auto));
        if let Some(auto) = auto.filter(|_| self.bulk.is_batching()) {
            let spent = clock.map(|start| auto::thread_time().saturating_sub(start));
            auto.note(moved, spent.unwrap_or_default(), Instant::now);
        }
        // The verdict runs only when a socket turns readable, so its sources are left as they are.
        let batches = !matches!(self.engine, FlowEngine::Sockmap(_))
            && self.bulk.moved(moved, &source.socket, resources.shares.low_water);
        match turn {
            Ok(Turn::Waits) if batches && !self.is_over() => Ok(Turn::Polls),
            turn => turn,
        }
    }

    /// The auto engine: bulk goes the better way, anything else is copied.
    fn adapt(&mut self) {
        if !self.adapts || matches!(self.held, Held::Pipe { .. }) {
            return;
        }
        self.engine = match (self.bulk.is_batching(), &self.auto) {
            (false, _) => FlowEngine::Copy,
            (true, None) => {
                self.auto = Some(Box::new(Auto::new()));
                FlowEngine::Splice
            }
            (true, Some(auto)) => match auto.way() {
                Way::Copy => FlowEngine::Copy,
                Way::Splice => FlowEngine::Splice,
            },
        };
    }

    /// Whether the source has ended and every byte of it is written.
    pub(crate) fn is_drained(&mut self, target: &Leg, resources: &Resources) -> bool {
        if self.state != State::Ended || self.holds() {
            return false;
        }
        match (&mut self.engine, &resources.sockmap) {
            (FlowEngine::Sockmap(taken), Some(sockmap)) => {
                sockmap.is_drained(taken, &target.socket)
            }
            _ => true,
        }
    }

    /// Whether bytes were read that the target has yet to take.
    pub(crate) fn holds(&self) -> bool {
        self.held_length() > 0
    }

    fn held_length(&self) -> usize {
        let held = match &self.held {
            Held::Nothing => 0,
            Held::Bytes { from, to, .. } => to - from,
            Held::Pipe { length, .. } => *length,
        };
        held + self.relief.len()
    }

    /// Whether the flow is over, well or badly.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Done | State::Lost)
    }

    /// Whether the sockmap engine may take the flow over: bulk, and nothing under way.
    pub(crate) fn is_quiet_bulk(&self, source: &Leg, target: &Leg) -> bool {
        self.state == State::Open
            && !self.stays
            && matches!(self.engine, FlowEngine::Copy)
            && !self.holds()
            && !source.readable
            && !source.hup
            && !source.urgent
            // The kernel takes sockets of whole connections only.
            && !target.hup
            && self.written >= TAKEN_OVER
    }

    /// Whether the flow of a connection that was accepted under the engine `own` moves its bytes now
    /// as one that was accepted under `other` would: they are the same engine, or one copies here as
    /// the other does.
    pub(crate) fn moves_as(&self, own: Engine, other: Engine) -> bool {
        let copies = |engine| match engine {
            Engine::Copy => true,
            Engine::Splice => false,
            Engine::Sockmap => self.written < TAKEN_OVER,
            Engine::Auto => !self.bulk.is_batching(),
        };
        own == other || matches!(self.engine, FlowEngine::Copy) && copies(own) && copies(other)
    }

    /// It was not taken over, and is not offered again.
    pub(crate) fn stays(&mut self) {
        self.stays = true;
    }

    /// Whether the window of its source is kept small.
    pub(crate) fn is_relieved(&self) -> bool {
        self.clamped
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Goes on in the verdict's hands.
    pub(crate) fn hand_over(&mut self, taken: Taken, source: &Leg) {
        self.bulk.stop(&source.socket);
        self.engine = FlowEngine::Sockmap(Box::new(taken));
    }

    /// Bytes that the target has, whoever moved them.
    pub(crate) fn moved(&self) -> u64 {
        match &self.engine {
            FlowEngine::Sockmap(taken) => self.written + taken.redirected(),
            FlowEngine::Copy | FlowEngine::Splice => self.written,
        }
    }

    /// Gives back what the flow holds. Its sockets are closed, or will be at once.
    pub(crate) fn release(self, resources: &mut Resources) {
        match self.held {
            Held::Bytes { buffer, .. } => resources.take_back(buffer),
            // A pipe with bytes in it is closed, not reused.
            Held::Pipe { pipe, length: 0 } => resources.pipes.push(pipe),
            Held::Pipe { .. } | Held::Nothing => {}
        }
        if let (FlowEngine::Sockmap(taken), Some(sockmap)) = (self.engine, &resources.sockmap) {
            sockmap.forget(*taken);
        }
    }

    /// Throws away what still comes, since its target is gone. Otherwise the source's window would
    /// close, and Linux then drops acknowledgements of what its peer is still owed. Of a Unix socket's
    /// the last byte stays, so that its peer sees a reset: see [`socket::reset`](crate::socket::reset).
    fn discard(&mut self, source: &mut Leg, resources: &mut Resources) -> Turn {
        for _ in 0..ROUNDS {
            if !source.readable {
                return Turn::Waits;
            }
            let queued = || ioctl_fionread(&source.socket).unwrap_or(0) as usize;
            let most = if source.is_unix { queued().saturating_sub(1) } else { usize::MAX };
            if most == 0 {
                source.readable = false;
                return Turn::Waits;
            }
            let most = most.min(resources.scratch.len());
            let scratch = &mut resources.scratch[..most];
            match rustix::net::recv(&source.socket, scratch, RecvFlags::DONTWAIT) {
                Ok((_, 1..)) | Err(Errno::INTR) => {}
                // Its end, or an error, which an event tells.
                Ok(_) | Err(_) => source.readable = false,
            }
        }
        Turn::Unfinished
    }

    fn lose(&mut self, resources: &mut Resources) {
        self.state = State::Lost;
        self.relief = Vec::new();
        if let Held::Bytes { buffer, .. } = std::mem::replace(&mut self.held, Held::Nothing) {
            resources.take_back(buffer);
        }
    }
}

impl Resources {
    /// Spare chunks and pipes that a worker keeps for the next flow that blocks.
    const SPARE: usize = 16;

    pub(crate) fn new(
        shares: Shares,
        counters: Arc<Counters>,
        sockmap: Option<Arc<Sockmap>>,
        files: Arc<Part>,
    ) -> Resources {
        Resources {
            shares,
            counters,
            sockmap,
            memory: Memory::default(),
            looking: false,
            scratch: chunk(shares),
            spare: Vec::new(),
            pipes: Vec::new(),
            files,
        }
    }

    /// Bytes to look at or consume before the flows begin: the PROXY header.
    pub(crate) fn scratch(&mut self) -> &mut [u8] {
        &mut self.scratch
    }

    /// The first `to` bytes of the scratch chunk as a chunk of their own, and a fresh scratch.
    /// A small rest is copied, so that many blocked flows do not hold a whole chunk each.
    fn hold_scratch(&mut self, from: usize, to: usize) -> Held {
        if to - from <= Shares::READ {
            let buffer = Box::from(&self.scratch[from..to]);
            return Held::Bytes { buffer, from: 0, to: to - from };
        }
        let fresh = self.spare.pop().unwrap_or_else(|| chunk(self.shares));
        Held::Bytes { buffer: std::mem::replace(&mut self.scratch, fresh), from, to }
    }

    fn take_back(&mut self, buffer: Box<[u8]>) {
        if buffer.len() == self.shares.chunk && self.spare.len() < Resources::SPARE {
            self.spare.push(buffer);
        }
    }
}

fn chunk(shares: Shares) -> Box<[u8]> {
    vec![0; shares.chunk].into_boxed_slice()
}

/// Whether an errno means: not now.
fn would_block(e: Errno) -> bool {
    e == Errno::AGAIN || e == Errno::INTR
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn engines_are_alike_while_they_copy_and_not_once_they_part() {
        use Engine::{Auto, Copy, Sockmap, Splice};
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        for (written, alike) in [
            (0, &[(Copy, Sockmap), (Copy, Auto), (Sockmap, Auto)][..]),
            (TAKEN_OVER - 1, &[(Copy, Sockmap), (Copy, Auto), (Sockmap, Auto)]),
            (TAKEN_OVER, &[(Copy, Auto)]),
            (bulk::RUN, &[]),
        ] {
            for own in Engine::ALL {
                let mut flow = Flow::new(own);
                flow.written = written;
                flow.bulk.moved(written, &socket, 1 << 20);
                for other in Engine::ALL {
                    let pair = |a, b| alike.contains(&(a, b));
                    let expected = own == other || pair(own, other) || pair(other, own);
                    assert_eq!(flow.moves_as(own, other), expected, "{own}, {other}, {written}");
                }
            }
        }
        let mut taken = Flow::new(Sockmap);
        taken.engine = FlowEngine::Sockmap(Box::default());
        let like = Engine::ALL.map(|other| taken.moves_as(Sockmap, other));
        assert_eq!(like, [Copy, Splice, Sockmap, Auto].map(|other| other == Sockmap));
    }
}
