//! A thread's sockets, and the loop that every such thread runs: what it does to receive, to send
//! and to sleep.

use std::time::Instant;

use anyhow::Context as _;
use frames::LaneCache;
use kit::pulse::Pulse;
use xsk::{Packet, Socket};

use super::idle::Patience;
use super::meter::Traffic;
use super::options::SocketArgs;
use super::session::{Context, Work};

/// A thread's sockets and its handle on the pool.
pub(crate) struct Sockets {
    pub(crate) list: Vec<Socket>,
    pub(crate) cache: LaneCache,
    /// The most packets in one go.
    pub(crate) batch: usize,
    /// How many frames are with the kernel to receive into.
    pub(crate) fill: usize,
    /// Whether the device has to be polled by our calls.
    polls: bool,
}

impl Sockets {
    pub(crate) fn new(list: Vec<Socket>, cache: LaneCache, args: &SocketArgs) -> Sockets {
        let (batch, fill) = (args.batch as usize, args.ring as usize);
        Sockets { list, cache, batch, fill, polls: args.busy_poll.is_some() }
    }

    /// The devices that they are on.
    fn devices(&self) -> String {
        let mut names: Vec<&str> = self.list.iter().map(|socket| socket.device().name()).collect();
        names.dedup();
        names.join(", ")
    }

    /// Gives the kernel frames to receive into, and makes it go on where it waits for that.
    pub(crate) fn supply(&mut self, socket: usize) -> anyhow::Result<()> {
        let socket = &mut self.list[socket];
        socket.fill(&mut self.cache, self.fill);
        if self.polls || socket.rx_needs_wakeup() {
            socket.wake_rx()?;
        }
        Ok(())
    }

    /// Takes a batch into what is empty; how many packets it is. They are claimed of the run's
    /// count, and settled by whoever has dealt with them.
    pub(crate) fn receive(
        &mut self,
        socket: usize,
        context: &mut Context,
        now: Instant,
        into: &mut Vec<Packet>,
    ) -> usize {
        let claimed = context.control.claim(self.batch);
        self.list[socket].receive(into, claimed);
        let (packets, bytes) = measure(into);
        if packets > 0 {
            context.received(packets, bytes, now);
            let (rx_packets, rx_bytes) = (packets as u64, bytes);
            let traffic = Traffic { rx_packets, rx_bytes, ..Traffic::default() };
            context.on_queue(&self.list[socket], traffic);
        }
        context.control.settle(0, claimed.saturating_sub(packets));
        packets
    }

    /// Posts packets and makes the kernel send them; how many were posted.
    pub(crate) fn post(
        &mut self,
        socket: usize,
        packets: &mut Vec<Packet>,
        context: &mut Context,
    ) -> anyhow::Result<usize> {
        let socket = &mut self.list[socket];
        if packets.is_empty() {
            if socket.outstanding().tx > 0 {
                socket.kick()?;
            }
            return Ok(0);
        }
        let (before, before_bytes) = measure(packets);
        socket.send(packets);
        socket.kick()?;
        let (left, left_bytes) = measure(packets);
        let posted = before - left;
        let (tx_packets, tx_bytes) = (posted as u64, before_bytes - left_bytes);
        context.meter().traffic.tx_packets.add(tx_packets);
        context.meter().traffic.tx_bytes.add(tx_bytes);
        context.on_queue(socket, Traffic { tx_packets, tx_bytes, ..Traffic::default() });
        context.control.settle(posted, 0);
        Ok(posted)
    }
}

/// What a thread does with its sockets.
pub(crate) trait Handler: Sized + Send + 'static {
    fn sockets(&mut self) -> &mut Sockets;

    /// One turn of its loop; how many packets it moved.
    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize>;

    /// Sleeps until there is something to do.
    fn sleep(&mut self) -> anyhow::Result<()>;

    /// When it goes to sleep.
    fn patience(&self) -> Patience {
        Patience::default()
    }

    /// Gives back what it still has.
    fn end(self) {}

    /// The thread's work, until the run is over.
    fn work(mut self) -> Work {
        Box::new(move |context| {
            let mut patience = self.patience();
            let pulse = Pulse::of_this_thread();
            while !context.control.is_over() {
                pulse.beat();
                let now = Instant::now();
                let moved = self.turn(context, now)?;
                let sockets = self.sockets();
                sockets.cache.maintain();
                context.turn(now, &sockets.list);
                if patience.is_over(now, moved > 0 || sockets.polls) {
                    let slept = self.sleep();
                    slept.with_context(|| self.sockets().devices())?;
                }
            }
            context.write_down(&self.sockets().list);
            self.end();
            Ok(())
        })
    }
}

/// Packets and bytes in a list of parts.
pub(crate) fn measure(packets: &[Packet]) -> (usize, u64) {
    let bytes = packets.iter().map(|packet| u64::from(packet.len)).sum();
    (packets.iter().filter(|packet| !packet.more).count(), bytes)
}
