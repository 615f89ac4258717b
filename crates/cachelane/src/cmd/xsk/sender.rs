//! One thread's part of sending by sockets: a queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use frames::LaneCache;
use parking_lot::Mutex;
use serde_json::{Value, json};
use xsk::{Packet, Socket};

use super::check::{Checker, Tally, check};
use super::maker::{Make, Streams};
use crate::packets::job::Report;
use crate::packets::meter::Traffic;
use crate::packets::session::{Context, Work};
use crate::packets::setup::Built;
use crate::packets::sockets::measure;
use crate::run::Ended;

/// Sends what is made, on one queue.
pub(super) struct Sender {
    pub(super) socket: Socket,
    pub(super) cache: LaneCache,
    pub(super) maker: Box<dyn Make>,
    /// The most packets in one go.
    pub(super) batch: usize,
    pub(super) flight: Flight,
    /// Where packets are to come back.
    pub(super) echo: Option<Echo>,
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

/// A thread for each socket, with what makes its packets.
pub(super) fn senders(
    built: &mut Built,
    makers: impl Iterator<Item = Box<dyn Make>>,
    batch: usize,
    echo: impl Fn() -> Option<Echo>,
) -> Vec<Work> {
    let sockets = built.sockets.drain(..).flatten().zip(built.caches.drain(..));
    let sender = |((socket, cache), maker): ((Socket, LaneCache), Box<dyn Make>)| {
        let (flight, echo) = (Flight::default(), echo());
        let sender = Sender { socket, cache, maker, batch, flight, echo };
        Box::new(move |context: &mut Context| sender.run(context)) as Work
    };
    sockets.zip(makers).map(sender).collect()
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
            let came = self.listen(context)?;
            self.cache.maintain();
            context.turn(now, [&self.socket]);
            if made == 0 && sent == 0 && came == 0 {
                if self.maker.is_over() && self.flight.sizes.is_empty() {
                    context.control.ends(Ended::Done);
                    break;
                }
                // Where the next packet is not due for long, no call says that the device is gone.
                self.socket.check()?;
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
        // Once all have been claimed, nothing is due any more.
        let most = context.control.claim(self.batch);
        if most == 0 {
            return Ok(0);
        }
        let claimed = self.maker.due(now, most)?;
        context.control.settle(0, most - claimed);
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
            let traffic = Traffic { tx_packets: packets, tx_bytes: bytes, ..Traffic::default() };
            context.on_queue(&self.socket, traffic);
            if let Some(echo) = &self.echo {
                echo.echoes.sent.fetch_add(packets, Relaxed);
            }
            context.control.settle(packets as usize, 0);
            context.saw_packets(now);
        }
        frames
    }

    /// Looks at what has come back; how many packets.
    fn listen(&mut self, context: &mut Context) -> anyhow::Result<usize> {
        let Some(echo) = &mut self.echo else { return Ok(0) };
        let there = self.socket.outstanding().fill as usize;
        self.socket.fill(&mut self.cache, echo.fill.saturating_sub(there));
        if self.socket.rx_needs_wakeup() {
            self.socket.wake_rx()?;
        }
        self.socket.receive(&mut echo.packets, self.batch);
        if echo.packets.is_empty() {
            return Ok(0);
        }
        let (packets, bytes) = measure(&echo.packets);
        context.received(packets, bytes, Instant::now());
        let (rx_packets, rx_bytes) = (packets as u64, bytes);
        context.on_queue(&self.socket, Traffic { rx_packets, rx_bytes, ..Traffic::default() });
        check(&mut echo.echoes.checker.lock(), &echo.packets, self.cache.pool().area());
        echo.packets.drain(..).for_each(|packet| self.cache.put(packet.frame));
        Ok(packets)
    }

    /// Waits for what is due next, or for the kernel to send what it has.
    fn idle(&mut self, now: Instant) {
        /// So long before a packet is due it is awake.
        const AWAKE: Duration = Duration::from_micros(20);
        const MOST: Duration = Duration::from_millis(10);
        let wait = self.maker.wait(now).saturating_sub(AWAKE);
        // How long a packet took is known only to who sees it come.
        if self.echo.is_none() && wait > Duration::ZERO {
            std::thread::sleep(wait.min(MOST));
        } else {
            std::thread::yield_now();
        }
    }

    /// Lets the kernel send what it has, and takes all frames back; waits for packets that are to come
    /// back, until none has come for long.
    fn drain(mut self, context: &mut Context) -> anyhow::Result<()> {
        const LONGEST: Duration = Duration::from_secs(1);
        /// Also of one whose packets come back all the time.
        const AT_ALL: Duration = Duration::from_secs(5);
        self.maker.end();
        // They are the last in the flight, so what comes back is counted right without them.
        for packet in self.flight.packets.drain(..) {
            self.cache.put(packet.frame);
        }
        let (start, mut came) = (Instant::now(), 0);
        let mut until = start + LONGEST;
        loop {
            let now = Instant::now();
            self.complete(context, now);
            self.listen(context)?;
            let ours = self.echo.as_ref().map_or(0, |echo| echo.echoes.came());
            if ours > came {
                (came, until) = (ours, (now + LONGEST).min(start + AT_ALL));
            }
            let all_came = self.echo.as_ref().is_none_or(|echo| echo.echoes.are_back());
            if (self.socket.outstanding().tx == 0 && all_came) || now > until {
                break;
            }
            self.socket.kick()?;
            std::thread::yield_now();
        }
        context.write_down([&self.socket]);
        Ok(())
    }
}

/// What comes back on a queue.
pub(super) struct Echo {
    pub(super) echoes: Echoes,
    /// How many frames are with the kernel to receive into.
    pub(super) fill: usize,
    pub(super) packets: Vec<Packet>,
}

/// Packets of all threads that are to come back.
#[derive(Clone)]
pub(super) struct Echoes {
    checker: Arc<Mutex<Checker>>,
    sent: Arc<AtomicU64>,
}

impl Echoes {
    pub(super) fn new() -> Echoes {
        Echoes { checker: Arc::new(Mutex::new(Checker::new())), sent: Arc::default() }
    }

    /// Begins anew, for packets of these streams.
    pub(super) fn renew(&self, streams: Streams) {
        *self.checker.lock() = Checker::of(streams);
        self.sent.store(0, Relaxed);
    }

    /// What looks at packets that have come.
    pub(super) fn checker(&self) -> Arc<Mutex<Checker>> {
        Arc::clone(&self.checker)
    }

    /// How many packets have come so far.
    pub(super) fn came(&self) -> u64 {
        let Tally { probes, duplicated, .. } = self.checker.lock().tally();
        probes - duplicated
    }

    /// How many have come, how many of them changed, and how long they took.
    pub(super) fn found(&self) -> (u64, u64, Option<Value>) {
        let checker = self.checker.lock();
        let Tally { probes, duplicated, corrupt, .. } = checker.tally();
        (probes - duplicated, corrupt, checker.delays().map(|(_, object)| object))
    }

    /// Whether all that was sent has come back.
    fn are_back(&self) -> bool {
        self.came() >= self.sent.load(Relaxed)
    }

    /// Adds what came of it.
    pub(super) fn add_to(&self, report: &mut Report) {
        let (checker, sent) = (self.checker.lock(), self.sent.load(Relaxed));
        let Tally { probes, reordered, duplicated, corrupt, other, .. } = checker.tally();
        let back = probes - duplicated;
        let lost = sent.saturating_sub(back);
        report.lines.push(format!(
            "{back} of {sent} packets came back: {lost} lost, {reordered} reordered, {duplicated} \
             duplicated, {corrupt} corrupt"
        ));
        report.fields["latency"] = json!({
            "sent": sent,
            "back": back,
            "lost": lost,
            "reordered": reordered,
            "duplicated": duplicated,
            "corrupt": corrupt,
            "other": other,
        });
        if let Some((text, object)) = checker.delays() {
            report.lines.push(format!("latency, there and back: {text}"));
            report.fields["latency"]["us"] = object;
        }
        report.findings |= back == 0;
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
