//! What a worker watches of its sockets, and what an event tells it.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::flow::Leg;
use crate::repeated::say;

/// A leg, also while it connects: it turns writable then.
pub(super) const LEG: EventFlags = EventFlags::IN
    .union(EventFlags::PRI)
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
/// A leg whose data the sockmap engine redirects: waking up for it would be for nothing.
pub(super) const SOURCE_IN_KERNEL: EventFlags =
    EventFlags::OUT.union(EventFlags::RDHUP).union(EventFlags::ET);

/// What an event is about, in the 64 bits that epoll carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Client { key: usize, generation: u32 },
    Backend { key: usize, generation: u32 },
    Listener(usize),
    Wake,
}

impl Token {
    const KEY_BITS: u64 = (1 << 30) - 1;

    pub(super) fn encode(self) -> EventData {
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

    pub(super) fn decode(data: EventData) -> Token {
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

/// Takes note of what an event says of a leg.
pub(super) fn note(leg: &mut Leg, flags: EventFlags) {
    let hung_up = flags.intersects(EventFlags::ERR | EventFlags::HUP);
    // A Unix socket hangs up as soon as its peer has closed, whose bytes are all there.
    let broken = flags.contains(EventFlags::ERR) || hung_up && !leg.is_unix;
    leg.hup |= hung_up || flags.contains(EventFlags::RDHUP);
    leg.broken |= broken;
    leg.reset |= flags.contains(EventFlags::ERR);
    leg.urgent |= flags.contains(EventFlags::PRI);
    leg.readable |= leg.hup || flags.contains(EventFlags::IN);
    leg.writable |= hung_up || flags.contains(EventFlags::OUT);
}

/// Watches a socket from now on; false if it cannot be.
pub(super) fn register(epoll: &OwnedFd, socket: &OwnedFd, token: Token, flags: EventFlags) -> bool {
    is_watched(epoll::add(epoll, socket, token.encode(), flags))
}

/// Watches a socket for something else from now on; false if it cannot be.
pub(super) fn modify(epoll: &OwnedFd, socket: &OwnedFd, token: Token, flags: EventFlags) -> bool {
    is_watched(epoll::modify(epoll, socket, token.encode(), flags))
}

fn is_watched(done: rustix::io::Result<()>) -> bool {
    done.inspect_err(|e| say!(WARN, "a connection cannot be watched: {e}")).is_ok()
}
