//! One queue's thread: receives, lends, takes back.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use frames::LaneCache;
use lend::Distributor;
use rustix::event::PollFlags;
use xsk::{Packet, Socket, Stamps};

use super::pace::{Pace, Rest};
use crate::packets::idle::{self, Patience};
use crate::packets::options::SocketArgs;
use crate::packets::session::Context;
use crate::packets::setup::SharedProgram;
use crate::packets::sockets::{Handler, Sockets};

/// How long it sleeps at most while borrowers have frames that the fill ring lacks: nobody wakes
/// it when they come back.
const SHORT: Duration = Duration::from_millis(1);

/// What the thread has.
pub(super) struct Thread {
    /// One.
    sockets: Sockets,
    distributor: Distributor,
    program: SharedProgram,
    /// Whether the queue's packets come to the socket.
    inserted: bool,
    packets: Vec<Packet>,
    /// When packets came, if each has a time of its own.
    stamps: Option<Stamps>,
    times: Vec<Option<NonZeroU64>>,
    pace: Pace,
}

impl Thread {
    pub(super) fn new(
        socket: Socket,
        distributor: Distributor,
        cache: LaneCache,
        program: SharedProgram,
        pace: Pace,
        args: &SocketArgs,
    ) -> Thread {
        let sockets = Sockets::new(vec![socket], cache, args);
        let stamps = program.lock().stamps();
        let (packets, times) = (Vec::new(), Vec::new());
        Thread { sockets, distributor, program, inserted: false, packets, stamps, times, pace }
    }

    /// Lends what was received.
    fn lend(&mut self, more: bool) {
        let Thread { sockets, packets, times, .. } = self;
        times.clear();
        if let Some(stamps) = self.stamps {
            stamps.take(packets, sockets.cache.pool().area(), times);
        }
        self.distributor.lend_timed(packets, times, &mut sockets.cache, more);
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
            true => program.insert(&self.sockets.list[0])?,
            false => program.remove(self.sockets.list[0].queue())?,
        }
        self.inserted = wanted;
        Ok(())
    }
}

impl Handler for Thread {
    fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let returned = self.distributor.collect(&mut self.sockets.cache);
        self.switch()?;
        self.sockets.supply(0)?;
        let packets = self.sockets.receive(0, context, now, &mut self.packets);
        if packets > 0 {
            self.pace.came(packets);
            // A full batch: there are mostly more.
            let full = self.packets.len() >= self.sockets.batch;
            self.lend(full);
            context.control.settle(packets, 0);
        }
        Ok(packets + returned)
    }

    /// Naps, or sleeps until there are packets, or the lender's control thread wants something, or
    /// frames may have come back that are missing.
    fn sleep(&mut self) -> anyhow::Result<()> {
        if let Rest::Nap(time) = self.pace.rest(Instant::now()) {
            idle::nap(time);
            return Ok(());
        }
        let missing = (self.sockets.list[0].outstanding().fill as usize) < self.sockets.fill;
        let longest = match self.distributor.on_loan() > 0 && missing {
            true => SHORT,
            false => idle::LONGEST,
        };
        let wanted =
            [(&self.sockets.list[0] as _, PollFlags::IN), (&self.distributor as _, PollFlags::IN)];
        idle::sleep(wanted.into_iter(), &mut self.sockets.cache, longest).context("lending")
    }

    fn patience(&self) -> Patience {
        Patience::sparing()
    }

    /// The kernel has the queue's packets again before the socket closes.
    fn end(self) {
        let mut program = self.program.lock();
        // A device that is gone has no queue.
        let _ = program.remove(self.sockets.list[0].queue());
    }
}
