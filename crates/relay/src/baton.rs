//! Which relay is in charge of listeners that several processes have open: the one that holds the
//! baton, which is a lock of the kernel's. Whoever dies lets go of it, and no two hold it.

use std::os::fd::{AsRawFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::{
    FlockOperation, MemfdFlags, Mode, OFlags, fcntl_get_seals, flock, memfd_create, open,
};

use crate::Error;
use crate::error::Context as _;

/// A file in memory that relays pass on with their listeners, and the lock on it.
#[derive(Debug)]
pub(crate) struct Baton {
    file: OwnedFd,
    /// The file opened anew, which is what a lock belongs to: duplicates of `file` do not share it.
    lock: Mutex<Option<OwnedFd>>,
}

impl Baton {
    /// A new one, held.
    pub(crate) fn new() -> Result<Baton, Error> {
        let file = memfd_create("cachelane-relay-baton", MemfdFlags::CLOEXEC)
            .context("cannot create a file in memory")?;
        let baton = Baton::of(file)?;
        baton.take()?;
        Ok(baton)
    }

    /// Another relay's, not held.
    ///
    /// # Errors
    /// It is something else than a file in memory, which to open anew could do anything.
    pub(crate) fn of(file: OwnedFd) -> Result<Baton, Error> {
        // Only such a file has seals: fcntl(2).
        fcntl_get_seals(&file).context("the baton is no file in memory")?;
        Ok(Baton { file, lock: Mutex::new(None) })
    }

    /// A duplicate, for another process to take it or not.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Error> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 0).context("cannot duplicate a file")
    }

    /// Takes it, unless another process has it. Whether it is held now.
    pub(crate) fn take(&self) -> Result<bool, Error> {
        let mut lock = self.lock.lock();
        if lock.is_none() {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let opened =
                open(&path, flags, Mode::empty()).context(format!("cannot open {path}"))?;
            if flock(&opened, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(false);
            }
            *lock = Some(opened);
        }
        Ok(true)
    }

    /// Lets go of it, for whoever takes it next.
    pub(crate) fn release(&self) {
        *self.lock.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_holds_it() {
        let first = Baton::new().unwrap();
        let second = Baton::of(first.duplicate().unwrap()).unwrap();
        let third = Baton::of(second.duplicate().unwrap()).unwrap();
        assert!(!second.take().unwrap() && !third.take().unwrap());
        assert!(first.take().unwrap(), "it has it already");
        first.release();
        assert!(second.take().unwrap() && !third.take().unwrap() && !first.take().unwrap());
        // As when its process dies.
        drop(second);
        assert!(third.take().unwrap() && !first.take().unwrap());
    }

    #[test]
    fn what_is_no_file_in_memory_is_never_opened_anew() {
        for path in ["/dev/null", "/proc/self/exe"] {
            for flags in [OFlags::RDONLY, OFlags::PATH] {
                let file = open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
                Baton::of(file).unwrap_err();
            }
        }
    }
}
