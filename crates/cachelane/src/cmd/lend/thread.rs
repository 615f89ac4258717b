//! One queue's thread: receives, lends, takes back.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use frames::LaneCache;
use lend::Distributor;
use rustix::event::PollFlags;
use xsk::{Packet, Socket};

use crate::packets::idle;
use crate::packets::options::SocketArgs;
use crate::packets::receive::Handling;
use crate::packets::session::Context;
use crate::packets::setup::SharedProgram;

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
    handling: Handling,
    packets: Vec<Packet>,
}

impl Thread {
    pub(super) fn new(
        socket: Socket,
        distributor: Distributor,
        cache: LaneCache,
        program: SharedProgram,
        args: &SocketArgs,
    ) -> Thread {
        let (inserted, handling, packets) = (false, Handling::new(args), Vec::new());
        Thread { socket, distributor, cache, program, inserted, handling, packets }
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
            if patience.is_over(now, received + returned > 0 || self.handling.polls) {
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
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        match wanted {
            true => program.insert(&self.socket)?,
            false => program.remove(self.socket.queue())?,
        }
        self.inserted = wanted;
        Ok(())
    }

    /// Takes a batch from the socket and lends it; how many packets it was.
    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        self.handling.supply(&mut self.socket, &mut self.cache)?;
        let packets = self.handling.receive(&mut self.socket, context, now, &mut self.packets);
        // A full batch: there are mostly more.
        let full = self.packets.len() >= self.handling.batch;
        if packets > 0 {
            self.distributor.lend_burst(&mut self.packets, &mut self.cache, full);
            context.control.settle(packets, 0);
        }
        Ok(packets)
    }

    /// Sleeps until there are packets, or the lender's control thread wants something, or frames
    /// may have come back that are missing.
    fn sleep(&mut self) -> anyhow::Result<()> {
        let missing = (self.socket.outstanding().fill as usize) < self.handling.fill;
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
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        // A device that is gone has no queue.
        let _ = program.remove(self.socket.queue());
    }
}
