//! What a borrower waits for: the lender's wake-up, and its end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, recv};

use super::Wait;

/// Our end of the socket: a message is a wake-up, and its end is the lender's.
#[derive(Debug)]
pub(super) struct Wakeups {
    socket: OwnedFd,
}

impl Wakeups {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Waits for a wake-up or a signal (ready), or until the lender is gone (closed) or the time is
    /// over; none is no limit.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Wait> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let flags = match timeout {
            // One system call.
            None => RecvFlags::empty(),
            Some(Timespec { tv_sec: 0, tv_nsec: 0 }) => RecvFlags::DONTWAIT,
            Some(_) => {
                let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
                match poll(&mut polled, timeout.as_ref()) {
                    Ok(0) => return Ok(Wait::TimedOut),
                    Err(Errno::INTR) => return Ok(Wait::Ready),
                    Ok(_) => RecvFlags::DONTWAIT,
                    Err(error) => return Err(error),
                }
            }
        };
        match recv(&self.socket, &mut [0; 16], flags) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => Ok(Wait::Closed),
            Ok(_) | Err(Errno::INTR) => Ok(Wait::Ready),
            Err(Errno::AGAIN) => Ok(Wait::TimedOut),
            Err(error) => Err(error),
        }
    }
}
