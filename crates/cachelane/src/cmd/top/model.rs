//! What the samples come to: shares of CPUs, rates, and their history.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::sample::{Answer, Cpu, End, Key, Knob, Process, Relay, Said, Sample, Usage};
use super::telling::{Figure, telling};
use crate::figures::rate_over;

/// How many rates are remembered of each counter that ever moved.
pub(super) const HISTORY: usize = 120;

/// The least time between samples of which rates are made.
const LEAST: Duration = Duration::from_millis(80);

/// Rates in their order, with gaps where there was none.
pub(super) type History = VecDeque<Option<f64>>;

/// All that is known now.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) unix_ms: u64,
    /// Since the first sample.
    pub(super) at: Duration,
    pub(super) cpus: Vec<CpuShare>,
    /// The share of a CPU that this command costs.
    pub(super) own: Option<f64>,
    pub(super) tracks: BTreeMap<Key, Track>,
    last: Option<(Duration, Duration, Vec<Cpu>)>,
}

/// What a CPU did since the sample before, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CpuShare {
    pub(super) cpu: usize,
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) softirq: f64,
}

impl CpuShare {
    pub(super) fn busy(&self) -> f64 {
        self.user + self.system + self.softirq
    }

    /// None for a CPU that was not there, or for no time.
    fn between(before: &Cpu, now: &Cpu) -> Option<CpuShare> {
        let since = |of: fn(&Cpu) -> u64| of(now).saturating_sub(of(before)) as f64;
        let [user, system, softirq] =
            [since(|c| c.user), since(|c| c.system), since(|c| c.softirq)];
        let all = user + system + softirq + since(|c| c.rest);
        let share = |part: f64| part / all;
        let shares = CpuShare {
            cpu: now.cpu,
            user: share(user),
            system: share(system),
            softirq: share(softirq),
        };
        (all > 0.0).then_some(shares)
    }
}

/// A process, as far as it is known.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) process: Process,
    /// The last that it said; old if it is silent.
    pub(super) said: Option<Said>,
    /// By second, of each counter; none of a gauge.
    pub(super) rates: Vec<Option<f64>>,
    /// The share of a CPU that it takes.
    pub(super) share: Option<f64>,
    pub(super) figures: Vec<Figure>,
    /// Of the first figure.
    pub(super) history: History,
    histories: HashMap<String, History>,
    pub(super) knobs: Vec<Knob>,
    pub(super) ends: Vec<EndRate>,
    usage: Option<Usage>,
}

/// A listener or backend of a relay, and its bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndRate {
    pub(super) prefix: String,
    pub(super) end: End,
    pub(super) up: Option<f64>,
    pub(super) down: Option<f64>,
    pub(super) connections: Option<f64>,
    at: Duration,
}

impl Model {
    /// Takes the next sample.
    pub(super) fn take(&mut self, sample: Sample) {
        let Sample { unix_ms, at, cpus, own_cpu, processes } = sample;
        if self.last.as_ref().is_some_and(|(before, ..)| at.saturating_sub(*before) < LEAST) {
            processes.iter().for_each(|process| self.learn(process));
            return;
        }
        if let Some((before, own, old)) = &self.last {
            let old: HashMap<usize, &Cpu> = old.iter().map(|cpu| (cpu.cpu, cpu)).collect();
            let share = |now: &Cpu| CpuShare::between(old.get(&now.cpu)?, now);
            let shares: Vec<CpuShare> = cpus.iter().filter_map(share).collect();
            // Between two ticks nothing is known.
            if !shares.is_empty() {
                self.cpus = shares;
            }
            self.own = cpu_share((*before, *own), (at, own_cpu));
        }
        (self.unix_ms, self.at) = (unix_ms, at);
        self.last = Some((at, own_cpu, cpus));
        let mut before = std::mem::take(&mut self.tracks);
        for process in processes {
            let track = before.remove(&process.key);
            let mut track = track.unwrap_or_else(|| Track::new(process.clone()));
            track.take(process);
            self.tracks.insert(track.process.key.clone(), track);
        }
    }

    /// Takes what was asked for between two samples.
    fn learn(&mut self, process: &Process) {
        let track = self.tracks.get_mut(&process.key);
        if let (Some(track), Answer::Said(said)) = (track, &process.answer) {
            track.learn(said);
        }
    }

    /// The share of a CPU that all processes take together. One may have several control sockets.
    pub(super) fn share(&self) -> f64 {
        let shares = self.tracks.values().filter_map(|track| {
            let process = &track.process;
            Some(((process.pid, process.key.started), track.share?))
        });
        let shares: HashMap<_, f64> = shares.collect();
        // Not sum(), which is -0 of nothing.
        shares.values().fold(0.0, |sum, share| sum + share)
    }
}

impl Track {
    fn new(process: Process) -> Track {
        Track {
            process,
            said: None,
            rates: Vec::new(),
            share: None,
            figures: Vec::new(),
            history: VecDeque::new(),
            histories: HashMap::new(),
            knobs: Vec::new(),
            ends: Vec::new(),
            usage: None,
        }
    }

    fn take(&mut self, process: Process) {
        if let (Some(before), Some(now)) = (self.usage, process.usage) {
            self.share = cpu_share((before.at, before.cpu), (now.at, now.cpu));
        }
        self.usage = process.usage;
        if let Answer::Said(said) = &process.answer {
            self.hear(said.clone());
        } else {
            push(&mut self.history, None);
            self.histories.values_mut().for_each(|history| push(history, None));
        }
        self.process = process;
    }

    fn hear(&mut self, said: Said) {
        self.rates = match &self.said {
            Some(before) => rates(before, &said),
            None => vec![None; said.values.len()],
        };
        for (meter, rate) in said.meters.iter().zip(&self.rates) {
            match self.histories.get_mut(&meter.name) {
                Some(history) => push(history, *rate),
                // Most counters never move.
                None if rate.is_some_and(|rate| rate > 0.0) => {
                    let length = self.history.len().min(HISTORY - 1);
                    let mut history: History = std::iter::repeat_n(Some(0.0), length).collect();
                    push(&mut history, *rate);
                    self.histories.insert(meter.name.clone(), history);
                }
                None => {}
            }
        }
        self.figures = telling(&said, &self.rates);
        let rate = self.main_rate();
        push(&mut self.history, rate);
        self.learn(&said);
        self.said = Some(said);
    }

    /// Takes what is not asked for each time.
    fn learn(&mut self, said: &Said) {
        if !said.knobs.is_empty() {
            self.knobs.clone_from(&said.knobs);
        }
        if !said.relays.is_empty() {
            self.ends = ends(&self.ends, &said.relays, said.at);
        }
    }

    /// The first figure, if that is by second.
    pub(super) fn main_rate(&self) -> Option<f64> {
        self.figures.first().filter(|figure| figure.is_rate).and_then(|figure| figure.value)
    }

    /// The rates of a counter that has ever moved.
    pub(super) fn history_of(&self, meter: &str) -> Option<&History> {
        self.histories.get(meter)
    }

    /// Why it does not answer, and since when, if it does not.
    pub(super) fn silent(&self) -> Option<(&str, Duration)> {
        match &self.process.answer {
            Answer::Said(_) => None,
            Answer::Silent { why, since } => Some((why, *since)),
        }
    }
}

fn push(history: &mut History, rate: Option<f64>) {
    if history.len() >= HISTORY {
        history.pop_front();
    }
    history.push_back(rate);
}

/// The growth of each counter by second. One that is smaller than before has begun anew, and has none.
fn rates(before: &Said, now: &Said) -> Vec<Option<f64>> {
    let span = now.at.saturating_sub(before.at);
    let is_same = Arc::ptr_eq(&before.meters, &now.meters) || before.meters == now.meters;
    let old = |place: usize, name: &str| match is_same {
        true => before.values.get(place).copied().flatten(),
        false => before.value(name),
    };
    let rate = |(place, meter): (usize, &super::sample::Meter)| {
        let (old, now) = (old(place, &meter.name)?, now.values.get(place).copied().flatten()?);
        growth(old, now, span).filter(|_| meter.is_counter())
    };
    now.meters.iter().enumerate().map(rate).collect()
}

fn growth(before: u64, now: u64, span: Duration) -> Option<f64> {
    rate_over(now.checked_sub(before)?, span)
}

fn cpu_share(before: (Duration, Duration), now: (Duration, Duration)) -> Option<f64> {
    let span = now.0.saturating_sub(before.0);
    let used = now.1.checked_sub(before.1)?;
    (span >= Duration::from_millis(1)).then(|| used.as_secs_f64() / span.as_secs_f64())
}

fn ends(before: &[EndRate], now: &[Relay], at: Duration) -> Vec<EndRate> {
    let each = now.iter().flat_map(|relay| relay.ends.iter().map(|end| (&relay.prefix, end)));
    let one = |(prefix, end): (&String, &End)| {
        let is_it = |old: &&EndRate| {
            old.prefix == *prefix
                && old.end.addr == end.addr
                && old.end.is_backend == end.is_backend
        };
        let old = before.iter().find(is_it);
        let rate = |of: fn(&End) -> u64| {
            let old = old?;
            growth(of(&old.end), of(end), at.saturating_sub(old.at))
        };
        EndRate {
            prefix: prefix.clone(),
            end: end.clone(),
            up: rate(|end| end.bytes_up),
            down: rate(|end| end.bytes_down),
            connections: rate(|end| end.connections),
            at,
        }
    };
    each.map(one).collect()
}

#[cfg(test)]
mod tests;
