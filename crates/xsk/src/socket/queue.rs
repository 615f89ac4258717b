//! Whether somebody has a queue: asked after its sockets are closed.

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use frames::{AreaOptions, FrameArea, FramePool, HugePages, PoolOptions};
use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};

use super::open::prepare;
use crate::umem::Registrations;
use crate::{Device, SocketOptions};

/// How long the driver may take to let go of a queue.
const LETS_GO: Duration = Duration::from_secs(1);

/// Asks whether somebody has a queue. It is made while the queue is bound, so that it can ask later
/// from another network namespace, without privileges, and when no memory may be locked any more.
#[derive(Debug)]
pub(super) struct Probe {
    /// Never bound while anybody has the queue.
    fd: OwnedFd,
    /// The memory that it is registered with.
    _pool: FramePool,
    address: SocketAddrXdp,
}

impl Probe {
    /// For a queue of a device of the network namespace that the caller is in. None if it cannot be
    /// made: then nothing is known of the queue later.
    pub(super) fn new(device: &Device, queue: u32) -> Option<Self> {
        // A transmit ring and no memory at all: the kernel looks at the queue last, so that this asks
        // by a registration of one page.
        let page = AreaOptions::default().frames(2).frame_size(2048).huge_pages(HugePages::Never);
        let area = FrameArea::new(&page).ok()?;
        let pool = FramePool::new(area, &PoolOptions::default()).ok()?;
        let options = SocketOptions::default().rx_size(0).tx_size(2);
        let fd = Registrations::default().own(&pool).ok()?;
        prepare(fd.as_fd(), &options, true).ok()?;
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, device.index(), queue);
        Some(Self { fd, _pool: pool, address })
    }

    /// Whether the driver has let go of the queue: it does so after the last socket is closed, and
    /// after that the queue is free. What is not known for certain is no.
    pub(super) fn is_let_go(&self) -> bool {
        comes_true(|| says_free(rustix::net::bind(&self.fd, &self.address)), LETS_GO)
    }
}

fn comes_true(mut is_so: impl FnMut() -> bool, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// What an attempt to bind says of the queue.
fn says_free(bound: rustix::io::Result<()>) -> bool {
    // A device that goes away has been taken from its sockets before.
    matches!(bound, Ok(()) | Err(Errno::NODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_free_queue_is_let_go() {
        let (brief, long) = (Duration::from_millis(5), Duration::from_secs(60));
        let answers = |mut answers: Vec<bool>| move || answers.pop().unwrap_or(false);
        assert!(comes_true(answers(vec![true]), Duration::ZERO));
        assert!(comes_true(answers(vec![true, false, false]), long));
        assert!(!comes_true(|| false, brief), "another socket has it, or the look itself fails");
    }

    #[test]
    fn a_queue_is_free_only_if_that_is_certain() {
        for (bound, free) in [
            (Ok(()), true),
            (Err(Errno::NODEV), true),
            (Err(Errno::BUSY), false),
            (Err(Errno::INVAL), false),
            (Err(Errno::NOBUFS), false),
            (Err(Errno::PERM), false),
            (Err(Errno::NETDOWN), false),
        ] {
            assert_eq!(says_free(bound), free, "{bound:?}");
        }
    }
}
