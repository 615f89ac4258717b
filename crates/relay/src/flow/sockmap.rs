//! A flow in the verdict's hands: user space forwards what the verdict passed, after all that
//! was redirected has arrived. See `crate::sockmap` for the protocol between the two.

use std::sync::Arc;

use kit::Count;

use super::{Flow, FlowEngine, Held, Leg, ROUNDS, Resources, SourceReset, State, Turn};
use crate::counters::Counters;
use crate::sockmap::{Sockmap, Taken};

impl Flow {
    pub(super) fn pump_sockmap(
        &mut self,
        source: &mut Leg,
        target: &mut Leg,
        forwarded: impl Fn(&Counters) -> &Count,
        resources: &mut Resources,
    ) -> Result<Turn, SourceReset> {
        let Some(sockmap) = resources.sockmap.clone() else {
            return Err(SourceReset);
        };
        self.count_redirected(&sockmap, forwarded, &resources.counters)?;
        if target.broken {
            // What still comes is thrown away when an event tells of it.
            self.taken().into_iter().for_each(|taken| sockmap.put_to_sleep(taken));
            self.lose(resources);
            return Ok(Turn::Waits);
        }
        // Passed bytes raise no event while the socket is watched for its end alone.
        source.readable = true;
        for _ in 0..ROUNDS {
            self.hold_relief();
            if !matches!(self.held, Held::Nothing)
                && !self.flush_passed(&sockmap, target, resources)
            {
                return Ok(Turn::Polls);
            }
            if self.hold_relief() {
                continue;
            }
            if self.state != State::Open {
                return Ok(Turn::Polls);
            }
            match self.read(source, resources)? {
                Some(n) => self.held = resources.hold_scratch(0, n),
                None if self.state == State::Open && !source.readable => {
                    // Nothing that was passed is left here.
                    let looking = resources.looking;
                    let again = self.taken().is_some_and(|taken| sockmap.settle(taken, looking));
                    return Ok(if again { Turn::Polls } else { Turn::Waits });
                }
                None => {}
            }
        }
        Ok(Turn::Unfinished)
    }

    /// Writes passed bytes once everything redirected has arrived; true when all are written.
    fn flush_passed(
        &mut self,
        sockmap: &Arc<Sockmap>,
        target: &mut Leg,
        resources: &mut Resources,
    ) -> bool {
        let held = match &self.held {
            Held::Bytes { from, to, .. } => to - from,
            Held::Nothing | Held::Pipe { .. } => 0,
        };
        let may = |taken| sockmap.may_forward(taken, &target.socket, held);
        if !self.taken().is_some_and(may) {
            return false;
        }
        let before = self.written;
        self.flush_held(target, resources);
        let moved = self.written - before;
        if let Some(taken) = self.taken() {
            taken.forwarded += moved;
        }
        matches!(self.held, Held::Nothing)
    }

    fn count_redirected(
        &mut self,
        sockmap: &Sockmap,
        forwarded: impl Fn(&Counters) -> &Count,
        counters: &Counters,
    ) -> Result<(), SourceReset> {
        if let Some(taken) = self.taken() {
            let moved = sockmap.moved(taken);
            forwarded(counters).add(moved.bytes);
            counters.bytes_redirected.add(moved.bytes);
            counters.sockmap_held.add(moved.held);
            counters.sockmap_trimmed.add(moved.trimmed);
            if moved.lost {
                return Err(SourceReset);
            }
        }
        Ok(())
    }

    pub(crate) fn taken(&mut self) -> Option<&mut Taken> {
        match &mut self.engine {
            FlowEngine::Sockmap(taken) => Some(taken),
            FlowEngine::Copy | FlowEngine::Splice => None,
        }
    }
}
