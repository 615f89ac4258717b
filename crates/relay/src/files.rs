//! The open files that the relays of this process may have, and what they are for: connections, pipes,
//! the rest.
//!
//! The limit is the process's, so there is one account, from which each relay has a share. A relay that
//! was asked for a number of connections gets them, or does not start; what is left is divided among the
//! others, and divided anew when a relay starts or stops. A relay whose share shrinks ends no connection:
//! until enough have ended, files may run out.
//!
//! A connection has two sockets. A flow of the splice engine has a pipe while bytes wait in it,
//! which is two more files; when the relay's pipes are used up, the flow is copied instead. So a
//! connection never lacks a file that it was counted with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::backends::checks;
use crate::config::{Backend, Config, Target};
use crate::{Error, ErrorKind};

/// Files for what the program opens besides its relays: logs, control sockets, name resolution.
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

static ACCOUNT: Mutex<Account> = Mutex::new(Account { others: 0, parts: Vec::new() });

/// How the limit on open files is shared out among the relays of a process.
#[derive(Debug)]
struct Account {
    /// Files that were open before the first of them.
    others: usize,
    parts: Vec<Arc<Part>>,
}

/// A relay's share, until this is dropped.
#[derive(Debug)]
pub(crate) struct FileShare(Arc<Part>);

/// What a relay has of the account. Relaxed throughout: counts, and nothing else hangs on them.
#[derive(Debug)]
pub(crate) struct Part {
    need: Need,
    connections: AtomicUsize,
    pipes: AtomicUsize,
    pipes_taken: AtomicUsize,
    grew: AtomicBool,
}

/// What a relay wants.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Files besides connections and pipes.
    overhead: usize,
    /// Connections; `None`: as many as there may be.
    wanted: Option<usize>,
}

/// What a relay gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    /// The most connections at a time.
    connections: usize,
    /// The most pipes at a time.
    pipes: usize,
}

/// The right to one pipe.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Part>);

impl FileShare {
    /// A share of this process's limit, whose soft value it raises to the hard one.
    ///
    /// # Errors
    /// What other relays leave of the limit allows no connection, or not as many as were asked for.
    pub(crate) fn claim(config: &Config) -> Result<FileShare, Error> {
        let mut account = ACCOUNT.lock();
        let need = Need::of(config);
        let files = account.left_for(need)?;
        let part = Arc::new(Part::new(need));
        account.parts.push(Arc::clone(&part));
        account.divide(files);
        Ok(FileShare(part))
    }

    /// Whether there is a share for `config` now.
    ///
    /// # Errors
    /// As for [`claim`](Self::claim).
    pub(crate) fn check(config: &Config) -> Result<(), Error> {
        ACCOUNT.lock().left_for(Need::of(config)).map(drop)
    }

    /// The most connections at a time.
    pub(crate) fn connections(&self) -> usize {
        self.0.connections.load(Relaxed)
    }

    /// Whether there may be more connections than when this was last asked.
    pub(crate) fn grew(&self) -> bool {
        self.0.grew.load(Relaxed) && self.0.grew.swap(false, Relaxed)
    }

    pub(crate) fn part(&self) -> Arc<Part> {
        Arc::clone(&self.0)
    }

    /// A share that is nobody's.
    #[cfg(test)]
    pub(crate) fn alone(connections: usize) -> FileShare {
        let part = Part::new(Need { overhead: 0, wanted: Some(connections) });
        part.give(Budget { connections, pipes: connections });
        FileShare(Arc::new(part))
    }
}

impl Drop for FileShare {
    fn drop(&mut self) {
        let mut account = ACCOUNT.lock();
        account.parts.retain(|part| !Arc::ptr_eq(part, &self.0));
        let files = raise_limit().saturating_sub(account.others);
        account.divide(files);
    }
}

impl Account {
    /// Files for relays, if there are enough for one more.
    fn left_for(&mut self, need: Need) -> Result<usize, Error> {
        if self.parts.is_empty() {
            self.others = open_now() + SLACK;
        }
        let limit = raise_limit();
        let theirs = self.parts.iter().map(|part| part.need.least()).sum();
        need.check(limit, self.others, theirs)?;
        Ok(limit - self.others)
    }

    fn divide(&self, files: usize) {
        let needs: Vec<_> = self.parts.iter().map(|part| part.need).collect();
        for (part, budget) in self.parts.iter().zip(divide(files, &needs)) {
            part.give(budget);
        }
    }
}

/// Shares out `files`: each has the least that it needs, and its part of the rest.
fn divide(files: usize, needs: &[Need]) -> Vec<Budget> {
    let mut rest = files.saturating_sub(needs.iter().map(|need| need.least()).sum());
    let mut budgets: Vec<_> = needs.iter().map(|need| need.budget(0)).collect();
    // Who knows how many connections it has may need less than a part.
    let mut order: Vec<_> = (0..needs.len()).collect();
    order.sort_by_key(|&index| needs[index].wanted.is_none());
    for (done, index) in order.into_iter().enumerate() {
        let least = budgets[index].files();
        budgets[index] = needs[index].budget(rest / (needs.len() - done));
        rest -= budgets[index].files() - least;
    }
    budgets
}

impl Need {
    fn of(config: &Config) -> Need {
        Need { overhead: overhead(config), wanted: config.max_connections }
    }

    /// Two sockets for each connection. One pipe at least, or splice would never be tried.
    fn least(&self) -> usize {
        self.wanted.unwrap_or(1).saturating_mul(2).saturating_add(self.overhead + 2)
    }

    /// What it gets of `rest` files more than the least.
    fn budget(&self, rest: usize) -> Budget {
        let left = self.least() - self.overhead + rest;
        let connections = self.wanted.unwrap_or_else(|| (left - (left / PIPES_PART).max(2)) / 2);
        // More than one for each direction is never in use.
        let pipes = ((left - 2 * connections) / 2).min(connections.saturating_mul(2));
        Budget { connections, pipes }
    }

    /// Whether `limit` files are enough, of which `others` are no relay's and `theirs` other relays'.
    fn check(&self, limit: usize, others: usize, theirs: usize) -> Result<(), Error> {
        let needed = self.least().saturating_add(others + theirs);
        if needed <= limit {
            return Ok(());
        }
        let left = limit.saturating_sub(others + theirs + self.overhead);
        let possible = left.saturating_sub(2) / 2;
        let asked = theirs;
        let theirs = match theirs {
            0 => String::new(),
            theirs => format!(", of which {theirs} are for other relays of this process"),
        };
        let message = match self.wanted {
            Some(wanted) if possible > 0 => format!(
                "{wanted} connections need {needed} open files, and the limit is {limit}{theirs}: \
                 raise it (ulimit -n, LimitNOFILE=) or ask for at most {possible} connections \
                 (--max-connections)"
            ),
            _ => format!(
                "the limit of {limit} open files{theirs} is too low for a single connection \
                 (expected at least {}): raise it (ulimit -n, LimitNOFILE=)",
                Need { wanted: None, ..*self }.least() + others + asked
            ),
        };
        Err(Error::new(ErrorKind::FileLimit, message))
    }
}

impl Budget {
    fn files(self) -> usize {
        2 * (self.connections + self.pipes)
    }
}

impl Part {
    fn new(need: Need) -> Part {
        let zero = || AtomicUsize::new(0);
        let grew = AtomicBool::new(false);
        Part { need, connections: zero(), pipes: zero(), pipes_taken: zero(), grew }
    }

    fn give(&self, budget: Budget) {
        self.pipes.store(budget.pipes, Relaxed);
        let before = self.connections.swap(budget.connections, Relaxed);
        if (1..budget.connections).contains(&before) {
            self.grew.store(true, Relaxed);
        }
    }

    /// The right to one more pipe, of all workers together.
    pub(crate) fn take_pipe(self: &Arc<Self>) -> Option<Permit> {
        let one_more = |taken| (taken < self.pipes.load(Relaxed)).then_some(taken + 1);
        self.pipes_taken.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.pipes_taken.fetch_sub(1, Relaxed);
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
    workers * (OF_WORKER + config.listen.len()) + others + OF_SOCKMAP + OF_RESERVE
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

    fn need(wanted: Option<usize>) -> Need {
        Need { overhead: 100, wanted }
    }

    #[test]
    fn sockets_and_pipes_together_stay_within_the_limit() {
        let all = [None, Some(1), Some(2), Some(40), Some(480)].map(need);
        let alone = all.map(|need| vec![need]);
        let pairs = all.into_iter().flat_map(|one| all.map(|other| vec![one, other]));
        for needs in alone.into_iter().chain(pairs).chain([all.to_vec()]) {
            let least: usize = needs.iter().map(Need::least).sum();
            for files in [0, 1, 24, 1024, 4096, 1 << 20].map(|more| least + more) {
                let budgets = divide(files, &needs);
                let sum: usize = budgets.iter().map(|budget| 100 + budget.files()).sum();
                assert!(sum <= files, "{files}, {needs:?}: {budgets:?}");
                for (Budget { connections, pipes }, need) in budgets.iter().zip(&needs) {
                    assert!((1..=2 * connections).contains(pipes), "{files}, {needs:?}");
                    assert!(need.wanted.is_none_or(|wanted| wanted == *connections));
                }
            }
        }
    }

    #[test]
    fn relays_divide_what_is_left_by_those_that_know_what_they_need() {
        let of = |connections, pipes| Budget { connections, pipes };
        assert_eq!(divide(1100, &[need(None)]), [of(437, 63)]);
        assert_eq!(divide(2200, &[need(None), need(None)]), [of(437, 63), of(437, 63)]);
        let needs = [need(None), need(Some(10)), need(None)];
        // Ten connections have at most 20 pipes.
        assert_eq!(divide(2360, &needs), [of(437, 63), of(10, 20), of(437, 63)]);
    }

    #[test]
    fn too_few_files_are_refused_and_the_number_that_would_do_is_named() {
        let error = need(None).check(103, 0, 0).unwrap_err();
        assert!(error.to_string().contains("at least 104"), "{error}");
        assert!(need(None).check(104, 0, 0).is_ok());
        let error = need(Some(450)).check(1010, 10, 0).unwrap_err();
        for part in ["450 connections need 1012", "limit is 1010:", "at most 449"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(need(Some(449)).check(1010, 10, 0).is_ok());
        assert!(need(Some(usize::MAX)).check(1010, 10, 0).is_err());
        let error = need(Some(449)).check(1010, 10, 400).unwrap_err();
        for part in ["need 1410", "400 are for other relays", "at most 249", "--max-connections"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_pipe_that_goes_makes_room_for_another() {
        let part = FileShare::alone(1).part();
        let permit = part.take_pipe().unwrap();
        assert!(part.take_pipe().is_none());
        drop(permit);
        assert!(part.take_pipe().is_some());
    }
}
