//! One socket that listens.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Relaxed, SeqCst},
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, SocketFlags, sockopt};

use super::file::SocketFile;
use crate::{socket, sockopt as tcp};

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(super) socket: OwnedFd,
    /// Which of the relay's addresses it is on.
    pub(crate) number: usize,
    /// Its clients are those of a Unix socket.
    pub(crate) is_unix: bool,
    /// What is at its path, for whoever is in charge to remove.
    file: Mutex<Option<SocketFile>>,
    /// Whether this relay ends it. It is set before the stage changes, which workers read first.
    in_charge: AtomicBool,
    /// A [`Queue`]. Relaxed: at worst an accepted socket is set up once more than it need be.
    queue: AtomicU8,
}

/// Whether those in its queue have the options that this relay gives its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Queue {
    /// No: it has somebody else's.
    Foreign,
    /// Those who come from now on do.
    Renewed,
    /// All.
    Own,
}

impl Listener {
    pub(super) fn new(
        socket: OwnedFd,
        number: usize,
        in_charge: bool,
        queue: Queue,
    ) -> Arc<Listener> {
        let (in_charge, queue) = (in_charge.into(), (queue as u8).into());
        let file = Mutex::new(None);
        Arc::new(Listener { socket, number, is_unix: false, file, in_charge, queue })
    }

    /// As [`new`](Self::new), of a Unix socket, which was bound to this file.
    pub(super) fn of_unix(
        socket: OwnedFd,
        number: usize,
        in_charge: bool,
        queue: Queue,
        file: Option<SocketFile>,
    ) -> Arc<Listener> {
        let (in_charge, queue) = (in_charge.into(), (queue as u8).into());
        let file = Mutex::new(file);
        Arc::new(Listener { socket, number, is_unix: true, file, in_charge, queue })
    }

    /// Clients that have completed their handshake and wait to be accepted. Of a Unix socket's the
    /// kernel says only whether there are any: 1 stands for all.
    pub(crate) fn waiting(&self) -> usize {
        match self.is_unix {
            true => self.is_ready(PollFlags::IN).into(),
            false => tcp::accept_queue(&self.socket).unwrap_or(0),
        }
    }

    /// How many clients its end resets. Those of a Unix socket are reset by this: to count them.
    pub(crate) fn turn_away(&self) -> usize {
        if !self.is_unix {
            return self.waiting();
        }
        let accept = || rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).ok();
        std::iter::from_fn(accept).map(socket::reset).count()
    }

    /// Whether its queue is for this relay to empty before it is closed.
    pub(crate) fn is_in_charge(&self) -> bool {
        self.in_charge.load(SeqCst)
    }

    pub(super) fn put_in_charge(&self, in_charge: bool) {
        self.in_charge.store(in_charge, SeqCst);
    }

    /// Whether an accepted socket has yet to be set up. One of a Unix socket inherits nothing.
    pub(crate) fn is_foreign(&self) -> bool {
        self.is_unix || self.is_taken_over()
    }

    /// Whether somebody in its queue may have come before this relay was in charge.
    pub(super) fn is_taken_over(&self) -> bool {
        self.queue.load(Relaxed) != Queue::Own as u8
    }

    /// Those who come from now on have this relay's options.
    pub(super) fn is_renewed(&self) {
        self.queue.store(Queue::Renewed as u8, Relaxed);
    }

    /// Its queue was found empty.
    pub(crate) fn is_empty(&self) {
        let (renewed, own) = (Queue::Renewed as u8, Queue::Own as u8);
        let _ = self.queue.compare_exchange(renewed, own, Relaxed, Relaxed);
    }

    /// Another relay is in charge of it from now on.
    pub(crate) fn hand_over(&self) {
        self.put_in_charge(false);
    }

    /// What is at its path, for the relay that takes over.
    pub(super) fn file(&self) -> Option<SocketFile> {
        self.file.lock().clone()
    }

    /// Whether clients can still reach it: false once whoever is in charge has ended it.
    pub(crate) fn listens(&self) -> bool {
        let listens = sockopt::socket_acceptconn(&self.socket).unwrap_or(false);
        // A Unix socket that is shut down counts as one that listens.
        listens && !(self.is_unix && self.is_ready(PollFlags::RDHUP))
    }

    fn is_ready(&self, flags: PollFlags) -> bool {
        let mut polled = [PollFd::new(&self.socket, flags)];
        poll(&mut polled, Some(&Default::default())).is_ok() && polled[0].revents().contains(flags)
    }

    /// From now on the kernel drops what asks for a new connection, as if it had been lost on the
    /// way: the client asks again, by when somebody else listens, or nobody. Handshakes that have
    /// begun are completed. To a Unix socket no client comes any more.
    pub(super) fn refuse_new(&self) -> std::io::Result<()> {
        if self.is_unix {
            self.end();
            return Ok(());
        }
        use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
        /// Of the TCP header, which a socket's filter sees first: the flags, and two of them.
        const FLAGS: u32 = 13;
        const SYN: u32 = 0x02;
        const ACK: u32 = 0x10;
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        bpf::attach_filter(
            self.socket.as_fd(),
            &mut [
                step(BPF_LD | BPF_B | BPF_ABS, 0, 0, FLAGS),
                step(BPF_ALU | BPF_AND | BPF_K, 0, 0, SYN | ACK),
                step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYN),
                step(BPF_RET | BPF_K, 0, 0, 0),
                step(BPF_RET | BPF_K, 0, 0, u32::MAX),
            ],
        )
    }

    /// Ends it for everybody who has it open. Those in a Unix socket's queue can still be accepted.
    fn end(&self) {
        // First, so that clients find nothing rather than somebody who refuses them.
        if let Some(file) = self.file.lock().take() {
            file.remove();
        }
        // Fails for a socket that does not listen any more.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_in_charge() {
            self.end();
        }
    }
}
