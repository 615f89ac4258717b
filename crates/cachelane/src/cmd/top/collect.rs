//! Looks at the host and asks the processes, all at a time. One that does not answer delays a sample
//! once, by [`PATIENCE`]: from then on it is asked aside, by a thread of its own, until it answers.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use knobs::{Client, DEFAULT_TIMEOUT, ErrorKind, KnobInfo, Reading, Search, Select, side_by_side};
use serde_json::Value;

use super::host::{self, Stat};
use super::sample::{Answer, Key, Knob, Meter, Process, Relay, Said, Sample, Usage};

/// How long a sample waits for a process that has answered the one before.
const PATIENCE: Duration = Duration::from_millis(500);

/// The most processes that are asked aside at a time.
const ASIDE: usize = 64;

/// The most processes whose connections are kept: descriptors are few.
const KEPT: usize = 256;

/// What is asked for beside the counters: knobs, and what a relay says of its listeners and backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Closely {
    /// Of nobody.
    #[default]
    None,
    One(Key),
    All,
}

impl Closely {
    fn is_of(&self, key: &Key) -> bool {
        match self {
            Closely::None => false,
            Closely::One(one) => one == key,
            Closely::All => true,
        }
    }
}

/// What makes samples.
pub(super) struct Collector {
    select: Select,
    patience: Duration,
    start: Instant,
    known: HashMap<PathBuf, Known>,
    lists: Vec<Arc<Vec<Meter>>>,
    aside: HashSet<PathBuf>,
    answer: Sender<(PathBuf, Asked)>,
    answers: Receiver<(PathBuf, Asked)>,
    /// Where it was looked, for whoever finds nothing.
    pub(super) search: Search,
}

/// What is kept of a process from one sample to the next.
struct Known {
    key: Key,
    name: Option<String>,
    client: Option<Client>,
    silent: Option<Silent>,
    /// The list of its counters.
    list: Option<usize>,
}

struct Silent {
    since: Duration,
    why: String,
    is_stopped: bool,
}

/// A process to be asked.
struct Asking {
    process: knobs::Process,
    client: Option<Client>,
    patience: Duration,
    /// Whether to ask for its name and knobs.
    listing: bool,
    closely: bool,
}

type Asked = (Option<Client>, knobs::Result<Words>);

/// What a process says.
struct Words {
    at: Instant,
    name: Option<String>,
    knobs: Vec<KnobInfo>,
    readings: Vec<Reading>,
    relays: Vec<Relay>,
}

impl Collector {
    /// Of the processes that are meant, with `patient` for as long as people wait for one answer.
    pub(super) fn new(select: Select, patient: bool) -> Collector {
        let (answer, answers) = channel();
        Collector {
            select,
            patience: if patient { DEFAULT_TIMEOUT } else { PATIENCE },
            start: Instant::now(),
            known: HashMap::new(),
            lists: Vec::new(),
            aside: HashSet::new(),
            answer,
            answers,
            search: Search::default(),
        }
    }

    /// Looks and asks now.
    pub(super) fn sample(&mut self, closely: &Closely) -> anyhow::Result<Sample> {
        self.search = knobs::search()?;
        let mut found = self.search.processes.clone();
        found.retain(|process| self.select.may_be(process));
        let (at, cpus) = (self.now(), host::cpus()?);
        let own_cpu = host::cpu_time(std::process::id()).map(micros).unwrap_or_default();
        let mut seen = Vec::new();
        let mut asking = Vec::new();
        let mut asked: HashMap<PathBuf, Asked> = self.heard_aside();
        for process in found {
            let stat = process.is_visible.then(|| Stat::of(process.pid));
            // One that has ended has left its socket, and will be gone next time.
            if stat.is_some_and(|stat| stat.is_none_or(|stat| stat.has_ended())) {
                continue;
            }
            let stat = stat.flatten();
            let usage = stat.and_then(|stat| self.usage(&process, stat));
            let is_stopped = stat.is_some_and(|stat| stat.is_stopped());
            if let Some(one) = self.prepare(&process, stat, is_stopped, closely, &asked) {
                asking.push(one);
            }
            seen.push((process, usage));
        }
        let paths: HashSet<_> = seen.iter().map(|(process, _)| process.path.clone()).collect();
        self.known.retain(|path, _| paths.contains(path));
        asked.extend(side_by_side(asking, |one: Asking| (one.process.path.clone(), ask(one))));
        let take = |(process, usage): (knobs::Process, _)| {
            let asked = asked.remove(&process.path);
            self.take(process, usage, asked)
        };
        let processes = seen.into_iter().filter_map(take).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Ok(Sample { unix_ms, at, cpus, own_cpu, processes })
    }

    /// How long ago a sample was taken.
    pub(super) fn since(&self, at: Duration) -> Duration {
        self.now().saturating_sub(at)
    }

    fn now(&self) -> Duration {
        micros(self.start.elapsed())
    }

    fn usage(&self, process: &knobs::Process, stat: Stat) -> Option<Usage> {
        let (at, cpu) = (self.now(), host::cpu_time(process.pid).ok()?);
        let cpu = micros(cpu);
        Some(Usage { at, cpu, rss: stat.rss, threads: stat.threads })
    }

    /// What those say that were asked aside.
    fn heard_aside(&mut self) -> HashMap<PathBuf, Asked> {
        let heard: HashMap<_, _> = self.answers.try_iter().collect();
        self.aside.retain(|path| !heard.contains_key(path));
        heard
    }

    /// How to ask it together with the others; none if that is no good now.
    fn prepare(
        &mut self,
        process: &knobs::Process,
        stat: Option<Stat>,
        is_stopped: bool,
        closely: &Closely,
        heard: &HashMap<PathBuf, Asked>,
    ) -> Option<Asking> {
        let key = Key {
            socket: process.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            uid: process.uid,
            started: stat.map(|stat| stat.started),
        };
        let now = self.now();
        let known = self.known.entry(process.path.clone());
        let known = known.or_insert_with(|| Known::new(key.clone()));
        if known.key != key {
            *known = Known::new(key.clone());
        }
        let closely = closely.is_of(&key);
        let listing = closely || known.name.is_none();
        let mut asking = Asking {
            process: process.clone(),
            client: None,
            patience: self.patience,
            listing,
            closely,
        };
        if is_stopped {
            let why = format!("stopped; kill -CONT {} lets it go on", process.pid);
            let since = known.silent.take().map_or(now, |silent| silent.since);
            known.silent = Some(Silent { since, why, is_stopped });
            return None;
        }
        // One that was stopped and goes on is likely to answer.
        if known.silent.as_ref().is_none_or(|silent| silent.is_stopped) {
            asking.client = known.client.take();
            return Some(asking);
        }
        let is_asked = heard.contains_key(&process.path) || self.aside.contains(&process.path);
        if !is_asked && self.aside.len() < ASIDE {
            self.aside.insert(process.path.clone());
            let (answer, path) = (self.answer.clone(), process.path.clone());
            asking.patience = DEFAULT_TIMEOUT;
            // Where no thread can be had, the next sample tries again.
            let spawned = std::thread::Builder::new().name("aside".into()).spawn(move || {
                // Nobody listens any more at the end.
                let _ = answer.send((path, ask(asking)));
            });
            if spawned.is_err() {
                self.aside.remove(&process.path);
            }
        }
        None
    }

    /// What has become of it; none if it has ended, or is not meant.
    fn take(
        &mut self,
        process: knobs::Process,
        usage: Option<Usage>,
        asked: Option<Asked>,
    ) -> Option<Process> {
        let now = self.now();
        let kept = self.known.len() <= KEPT;
        let known = self.known.get_mut(&process.path)?;
        let answer = match asked {
            Some((client, Ok(words))) => {
                known.client = client.filter(|_| kept);
                known.silent = None;
                known.name = words.name.clone().or(known.name.take());
                let at = micros(words.at.saturating_duration_since(self.start));
                let list = known.list;
                let (meters_id, meters) = intern(&mut self.lists, list, &words.readings);
                known.list = Some(meters_id);
                let value = |reading: &Reading| reading.value.value().copied();
                let values = words.readings.iter().map(value).collect();
                let knobs = words.knobs.iter().map(Knob::from).collect();
                Answer::Said(Said { at, meters, meters_id, values, knobs, relays: words.relays })
            }
            Some((_, Err(error))) if error.kind() == ErrorKind::Gone => {
                // Another may have its name next time.
                self.known.remove(&process.path);
                return None;
            }
            Some((_, Err(error))) => {
                let why = match error.kind() {
                    ErrorKind::Timeout => "it does not answer".into(),
                    _ => error.to_string(),
                };
                let since = known.silent.take().map_or(now, |silent| silent.since);
                let silent = Silent { since, why: why.clone(), is_stopped: false };
                known.silent = Some(silent);
                Answer::Silent { why, since }
            }
            // It has been silent before.
            None => {
                let silent = known.silent.as_ref()?;
                Answer::Silent { why: silent.why.clone(), since: silent.since }
            }
        };
        let name = known.name.clone();
        if name.as_ref().is_some_and(|name| !self.select.is_name(name)) {
            return None;
        }
        let name = name.unwrap_or_else(|| process.label());
        let key = known.key.clone();
        Some(Process { key, kind: process.kind, pid: process.pid, name, usage, answer })
    }
}

impl Known {
    fn new(key: Key) -> Known {
        Known { key, name: None, client: None, silent: None, list: None }
    }
}

/// A time as a recording has it, so that a replay shows the same figures.
fn micros(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// The number of the list of these counters, which is most likely the one that it was before.
fn intern(
    lists: &mut Vec<Arc<Vec<Meter>>>,
    before: Option<usize>,
    readings: &[Reading],
) -> (usize, Arc<Vec<Meter>>) {
    let is_it = |list: &Vec<Meter>| {
        list.len() == readings.len() && list.iter().zip(readings).all(|(m, r)| m.is_of(r))
    };
    let found = before.filter(|&id| is_it(&lists[id]));
    let found = found.or_else(|| lists.iter().position(|list| is_it(list)));
    let id = found.unwrap_or_else(|| {
        lists.push(Arc::new(readings.iter().map(Meter::from).collect()));
        lists.len() - 1
    });
    (id, Arc::clone(&lists[id]))
}

fn ask(asking: Asking) -> Asked {
    let Asking { process, client, patience, listing, closely } = asking;
    let mut client = match client.map_or_else(|| process.connect_timeout(patience), Ok) {
        Ok(client) => client,
        Err(error) => return (None, Err(error)),
    };
    let words = words(&mut client, listing, closely);
    (Some(client).filter(|_| words.is_ok()), words)
}

fn words(client: &mut Client, listing: bool, closely: bool) -> knobs::Result<Words> {
    let listing = if listing { Some(client.listing()?) } else { None };
    let before = Instant::now();
    let readings = client.counters()?;
    let at = before + before.elapsed() / 2;
    let (name, knobs) = listing.map(|it| (Some(it.name), it.knobs)).unwrap_or_default();
    let relays = if closely { relays(client, &knobs) } else { Vec::new() };
    Ok(Words { at, name, knobs, readings, relays })
}

/// What each relay of the process says of its listeners and backends.
fn relays(client: &mut Client, knobs: &[KnobInfo]) -> Vec<Relay> {
    let prefixes = knobs.iter().filter_map(|knob| knob.name.strip_suffix(".engine"));
    let prefixes = prefixes.filter(|name| *name == "relay" || name.starts_with("relay."));
    // A process of an earlier version does not say it.
    let one = |prefix: &str| {
        let said = client.ask(&format!("{prefix}.statistics"), Value::Null).ok()?;
        Some(Relay::of(prefix, &said.value))
    };
    prefixes.filter_map(one).collect()
}
