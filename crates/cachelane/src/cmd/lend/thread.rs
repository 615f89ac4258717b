//! One queue's thread: receives, lends, takes back.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use frames::LaneCache;
use lend::Distributor;
use rustix::event::PollFlags;
use xsk::{Packet, Socket};

use crate::cmd::xsk::idle;
use crate::cmd::xsk::options::SocketArgs;
use crate::cmd::xsk::session::{Context, SharedProgram};

/// How long it sleeps at most while borrowers have frames that the fill ring lacks: nobody wakes
/// it when they come back.
const SHORT: Duration = Duration::from_millis(1);

/// What the thread has.
pub(super) struct Thread {
    socket: Socket,
    distributor: Distributor,
    cache: LaneCache,
    program: SharedProgram,
    /// Whether the queue's packets come to the socket.
    inserted: bool,
    batch: usize,
    /// How many frames are with the kernel to receive into.
    fill: usize,
    /// Whether a packet can be in several frames.
    parts: bool,
    /// Whether the device has to be polled by our calls.
    polls: bool,
    packets: Vec<Packet>,
}

impl Thread {
    /// Takes over a socket, and lets it receive from the first packet on.
    pub(super) fn new(
        mut socket: Socket,
        distributor: Distributor,
        mut cache: LaneCache,
        program: SharedProgram,
        args: &SocketArgs,
    ) -> Thread {
        let fill = args.ring as usize;
        socket.fill(&mut cache, fill);
        Thread {
            socket,
            distributor,
            cache,
            program,
            inserted: false,
            batch: args.batch as usize,
            fill,
            parts: args.multi_buffer,
            polls: args.busy_poll.is_some(),
            packets: Vec::new(),
        }
    }

    pub(super) fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        let mut patience = idle::Patience::default();
        while !context.control.is_over() {
            let now = Instant::now();
            let returned = self.distributor.collect(&mut self.cache);
            self.switch()?;
            let received = self.turn(context, now)?;
            self.cache.maintain();
            context.turn(now, [&self.socket]);
            if patience.is_over(now, received + returned > 0 || self.polls) {
                self.sleep()?;
            }
        }
        context.write_down([&self.socket]);
        self.leave();
        Ok(())
    }

    /// Has the queue's packets come here while somebody borrows, and go to the kernel else.
    fn switch(&mut self) -> anyhow::Result<()> {
        let wanted = self.distributor.is_wanted();
        if wanted == self.inserted {
            return Ok(());
        }
        // A thread that panicked with it has ended the run.
        let mut program = self.program.lock();
        match wanted {
            true => program.insert(&self.socket)?,
            false => program.remove(self.socket.queue())?,
        }
        self.inserted = wanted;
        Ok(())
    }

    /// Takes a batch from the socket and lends it; how many packets it was.
    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        /// More parts than a packet has.
        const PARTS: usize = 32;
        self.socket.fill(&mut self.cache, self.fill);
        if self.polls || self.socket.rx_needs_wakeup() {
            self.socket.wake_rx()?;
        }
        let claimed = context.control.claim(self.batch);
        let most = if self.parts && claimed > 0 { claimed.max(PARTS) } else { claimed };
        let parts = self.socket.receive(&mut self.packets, most);
        if parts == 0 {
            context.control.settle(0, claimed);
            return Ok(0);
        }
        let packets = self.packets.iter().filter(|packet| !packet.more).count();
        let bytes: u64 = self.packets.iter().map(|packet| u64::from(packet.len)).sum();
        context.meter().rx_packets.add(packets as u64);
        context.meter().rx_bytes.add(bytes);
        context.saw_packets(now);
        // A full batch: there are mostly more.
        self.distributor.lend_burst(&mut self.packets, &mut self.cache, parts == most);
        context.control.settle(packets, claimed.saturating_sub(packets));
        Ok(packets)
    }

    /// Sleeps until there are packets, or the lender's control thread wants something, or frames
    /// may have come back that are missing.
    fn sleep(&mut self) -> anyhow::Result<()> {
        let missing = (self.socket.outstanding().fill as usize) < self.fill;
        let longest = match self.distributor.on_loan() > 0 && missing {
            true => SHORT,
            false => idle::LONGEST,
        };
        let wanted: [(&dyn idle::Fd, PollFlags); 2] =
            [(&self.socket, PollFlags::IN), (&self.distributor, PollFlags::IN)];
        idle::sleep(wanted.into_iter(), &mut self.cache, longest).context("lending")
    }

    /// The kernel has the queue's packets again before the socket closes.
    fn leave(&mut self) {
        let mut program = self.program.lock();
        // A device that is gone has no queue.
        let _ = program.remove(self.socket.queue());
    }
}
