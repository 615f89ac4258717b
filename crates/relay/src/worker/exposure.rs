//! Which bytes move as the knobs' present values want it. `relay.engine` and `relay.cpus` reach
//! new connections, so somebody who compares two values has to know how much of the work they reach.
//!
//! **Engine**: a connection that was accepted while the knob had the value that it has now, whatever
//! it was in between and whatever `auto` chose; or a flow that moves as one of such a connection
//! would: see [`Flow::moves_as`](crate::flow::Flow::moves_as).
//!
//! **CPUs**: a connection stays with its worker, and workers move. So a connection is where the
//! present set would have put it if it came when there were workers for all CPUs of the set, and if
//! its worker runs on the CPU that it was given: the kernel moves a thread whose CPU goes offline or
//! is taken from the process. Bytes that the sockmap engine redirects are counted likewise, though
//! they move on whatever CPU the kernel received them: another set would not change that.
//!
//! Bytes are counted in the turn that moves them, in the worker's own counters, by values that all
//! workers only read. Those that the kernel moves are counted when the worker looks at their flow,
//! every [`POLL`](super::POLL).

use crate::config::Engine;
use crate::connection::{Origin, Relaying};
use crate::counters::Counters;
use crate::placement::Place;
use crate::shared::Shared;

/// The knobs' present values, as far as they matter to one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct InForce {
    engine: Engine,
    /// CPUs in the set; none while the worker is not where it is to be.
    cpus: Option<usize>,
}

impl InForce {
    /// For the calling thread, which was given the place `own`. What was sent after a knob was set has
    /// moved under the new value: ask after the move.
    pub(super) fn now(shared: &Shared, own: &Place) -> InForce {
        InForce { engine: shared.engine(), cpus: own.is_kept().then(|| shared.cpus()) }
    }

    /// Counts what a connection's flows have moved since it was `before`.
    pub(super) fn count(
        self,
        origin: Origin,
        relaying: &Relaying,
        before: [u64; 2],
        counters: &Counters,
    ) {
        let (mut all, mut under_engine) = (0, 0);
        for (flow, before) in relaying.flows().into_iter().zip(before) {
            let moved = flow.moved() - before;
            all += moved;
            if flow.moves_as(origin.engine, self.engine) {
                under_engine += moved;
            }
        }
        counters.bytes_under_engine.add(under_engine);
        if self.cpus.is_some_and(|cpus| origin.crew >= cpus) {
            counters.bytes_under_cpus.add(all);
        }
        // Last: whoever waits for all bytes to be counted then reads the others.
        counters.bytes.add(all);
    }
}
