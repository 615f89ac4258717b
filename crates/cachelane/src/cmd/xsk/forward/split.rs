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
use crate::packets::session::{Context, Work};
use crate::packets::sockets::{Handler, Sockets};

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
    Ok(threads.into_iter().map(Handler::work).collect())
}

/// From now on, what the one receives the other sends.
fn join(from: &mut Side, to: &mut Side) {
    let (producer, consumer) = RingBuffer::new(from.sockets.fill);
    from.out = Some(Out { ring: producer, bell: Arc::clone(&to.bell), handing: Vec::new() });
    to.inward = Some(In { ring: consumer, bell: Arc::clone(&from.bell), pending: Vec::new() });
}

/// One thread's part: a socket that receives, sends, or does both.
struct Side {
    /// One.
    sockets: Sockets,
    bell: Arc<Bell>,
    out: Option<Out>,
    inward: Option<In>,
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
        let bell = Arc::new(Bell::new()?);
        let sockets = Sockets::new(vec![socket], cache, &args.common.sockets);
        Ok(Side { sockets, bell, out: None, inward: None })
    }

    /// Receives a batch and hands it over; how many packets were handed over.
    fn receive(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let Some(out) = &mut self.out else { return Ok(0) };
        self.sockets.supply(0)?;
        if out.handing.is_empty() {
            self.sockets.receive(0, context, now, &mut out.handing);
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
        self.sockets.list[0].complete(&mut self.sockets.cache, usize::MAX);
        if inward.pending.is_empty() {
            let count = inward.ring.slots().min(self.sockets.batch);
            if count > 0 {
                // There are so many in it.
                inward.pending.extend(inward.ring.read_chunk(count)?);
                inward.bell.ring();
                context.saw_packets(now);
            }
        }
        self.sockets.post(0, &mut inward.pending, context)
    }
}

impl Handler for Side {
    fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        Ok(self.receive(context, now)? + self.send(context, now)?)
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
            let longest =
                if self.sockets.list[0].outstanding().tx > 0 { UNTIL_SENT } else { idle::LONGEST };
            let wanted =
                [(&self.sockets.list[0] as _, events), (self.bell.fd() as _, PollFlags::IN)];
            idle::sleep(wanted.into_iter(), &mut self.sockets.cache, longest)?;
        }
        self.bell.get_up();
        Ok(())
    }

    /// The frames that are still on their way.
    fn end(mut self) {
        let cache = &mut self.sockets.cache;
        if let Some(out) = self.out.take() {
            out.handing.into_iter().for_each(|packet| cache.put(packet.frame));
        }
        if let Some(mut inward) = self.inward.take() {
            inward.pending.into_iter().for_each(|packet| cache.put(packet.frame));
            while let Ok(packet) = inward.ring.pop() {
                cache.put(packet.frame);
            }
        }
    }
}
