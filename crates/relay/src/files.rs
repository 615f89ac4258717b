//! The open files that a relay may have, and what they are for: connections, pipes, the rest.
//!
//! A connection has two sockets. A flow of the splice engine has a pipe while bytes wait in it,
//! which is two more files; when the relay's pipes are used up, the flow is copied instead. So a
//! connection never lacks a file that it was counted with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::backends::checks;
use crate::config::{Backend, Config, Target};
use crate::{Error, ErrorKind};

/// Files for what the program opens besides the relay: logs, control sockets, name resolution.
const SLACK: usize = 32;

/// Files of each worker besides its listeners: epoll, eventfd, and one more accepted than there may
/// be.
const OF_WORKER: usize = 3;

/// See `worker/reserve.rs`.
const OF_RESERVE: usize = 1;

/// Files that resolving a name may need.
const OF_NAME: usize = 4;

/// BPF objects of the sockmap engine, and what loading them needs for a moment.
const OF_SOCKMAP: usize = 24;

/// The part of what is left that is for pipes, unless so many connections were asked for that there
/// is less.
const PIPES_PART: usize = 8;

/// How the limit on open files is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileBudget {
    /// The most connections at a time.
    pub(crate) connections: usize,
    /// The most pipes at a time.
    pub(crate) pipes: usize,
}

impl FileBudget {
    /// Shares out this process's limit, whose soft value it raises to the hard one.
    ///
    /// # Errors
    /// The limit allows no connection, or not as many as were asked for.
    pub(crate) fn of(config: &Config) -> Result<FileBudget, Error> {
        FileBudget::within(raise_limit(), open_now() + overhead(config), config.max_connections)
    }

    /// Shares out `files`, of which `other` are for something else.
    fn within(files: usize, other: usize, wanted: Option<usize>) -> Result<FileBudget, Error> {
        let left = files.saturating_sub(other);
        // Two sockets for each connection. One pipe at least, or splice would never be tried.
        let possible = left.saturating_sub(2) / 2;
        let connections = match wanted {
            Some(wanted) if wanted > possible => {
                let needed = wanted.saturating_mul(2).saturating_add(other + 2);
                return Err(Error::new(
                    ErrorKind::FileLimit,
                    format!(
                        "{wanted} connections need {needed} open files, and the limit is {files}: \
                         raise it (ulimit -n, LimitNOFILE=) or ask for at most {possible} connections"
                    ),
                ));
            }
            Some(wanted) => wanted,
            None if possible == 0 => {
                return Err(Error::new(
                    ErrorKind::FileLimit,
                    format!(
                        "the limit of {files} open files is too low for a single connection \
                         (expected at least {}): raise it (ulimit -n, LimitNOFILE=)",
                        other + 4
                    ),
                ));
            }
            None => (left - (left / PIPES_PART).max(2)) / 2,
        };
        // More than one for each direction is never in use.
        let pipes = ((left - 2 * connections) / 2).min(connections.saturating_mul(2));
        Ok(FileBudget { connections, pipes })
    }
}

/// How many more pipes there may be, in all workers together.
#[derive(Debug)]
pub(crate) struct PipeBudget {
    /// Relaxed: a count, and nothing else hangs on it.
    left: AtomicUsize,
}

/// The right to one pipe.
#[derive(Debug)]
pub(crate) struct Permit(Arc<PipeBudget>);

impl PipeBudget {
    pub(crate) fn new(pipes: usize) -> Arc<PipeBudget> {
        Arc::new(PipeBudget { left: AtomicUsize::new(pipes) })
    }

    pub(crate) fn take(self: &Arc<Self>) -> Option<Permit> {
        let one_less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Relaxed, Relaxed, one_less).ok()?;
        Some(Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Relaxed);
    }
}

/// Files that the relay needs besides its connections. `relay.cpus` may add workers up to the
/// number of CPUs.
fn overhead(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = config.cpus.len().max(cpus);
    let checks = config.backends.iter().filter(|backend| backend.check.is_some()).count();
    let is_name = |backend: &&Backend| matches!(backend.target, Target::Name { .. });
    let names = config.backends.iter().filter(is_name).count();
    let others = checks.min(checks::AT_ONCE) + names * OF_NAME;
    workers * (OF_WORKER + config.listen.len()) + others + OF_SOCKMAP + OF_RESERVE + SLACK
}

fn open_now() -> usize {
    // Without /proc: the standard streams.
    std::fs::read_dir("/proc/self/fd").map_or(3, |files| files.count().saturating_sub(1))
}

fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    files.map_or(usize::MAX / 4, |files| files as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_pipes_together_stay_within_the_limit() {
        for files in [104, 105, 128, 1024, 4096, 1 << 20] {
            for wanted in [None, Some(1), Some(2), Some(40), Some(480)] {
                let Ok(budget) = FileBudget::within(files, 100, wanted) else { continue };
                let FileBudget { connections, pipes } = budget;
                assert!(connections >= 1 && pipes >= 1, "{files}, {wanted:?}: {budget:?}");
                assert!(100 + 2 * connections + 2 * pipes <= files, "{files}: {budget:?}");
                assert!(pipes <= 2 * connections, "{files}: {budget:?}");
            }
        }
        let all = FileBudget::within(1100, 100, None).unwrap();
        assert_eq!(all, FileBudget { connections: 437, pipes: 63 });
    }

    #[test]
    fn too_few_files_are_refused_and_the_number_that_would_do_is_named() {
        let error = FileBudget::within(103, 100, None).unwrap_err();
        assert!(error.to_string().contains("at least 104"), "{error}");
        assert!(FileBudget::within(104, 100, None).is_ok());
        let error = FileBudget::within(1000, 100, Some(450)).unwrap_err();
        for part in ["450 connections need 1002", "limit is 1000", "at most 449"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(FileBudget::within(1000, 100, Some(449)).is_ok());
        assert!(FileBudget::within(1000, 100, Some(usize::MAX)).is_err());
    }

    #[test]
    fn a_pipe_that_goes_makes_room_for_another() {
        let budget = PipeBudget::new(1);
        let permit = budget.take().unwrap();
        assert!(budget.take().is_none());
        drop(permit);
        assert!(budget.take().is_some());
    }
}
