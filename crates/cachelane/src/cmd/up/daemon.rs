//! The daemon while it runs: its members, a new configuration, and its end.

mod handover;

use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use knobs::Server;
use rustix::process::Signal;
use sd_notify::NotifyState;

use super::inbox::{Inbox, Word};
use super::live;
use super::member::{Member, Patience};
use super::process::{Starter, State};
use super::status::Board;
use super::succession::{Predecessor, Successor};
use super::watch::Watch;
use crate::config::{Config, Sources, Texts, Trouble};
use crate::run::{Ended, Followed};
use crate::{log, passed};

/// What `[up]` may change.
const SILENT_AFTER: Duration = Duration::from_secs(30);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AT_MOST: Duration = Duration::from_secs(60);

/// After this long the daemon counts as started, whatever has become of its members.
const READY_AFTER: Duration = Duration::from_secs(30);

/// What the daemon is at.
#[derive(Debug)]
enum Phase {
    /// All members are to run.
    Running,
    /// Another daemon takes the place of this one: relays go on until they are taken over from.
    GivingWay(Successor),
    /// All are to end.
    Ending,
}

pub(super) struct Daemon {
    sources: Sources,
    starter: Starter,
    inbox: Inbox,
    board: Arc<Board>,
    /// None once another daemon has this one's place.
    control: Option<Server>,
    members: Vec<Member>,
    config: Config,
    watch: Watch,
    /// What the command line says of it is over what the configuration says.
    settings: crate::config::Settings,
    patience: Patience,
    phase: Phase,
    /// Members that a new configuration does not have, by name, which end once relays that may take over
    /// from them have started.
    retiring: Vec<Member>,
    /// Processes that were started for members that are gone, and those of them that failed.
    past: (u64, u64),
    /// The daemon that is to take the place of this one, if this one has started it.
    started_successor: Option<Child>,
    announced: String,
    /// The daemon whose place this one takes, until it is told so.
    predecessor: Option<Predecessor>,
    /// When that is told again that this process is well.
    keep_waiting_at: Instant,
    /// The service manager is to be told that this is the process now.
    is_new_main: bool,
    /// It was said that the predecessor is not told for the time being.
    is_held_up: bool,
    started: Instant,
    /// It was known how all fare, or that took too long.
    was_ready: bool,
    /// When the next turn is to come.
    due: Option<Instant>,
    /// When what was told to end at once is killed.
    kill_at: Option<Instant>,
}

impl Daemon {
    pub(super) fn new(
        sources: Sources,
        settings: crate::config::Settings,
        starter: Starter,
        inbox: Inbox,
        board: Arc<Board>,
        control: Server,
    ) -> Daemon {
        Daemon {
            sources,
            starter,
            inbox,
            board,
            control: Some(control),
            members: Vec::new(),
            config: Config::default(),
            watch: Watch::default(),
            settings,
            patience: Patience { first: RETRY_AFTER, most: RETRY_AT_MOST },
            phase: Phase::Running,
            retiring: Vec::new(),
            past: (0, 0),
            started_successor: None,
            announced: String::new(),
            predecessor: None,
            keep_waiting_at: Instant::now(),
            is_new_main: false,
            is_held_up: false,
            started: Instant::now(),
            was_ready: false,
            due: None,
            kill_at: None,
        }
    }

    /// Starts with this configuration, which files of these texts asked for, in the place of a daemon that
    /// has given way. `replaces`: if there was one, the service manager knows of that one.
    pub(super) fn begin(
        &mut self,
        config: Config,
        texts: Texts,
        predecessor: Option<Predecessor>,
        replaces: bool,
    ) {
        self.watch.was_read(texts);
        self.apply(config, predecessor.is_some());
        (self.predecessor, self.is_new_main) = (predecessor, replaces);
    }

    /// Has this configuration be the one in force: what it has not is ended, what is new is started, what
    /// is as it was is left alone. With `replaces`, first relays take over from another daemon's.
    pub(super) fn apply(&mut self, config: Config, replaces: bool) {
        let of = |cli: Option<Duration>, file: Option<Duration>, default| {
            cli.or(file).unwrap_or(default)
        };
        let (cli, file) = (&self.settings, &config.settings);
        let silent = of(cli.silent_after, file.silent_after, SILENT_AFTER);
        self.starter.silent_after = Some(silent).filter(|silent| !silent.is_zero());
        self.patience = Patience {
            first: of(cli.retry_after, file.retry_after, RETRY_AFTER),
            most: of(cli.retry_at_most, file.retry_at_most, RETRY_AT_MOST),
        };
        let watch = of(cli.watch, file.watch, Duration::ZERO);
        self.watch.every = Some(watch).filter(|every| !every.is_zero());
        let filter = config.log.as_deref().unwrap_or(log::DEFAULT);
        if filter != self.starter.filter {
            self.starter.filter = filter.into();
            log::set_filter(filter);
        }
        let is_wanted = |member: &Member| config.members.iter().any(|one| one.name == member.name);
        let before: Vec<_> = self.members.iter().filter_map(|one| one.wanted.clone()).collect();
        let all = std::mem::take(&mut self.members);
        let (kept, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
        self.members = kept;
        self.retiring.extend(gone);
        for wanted in &config.members {
            let there = self.members.iter_mut().find(|member| member.name == wanted.name);
            match there {
                None => {
                    // One that goes, or goes elsewhere, may serve its address.
                    let replaces =
                        replaces || before.iter().any(|one| one.shares_address_with(wanted));
                    self.members.push(Member::new(wanted.clone(), replaces));
                }
                Some(member)
                    if member.wanted.as_ref().is_some_and(|old| old.args == wanted.args) => {}
                Some(member) => live::change(member, wanted),
            }
        }
        self.members.sort_by(|a, b| a.name.cmp(&b.name));
        self.config = config;
    }

    /// Reads the configuration anew. One that is wrong changes nothing.
    fn reload(&mut self) {
        passed::notify(&[NotifyState::Reloading]);
        let mut loaded = self.sources.load();
        loaded.unchecked.iter().for_each(|one| tracing::warn!("{one}"));
        self.watch.was_read(loaded.texts);
        let is_right = loaded.troubles.is_empty();
        if is_right && loaded.config.members.is_empty() && !self.members.is_empty() {
            // Such as a file that is being written.
            let message = "it asks for nothing (expected a member; to end all, end this process)";
            loaded.troubles.push(Trouble { origin: None, message: message.into() });
        }
        if loaded.troubles.is_empty() {
            let before: Vec<_> = self.members.iter().map(|one| one.name.clone()).collect();
            self.apply(loaded.config, false);
            let count = self.members.len();
            tracing::info!("read the configuration anew: {count} members, {} before", before.len());
        } else {
            for trouble in &loaded.troubles {
                tracing::error!("{trouble}");
            }
            let count = loaded.troubles.len();
            tracing::error!("nothing is changed: the configuration has {count} errors");
        }
        // Files that they have open or have read; one that starts is about to.
        for process in self.members.iter().chain(&self.retiring).flat_map(Member::processes) {
            if process.of.kind.heeds_hangup() && process.state != State::Starting {
                process.signal(Signal::HUP);
            }
        }
        if self.was_ready {
            passed::notify(&[NotifyState::Ready]);
        }
    }

    /// Applies the configuration if its files have changed. When to look again.
    fn look_for_changes(&mut self, now: Instant) -> Option<Instant> {
        if !matches!(self.phase, Phase::Running) {
            return None;
        }
        if self.watch.finds_change(&self.sources, now) {
            tracing::info!("the configuration has changed");
            self.reload();
        }
        self.watch.due()
    }

    /// Whether all members have been tried, so that it is known how each fares.
    fn is_tried(&self) -> bool {
        self.members.iter().all(Member::is_tried)
    }

    /// Lets every member do what is due, and takes leave of those that are gone. When to look again.
    fn turn_members(&mut self, now: Instant) -> Option<Instant> {
        /// Processes that are started before members are heard again.
        const AT_ONCE: u64 = 16;
        let Daemon { starter, patience, members, retiring, .. } = self;
        for retired in retiring.iter_mut() {
            if !members.iter().any(|one| one.may_take_over_from(retired)) {
                retired.end(Signal::TERM);
            }
        }
        // What the kernel does meanwhile has one place each, and what retires may have that.
        let leaving: Vec<_> = retiring.iter().filter_map(|one| one.processes().next()).collect();
        let kinds: Vec<_> = leaving.iter().map(|process| process.of.kind).collect();
        let (mut next, mut starts) = (None, 0);
        for member in members.iter_mut() {
            let kind = member.wanted.as_ref().map(|wanted| wanted.kind);
            let may_start = kind.is_none_or(|kind| kind.is_replaced() || !kinds.contains(&kind));
            let before = member.starts;
            let at = member.turn(starter, *patience, may_start && starts < AT_ONCE, now);
            starts += member.starts - before;
            next = [next, at].into_iter().flatten().min();
        }
        if starts >= AT_ONCE {
            next = Some(now);
        }
        for member in retiring.iter_mut() {
            let at = member.turn(starter, *patience, false, now);
            next = [next, at].into_iter().flatten().min();
        }
        for gone in retiring.extract_if(.., |member| member.is_gone()) {
            self.past.0 += gone.starts;
            self.past.1 += gone.failures_in_all;
            // A member that waited for it may start now.
            next = Some(now);
        }
        next
    }

    fn everybody(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut().chain(&mut self.retiring)
    }

    /// Has all members end; with `at_once`, connections too.
    pub(super) fn end(&mut self, at_once: bool) {
        /// How long that may take one that does not heed it.
        const PATIENCE: Duration = Duration::from_secs(5);
        self.phase = Phase::Ending;
        if at_once {
            self.kill_at.get_or_insert(Instant::now() + PATIENCE);
        }
        for member in self.everybody() {
            match at_once {
                true => member.end_at_once(Signal::INT),
                false => member.end(Signal::TERM),
            }
        }
    }

    /// Kills what does not end at once though it was told to. When to look again.
    fn kill_late(&mut self, now: Instant) -> Option<Instant> {
        let at = self.kill_at?;
        if now >= at {
            self.everybody().for_each(|member| member.end_at_once(Signal::KILL));
        }
        (now < at).then_some(at)
    }

    /// A process that was stopped itself has not heard the others meanwhile, and their words are lost where
    /// they had no room.
    fn forgive_silence(&mut self, now: Instant) {
        const LATE: Duration = Duration::from_secs(1);
        if self.due.is_some_and(|due| now > due + LATE) {
            self.everybody().for_each(|member| member.forgive_silence(now));
            if let Phase::GivingWay(successor) = &mut self.phase {
                successor.heard = now;
            }
        }
    }

    /// Whether all have ended that are to.
    fn is_over(&self) -> bool {
        let is_ending = matches!(self.phase, Phase::Ending);
        is_ending && self.members.iter().chain(&self.retiring).all(Member::is_gone)
    }

    /// Tells the service manager how it stands, where that has changed.
    fn announce(&mut self) {
        let text = self.board.summary();
        if text != self.announced {
            passed::notify(&[NotifyState::Status(&text)]);
            self.announced = text;
        }
    }
}

impl Followed for Daemon {
    fn ended(&mut self) -> Option<Ended> {
        self.look_at_started_successor();
        self.is_over().then_some(Ended::Count)
    }

    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        /// Where it is to hear of others without being told.
        const LOOK: Duration = Duration::from_millis(200);
        let now = Instant::now();
        // In this order: what a process has said before its end is heard before that counts.
        self.forgive_silence(now);
        self.everybody().for_each(Member::look);
        for said in self.inbox.take() {
            let known = self.everybody().any(|member| member.hear(&said));
            for word in &said.words {
                if let Word::TookOver(Some(from)) = word {
                    self.everybody().for_each(|member| member.was_replaced(*from));
                }
            }
            if !known {
                tracing::debug!("process {} says {:?}, and is none of ours", said.pid, said.words);
            }
        }
        let all = self.members.iter_mut().chain(&mut self.retiring);
        live::log(all.flat_map(Member::processes_mut), &self.starter.filter);
        self.give_way(now);
        let look = self.look_for_changes(now);
        let next = [self.turn_members(now), self.kill_late(now), look].into_iter().flatten().min();
        let has_given_way = self.has_given_way();
        self.board.show(self.members.iter().chain(&self.retiring), self.past, has_given_way, now);
        self.announce();
        self.end_predecessor(now);
        let is_late = now >= self.started + READY_AFTER;
        self.was_ready |= is_late || self.is_tried();
        if self.is_over() {
            return Ok(Some(Duration::ZERO));
        }
        let ready = (!self.was_ready).then(|| self.started + READY_AFTER);
        let next = next.into_iter().chain(ready).min();
        let pause = next.map(|at| at.saturating_duration_since(Instant::now()));
        let waits = matches!(self.phase, Phase::GivingWay(_)) || self.predecessor.is_some();
        let pause = pause.into_iter().chain(waits.then_some(LOOK)).min();
        self.due = pause.map(|pause| Instant::now() + pause);
        Ok(pause)
    }

    fn is_ready(&self) -> bool {
        self.was_ready
    }

    fn log(&mut self) -> anyhow::Result<()> {
        self.board.lines().iter().for_each(|line| tracing::info!("{line}"));
        self.everybody()
            .flat_map(|member| member.processes())
            // One that starts does not catch it yet.
            .filter(|one| one.state != State::Starting)
            .for_each(|one| one.signal(Signal::USR1));
        Ok(())
    }

    fn hang_up(&mut self) {
        match self.phase {
            Phase::Running => self.reload(),
            _ => tracing::warn!(
                "not reading the configuration: another process takes this one's place"
            ),
        }
    }

    fn upgrade(&mut self) {
        self.start_successor();
    }
}
