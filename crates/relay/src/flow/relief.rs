//! Relief for a flow whose source's leg hears nothing: it reads on into a reserve.
//!
//! A flow does not read while its target takes nothing, so that its source's window closes. Linux
//! does not always close it in peace. Small segments take more of a receive buffer's memory than the
//! kernel has promised a window for: it then drops the next one, takes the window back, and drops all
//! that lies beyond it (`tcp_data_queue`, `tcp_sequence`). Beyond it is what the source's peer has
//! sent already, and so are the acknowledgements that it sends behind that. If that is less than a
//! unit of the peer's own window scale, the peer does not avoid it (`tcp_acceptable_seq`). So the
//! relay never learns that the peer takes bytes, and the reverse flow stays blocked. If the other leg
//! is in the same state, each flow waits for the other, for ever.
//!
//! A read that frees enough memory opens the window (`__tcp_select_window`: more than half of the
//! clamp), and then the kernel listens again. So each direction's share has a part for this alone,
//! beside what it does not use of its pipe. The source's peer may fill that window, too, and bring
//! the leg back to where it was. So a relief is small, is given only where the leg hears nothing, and
//! is repeated: a peer that merely does not read costs nothing of the reserve. A Unix socket has no
//! acknowledgements and needs none of this.

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{Flow, FlowEngine, Held, Leg, Resources, State};
use crate::socket::Shares;
use crate::sockopt::{clamp_window, free_to_receive, hears_nothing};

impl Flow {
    /// Whether the flow waits for its target before it reads on, and could read on meanwhile. Room
    /// for less than a whole relief is none: the source would offer a window that its memory may run
    /// out before.
    pub(crate) fn may_need_relief(
        &self,
        source: &Leg,
        target: &Leg,
        resources: &Resources,
    ) -> bool {
        let waits = match self.engine {
            FlowEngine::Copy | FlowEngine::Splice => !target.writable,
            FlowEngine::Sockmap(_) => self.holds(),
        };
        let whole = 2 * resources.shares.relief();
        !source.is_unix
            && waits
            && self.state == State::Open
            && source.readable
            && self.room(resources) >= whole
    }

    /// If it waits and its source's leg hears nothing: reads until that has memory for twice the
    /// window that it then offers.
    pub(crate) fn relieve(&mut self, source: &mut Leg, target: &Leg, resources: &mut Resources) {
        if !self.may_need_relief(source, target, resources) || !hears_nothing(&source.socket) {
            return;
        }
        let window = resources.shares.relief();
        let is_full =
            |source: &Leg| free_to_receive(&source.socket).is_ok_and(|free| free < 2 * window);
        self.clamped = clamp_window(&source.socket, window).is_ok();
        let before = self.relief.len();
        while source.readable && self.room(resources) > 0 && is_full(source) {
            let most = self.room(resources).min(window).min(resources.scratch.len());
            let scratch = &mut resources.scratch[..most];
            match rustix::net::recv(&source.socket, &mut scratch[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    source.readable = false;
                    self.state = State::Ended;
                }
                Ok((n, _)) => {
                    self.relief.reserve_exact(n);
                    self.relief.extend_from_slice(&scratch[..n]);
                }
                Err(Errno::INTR) => {}
                // Also an error, which its next read or an event tells.
                Err(_) => source.readable = false,
            }
        }
        resources.counters.relieved.add(u64::from(self.relief.len() > before));
    }

    /// The source may offer its whole window again once nothing is held that it gave.
    pub(super) fn end_relief(&mut self, source: &Leg, shares: Shares) {
        if self.clamped && !self.holds() {
            // If it fails the socket is broken, which the next read tells.
            let _ = clamp_window(&source.socket, shares.pool());
            self.clamped = false;
        }
    }

    /// What the direction's share has room for: its reserve, and what it does not use of its pipe.
    fn room(&self, resources: &Resources) -> usize {
        let share = resources.shares.pipe + resources.shares.reserve;
        share.saturating_sub(self.held_length())
    }

    /// Holds the reserve, if nothing else is held before it: whether it did.
    pub(super) fn hold_relief(&mut self) -> bool {
        if self.relief.is_empty() || !matches!(self.held, Held::Nothing) {
            return false;
        }
        let buffer = std::mem::take(&mut self.relief).into_boxed_slice();
        let to = buffer.len();
        self.held = Held::Bytes { buffer, from: 0, to };
        true
    }
}
