//! A member: what is wanted of it, the processes that it has, and when to try again.
//!
//! It has one process that serves. A relay whose configuration has changed has a successor beside it,
//! which takes over; what it has taken over from goes on until its connections have ended. All others end
//! before the next one starts, and meanwhile the kernel does their work.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::inbox::{Said, Word};
use super::process::{Process, Starter, State};
use crate::config::Member as Wanted;

/// While it comes or goes, a process may say nothing for so many times as long: a bridge may have a thousand
/// ports.
pub(super) const SLOW: u32 = 4;

/// How soon to try again what has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    pub(super) first: Duration,
    /// The pause doubles up to this. One that has run for so long begins anew.
    pub(super) most: Duration,
}

impl Patience {
    fn pause(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }
}

/// A member of the configuration, or one that is no more and has to end.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// None to end.
    pub(super) wanted: Option<Wanted>,
    /// The one that serves, or is about to.
    pub(super) process: Option<Process>,
    /// The one that is to take over from it.
    pub(super) next: Option<Process>,
    /// Those that end.
    pub(super) old: Vec<Process>,
    /// Failures one after the other.
    failures: u32,
    pub(super) retry_at: Option<Instant>,
    /// What went wrong last, until it goes well again.
    pub(super) trouble: Option<String>,
    /// Processes that were started.
    pub(super) starts: u64,
    pub(super) failures_in_all: u64,
    /// The first process is to take over from one that is not ours.
    replaces: bool,
    /// What its processes have taken over from.
    pub(super) took_over: Vec<u32>,
}

impl Member {
    pub(super) fn new(wanted: Wanted, replaces: bool) -> Member {
        Member {
            name: wanted.name.clone(),
            wanted: Some(wanted),
            process: None,
            next: None,
            old: Vec::new(),
            failures: 0,
            retry_at: None,
            trouble: None,
            starts: 0,
            failures_in_all: 0,
            replaces,
            took_over: Vec::new(),
        }
    }

    /// Whether nothing of it is left.
    pub(super) fn is_gone(&self) -> bool {
        self.wanted.is_none() && self.processes().next().is_none()
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.process.iter().chain(&self.next).chain(&self.old)
    }

    pub(super) fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.process.iter_mut().chain(&mut self.next).chain(&mut self.old)
    }

    /// Whether it is known how it fares: it serves, or has failed.
    pub(super) fn is_tried(&self) -> bool {
        let serves = self.process.as_ref().is_some_and(|one| one.state == State::Running);
        serves || self.trouble.is_some() || self.wanted.is_none()
    }

    /// Whether it is about to take over from `other`, a relay that serves one of its addresses.
    pub(super) fn may_take_over_from(&self, other: &Member) -> bool {
        let serves = self.process.as_ref().is_some_and(|one| one.state == State::Running);
        let is_pending = self.next.is_some() || !serves;
        let wanted = self.wanted.as_ref().filter(|_| is_pending && self.trouble.is_none());
        let theirs = other.process.as_ref().map(|process| &process.of);
        wanted.zip(theirs).is_some_and(|(ours, theirs)| ours.shares_address_with(theirs))
    }

    /// A relay that is wanted and has failed: what it is to take over from serves its clients until then.
    pub(super) fn is_failing_relay(&self) -> bool {
        let is_relay = self.wanted.as_ref().is_some_and(|wanted| wanted.kind.is_replaced());
        is_relay && self.trouble.is_some()
    }

    /// What a process of its has said.
    pub(super) fn hear(&mut self, said: &Said) -> bool {
        let Some(process) = self.processes_mut().find(|one| one.pid() == said.pid) else {
            return false;
        };
        let starts = process.state == State::Starting;
        process.hear(&said.words);
        let is_next = self.next.as_ref().is_some_and(|next| next.pid() == said.pid);
        for word in &said.words {
            match word {
                Word::TookOver(Some(from)) => self.took_over.push(*from),
                // Said again and again.
                Word::Ready if starts => self.is_ready(is_next),
                _ => {}
            }
        }
        true
    }

    /// Another process has taken over from this one, which ends by itself.
    pub(super) fn was_replaced(&mut self, pid: u32) {
        if self.process.as_ref().is_some_and(|one| one.pid() == pid) {
            self.old.extend(self.process.take().map(|mut one| {
                one.enter(State::Replaced);
                one
            }));
        }
    }

    fn is_ready(&mut self, is_next: bool) {
        if is_next {
            // It had other addresses, or else it would have been taken over from.
            if let Some(mut one) = self.process.take() {
                if one.state != State::Replaced {
                    one.end(Signal::TERM);
                }
                self.old.push(one);
            }
            self.process = self.next.take();
        }
        (self.trouble, self.retry_at, self.replaces) = (None, None, false);
        tracing::info!("{}: runs", self.name);
    }

    /// Its process does what is wanted now, without having been started anew.
    pub(super) fn serves(&mut self, wanted: Wanted) {
        if let Some(process) = &mut self.process {
            process.of = wanted.clone();
        }
        self.want(wanted);
    }

    /// Sees which of its processes have ended.
    pub(super) fn look(&mut self) {
        self.processes_mut().for_each(Process::look);
    }

    /// Heeds what has ended, kills what is silent, starts what is wanted. When to look again.
    pub(super) fn turn(
        &mut self,
        starter: &Starter,
        patience: Patience,
        may_start: bool,
        now: Instant,
    ) -> Option<Instant> {
        let silent = self.end_silent(starter.silent_after, now);
        self.old.retain_mut(|one| one.ended().is_none());
        if let Some(ending) = self.next.as_mut().and_then(Process::ended) {
            self.next = None;
            self.failed(format!("its new configuration: {ending}"), patience, now);
        }
        if let Some(process) = &mut self.process
            && let Some(ending) = process.ended()
        {
            let was = process.state;
            let lasted = was == State::Running && process.since.elapsed() >= patience.most;
            self.process = None;
            if lasted {
                self.failures = 0;
            }
            let why = match was {
                State::Ending => None,
                // By one of ours, which has not said so yet.
                State::Replaced if self.next.is_some() => None,
                State::Replaced => Some("a process of somebody else has taken over from it".into()),
                _ => Some(ending),
            };
            if let Some(why) = why.filter(|_| self.wanted.is_some()) {
                self.failed(why, patience, now);
            }
        }
        if may_start {
            self.start(starter, patience, now);
        }
        [silent, self.retry_at.filter(|at| *at > now)].into_iter().flatten().min()
    }

    fn failed(&mut self, why: String, patience: Patience, now: Instant) {
        self.failures += 1;
        self.failures_in_all += 1;
        let pause = patience.pause(self.failures);
        tracing::error!(
            "{}: {why}; trying again in {}",
            self.name,
            humantime::format_duration(pause)
        );
        self.trouble = Some(why);
        self.retry_at = Some(now + pause);
    }

    fn start(&mut self, starter: &Starter, patience: Patience, now: Instant) {
        let Some(wanted) = &self.wanted else { return };
        if self.next.is_some() || self.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let started = match &mut self.process {
            None if self.old.is_empty() || wanted.kind.is_replaced() => {
                starter.start(wanted, self.replaces && wanted.kind.is_replaced())
            }
            Some(process)
                if process.of.args != wanted.args
                    && matches!(process.state, State::Starting | State::Running) =>
            {
                if wanted.kind.is_replaced() && process.state == State::Running {
                    starter.start(wanted, true)
                } else {
                    process.end(Signal::TERM);
                    return;
                }
            }
            _ => return,
        };
        let place = if self.process.is_some() { &mut self.next } else { &mut self.process };
        match started {
            Ok(process) => {
                tracing::debug!("{}: starts as process {}", self.name, process.pid());
                *place = Some(process);
                self.starts += 1;
            }
            Err(error) => self.failed(format!("cannot be started: {error}"), patience, now),
        }
    }

    /// Kills those that have said nothing for too long: they are stuck, or stopped.
    fn end_silent(&mut self, after: Option<Duration>, now: Instant) -> Option<Instant> {
        let after = after?;
        let name = self.name.clone();
        let mut next = None;
        for process in self.processes_mut() {
            let after = after * if process.state == State::Running { 1 } else { SLOW };
            if process.heard + after <= now {
                let why = format!("said nothing for {}", humantime::format_duration(after));
                tracing::error!("{name}: process {} {why}, and is killed", process.pid());
                process.kill(why);
                // It is waited for as any other.
                process.heard = now;
            }
            next = [next, Some(process.heard + after)].into_iter().flatten().min();
        }
        next
    }

    /// Tells what is left of it to end; those that have been told are not told again.
    pub(super) fn end(&mut self, signal: Signal) {
        self.wanted = None;
        self.retry_at = None;
        for process in self.processes_mut() {
            match process.state {
                // It may be stuck, and has nobody to serve yet.
                State::Starting => process.end(Signal::KILL),
                State::Running => process.end(signal),
                State::Ending | State::Replaced => {}
            }
        }
    }

    /// Has everything of it end at once.
    pub(super) fn end_at_once(&mut self, signal: Signal) {
        self.wanted = None;
        self.processes_mut().for_each(|one| one.end(signal));
    }

    /// Nobody could have heard its processes until now.
    pub(super) fn forgive_silence(&mut self, now: Instant) {
        self.processes_mut().for_each(|one| one.heard = now);
    }

    /// Wants something else of it from now on, and tries at once. One that is about to take over with what
    /// was wanted before does so first: it may have done so already.
    pub(super) fn want(&mut self, wanted: Wanted) {
        self.wanted = Some(wanted);
        (self.failures, self.retry_at, self.trouble) = (0, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let patience = Patience { first: Duration::from_secs(1), most: Duration::from_secs(60) };
        let pauses = (1..=8).map(|failures| patience.pause(failures).as_secs());
        assert_eq!(pauses.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(patience.pause(u32::MAX), patience.most);
    }
}
