//! What a step came to, and what a scenario says of it.

use cachelane_bridge::{Counters, Reason};

use super::net::Arm;
use super::record::Step;

/// Why a scenario says nothing: the process that it tests was kept from its CPU for so long that its
/// lease ran out, and the frames were the kernel's, as they are then to be.
pub struct Starved(pub String);

/// What a step came to.
pub struct Outcome {
    pub arm: Arm,
    pub step: Step,
    /// What the fast path has counted in this step.
    pub counted: Option<(Counters, Counters)>,
}

impl Outcome {
    fn context(&self) -> String {
        format!("step ({}), {:?}", self.step.name, self.arm)
    }

    /// So many frames arrived at a member.
    pub fn arrives(self, member: usize, frames: usize) -> Self {
        let arrived = &self.step.arrived[member];
        assert_eq!(arrived.len(), frames, "{}: at member {member}: {arrived:?}", self.context());
        self
    }

    /// At least so many frames went straight into the peer's namespace, or were left to the
    /// kernel to keep an entry fresh; not all of them the latter.
    pub fn straight(self, frames: u64) -> Self {
        self.taken("straight", frames, |stats| stats.straight)
    }

    /// As [`straight`](Self::straight), through the port's queue.
    pub fn redirected(self, frames: u64) -> Self {
        self.taken("redirected", frames, |stats| stats.redirected)
    }

    /// As [`straight`](Self::straight), either way.
    pub fn fast(self, frames: u64) -> Self {
        self.taken("fast", frames, |stats| stats.straight + stats.redirected)
    }

    /// At least so many frames were left to the kernel for this reason.
    pub fn left(self, reason: Reason, frames: u64) -> Self {
        self.counts(reason.name(), frames, |stats| stats.kernel(reason))
    }

    /// No frame took the fast path.
    pub fn kernel_only(self) -> Self {
        if let Some((before, after)) = &self.counted {
            let taken = |stats: &Counters| (stats.straight, stats.redirected);
            assert_eq!(taken(after), taken(before), "{}: frames were taken", self.context());
        }
        self
    }

    /// At most so many frames went straight into the peer's namespace.
    pub fn straight_at_most(self, frames: u64) -> Self {
        if let Some((before, after)) = &self.counted {
            let more = after.straight - before.straight;
            assert!(more <= frames, "{}: {more} went straight", self.context());
        }
        self
    }

    fn taken(self, what: &str, least: u64, count: impl Fn(&Counters) -> u64) -> Self {
        let with_refreshes = |stats: &Counters| count(stats) + stats.kernel(Reason::Refresh);
        self.counts(what, least, with_refreshes).counts(what, 1, &count)
    }

    fn counts(self, what: &str, least: u64, count: impl Fn(&Counters) -> u64) -> Self {
        if let Some((before, after)) = &self.counted {
            let more = count(after) - count(before);
            let context = self.context();
            if more < least && after.kernel(Reason::Lease) > before.kernel(Reason::Lease) {
                std::panic::panic_any(Starved(format!("{context}: {what}: {more} of {least}")));
            }
            assert!(
                more >= least,
                "{context}: {what}: {more}, expected {least}: {before:?}, then {after:?}"
            );
        }
        self
    }
}
