//! Threads that receive and send themselves: a frame comes back to the cache that it was taken
//! from.

use std::mem;
use std::time::Instant;

use frames::{FrameArea, LaneCache};
use rustix::event::PollFlags;
use xsk::{Packet, Socket};

use crate::packets::idle;
use crate::packets::options::SocketArgs;
use crate::packets::session::Context;
use crate::packets::sockets::{Handler, Sockets};

/// One thread's part.
pub(super) struct Direct {
    sockets: Sockets,
    /// What each socket still has to post.
    pending: Vec<Vec<Packet>>,
    links: Vec<Link>,
}

/// From one socket, by its index, to another or the same.
#[derive(Clone, Copy, Debug)]
struct Link {
    from: usize,
    to: usize,
}

impl Direct {
    pub(super) fn new(cache: LaneCache, args: &SocketArgs) -> Direct {
        let sockets = Sockets::new(Vec::new(), cache, args);
        Direct { sockets, pending: Vec::new(), links: Vec::new() }
    }

    /// What comes goes back.
    pub(super) fn add_swap(&mut self, socket: Socket) {
        let index = self.add(socket);
        self.links.push(Link { from: index, to: index });
    }

    /// What comes on the one goes to the other, and the other way if `both`.
    pub(super) fn add_pair(&mut self, from: Socket, to: Socket, both: bool) {
        let (from, to) = (self.add(from), self.add(to));
        self.links.push(Link { from, to });
        if both {
            self.links.push(Link { from: to, to: from });
        }
    }

    fn add(&mut self, socket: Socket) -> usize {
        self.sockets.list.push(socket);
        self.pending.push(Vec::new());
        self.pending.len() - 1
    }

    /// Takes a batch over one link; how many packets moved.
    fn pass(&mut self, link: Link, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let mut pending = mem::take(&mut self.pending[link.to]);
        self.sockets.list[link.to].complete(&mut self.sockets.cache, usize::MAX);
        self.sockets.supply(link.from)?;
        // What could not be posted goes first: meanwhile packets wait in the receive ring.
        if pending.is_empty() {
            self.sockets.receive(link.from, context, now, &mut pending);
            if link.from == link.to {
                self.swap(&mut pending);
            }
        }
        let posted = self.sockets.post(link.to, &mut pending, context)?;
        self.pending[link.to] = pending;
        Ok(posted)
    }

    fn swap(&self, packets: &mut [Packet]) {
        let area = self.sockets.cache.pool().area();
        let mut first = true;
        for packet in packets {
            if first {
                swap_addresses(packet, area);
            }
            first = !packet.more;
        }
    }
}

impl Handler for Direct {
    fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let mut moved = 0;
        for link in 0..self.links.len() {
            moved += self.pass(self.links[link], context, now)?;
        }
        Ok(moved)
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        let wanted = self.sockets.list.iter().zip(&self.pending).map(|(socket, pending)| {
            let sends = if pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            (socket as _, PollFlags::IN | sends)
        });
        idle::sleep(wanted, &mut self.sockets.cache, idle::LONGEST)
    }

    fn end(mut self) {
        for packet in self.pending.into_iter().flatten() {
            self.sockets.cache.put(packet.frame);
        }
    }
}

/// Sends a packet back: source and destination hardware address change places.
fn swap_addresses(packet: &mut Packet, area: &FrameArea) {
    if let Some((to, from)) =
        packet.bytes_mut(area).first_chunk_mut::<12>().map(|a| a.split_at_mut(6))
    {
        to.swap_with_slice(from);
    }
}
