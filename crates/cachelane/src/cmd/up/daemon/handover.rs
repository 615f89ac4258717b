//! The daemon where another one takes its place, or it takes another one's: see `succession`.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sd_notify::NotifyState;

use super::{Daemon, Phase};
use crate::cmd::up::member::{Member, SLOW};
use crate::cmd::up::status::Asked;
use crate::cmd::up::succession::Successor;
use crate::passed;

impl Daemon {
    /// Ends what is left of the predecessor, once it is known how all fare.
    pub(super) fn end_predecessor(&mut self, now: Instant) {
        /// How often it is told that this process is well.
        const EVERY: Duration = Duration::from_secs(1);
        if let Some(predecessor) = &self.predecessor
            && now >= self.keep_waiting_at
        {
            predecessor.keep_waiting();
            self.keep_waiting_at = Instant::now() + EVERY;
        }
        if !self.is_tried() {
            return;
        }
        let failing = self.members.iter().find(|member| member.is_failing_relay());
        if let (Some(member), true) = (failing, self.predecessor.is_some()) {
            // What it has there goes on until then.
            if !std::mem::replace(&mut self.is_held_up, true) {
                tracing::warn!("the process before this one serves until {} runs", member.name);
            }
            return;
        }
        if std::mem::take(&mut self.is_new_main) {
            passed::notify(&[NotifyState::MainPid(std::process::id())]);
        }
        let Some(predecessor) = &self.predecessor else { return };
        let took_over = self.members.iter().flat_map(|member| member.took_over.clone());
        match predecessor.taken(&took_over.collect::<Vec<_>>()) {
            Ok(()) => {
                self.predecessor = None;
                // To be said again, now that the service manager listens to this process.
                self.announced.clear();
            }
            Err(error) => tracing::warn!("asking again: {error:#}"),
        }
    }

    /// Gives way to another daemon, step by step, or goes on if that is gone.
    pub(super) fn give_way(&mut self, now: Instant) {
        for asked in self.board.take_asked() {
            match asked {
                // It asks until it has taken the place of this one.
                Asked::GiveWay(pid) => match (&mut self.phase, Successor::of(pid)) {
                    (Phase::Running, Some(successor)) => {
                        tracing::info!("process {pid} takes the place of this one");
                        self.phase = Phase::GivingWay(successor);
                    }
                    (Phase::GivingWay(successor), _) => successor.heard = now,
                    (Phase::Ending, Some(_)) => {}
                    (_, None) => self.board.forget_successor(),
                },
                Asked::Taken(replaced) => {
                    tracing::info!("another process has taken the place of this one");
                    for pid in replaced {
                        self.everybody().for_each(|member| member.was_replaced(pid));
                    }
                    // The place of this name is the other's. The service manager may listen to the main
                    // process alone.
                    self.control = None;
                    if let Phase::GivingWay(successor) = &self.phase {
                        passed::notify(&[NotifyState::MainPid(successor.pid)]);
                    }
                    self.end(false);
                }
            }
        }
        let Phase::GivingWay(successor) = &mut self.phase else { return };
        if let Some(after) = self.starter.silent_after {
            successor.end_silent(after * SLOW, now);
        }
        if successor.is_gone() {
            tracing::error!("what was to take the place of this process is gone: going on");
            self.phase = Phase::Running;
            self.board.forget_successor();
            let config = self.config.clone();
            self.members.iter_mut().for_each(|member| member.wanted = None);
            for wanted in config.members {
                if let Some(member) = self.members.iter_mut().find(|one| one.name == wanted.name) {
                    member.want(wanted);
                }
            }
            return;
        }
        for member in self.everybody() {
            let is_relay = member.processes().any(|one| one.of.kind.is_replaced());
            match is_relay {
                // What ends now ends because it was taken over from.
                true => member.wanted = None,
                false => member.end(Signal::TERM),
            }
        }
    }

    /// Whether only what another daemon takes over is left.
    pub(super) fn has_given_way(&self) -> bool {
        let is_relay = |member: &Member| member.processes().all(|one| one.of.kind.is_replaced());
        matches!(self.phase, Phase::GivingWay(_))
            && self.members.iter().chain(&self.retiring).all(is_relay)
    }

    /// Starts the program that is now where this one was, to take the place of this process.
    pub(super) fn start_successor(&mut self) {
        if self.started_successor.is_some() || !matches!(self.phase, Phase::Running) {
            return tracing::warn!("another process is about to take this one's place already");
        }
        match self.starter.start_successor() {
            Ok(child) => {
                tracing::info!("started process {} to take the place of this one", child.id());
                self.started_successor = Some(child);
            }
            Err(error) => {
                tracing::error!("cannot start what is to take the place of this one: {error}")
            }
        }
    }

    /// Sees whether that one has ended instead.
    pub(super) fn look_at_started_successor(&mut self) {
        if let Some(child) = &mut self.started_successor
            && let Ok(Some(status)) = child.try_wait()
        {
            tracing::error!("what was to take the place of this process has ended: {status}");
            self.started_successor = None;
        }
    }
}
