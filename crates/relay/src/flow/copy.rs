//! The copy engine: one read into the worker's scratch chunk, one write from it. What the target
//! does not take is set aside, and nothing more is read until it has.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{Flow, Held, Leg, ROUNDS, Resources, SourceReset, State, Turn, would_block};
use crate::socket::Shares;

impl Flow {
    pub(super) fn pump_copy(
        &mut self,
        source: &mut Leg,
        target: &mut Leg,
        resources: &mut Resources,
    ) -> Result<Turn, SourceReset> {
        for _ in 0..ROUNDS {
            self.flush(target, resources);
            if self.state != State::Open || !target.writable || !source.readable {
                return Ok(Turn::Waits);
            }
            if let Some(n) = self.read(source, resources)? {
                self.write_scratch(n, target, resources);
            }
        }
        Ok(Turn::Unfinished)
    }

    /// Reads into the scratch chunk. `None`: nothing there, or the source has ended.
    pub(super) fn read(
        &mut self,
        source: &mut Leg,
        resources: &mut Resources,
    ) -> Result<Option<usize>, SourceReset> {
        // A flow that is no bulk may have to set aside what it reads: it reads less at a time.
        let most = if self.bulk.is_batching() { usize::MAX } else { Shares::READ };
        let most = most.min(resources.scratch.len());
        let scratch = &mut resources.scratch[..most];
        match rustix::net::recv(&source.socket, &mut scratch[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                source.readable = false;
                self.state = State::Ended;
                Ok(None)
            }
            Ok((n, _)) => {
                // epoll(7): a short read from a stream means that it is drained, unless its end
                // is near, which has no edge of its own, or it stopped at urgent data. A Unix socket
                // also stops where files or credentials were sent along.
                if n < scratch.len() && !source.hup && !source.urgent && !source.is_unix {
                    source.readable = false;
                }
                Ok(Some(n))
            }
            Err(Errno::INTR) => Ok(None),
            Err(e) if would_block(e) => {
                source.readable = false;
                Ok(None)
            }
            Err(_) => Err(SourceReset),
        }
    }

    /// Writes the first `n` bytes of the scratch chunk, and sets aside what is not taken.
    pub(super) fn write_scratch(&mut self, n: usize, target: &mut Leg, resources: &mut Resources) {
        let sent = match send(target, &resources.scratch[..n]) {
            Ok(sent) => sent,
            Err(_) => return self.lose(resources),
        };
        self.written += sent as u64;
        if sent < n {
            resources.counters.backpressure.add(1);
            self.held = resources.hold_scratch(sent, n);
        }
    }

    /// Writes what was set aside, as far as the target takes it.
    pub(super) fn flush(&mut self, target: &mut Leg, resources: &mut Resources) {
        self.flush_held(target, resources);
        while self.hold_relief() {
            self.flush_held(target, resources);
        }
    }

    pub(super) fn flush_held(&mut self, target: &mut Leg, resources: &mut Resources) {
        let Held::Bytes { buffer, from, to } = &mut self.held else {
            return;
        };
        while *from < *to && target.writable {
            match send(target, &buffer[*from..*to]) {
                Ok(sent) => {
                    *from += sent;
                    self.written += sent as u64;
                }
                Err(_) => return self.lose(resources),
            }
        }
        if *from == *to
            && let Held::Bytes { buffer, .. } = std::mem::replace(&mut self.held, Held::Nothing)
        {
            resources.take_back(buffer);
        }
    }
}

/// Sends what the target takes now; less than all clears `writable`.
fn send(target: &mut Leg, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(&target.socket, bytes, flags) {
        Ok(sent) => {
            if sent < bytes.len() {
                target.writable = false;
            }
            Ok(sent)
        }
        Err(Errno::INTR) => Ok(0),
        Err(e) if would_block(e) => {
            target.writable = false;
            Ok(0)
        }
        Err(e) => Err(e),
    }
}
