//! Handing the listeners of a relay over to its successor, over the control socket.
//!
//! # Protocol
//!
//! 1. `relay.listeners`: where does it listen? The successor looks for the relay that has its
//!    addresses.
//! 2. `relay.hand_over`: the successor gets duplicates of all sockets on them, and the [`Baton`]. It
//!    starts its workers, who accept nobody yet.
//! 3. `relay.release`: the predecessor lets go of the baton, and the successor takes it. It opens
//!    more sockets if it has more workers, and accepts. For a moment both do, and nobody waits for
//!    either.
//! 4. `relay.taken`: the predecessor sees that the baton is taken, accepts no more, and drains.
//!
//! The baton decides, whatever is lost on the way. The predecessor goes on accepting until another
//! has it, and takes it back if nobody does within [`GRACE`]. A successor that does not get it lets go
//! of the sockets; it has accepted nobody, and nobody is in a queue of its own. One whose predecessor dies takes it. A process that is stopped anywhere in between
//! finds out when it goes on: there is one lock. If its successor has come and gone meanwhile, the lock
//! is free, and the sockets do not listen any more: it has been replaced all the same.
//!
//! Both accept from the same sockets, by level-triggered events that wake both: one that does not run
//! takes nothing from the other.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::addr::Addr;
use crate::baton::Baton;
use crate::inherited::Duplicate;
use crate::listeners::{Duplicates, Listener};
use crate::shared::Stage;
use crate::{Error, ErrorKind, Relay};

/// How long a successor may take between two steps before the predecessor deals with another one, or
/// takes the baton back.
const GRACE: Duration = Duration::from_secs(2);

/// What a relay knows of its successor.
#[derive(Debug)]
pub(crate) struct Handover {
    baton: Baton,
    state: Mutex<State>,
    told: OnceLock<Told>,
}

/// Who wants to hear of the successor.
struct Told(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

#[derive(Debug, Default)]
enum State {
    /// Nobody wants to take over.
    #[default]
    Alone,
    /// Somebody has the sockets.
    Offered(Successor),
    /// The baton is to be had.
    Released(Successor),
    /// This process takes over with that id, or 0, has it.
    Replaced(u32),
}

/// What a successor gets.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) token: u64,
    pub(crate) sockets: Vec<Duplicate>,
    pub(crate) baton: OwnedFd,
}

#[derive(Clone, Debug)]
struct Successor {
    token: u64,
    pid: u32,
    /// What it has duplicates of. Others of this relay's, of workers hired since, it has not.
    sockets: Vec<Weak<Listener>>,
    since: Instant,
}

impl Successor {
    /// Whether it may still take the next step.
    fn is_at_it(&self) -> bool {
        let pid = Pid::from_raw(self.pid as i32);
        let lives = pid.is_none_or(|pid| test_kill_process(pid) != Err(Errno::SRCH));
        lives && self.since.elapsed() < GRACE
    }
}

impl Handover {
    pub(crate) fn new(baton: Baton) -> Handover {
        Handover { baton, state: Mutex::default(), told: OnceLock::new() }
    }
}

impl Relay {
    /// The process that has taken over from this relay, if one has; 0 if its id is not known here.
    pub fn replaced_by(&self) -> Option<u32> {
        match *self.handover.state.lock() {
            State::Replaced(pid) => Some(pid),
            _ => None,
        }
    }

    /// Has `tell` called, once, when another process has taken over. It must not wait.
    pub fn on_replaced(&self, tell: impl Fn() + Send + Sync + 'static) {
        // Only the first one is told.
        let _ = self.handover.told.set(Told(Box::new(tell)));
    }

    /// Finds out who is in charge, if a successor was about to be. `patient`: it may take its time.
    pub(crate) fn settle(&self, patient: bool) -> Result<(), Error> {
        let mut state = self.handover.state.lock();
        let State::Released(successor) = &*state else { return Ok(()) };
        if patient && successor.is_at_it() {
            return Ok(());
        }
        if self.handover.baton.take()? && self.all_listen() {
            tracing::warn!("process {} did not take over: this one goes on", successor.pid);
            *state = State::Alone;
        } else {
            self.hand_over(&successor.sockets);
            *state = State::Replaced(successor.pid);
            if let Some(Told(tell)) = self.handover.told.get() {
                tell();
            }
        }
        Ok(())
    }

    /// Checks that clients can reach this relay, if it is still in charge.
    ///
    /// # Errors
    /// One of its sockets does not listen any more.
    pub(crate) fn check_listeners(&self) -> Result<(), Error> {
        // Nobody takes over meanwhile.
        let state = self.handover.state.lock();
        match &*state {
            State::Alone | State::Offered(_) if !self.is_draining() && !self.all_listen() => {
                let message =
                    "a listening socket was shut down by another process that has it open";
                Err(Error::new(ErrorKind::Io, message))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.stage() >= Stage::Drain
    }

    /// Step 2, for the process `pid`, or 0.
    pub(crate) fn offer(&self, addrs: &[Addr], pid: u32) -> Result<Offer, Error> {
        self.settle(true)?;
        let mut state = self.handover.state.lock();
        match &*state {
            State::Offered(other) | State::Released(other) if other.is_at_it() => {
                return Err(Error::busy(format!("process {} is taking over already", other.pid)));
            }
            State::Replaced(pid) => {
                return Err(Error::busy(format!("process {pid} has taken over")));
            }
            _ if self.is_draining() => return Err(Error::busy("it is about to end")),
            _ => {}
        }
        let Duplicates { sockets, of } = self.duplicates(addrs)?;
        let baton = self.handover.baton.duplicate()?;
        let token = RandomState::new().hash_one(pid);
        *state = State::Offered(Successor { token, pid, sockets: of, since: Instant::now() });
        Ok(Offer { token, sockets, baton })
    }

    /// Step 3.
    pub(crate) fn release(&self, token: u64) -> Result<(), Error> {
        let mut state = self.handover.state.lock();
        match &*state {
            State::Offered(successor) if successor.token == token && !self.is_draining() => {
                self.handover.baton.release();
                *state = State::Released(Successor { since: Instant::now(), ..successor.clone() });
                Ok(())
            }
            _ => Err(Error::busy("it is another's turn to take over, or nobody's")),
        }
    }

    /// Step 4.
    pub(crate) fn taken(&self, token: u64) -> Result<(), Error> {
        let is_turn = matches!(&*self.handover.state.lock(),
            State::Released(successor) if successor.token == token);
        if is_turn {
            self.settle(false)?;
        }
        match self.replaced_by() {
            Some(_) => Ok(()),
            None => Err(Error::busy("it was not taken")),
        }
    }
}

impl Relay {
    /// Becomes the relay that is in charge of its listeners, if no other is.
    pub(crate) fn take_charge(&self) -> Result<(), Error> {
        if !self.handover.baton.take()? {
            return Err(Error::busy("another relay is in charge of the listeners"));
        }
        self.serve().map_err(|error| {
            // For the predecessor, if it is still there.
            self.handover.baton.release();
            Error::busy(error.to_string())
        })
    }
}

impl Error {
    pub(crate) fn busy(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy, message)
    }
}
