//! The fill and completion ring of a queue, and the frames that the kernel has by them.
//!
//! A socket has its own, without any lock; once a second socket stands beside it, they share them
//! behind a mutex.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::{io, mem};

use frames::{Frame, FramePool, Holder};
use parking_lot::Mutex;

use super::queue::Probe;
use crate::Device;
use crate::ring::{Consumer, Producer, mapped};

/// Fill and completion ring, and how many frames went which way.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) held: Arc<Held>,
    /// Frames that went to the kernel and came back, modulo 2^32.
    pub(super) filled: u32,
    pub(super) received: u32,
    pub(super) sent: u32,
    pub(super) completed: u32,
    sizes: Sizes,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) fill: u32,
    pub(super) completion: u32,
}

/// One socket's or several sockets' buffers.
#[derive(Debug)]
pub(super) enum Shareable {
    Own(Box<Buffers>),
    Shared(Arc<Mutex<Common>>),
    /// While one becomes the other.
    Changing,
}

/// Buffers that several sockets share.
#[derive(Debug)]
pub(super) struct Common {
    buffers: Buffers,
    /// The sockets; the rings are mapped by the first.
    sockets: Vec<Weak<OwnedFd>>,
}

/// What the kernel has of a pool's frames by these rings. Dropped once the sockets are closed and
/// the rings unmapped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) pool: FramePool,
    pub(super) holder: Holder,
    pub(super) device: Device,
    pub(super) queue: u32,
    pub(super) reach: Reach,
}

/// What a device may read and write.
#[derive(Debug)]
pub(super) enum Reach {
    /// Copies.
    Copies,
    /// The frames themselves, until this says that it has let go of the queue.
    Frames(Option<Probe>),
}

impl Buffers {
    pub(super) fn new(fd: BorrowedFd<'_>, sizes: Sizes, held: Arc<Held>) -> io::Result<Self> {
        let (fill, completion) = map(fd, sizes)?;
        let (filled, received, sent, completed) = (0, 0, 0, 0);
        Ok(Self { fill, completion, held, filled, received, sent, completed, sizes })
    }

    /// Takes up to `max` frames back that were sent.
    #[inline]
    pub(super) fn complete(&mut self, max: u32, mut take: impl FnMut(Frame)) -> u32 {
        let held = &self.held;
        let done = self.completion.pop(max, |address| {
            // What is refused, the pool has counted: it is not ours to give back.
            if let Ok(frame) = held.pool.claim(address, &held.holder) {
                take(frame);
            }
        });
        self.completed = self.completed.wrapping_add(done);
        done
    }

    /// Frames with the kernel to send, or sent and not yet taken back.
    pub(super) fn sending(&self) -> u32 {
        self.sent.wrapping_sub(self.completed)
    }
}

impl Shareable {
    #[inline]
    pub(super) fn with<R>(&mut self, work: impl FnOnce(&mut Buffers) -> R) -> R {
        match self {
            Shareable::Own(buffers) => work(buffers),
            // A panic inside `work` leaves the rings as they were before the batch.
            Shareable::Shared(common) => work(&mut common.lock().buffers),
            Shareable::Changing => unreachable!("changing is over before `share` returns"),
        }
    }

    pub(super) fn read<R>(&self, work: impl FnOnce(&Buffers) -> R) -> R {
        match self {
            Shareable::Own(buffers) => work(buffers),
            Shareable::Shared(common) => work(&common.lock().buffers),
            Shareable::Changing => unreachable!("changing is over before `share` returns"),
        }
    }

    /// The same buffers for a second socket. `first` is the one that has them.
    pub(super) fn share(&mut self, first: &Arc<OwnedFd>, second: &Arc<OwnedFd>) -> Self {
        *self = match mem::replace(self, Shareable::Changing) {
            Shareable::Own(buffers) => {
                let sockets = vec![Arc::downgrade(first)];
                Shareable::Shared(Arc::new(Mutex::new(Common { buffers: *buffers, sockets })))
            }
            shared => shared,
        };
        let Shareable::Shared(common) = self else { unreachable!("made so above") };
        let mut locked = common.lock();
        locked.sockets.push(Arc::downgrade(second));
        drop(locked);
        Shareable::Shared(Arc::clone(common))
    }

    /// A socket is about to be closed. If the shared rings are mapped by it, another one of those
    /// that are left maps them anew: a mapping keeps a socket open.
    pub(super) fn leave(&mut self, fd: &Arc<OwnedFd>) {
        let Shareable::Shared(common) = self else { return };
        let mut common = common.lock();
        let common = &mut *common;
        let leaving = Arc::downgrade(fd);
        common.sockets.retain(|socket| !socket.ptr_eq(&leaving));
        let Some(heir) = common.sockets.iter().find_map(Weak::upgrade) else { return };
        // Should mapping fail, the closed socket lives on in the kernel until the others close.
        if let Ok((fill, completion)) = map(heir.as_fd(), common.buffers.sizes) {
            common.buffers.fill = fill;
            common.buffers.completion = completion;
        }
    }
}

impl Held {
    /// The sockets are closed: takes the frames back, if the device is `done` with them.
    fn end(&self, done: bool) {
        if done {
            self.pool.send_home(self.pool.reclaim(&self.holder));
        } else {
            self.pool.withhold(&self.holder);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In copy mode closing has waited for receivers, and what is still to be sent is a copy.
        let done = self.holder.frames() == 0
            || match &self.reach {
                Reach::Copies => true,
                Reach::Frames(probe) => probe.as_ref().is_some_and(Probe::is_let_go),
            };
        self.end(done);
    }
}

fn map(fd: BorrowedFd<'_>, sizes: Sizes) -> io::Result<(Producer<u64>, Consumer<u64>)> {
    let fill = mapped::map(fd, mapped::FILL, sizes.fill)?;
    let completion = mapped::map(fd, mapped::COMPLETION, sizes.completion)?;
    Ok((Producer::new(fill), Consumer::new(completion)))
}

#[cfg(test)]
mod tests {
    use frames::{AreaOptions, FrameArea, PoolOptions};

    use super::*;

    /// Of ten frames four are with the kernel.
    fn held() -> Held {
        let area = AreaOptions::default().frames(10);
        let area = FrameArea::new(&area).expect("an area");
        let pool = FramePool::new(area, &PoolOptions::default()).expect("a pool");
        let holder = pool.holder().expect("a holder");
        let mut cache = pool.cache(0).expect("a cache");
        for _ in 0..4 {
            pool.release(cache.get().expect("a frame"), &holder);
        }
        let device = Device::find("lo").expect("lo");
        Held { pool, holder, device, queue: 0, reach: Reach::Copies }
    }

    #[test]
    fn frames_stay_where_they_are_unless_the_device_is_done_with_them() {
        for (done, released, withheld) in [(true, 0, 0), (false, 4, 4)] {
            let held = held();
            held.end(done);
            let (census, counters) = (held.pool.census(), held.pool.counters());
            assert_eq!((census.released, counters.withheld), (released, withheld), "{done}");
        }
    }

    #[test]
    fn frames_of_a_device_that_cannot_be_asked_are_withheld() {
        let mut held = held();
        let pool = held.pool.clone();
        held.reach = Reach::Frames(None);
        drop(held);
        assert_eq!((pool.census().released, pool.counters().withheld), (4, 4));
    }
}
