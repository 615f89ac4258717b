//! The fast paths of several bridges in one process: of those that were named, or of all.
//!
//! Whoever has a [`Fleet`] calls [`Fleet::tend`] now and then. A bridge that is gone leaves the
//! fleet. Where the fleet waits for bridges, one that comes joins it, and one that could not be
//! taken is tried again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::host::{LinkWatch, Reader};
use crate::{Accelerator, Config, Error, ErrorKind, Result, Stats, Table};

/// How often to look for bridges while devices come and go, at most.
const LOOK: Duration = Duration::from_millis(100);
/// After how long to try again what has failed: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Which bridges to accelerate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bridges {
    /// Those with these device names. `wait`: also while they are not there, or not any more.
    Named {
        /// Device names.
        names: Vec<String>,
        /// Whether to wait for those that are not there.
        wait: bool,
    },
    /// All that there are, and all that come.
    All,
}

/// What has become of a bridge.
#[derive(Debug)]
pub enum Event {
    /// It is accelerated from now on.
    Started,
    /// It is not there yet.
    Awaited,
    /// It cannot be accelerated now.
    Refused(Error),
    /// Its fast path has ended by itself.
    Ended(Error),
}

/// The fast paths of several bridges. Dropping it takes them all off.
#[derive(Debug)]
pub struct Fleet {
    bridges: Bridges,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// For bridges that come.
    config: Config,
    members: Vec<Member>,
    /// What members that have left did.
    past: Stats,
    /// Bridges by name that could not be taken.
    refused: HashMap<String, Refused>,
    /// None where nothing is waited for.
    watch: Option<LinkWatch>,
    next_look: Instant,
    /// Devices have changed since the last look.
    heard: bool,
    /// What nobody was told yet.
    events: Vec<(String, Event)>,
}

#[derive(Debug)]
struct Member {
    name: String,
    index: u32,
    accelerator: Accelerator,
}

/// A bridge that could not be taken.
#[derive(Debug)]
struct Refused {
    why: String,
    next: Instant,
    pause: Duration,
}

impl Fleet {
    /// Starts with the bridges that are there.
    ///
    /// # Errors
    /// As [`Accelerator::start`], of the first named bridge that cannot be taken: none is then. A
    /// bridge that is not there is no error where it is waited for. With [`Bridges::All`], only
    /// what would be an error of any bridge.
    pub fn start(bridges: Bridges, config: Config) -> Result<Fleet> {
        // A bridge takes some twenty files, and soft limits of 1,024 are usual. Where the hard limit
        // is as low, what cannot be opened says so.
        let files = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
        let waits = !matches!(bridges, Bridges::Named { wait: false, .. });
        let mut inner = Inner {
            config,
            members: Vec::new(),
            past: Stats::default(),
            refused: HashMap::new(),
            // Before the first look, so that nothing that comes after it is missed.
            watch: waits.then(LinkWatch::new).transpose()?,
            next_look: Instant::now(),
            heard: waits,
            events: Vec::new(),
        };
        match &bridges {
            Bridges::Named { names, wait } => {
                for name in names {
                    match inner.take(name) {
                        Err(error) if *wait && error.kind() == ErrorKind::NoDevice => {
                            inner.events.push((name.clone(), Event::Awaited));
                        }
                        taken => taken?,
                    }
                }
            }
            Bridges::All => {
                // The others are taken one by one, as those that come.
                if let Some((_, name)) = Reader::new()?.bridges()?.first() {
                    match inner.take(name) {
                        Err(error) if is_every_bridges(&error) => return Err(error),
                        taken => inner.note(name, taken),
                    }
                }
            }
        }
        Ok(Fleet { bridges, inner: Mutex::new(inner) })
    }

    /// Takes leave of bridges whose fast path has ended, takes one of those that have come, and says
    /// what has become of which since the last call. To be called several times a second, and at
    /// once after a call that had something to say.
    pub fn tend(&self) -> Vec<(String, Event)> {
        let mut inner = self.inner();
        inner.part();
        inner.listen();
        let now = Instant::now();
        let due = inner.refused.values().any(|refused| refused.next <= now);
        if inner.watch.is_some() && now >= inner.next_look && (inner.heard || due) {
            match inner.gather(&self.bridges) {
                Ok(more) => {
                    inner.heard = more;
                    inner.next_look = if more { now } else { now + LOOK };
                }
                Err(error) => {
                    tracing::warn!("{error}; trying again");
                    inner.heard = true;
                    inner.next_look = now + AGAIN[0];
                }
            }
        }
        std::mem::take(&mut inner.events)
    }

    /// Whether no bridge is accelerated, and none is waited for.
    pub fn is_over(&self) -> bool {
        let inner = self.inner();
        inner.members.is_empty() && inner.watch.is_none()
    }

    /// Turns the fast path of each bridge on or off, also of those that come later.
    ///
    /// # Errors
    /// As [`Accelerator::set_fastpath`], after all have been told.
    pub fn set_fastpath(&self, on: bool) -> Result<()> {
        self.tell(|config| config.fastpath = on, |accelerator| accelerator.set_fastpath(on))
    }

    /// Whether the fast path is on.
    pub fn fastpath(&self) -> bool {
        self.inner().config.fastpath
    }

    /// Says where the last-seen stamps of each bridge live, also of those that come later.
    ///
    /// # Errors
    /// As [`Accelerator::set_table`], after all have been told.
    pub fn set_table(&self, table: Table) -> Result<()> {
        self.tell(|config| config.table = table, |accelerator| accelerator.set_table(table))
    }

    /// Where the last-seen stamps live.
    pub fn table(&self) -> Table {
        self.inner().config.table
    }

    /// Counts since the start, of all bridges, with those that have left.
    pub fn stats(&self) -> Stats {
        let inner = self.inner();
        let mut sum = inner.past.clone();
        inner.members.iter().for_each(|member| sum.add(&member.accelerator.stats()));
        sum
    }

    /// How many bridges are accelerated.
    pub fn len(&self) -> usize {
        self.inner().members.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with each bridge that is accelerated, and its name.
    pub fn each(&self, mut visit: impl FnMut(&str, &Accelerator)) {
        self.inner().members.iter().for_each(|member| visit(&member.name, &member.accelerator));
    }

    fn tell(
        &self,
        change: impl FnOnce(&mut Config),
        tell: impl Fn(&Accelerator) -> Result<()>,
    ) -> Result<()> {
        let mut inner = self.inner();
        change(&mut inner.config);
        let told = inner.members.iter().map(|member| tell(&member.accelerator));
        // One whose bridge is gone is about to leave.
        let gone = |told: &Result<()>| {
            told.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoDevice)
        };
        // All are told before an error is.
        told.filter(|told| !gone(told)).collect::<Vec<_>>().into_iter().collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // What a panic leaves is what was taken and what has left until then.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes leave of the members whose fast path has ended.
    fn part(&mut self) {
        let ended = self.members.extract_if(.., |member| member.accelerator.failure().is_some());
        for member in ended {
            let Some(error) = member.accelerator.failure() else { continue };
            self.past.add(&member.accelerator.stats().counted());
            // Its bridge may be there: again, or as before.
            self.heard = true;
            self.events.push((member.name, Event::Ended(error)));
        }
    }

    /// Takes note of whether devices have changed.
    fn listen(&mut self) {
        if let Some(watch) = &mut self.watch {
            // Where it cannot be heard, looking tells.
            self.heard |= watch.heard().unwrap_or(true);
        }
    }

    /// Takes one of the bridges that have come. Returns whether there may be more.
    fn gather(&mut self, bridges: &Bridges) -> Result<bool> {
        let there = Reader::new()?.bridges()?;
        self.refused.retain(|name, _| there.iter().any(|(_, there)| there == name));
        let now = Instant::now();
        let wanted = there.into_iter().find(|(index, name)| {
            let named = match bridges {
                Bridges::Named { names, .. } => names.contains(name),
                Bridges::All => true,
            };
            named
                && !self.members.iter().any(|member| member.index == *index)
                && self.refused.get(name).is_none_or(|refused| refused.next <= now)
        });
        let Some((_, name)) = wanted else { return Ok(false) };
        let taken = self.take(&name);
        self.note(&name, taken);
        Ok(true)
    }

    fn take(&mut self, name: &str) -> Result<()> {
        let accelerator = Accelerator::start(name, self.config)?;
        self.refused.remove(name);
        let index = accelerator.bridge();
        self.members.push(Member { name: name.to_owned(), index, accelerator });
        self.events.push((name.to_owned(), Event::Started));
        Ok(())
    }

    /// Says why a bridge could not be taken, once, and when to try again.
    fn note(&mut self, name: &str, taken: Result<()>) {
        let Err(error) = taken else { return };
        // It has gone since it was seen.
        if error.kind() == ErrorKind::NoDevice {
            return;
        }
        let [first, most] = AGAIN;
        let old = self.refused.remove(name);
        let pause = old.as_ref().map_or(first, |old| (old.pause * 2).min(most));
        let why = error.to_string();
        let known = old.is_some_and(|old| old.why == why);
        self.refused.insert(name.to_owned(), Refused { why, next: Instant::now() + pause, pause });
        if !known {
            self.events.push((name.to_owned(), Event::Refused(error)));
        }
    }
}

/// Whether it would be an error of any bridge.
fn is_every_bridges(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Unsupported | ErrorKind::Invalid)
}
