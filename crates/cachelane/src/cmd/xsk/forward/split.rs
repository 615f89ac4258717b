//! A thread for each interface: one takes frames from the pool and receives into them, the other
//! sends them and gives them back, so that every frame is freed away from home.

use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::LaneCache;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::PollFlags;
use xsk::{Packet, Socket};

use super::Args;
use super::bell::Bell;
use crate::packets::idle;
use crate::packets::receive::{Handling, post};
use crate::packets::session::{Context, Work};

/// The two threads of each queue.
pub(super) fn threads(
    args: &Args,
    caches: Vec<LaneCache>,
    from: Vec<Socket>,
    to: Vec<Socket>,
) -> anyhow::Result<Vec<Work>> {
    let mut threads = Vec::new();
    let mut caches = caches.into_iter();
    for (from, to) in from.into_iter().zip(to) {
        let (Some(near), Some(far)) = (caches.next(), caches.next()) else { break };
        let mut near = Side::new(args, from, near)?;
        let mut far = Side::new(args, to, far)?;
        join(&mut near, &mut far);
        if args.both {
            join(&mut far, &mut near);
        }
        threads.extend([near, far]);
    }
    let work = |side: Side| -> Work { Box::new(move |context: &mut Context| side.run(context)) };
    Ok(threads.into_iter().map(work).collect())
}

/// From now on, what the one receives the other sends.
fn join(from: &mut Side, to: &mut Side) {
    let (producer, consumer) = RingBuffer::new(from.handling.fill);
    from.out = Some(Out { ring: producer, bell: Arc::clone(&to.bell), handing: Vec::new() });
    to.inward = Some(In { ring: consumer, bell: Arc::clone(&from.bell), pending: Vec::new() });
}

/// One thread's part: a socket that receives, sends, or does both.
struct Side {
    socket: Socket,
    cache: LaneCache,
    bell: Arc<Bell>,
    out: Option<Out>,
    inward: Option<In>,
    handling: Handling,
}

/// To the thread that sends what this one receives.
struct Out {
    ring: Producer<Packet>,
    bell: Arc<Bell>,
    /// Received, not yet handed over.
    handing: Vec<Packet>,
}

/// From the thread that receives what this one sends.
struct In {
    ring: Consumer<Packet>,
    bell: Arc<Bell>,
    /// Taken over, not yet posted.
    pending: Vec<Packet>,
}

impl Side {
    fn new(args: &Args, socket: Socket, cache: LaneCache) -> anyhow::Result<Side> {
        let (bell, handling) = (Arc::new(Bell::new()?), Handling::new(&args.common.sockets));
        Ok(Side { socket, cache, bell, out: None, inward: None, handling })
    }

    fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        let mut patience = idle::Patience::default();
        while !context.control.is_over() {
            let now = Instant::now();
            let moved = self.receive(context, now)? + self.send(context, now)?;
            self.cache.maintain();
            context.turn(now, [&self.socket]);
            if patience.is_over(now, moved > 0 || self.handling.polls) {
                self.sleep()?;
            }
        }
        context.write_down([&self.socket]);
        self.give_back();
        Ok(())
    }

    /// Receives a batch and hands it over; how many packets were handed over.
    fn receive(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let Some(out) = &mut self.out else { return Ok(0) };
        self.handling.supply(&mut self.socket, &mut self.cache)?;
        if out.handing.is_empty() {
            self.handling.receive(&mut self.socket, context, now, &mut out.handing);
        }
        let count = out.handing.len().min(out.ring.slots());
        if count > 0 {
            // There are so many slots.
            let chunk = out.ring.write_chunk_uninit(count)?;
            chunk.fill_from_iter(out.handing.drain(..count));
            out.bell.ring();
        }
        Ok(count)
    }

    /// Takes a batch over and posts it; how many packets were posted.
    fn send(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let Some(inward) = &mut self.inward else { return Ok(0) };
        self.socket.complete(&mut self.cache, usize::MAX);
        if inward.pending.is_empty() {
            let count = inward.ring.slots().min(self.handling.batch);
            if count > 0 {
                // There are so many in it.
                inward.pending.extend(inward.ring.read_chunk(count)?);
                inward.bell.ring();
                context.saw_packets(now);
            }
        }
        post(&mut self.socket, &mut inward.pending, context)
    }

    /// Sleeps until there is something in the ring, something to receive, or room.
    fn sleep(&mut self) -> anyhow::Result<()> {
        /// Frames that were sent come back without a sign.
        const UNTIL_SENT: Duration = Duration::from_millis(2);
        self.bell.lie_down();
        let waiting = self.inward.as_ref().is_some_and(|inward| !inward.ring.is_empty());
        let (held_up, room) = match &self.out {
            Some(out) if !out.handing.is_empty() => (true, out.ring.slots() > 0),
            _ => (false, false),
        };
        let unsent = self.inward.as_ref().is_some_and(|inward| !inward.pending.is_empty());
        if !(waiting && !unsent || room) {
            let mut events = PollFlags::empty();
            // While its ring is full, more packets are no reason to get up.
            events.set(PollFlags::IN, self.out.is_some() && !held_up);
            events.set(PollFlags::OUT, unsent);
            let longest = if self.socket.outstanding().tx > 0 { UNTIL_SENT } else { idle::LONGEST };
            let wanted = [(&self.socket as _, events), (self.bell.fd() as _, PollFlags::IN)];
            idle::sleep(wanted.into_iter(), &mut self.cache, longest)?;
        }
        self.bell.get_up();
        Ok(())
    }

    /// Gives back the frames that are still on their way.
    fn give_back(mut self) {
        if let Some(out) = self.out.take() {
            out.handing.into_iter().for_each(|packet| self.cache.put(packet.frame));
        }
        if let Some(mut inward) = self.inward.take() {
            inward.pending.into_iter().for_each(|packet| self.cache.put(packet.frame));
            while let Ok(packet) = inward.ring.pop() {
                self.cache.put(packet.frame);
            }
        }
    }
}
