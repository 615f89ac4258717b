//! Messages to a thread that may be asleep.
//!
//! For messages that are rare: each costs a system call. Looking whether there are any costs a load.
//!
//! # Protocol
//!
//! Who sends puts the message into the channel, makes the event readable, and sets the flag
//! (release). Who takes clears the flag (acquire), reads the event, and empties the channel. So
//! the event is never readable without the flag being set after it: a thread that polls the event
//! finds messages or has taken them, and does not spin.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Result, read, write};

/// Where messages are sent from; any number of threads.
#[derive(Debug)]
pub(crate) struct Post<T> {
    sender: Sender<T>,
    waiting: Arc<Waiting>,
}

#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    receiver: Receiver<T>,
    waiting: Arc<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    flag: AtomicBool,
    event: OwnedFd,
}

pub(crate) fn mailbox<T>() -> Result<(Post<T>, Mailbox<T>)> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let waiting = Arc::new(Waiting { flag: AtomicBool::new(false), event });
    let (sender, receiver) = mpsc::channel();
    Ok((Post { sender, waiting: Arc::clone(&waiting) }, Mailbox { receiver, waiting }))
}

impl<T> Post<T> {
    /// Sends a message; false if nobody will ever take it.
    pub(crate) fn send(&self, message: T) -> bool {
        if self.sender.send(message).is_err() {
            return false;
        }
        // It fails only if the event is readable as it is.
        let _ = write(&self.waiting.event, &1_u64.to_ne_bytes());
        // Release: the partner is in `Mailbox::take`.
        self.waiting.flag.store(true, Ordering::Release);
        true
    }
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waiting: Arc::clone(&self.waiting) }
    }
}

impl<T> Mailbox<T> {
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        // Relaxed: `take` orders it.
        self.waiting.flag.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> impl Iterator<Item = T> {
        // Acquire: what was sent before the flag was set is seen.
        if self.waiting.flag.swap(false, Ordering::Acquire) {
            // There is nothing to read if somebody else's message was taken with the last ones.
            let _ = read(&self.waiting.event, &mut [0; 8]);
        }
        self.receiver.try_iter()
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<T> {
        self.receiver.recv_timeout(timeout).ok()
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(mailbox: &Mailbox<u32>) -> bool {
        let mut polled = [PollFd::new(mailbox, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn a_mailbox_is_readable_while_there_are_messages_and_not_after() {
        let (post, mailbox) = mailbox().unwrap();
        assert!(!is_readable(&mailbox) && !mailbox.has_mail());
        for round in 0..3 {
            assert!(post.send(round) && post.clone().send(round + 1));
            assert!(is_readable(&mailbox) && mailbox.has_mail());
            assert_eq!(mailbox.take().collect::<Vec<_>>(), [round, round + 1]);
            assert!(!is_readable(&mailbox) && !mailbox.has_mail());
        }
        drop(mailbox);
        assert!(!post.send(9));
    }

    #[test]
    fn messages_of_threads_that_send_while_others_are_taken_all_arrive_and_leave_it_unreadable() {
        let (post, mailbox) = mailbox().unwrap();
        let count = std::thread::scope(|scope| {
            for _ in 0..4 {
                let post = post.clone();
                scope.spawn(move || (0..1000).for_each(|at| assert!(post.send(at))));
            }
            let mut count = 0;
            while count < 4000 {
                let mut polled = [PollFd::new(&mailbox, PollFlags::IN)];
                poll(&mut polled, None).unwrap();
                count += mailbox.take().count();
            }
            count
        });
        assert_eq!(count + mailbox.take().count(), 4000);
        mailbox.take().for_each(drop);
        assert!(!is_readable(&mailbox));
    }
}
