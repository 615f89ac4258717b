//! Bulk: a flow that moves many bytes without a pause is worth fewer, larger steps.
//!
//! Each wake-up of a worker costs about as much as the copying of 64 KiB, and more in a virtual
//! machine, where waking an idle CPU leaves the guest. So once a flow has moved [`RUN`] bytes
//! without starving, its source wakes the worker only when a whole chunk is there
//! (`SO_RCVLOWAT`). The price is that the last bytes before a pause may wait: the worker looks at
//! such flows every [`POLL`](crate::worker::POLL), reads what is there if nothing moved since the
//! last look, and after a few poor looks in a row takes the flow for starved: it goes back to the
//! usual way. A FIN or a reset wakes the worker at once.
//!
//! Measured by `cachelane bench relay`, cases `bulk … relay` and `bulk … relay-unbatched`.

use std::os::fd::OwnedFd;

use crate::sockopt;

/// Bytes without a pause that make a flow bulk: so many that two looks' delay at their end,
/// which is the worst, is small beside the time that they took.
pub(super) const RUN: u64 = 4 << 20;

/// Bytes since the last look below which the look is poor: 128 MB/s.
const POOR: u64 = 64 << 10;
/// Poor looks in a row after which a flow has starved.
const PATIENCE: u32 = 4;

/// What is known of a flow's pace.
#[derive(Debug, Default)]
pub(super) struct Bulk {
    /// Bytes moved since the flow last starved.
    run: u64,
    /// Bytes moved since the last look.
    since_look: u64,
    poor_looks: u32,
    batching: bool,
}

impl Bulk {
    /// Takes note of bytes moved; returns whether the flow now needs looking at.
    pub(super) fn moved(&mut self, bytes: u64, source: &OwnedFd, low_water: usize) -> bool {
        self.run += bytes;
        self.since_look += bytes;
        if !self.batching && self.run >= RUN {
            self.batching = sockopt::set_receive_low_water(source, low_water).is_ok();
        }
        self.batching
    }

    pub(super) fn is_batching(&self) -> bool {
        self.batching
    }

    /// A look. True: nothing has moved since the last one, and what is there must be read now.
    pub(super) fn look(&mut self, source: &OwnedFd) -> bool {
        let moved = std::mem::take(&mut self.since_look);
        self.poor_looks = if moved < POOR { self.poor_looks + 1 } else { 0 };
        let stuck = self.batching && moved == 0;
        if self.batching && self.poor_looks >= PATIENCE {
            self.stop(source);
        }
        stuck
    }

    /// Back to the usual way: any byte wakes the worker.
    pub(super) fn stop(&mut self, source: &OwnedFd) {
        if std::mem::take(self).batching {
            // If it fails the socket is broken, which the next read tells.
            let _ = sockopt::set_receive_low_water(source, 1);
        }
    }
}
