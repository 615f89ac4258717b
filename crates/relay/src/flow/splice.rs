//! The splice engine: pages go from the source's queue through a pipe to the target's queue. A
//! pipe comes from the worker's pool when there is something to move, and goes back when it is
//! empty, so idle connections hold none.
//!
//! The kernel raises SIGPIPE when a splice meets a reset; Rust programs ignore that signal from
//! the start, and a program that restores it must not use this engine.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::files::Permit;

use super::{
    Flow, FlowEngine, Held, Leg, ROUNDS, Resources, SourceReset, State, Turn, would_block,
};

#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    /// Given back when the pipe is closed.
    _permit: Permit,
}

impl Pipe {
    /// A new pipe of up to `wanted` bytes; less where the user's limit on pipe memory
    /// (`fs.pipe-user-pages-soft`) is used up.
    fn new(wanted: usize, permit: Permit) -> rustix::io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let capacity = fcntl_setpipe_size(&write, wanted)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))?;
        Ok(Pipe { read, write, capacity, _permit: permit })
    }
}

impl Flow {
    pub(super) fn pump_splice(
        &mut self,
        source: &mut Leg,
        target: &mut Leg,
        resources: &mut Resources,
    ) -> Result<Turn, SourceReset> {
        for _ in 0..ROUNDS {
            self.empty_pipe(target, resources);
            if !self.relief.is_empty() {
                self.return_pipe(resources);
            }
            // A PROXY header, or what a flow held before it came to this engine.
            self.flush(target, resources);
            let idle = self.state != State::Open || !target.writable || !source.readable;
            if idle {
                self.return_pipe(resources);
                return Ok(Turn::Waits);
            }
            if source.urgent || !self.take_pipe(resources) {
                // Urgent data, or no more pipes: this flow is copied from here on.
                self.return_pipe(resources);
                (self.engine, self.adapts) = (FlowEngine::Copy, false);
                return Ok(Turn::Unfinished);
            }
            self.fill_pipe(source)?;
        }
        Ok(Turn::Unfinished)
    }

    fn fill_pipe(&mut self, source: &mut Leg) -> Result<(), SourceReset> {
        let Held::Pipe { pipe, length } = &mut self.held else {
            return Ok(());
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match splice(&source.socket, None, &pipe.write, None, pipe.capacity, flags) {
            // A splice ends at urgent data too, and what is behind it would be lost.
            Ok(0) if has_bytes(source) => source.urgent = true,
            Ok(0) => {
                source.readable = false;
                self.state = State::Ended;
            }
            Ok(n) => *length = n,
            Err(Errno::INTR) => {}
            Err(e) if would_block(e) => source.readable = false,
            Err(_) => return Err(SourceReset),
        }
        Ok(())
    }

    fn empty_pipe(&mut self, target: &mut Leg, resources: &mut Resources) {
        let Held::Pipe { pipe, length } = &mut self.held else {
            return;
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        while *length > 0 && target.writable {
            match splice(&pipe.read, None, &target.socket, None, *length, flags) {
                Ok(n) => {
                    *length -= n;
                    self.written += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) if would_block(e) => {
                    target.writable = false;
                    resources.counters.backpressure.add(1);
                }
                Err(_) => {
                    // Dropped with what is in it: a pipe is reused only when empty.
                    self.held = Held::Nothing;
                    return self.lose(resources);
                }
            }
        }
    }

    fn take_pipe(&mut self, resources: &mut Resources) -> bool {
        if matches!(self.held, Held::Nothing) {
            let fresh = || {
                let permit = resources.files.take_pipe()?;
                Pipe::new(resources.shares.pipe, permit).ok()
            };
            let Some(pipe) = resources.pipes.pop().or_else(fresh) else {
                resources.counters.pipes_short.add(1);
                return false;
            };
            self.held = Held::Pipe { pipe, length: 0 };
        }
        true
    }

    fn return_pipe(&mut self, resources: &mut Resources) {
        if matches!(self.held, Held::Pipe { length: 0, .. })
            && let Held::Pipe { pipe, .. } = std::mem::replace(&mut self.held, Held::Nothing)
            && resources.pipes.len() < Resources::SPARE
        {
            resources.pipes.push(pipe);
        }
    }
}

fn has_bytes(leg: &Leg) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(&leg.socket, &mut [0; 1], flags).is_ok_and(|(n, _)| n > 0)
}
