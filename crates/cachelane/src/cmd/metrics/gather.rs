//! Asking all processes what they count, side by side, in a bounded time: one that does not answer is
//! shown as silent, and the others do not wait for it for long.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use knobs::{ErrorKind, KnobInfo, Process, Reading, ask_each, discover};
use lanes::LaneMap;
use rustix::process::geteuid;
use serde_json::Value;

use super::families::Families;
use super::names::service;
use super::show::{Shown, Who};
use super::usage::Usage;

/// How long one process may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long one may that is stopped now, as by SIGSTOP.
const PATIENCE_WITH_STOPPED: Duration = Duration::from_millis(100);

/// How long all of them may take together. Only a few are asked at a time, so that with many silent
/// ones it takes longer than one may.
const ALL: Duration = Duration::from_secs(2);

/// What is left to those that are asked after that.
const LAST: Duration = Duration::from_millis(1);

/// How old what is known of the host's lanes may be: CPUs seldom come and go.
const LANES_KEPT: Duration = Duration::from_secs(60);

/// The most services of one process that are asked for their statistics.
const SERVICES: usize = 64;

/// What a process has answered.
pub(super) struct Answer {
    pub(super) name: String,
    pub(super) knobs: Vec<KnobInfo>,
    pub(super) readings: Vec<Reading>,
    /// Of relays: by service, where there are several in the process.
    pub(super) statistics: Vec<(Option<String>, Value)>,
    /// What it did not answer.
    pub(super) missed: u64,
}

/// Asks, and remembers what is of use the next time.
pub(super) struct Gatherer {
    /// Whether the figures of this process itself go by the names that exporters have for them.
    own: bool,
    /// What processes were called when they last answered.
    names: HashMap<PathBuf, String>,
    /// Those that did not answer the last time, which are asked after the others.
    silent: HashSet<PathBuf>,
    lanes: Option<(Instant, LaneMap)>,
}

impl Gatherer {
    /// Has not asked yet. The figures `own` to this process have names, such as
    /// `process_cpu_seconds_total`, that another program's metrics on the same page would have too.
    pub(super) fn new(own: bool) -> Gatherer {
        Gatherer { own, names: HashMap::new(), silent: HashSet::new(), lanes: None }
    }

    /// Asks all.
    pub(super) fn gather(&mut self) -> knobs::Result<Families> {
        let start = Instant::now();
        let mut processes = discover()?;
        processes.sort_by_key(|process| self.silent.contains(&process.path));
        let answers = ask_each(&processes, |process| ask(process, start + ALL));
        let mut all = Vec::new();
        for (process, answer) in processes.into_iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => Some(answer),
                // It has ended meanwhile.
                Err(error) if error.kind() == ErrorKind::Gone => continue,
                Err(error) => {
                    tracing::debug!("{}: {error}", process.label());
                    None
                }
            };
            let usage = Usage::of(process.pid, process.uid);
            all.push((process, usage, answer));
        }
        // This user's first: what others' say must not decide what sort of family one is.
        all.sort_by_key(|(process, ..)| !is_own(process));
        let mut shown = Shown::new();
        self.remember(&all);
        for (who, (_, usage, answer)) in self.named(&all).into_iter().zip(&all) {
            shown.process(&who, usage.as_ref(), answer.as_ref());
        }
        if let Some(map) = self.lanes() {
            shown.lanes(map);
        }
        Ok(shown.end(start.elapsed(), self.own))
    }

    fn remember(&mut self, all: &[(Process, Option<Usage>, Option<Answer>)]) {
        let before = std::mem::take(&mut self.names);
        self.silent.clear();
        for (process, _, answer) in all {
            let path = process.path.clone();
            let name = match answer {
                Some(answer) => Some(answer.name.clone()),
                None => {
                    self.silent.insert(path.clone());
                    before.get(&path).cloned()
                }
            };
            self.names.extend(name.map(|name| (path, name)));
        }
    }

    /// What each is called, so that no two are called the same: of those of one name, as a relay and its
    /// successor have while the one drains, all but the one that started first have their process id.
    fn named(&self, all: &[(Process, Option<Usage>, Option<Answer>)]) -> Vec<Who> {
        let mut by_age: Vec<usize> = (0..all.len()).collect();
        let start = |place: usize| all[place].1.map_or(f64::INFINITY, |usage| usage.start);
        by_age.sort_by(|a, b| {
            start(*a).total_cmp(&start(*b)).then(all[*a].0.pid.cmp(&all[*b].0.pid))
        });
        let mut taken = HashSet::new();
        let mut named = vec![None; all.len()];
        for place in by_age {
            let process = &all[place].0;
            let name = self.names.get(&process.path).cloned().unwrap_or_default();
            let is_first = taken.insert((process.uid, process.kind.clone(), name.clone()));
            named[place] = Some(Who::new(process, name, is_first));
        }
        named.into_iter().flatten().collect()
    }

    fn lanes(&mut self) -> Option<&LaneMap> {
        if self.lanes.as_ref().is_none_or(|(read, _)| read.elapsed() > LANES_KEPT) {
            let map = LaneMap::detect();
            let map = map.inspect_err(|error| tracing::debug!("no lanes: {error}")).ok();
            self.lanes = map.map(|map| (Instant::now(), map));
        }
        self.lanes.as_ref().map(|(_, map)| map)
    }
}

/// Whether a process is this user's.
fn is_own(process: &Process) -> bool {
    process.uid == geteuid().as_raw()
}

/// Asks one for everything, within its time and before all is over.
fn ask(process: &Process, end: Instant) -> knobs::Result<Answer> {
    let patience = if process.is_stopped() { PATIENCE_WITH_STOPPED } else { PATIENCE };
    let end = end.min(Instant::now() + patience);
    let left = || end.saturating_duration_since(Instant::now()).max(LAST);
    let mut client = process.connect_timeout(left())?;
    client.set_timeout(left());
    let listing = client.listing()?;
    client.set_timeout(left());
    let readings = client.counters()?;
    let (mut statistics, mut missed) = (Vec::new(), 0);
    for service in relays(&readings) {
        let request = match &service {
            Some(service) => format!("relay.{service}.statistics"),
            None => relay::STATISTICS.to_owned(),
        };
        client.set_timeout(left());
        match client.ask(&request, Value::Null) {
            Ok(answer) => statistics.push((service, answer.value)),
            // Of an earlier version, or no relay after all.
            Err(error) if error.kind() == ErrorKind::UnknownRequest => {}
            Err(_) => missed += 1,
        }
    }
    Ok(Answer { name: listing.name, knobs: listing.knobs, readings, statistics, missed })
}

/// The relays of a process, as its counters tell: one without a name, or services.
fn relays(readings: &[Reading]) -> Vec<Option<String>> {
    let names = readings.iter().map(|reading| reading.name.as_str());
    let accepted = names.filter(|name| name.starts_with("relay.") && name.ends_with(".accepted"));
    let services = accepted.map(|name| service(name).map(|(service, _)| service.to_owned()));
    services.take(SERVICES).collect()
}
