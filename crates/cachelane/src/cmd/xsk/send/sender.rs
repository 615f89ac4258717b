//! One thread's part of sending by sockets: a queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use frames::LaneCache;
use xsk::{Packet, Socket};

use super::maker::Make;
use crate::packets::session::Context;
use crate::run::Ended;

/// Sends what is made, on one queue.
pub(super) struct Sender {
    pub(super) socket: Socket,
    pub(super) cache: LaneCache,
    pub(super) maker: Box<dyn Make>,
    /// The most packets in one go.
    pub(super) batch: usize,
    pub(super) flight: Flight,
}

/// Packets that were made and are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// Not yet posted.
    packets: Vec<Packet>,
    /// Frames and bytes of each that is posted or waits for that, in the order in which they are sent.
    sizes: VecDeque<(u32, u32)>,
    /// Frames that came back of a packet that has others.
    partial: u32,
}

impl Sender {
    pub(super) fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        // Sleep ends when it is to: the rate is kept by it.
        let _ = rustix::thread::set_current_timer_slack(Some(std::num::NonZero::<u64>::MIN));
        let sent = self.send(context);
        let drained = self.drain(context);
        sent.and(drained)
    }

    /// Sends until the run is over, or there is nothing more to send.
    fn send(&mut self, context: &mut Context) -> anyhow::Result<()> {
        while !context.control.is_over() {
            let now = Instant::now();
            let made = self.make(context, now)?;
            self.socket.send(&mut self.flight.packets);
            self.socket.kick()?;
            let sent = self.complete(context, now);
            self.cache.maintain();
            context.turn(now, [&self.socket]);
            if made == 0 && sent == 0 {
                if self.maker.is_over() && self.flight.sizes.is_empty() {
                    context.control.ends(Ended::File);
                    break;
                }
                self.idle(now);
            }
        }
        Ok(())
    }

    /// Makes the packets that are due, unless some still wait to be posted; how many.
    fn make(&mut self, context: &Context, now: Instant) -> anyhow::Result<usize> {
        if !self.flight.packets.is_empty() {
            return Ok(0);
        }
        let claimed = context.control.claim(self.maker.due(now, self.batch)?);
        let made = self.maker.make(now, claimed, &mut self.cache, &mut self.flight.packets);
        context.control.settle(0, claimed - made);
        self.flight.measure();
        Ok(made)
    }

    /// Takes sent frames back; how many.
    fn complete(&mut self, context: &mut Context, now: Instant) -> usize {
        let frames = self.socket.complete(&mut self.cache, usize::MAX);
        if frames > 0 {
            let (packets, bytes) = self.flight.came_back(frames as u32);
            let traffic = &context.meter().traffic;
            traffic.tx_packets.add(packets);
            traffic.tx_bytes.add(bytes);
            context.control.settle(packets as usize, 0);
            context.saw_packets(now);
        }
        frames
    }

    /// Waits for what is due next, or for the kernel to send what it has.
    fn idle(&mut self, now: Instant) {
        /// So long before a packet is due it is awake.
        const AWAKE: Duration = Duration::from_micros(20);
        const MOST: Duration = Duration::from_millis(10);
        let wait = self.maker.wait(now).saturating_sub(AWAKE);
        if wait > Duration::ZERO {
            std::thread::sleep(wait.min(MOST));
        } else {
            std::thread::yield_now();
        }
    }

    /// Lets the kernel send what it has, and takes all frames back.
    fn drain(mut self, context: &mut Context) -> anyhow::Result<()> {
        const LONGEST: Duration = Duration::from_secs(1);
        self.maker.end(Instant::now());
        // They are the last in the flight, so what comes back is counted right without them.
        for packet in self.flight.packets.drain(..) {
            self.cache.put(packet.frame);
        }
        let until = Instant::now() + LONGEST;
        loop {
            let now = Instant::now();
            self.complete(context, now);
            if self.socket.outstanding().tx == 0 || now > until {
                break;
            }
            self.socket.kick()?;
            std::thread::yield_now();
        }
        context.write_down([&self.socket]);
        Ok(())
    }
}

impl Flight {
    /// Notes how large those are that were just made.
    fn measure(&mut self) {
        let mut whole = (0, 0);
        for packet in &self.packets {
            whole = (whole.0 + 1, whole.1 + packet.len);
            if !packet.more {
                self.sizes.push_back(std::mem::take(&mut whole));
            }
        }
    }

    /// So many frames came back; packets and bytes that are sent with them.
    fn came_back(&mut self, frames: u32) -> (u64, u64) {
        self.partial += frames;
        let mut sent = (0, 0);
        while let Some(&(parts, bytes)) = self.sizes.front()
            && parts <= self.partial
        {
            self.sizes.pop_front();
            self.partial -= parts;
            sent = (sent.0 + 1, sent.1 + u64::from(bytes));
        }
        sent
    }
}
