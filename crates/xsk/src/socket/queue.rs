//! Whether somebody has a queue: asked after its sockets are closed.

use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use frames::{AreaOptions, FrameArea, FramePool, HugePages, PoolOptions};
use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};

use super::open::prepare;
use crate::umem::Registrations;
use crate::{Device, Error, SocketOptions, sys};

/// How long the driver may take to let go of a queue.
const LETS_GO: Duration = Duration::from_secs(1);

/// Whether the driver has let go of a queue: it does so after the last socket is closed, and after
/// that the queue is free. What is not known for certain is no.
pub(super) fn is_let_go(device: &Device, queue: u32, namespace: Option<u64>) -> bool {
    has_let_go(|| look_at(device, queue, namespace), LETS_GO)
}

/// What is known of a queue whose sockets are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// The driver has let go of it, and of all frames.
    Free,
    Taken,
    Unknown,
}

fn has_let_go(mut look: impl FnMut() -> Queue, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        if look() == Queue::Free {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether somebody has the queue of a device in this namespace: a socket could be bound to it.
fn look_at(device: &Device, queue: u32, namespace: Option<u64>) -> Queue {
    // A transmit ring and no memory at all: the kernel looks at the queue last, so that this asks
    // by a registration of one page.
    let page = AreaOptions::default().frames(2).frame_size(2048).huge_pages(HugePages::Never);
    let Ok(area) = FrameArea::new(&page) else { return Queue::Unknown };
    let Ok(pool) = FramePool::new(area, &PoolOptions::default()) else {
        return Queue::Unknown;
    };
    let options = SocketOptions::default().rx_size(0).tx_size(2);
    let probe = || {
        let fd = Registrations::default().own(&pool)?;
        // By its index it would be another device elsewhere.
        let here = sys::namespace(fd.as_fd());
        if here.is_none() || here != namespace {
            return Ok(Queue::Unknown);
        }
        prepare(fd.as_fd(), &options, true)?;
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, device.index(), queue);
        Ok::<_, Error>(state_of(rustix::net::bind(&fd, &address)))
    };
    probe().unwrap_or(Queue::Unknown)
}

/// What an attempt to bind says of the queue.
fn state_of(bound: rustix::io::Result<()>) -> Queue {
    match bound {
        // A device that goes away has been taken from its sockets before.
        Ok(()) | Err(Errno::NODEV) => Queue::Free,
        Err(Errno::BUSY) => Queue::Taken,
        Err(_) => Queue::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_free_queue_is_let_go() {
        let (brief, long) = (Duration::from_millis(5), Duration::from_secs(60));
        let answers = |mut answers: Vec<Queue>| move || answers.pop().unwrap_or(Queue::Unknown);
        assert!(has_let_go(answers(vec![Queue::Free]), Duration::ZERO));
        assert!(has_let_go(answers(vec![Queue::Free, Queue::Taken, Queue::Unknown]), long));
        assert!(!has_let_go(|| Queue::Taken, brief), "another socket may have it by now");
        assert!(!has_let_go(|| Queue::Unknown, brief), "the look itself fails");
    }

    #[test]
    fn a_queue_is_free_only_if_that_is_certain() {
        for (bound, queue) in [
            (Ok(()), Queue::Free),
            (Err(Errno::NODEV), Queue::Free),
            (Err(Errno::BUSY), Queue::Taken),
            (Err(Errno::INVAL), Queue::Unknown),
            (Err(Errno::NOBUFS), Queue::Unknown),
            (Err(Errno::PERM), Queue::Unknown),
            (Err(Errno::NETDOWN), Queue::Unknown),
        ] {
            assert_eq!(state_of(bound), queue, "{bound:?}");
        }
    }
}
