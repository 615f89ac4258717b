//! The sockmap engine: hands one direction of a connection to a BPF verdict, takes back what the
//! verdict leaves to user space, and knows when everything has arrived.
//!
//! # Protocol between the verdict and user space
//!
//! The verdict redirects while the bytes on their way to the target's peer stay within the
//! budget, and passes everything else to the source's own receive queue, where the kernel
//! accounts for it and the sender is slowed. Once it has passed a byte it passes all, until
//! `progress.forwarded` says that user space has written every passed byte to the target.
//! User space, before it writes the first passed byte, waits until the target's peer has
//! acknowledged everything that was redirected. So the two never have bytes under way at the
//! same time, and order is kept.
//!
//! # Sleep
//!
//! A redirected packet raises no event, so user space looks, every half millisecond. When looks have
//! found nothing for a while, it sets `progress.asleep`, on which the verdict passes every packet, and
//! then watches the source's queue: what the verdict passed before that is an event at once, and what
//! it passes later is one when it comes. A packet that it was redirecting at that moment needs nobody;
//! the last looks count it. Once enough was passed, user space sets the flag back.
//!
//! # One direction a connection
//!
//! A socket that is target of a redirect has that data queued in a place that its own passed
//! data would share: without accounting, and stuck behind it. So the socket that is a target is
//! never a source: the other direction is copied.
//!
//! # The jiffy
//!
//! When the target's send buffer is half full the kernel retries one jiffy later, so throughput
//! would be half the send buffer per jiffy. The budget bounds what is on its way, so the send
//! buffer is made so large that the budget is used up first: see [`Sockmap::take`].

mod maps;

use std::os::fd::{AsRawFd as _, OwnedFd};

use parking_lot::Mutex;
use rustix::net::sockopt::socket_cookie;

use crate::repeated::say;
use crate::socket::{self, Shares};
use crate::{Error, sockopt};
pub(crate) use maps::needs_kernel;
use maps::{Flow, Maps, Progress};

/// `bytes_acked` of a socket that was opened with connect(2) counts its SYN.
const ACTIVE_OPEN: u64 = 1;

/// The engine, shared by all workers.
#[derive(Debug)]
pub(crate) struct Sockmap {
    maps: Maps,
    free: Mutex<Vec<u32>>,
}

/// Which end of a flow the relay opened itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// The target was accepted.
    Passively,
    /// The target was connected by the relay.
    Actively,
}

/// One direction of a connection in the verdict's hands.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    cookie: u64,
    slot: u32,
    /// What `bytes_acked` of the target is once everything before the hand-over is acked.
    base: u64,
    /// Bytes that may be on their way to the target's peer, unacknowledged.
    budget: u64,
    /// Passed bytes that user space wrote to the target, all told.
    pub(crate) forwarded: u64,
    /// What the verdict was last told of `forwarded`.
    published: u64,
    /// Redirected bytes that were already counted in the worker's counters.
    counted: u64,
    held_counted: u64,
    trimmed_counted: u64,
    /// Whether the redirected bytes are known to be acked; that stays so until `publish`.
    drained: bool,
    /// Looks in a row that found nothing redirected.
    quiet: u32,
    /// The verdict passes everything: what `forwarded` was when it began to.
    asleep: Option<u64>,
    /// Whether the worker watches the source's queue, as it has to for a flow that is asleep.
    watched: bool,
}

/// Looks without a redirected byte after which a flow is put to sleep.
const QUIET: u32 = 4;

/// Looks after which it is left alone.
const ALONE: u32 = QUIET + 2;

/// Passed bytes that wake a flow up again.
const AWAKE: u64 = crate::flow::TAKEN_OVER;

/// What the verdict has done since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) bytes: u64,
    pub(crate) held: u64,
    pub(crate) trimmed: u64,
    /// The verdict had to drop bytes: the stream cannot go on.
    pub(crate) lost: bool,
}

impl Taken {
    /// Bytes redirected, as of the last call of [`Sockmap::moved`].
    pub(crate) fn redirected(&self) -> u64 {
        self.counted
    }

    /// Whether the source's queue is to be watched from now on, if that has changed.
    pub(crate) fn rewatch(&mut self) -> Option<bool> {
        let asleep = self.asleep.is_some();
        (std::mem::replace(&mut self.watched, asleep) != asleep).then_some(asleep)
    }
}

impl Sockmap {
    /// Loads the BPF object with room for `slots` directions at a time.
    pub(crate) fn load(slots: u32) -> Result<Sockmap, Error> {
        Ok(Sockmap { maps: Maps::load(slots)?, free: Mutex::new((0..slots).rev().collect()) })
    }

    /// Hands the direction from `source` to `target` to the verdict.
    ///
    /// The caller has read `source` until it would block, and has written every byte of it,
    /// `written` over the connection's life, to `target`. `None`: it stays with the caller,
    /// because there is no slot or the kernel refused.
    pub(crate) fn take(
        &self,
        source: &OwnedFd,
        target: &OwnedFd,
        opened: Opened,
        written: u64,
        shares: Shares,
    ) -> Option<Taken> {
        let slot = self.free.lock().pop()?;
        let budget = shares.redirected();
        // Never so full that the kernel sleeps a jiffy: it does at half the buffer, and counts
        // its own overhead in. If this fails the socket is broken, which its flow finds out.
        let _ = socket::limit_send(target, 4 * budget);
        let _ = socket::limit_receive(source, shares.passed());
        let base = written + if opened == Opened::Actively { ACTIVE_OPEN } else { 0 };
        let budget = budget as u64;
        match self.insert(slot, source, target, base, budget) {
            Ok(cookie) => Some(Taken { cookie, slot, base, budget, ..Taken::default() }),
            Err(error) => {
                say!(DEBUG, "sockmap refused a connection: {error}");
                self.give_back(slot);
                let _ = socket::limit_send(target, shares.send);
                let _ = socket::limit_receive(source, shares.receive);
                None
            }
        }
    }

    fn insert(
        &self,
        slot: u32,
        source: &OwnedFd,
        target: &OwnedFd,
        base: u64,
        budget: u64,
    ) -> std::io::Result<u64> {
        let cookie = socket_cookie(source)?;
        // A flow that is handed over counts as one of large packets until it shows otherwise.
        let average = 1 << 16;
        let flow = Flow { slot, base, budget, average, ..Flow::default() };
        let Maps { sources, targets, flows, progress } = &self.maps;
        progress.set(&slot, &Progress { forwarded: 0, asleep: 0 })?;
        targets.set(&slot, &(target.as_raw_fd() as u64))?;
        flows.insert(&cookie, &flow)?;
        // Last: from here on the verdict sees the source's data.
        let taken = sources.set(&slot, &(source.as_raw_fd() as u64));
        taken.inspect_err(|_| self.remove_flow(cookie))?;
        Ok(cookie)
    }

    /// What the verdict has done since the last call.
    pub(crate) fn moved(&self, taken: &mut Taken) -> Moved {
        let Ok(Some(flow)) = self.maps.flows.find::<Flow>(&taken.cookie) else {
            return Moved::default();
        };
        let moved = Moved {
            bytes: flow.redirected - taken.counted,
            held: flow.held - taken.held_counted,
            trimmed: flow.trimmed - taken.trimmed_counted,
            lost: flow.lost > 0,
        };
        if moved.bytes > 0 {
            taken.quiet = 0;
        }
        (taken.counted, taken.held_counted) = (flow.redirected, flow.held);
        taken.trimmed_counted = flow.trimmed;
        moved
    }

    /// Whether the target's peer has acknowledged all that was sent to it so far: redirected,
    /// forwarded, and before the hand-over. Only then may the target be shut down.
    pub(crate) fn is_drained(&self, taken: &Taken, target: &OwnedFd) -> bool {
        self.on_the_way(taken, target) == Some(0)
    }

    /// Whether user space may write `bytes` of what was passed: nothing redirected is on its way
    /// any more, and the budget has room for them, or nothing at all is on its way: what was read may
    /// be more than a small budget.
    pub(crate) fn may_forward(&self, taken: &mut Taken, target: &OwnedFd, bytes: usize) -> bool {
        let Some(on_the_way) = self.on_the_way(taken, target) else {
            return false;
        };
        taken.drained |= on_the_way == 0;
        taken.drained && (on_the_way == 0 || on_the_way + bytes as u64 <= taken.budget)
    }

    /// Bytes sent to the target and not yet acknowledged by its peer; none if it cannot be told.
    fn on_the_way(&self, taken: &Taken, target: &OwnedFd) -> Option<u64> {
        let Flow { redirected, .. } = self.maps.flows.find(&taken.cookie).ok()??;
        let acked = sockopt::bytes_acked(target).ok()?;
        Some((taken.base + redirected + taken.forwarded).saturating_sub(acked))
    }

    /// All that was passed is written. Returns whether the flow has to be looked at again without an
    /// event.
    pub(crate) fn settle(&self, taken: &mut Taken, looking: bool) -> bool {
        taken.quiet += u32::from(looking);
        if let Some(from) = taken.asleep {
            if taken.forwarded - from < AWAKE {
                return taken.quiet < ALONE;
            }
            taken.quiet = 0;
        }
        self.publish(taken);
        if taken.quiet >= QUIET {
            self.put_to_sleep(taken);
        }
        true
    }

    /// Tells the verdict that all of `taken.forwarded` is written, so that it may redirect again.
    fn publish(&self, taken: &mut Taken) {
        if taken.published == taken.forwarded && taken.asleep.is_none() {
            return;
        }
        let done = Progress { forwarded: taken.forwarded, asleep: 0 };
        match self.maps.progress.set(&taken.slot, &done) {
            Ok(()) => {
                (taken.published, taken.drained) = (taken.forwarded, false);
                taken.asleep = None;
            }
            // The verdict goes on passing everything: slower, and still in order.
            Err(error) => say!(DEBUG, "sockmap progress was not published: {error}"),
        }
    }

    /// Has the verdict pass everything, so that whatever comes raises an event.
    pub(crate) fn put_to_sleep(&self, taken: &mut Taken) {
        let asleep = Progress { forwarded: taken.published, asleep: 1 };
        match self.maps.progress.set(&taken.slot, &asleep) {
            Ok(()) => taken.asleep = Some(taken.forwarded),
            // It is looked at as before.
            Err(error) => say!(DEBUG, "a sockmap flow was not put to sleep: {error}"),
        }
    }

    /// Forgets a direction whose sockets are closed, or are about to be.
    pub(crate) fn forget(&self, taken: Taken) {
        self.remove_flow(taken.cookie);
        self.give_back(taken.slot);
    }

    fn remove_flow(&self, cookie: u64) {
        // It may never have been there: removal is for cleaning up.
        let _ = self.maps.flows.remove(&cookie);
    }

    fn give_back(&self, slot: u32) {
        // A closed socket has left the map by itself.
        let _ = self.maps.targets.remove(&slot);
        self.free.lock().push(slot);
    }
}
