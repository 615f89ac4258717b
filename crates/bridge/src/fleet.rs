//! The fast paths of several bridges in one process: of those that were named, or of all.
//!
//! Whoever has a [`Fleet`] calls [`Fleet::tend`] now and then. A bridge that is gone leaves the
//! fleet. Where the fleet waits for bridges, one that comes joins it, and one that could not be
//! taken is tried again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wildmatch::WildMatch;

use crate::host::{LinkWatch, Reader};
use crate::{Accelerator, Config, Counters, Error, ErrorKind, Result, Table};

/// How often to look for bridges while devices come and go, at most.
const LOOK: Duration = Duration::from_millis(100);
/// After how long to try again what has failed: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Which bridges to accelerate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bridges {
    /// Those with these device names. `wait`: also while they are not there, or not any more; those that
    /// a pattern is for are always waited for.
    Named {
        /// Device names, or patterns of them, in which `*` stands for any characters and `?` for one.
        names: Vec<String>,
        /// Whether to wait for those that are not there.
        wait: bool,
    },
    /// All that there are, and all that come.
    All,
}

impl Bridges {
    /// Whether a bridge of this name is one of them.
    fn include(&self, name: &str) -> bool {
        match self {
            Bridges::Named { names, .. } => {
                names.iter().any(|one| WildMatch::new(one).matches(name))
            }
            Bridges::All => true,
        }
    }

    /// Whether some may come.
    fn wait(&self) -> bool {
        match self {
            Bridges::Named { names, wait } => *wait || names.iter().any(|one| is_pattern(one)),
            Bridges::All => true,
        }
    }
}

/// Whether this stands for the names of several bridges. No device has such a name: `*` and `?` can be
/// in one, but not by the tools that make bridges.
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Those of the names that a [pattern](is_pattern) is for.
pub fn matching(names: &[String], pattern: &str) -> Vec<String> {
    let pattern = WildMatch::new(pattern);
    names.iter().filter(|name| pattern.matches(name)).cloned().collect()
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
///
/// The two locks: `members` is held for moments alone, so that knobs and counters wait for nobody;
/// `seeking` also while a bridge is being taken. Whoever has `members` does not ask for `seeking`.
/// What a panic leaves is what was taken and what has left until then.
#[derive(Debug)]
pub struct Fleet {
    bridges: Bridges,
    members: Mutex<Members>,
    seeking: Mutex<Seeking>,
}

#[derive(Debug)]
struct Members {
    /// For bridges that come.
    config: Config,
    /// By name.
    there: Vec<(String, Arc<Accelerator>)>,
    /// What members that have left did.
    past: Counters,
    past_overruns: u64,
}

#[derive(Debug)]
struct Seeking {
    /// None where nothing is waited for.
    watch: Option<LinkWatch>,
    /// Bridges by name that are not to be tried again before some time.
    refused: HashMap<String, Refused>,
    next_look: Instant,
    /// Devices have changed since the last look.
    heard: bool,
    /// What nobody was told yet.
    events: Vec<(String, Event)>,
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
        let waits = bridges.wait();
        let fleet = Fleet {
            members: Mutex::new(Members {
                config,
                there: Vec::new(),
                past: Counters::default(),
                past_overruns: 0,
            }),
            seeking: Mutex::new(Seeking {
                // Before the first look, so that nothing that comes after it is missed.
                watch: waits.then(LinkWatch::new).transpose()?,
                refused: HashMap::new(),
                next_look: Instant::now(),
                heard: waits,
                events: Vec::new(),
            }),
            bridges,
        };
        let mut seeking = fleet.seeking.lock();
        let mut several = true;
        if let Bridges::Named { names, wait } = &fleet.bridges {
            several = names.iter().any(|name| is_pattern(name));
            for name in names.iter().filter(|name| !is_pattern(name)) {
                match fleet.take(name) {
                    Err(error) if *wait && error.kind() == ErrorKind::NoDevice => {
                        seeking.events.push((name.clone(), Event::Awaited));
                    }
                    taken => seeking.note(name, Ok(taken?)),
                }
            }
        }
        if several {
            // The others are taken one by one, as those that come.
            let there = Reader::new()?.bridges()?;
            let is_new = |name: &String| fleet.each().iter().all(|(taken, _)| taken != name);
            let mut those =
                there.iter().map(|(_, name)| name).filter(|name| fleet.bridges.include(name));
            if let Some(name) = those.find(|name| is_new(name)) {
                match fleet.take(name) {
                    Err(error) if is_every_bridges(&error) => return Err(error),
                    taken => seeking.note(name, taken),
                }
            }
        }
        drop(seeking);
        Ok(fleet)
    }

    /// Takes leave of bridges whose fast path has ended, takes one of those that have come, and says
    /// what has become of which since the last call. To be called several times a second, and at
    /// once after a call that had something to say.
    pub fn tend(&self) -> Vec<(String, Event)> {
        let mut seeking = self.seeking.lock();
        for (name, error) in self.part() {
            seeking.ended(name, error);
        }
        if let Some(watch) = &mut seeking.watch {
            // Where it cannot be heard, looking tells.
            let heard = watch.heard().unwrap_or(true);
            seeking.heard |= heard;
        }
        let now = Instant::now();
        let due = seeking.refused.values().any(|refused| refused.next <= now);
        if seeking.watch.is_some() && now >= seeking.next_look && (seeking.heard || due) {
            match self.gather(&mut seeking) {
                Ok(more) => {
                    seeking.heard = more;
                    seeking.next_look = if more { now } else { now + LOOK };
                }
                Err(error) => {
                    tracing::warn!("{error}; trying again");
                    seeking.heard = true;
                    seeking.next_look = now + AGAIN[0];
                }
            }
        }
        std::mem::take(&mut seeking.events)
    }

    /// Whether no bridge is accelerated, and none is waited for.
    pub fn is_over(&self) -> bool {
        self.is_empty() && self.seeking.lock().watch.is_none()
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
        self.members.lock().config.fastpath
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
        self.members.lock().config.table
    }

    /// What the packet paths have counted since the start, with those of bridges that have left.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if one's map cannot be read.
    pub fn counters(&self) -> Result<Counters> {
        let members = self.members.lock();
        members.there.iter().try_fold(members.past, |mut sum, (_, accelerator)| {
            sum.add(&accelerator.counters()?);
            Ok(sum)
        })
    }

    /// How often notifications were lost, and a mirror rebuilt.
    pub fn overruns(&self) -> u64 {
        let members = self.members.lock();
        let now = members.there.iter().map(|(_, accelerator)| accelerator.overruns());
        members.past_overruns + now.sum::<u64>()
    }

    /// Whether no bridge is accelerated.
    pub fn is_empty(&self) -> bool {
        self.members.lock().there.is_empty()
    }

    /// The bridges that are accelerated, by name.
    pub fn each(&self) -> Vec<(String, Arc<Accelerator>)> {
        self.members.lock().there.clone()
    }

    fn tell(
        &self,
        change: impl FnOnce(&mut Config),
        tell: impl Fn(&Accelerator) -> Result<()>,
    ) -> Result<()> {
        change(&mut self.members.lock().config);
        // One whose bridge is gone is about to leave.
        let gone = |told: &Result<()>| {
            told.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoDevice)
        };
        let told = self.each().into_iter().map(|(_, accelerator)| tell(&accelerator));
        // All are told before an error is.
        told.filter(|told| !gone(told)).collect::<Vec<_>>().into_iter().collect()
    }

    /// Takes leave of the members whose fast path has ended.
    fn part(&self) -> Vec<(String, Error)> {
        let mut members = self.members.lock();
        let Members { there, past, past_overruns, .. } = &mut *members;
        let ended = there.extract_if(.., |(_, accelerator)| accelerator.failure().is_some());
        let left = ended.filter_map(|(name, accelerator)| {
            match accelerator.counters() {
                Ok(counters) => past.add(&counters),
                Err(error) => {
                    tracing::warn!("what {name} counted is missing in the sums: {error}");
                }
            }
            *past_overruns += accelerator.overruns();
            Some((name, accelerator.failure()?))
        });
        left.collect()
    }

    /// Takes one of the bridges that have come. Returns whether there may be more.
    fn gather(&self, seeking: &mut Seeking) -> Result<bool> {
        let there = Reader::new()?.bridges()?;
        seeking.refused.retain(|name, _| there.iter().any(|(_, there)| there == name));
        let mut taken: HashSet<u32> = HashSet::new();
        for (member, accelerator) in &mut self.members.lock().there {
            let index = accelerator.bridge();
            taken.insert(index);
            // It may have another name by now.
            if let Some((_, name)) = there.iter().find(|(there, _)| *there == index) {
                member.clone_from(name);
            }
        }
        let now = Instant::now();
        let wanted = there.into_iter().find(|(index, name)| {
            let may_try = seeking.refused.get(name).is_none_or(|refused| refused.next <= now);
            self.bridges.include(name) && !taken.contains(index) && may_try
        });
        let Some((_, name)) = wanted else { return Ok(false) };
        let taken = self.take(&name);
        seeking.note(&name, taken);
        Ok(true)
    }

    fn take(&self, name: &str) -> Result<()> {
        let config = self.members.lock().config;
        let accelerator = Arc::new(Accelerator::start(name, config)?);
        let mut members = self.members.lock();
        let now = members.config;
        members.there.push((name.to_owned(), Arc::clone(&accelerator)));
        drop(members);
        // A change of before the push did not reach this accelerator, so it is made here; `tell`
        // makes a later one.
        if now.fastpath != config.fastpath {
            accelerator.set_fastpath(now.fastpath)?;
        }
        if now.table != config.table {
            accelerator.set_table(now.table)?;
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // All at once: leaving the ports takes each of them a while.
        self.each().iter().for_each(|(_, accelerator)| accelerator.stop());
    }
}

impl Seeking {
    /// The bridge was taken, or is to be tried again some time. Says so, but not twice the same.
    fn note(&mut self, name: &str, taken: Result<()>) {
        let error = match taken {
            Ok(()) => {
                self.refused.remove(name);
                return self.events.push((name.to_owned(), Event::Started));
            }
            // It has gone since it was seen.
            Err(error) if error.kind() == ErrorKind::NoDevice => return,
            Err(error) => error,
        };
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

    /// A fast path has ended. Its bridge may be there: another of its name, at once, or the same,
    /// where something else has failed.
    fn ended(&mut self, name: String, error: Error) {
        self.heard = true;
        if error.kind() != ErrorKind::NoDevice {
            let [pause, _] = AGAIN;
            let refused = Refused { why: error.to_string(), next: Instant::now() + pause, pause };
            self.refused.insert(name.clone(), refused);
        }
        self.events.push((name, Event::Ended(error)));
    }
}

/// Whether it would be an error of any bridge.
fn is_every_bridges(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Unsupported | ErrorKind::Invalid)
}
