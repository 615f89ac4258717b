//! The knob's values against each other, under patterns of traffic.
//!
//! The threads of a pattern run on while the knob is flipped under them, in blocks of ABCCBA whose
//! order is random, so that all else stays as it is. A frame is counted when it is put, by whoever
//! puts it; what is reported is wall time over the frames of all threads.
//!
//! In the cases that bear the claim, who gets a frame writes its first 64 bytes and who receives it
//! reads them, as one does who makes packets or looks at their headers: that a frame is still warm
//! is what a pool can gain there. The same patterns without it show what the pool itself costs.

mod traffic;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use frames::AlienFree;
use rand::seq::SliceRandom as _;
use trial::bench::Bar;

use super::Ground;
use super::pools::frame_pool;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};
use crate::bench::worker::join;
use traffic::Traffic;

/// Slices of a measurement under one value of the knob.
const SLICES: usize = 16;
/// After each flip, or a slice if that is shorter: which frames lie where is the former value's
/// work for a while.
const SETTLE: Duration = Duration::from_millis(5);
/// The most that a slice is made longer so that at least one frame is put in it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pairs of threads of the cases with many flows.
const MANY: usize = 4;
/// Frames of the pool for each pair of threads: rings and caches hold less than half of them, so
/// that nobody waits for want of frames.
const FRAMES: u32 = 8192;
/// The most that auto may cost over the better of the two others.
const BAR: f64 = 1.03;

/// Who sends frames to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// A batch to the other thread, which puts it and sends one of its own back.
    PingPong,
    /// From one thread to the other, without end.
    OneWay,
    /// From each thread to each other.
    AllToAll,
    /// One way, more than a cache holds at a time, then nothing until all are put.
    Bursts,
    /// One way for a while, then the sender parks while the receiver goes on by itself.
    Stop,
}

/// What is measured under every value of the knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    pattern: Pattern,
    /// Pairs of threads.
    flows: usize,
    /// Whether the two CPUs are two lanes.
    two_lanes: bool,
    /// Whether the frames' bytes are used.
    touch: bool,
}

pub(super) fn part() -> Part<Ground> {
    let more = AlienFree::ALL.len() as f64 * SLICES as f64 * SETTLE.as_secs_f64() + 0.02;
    let windows = AlienFree::ALL.len() as f64;
    let time = Time { once: 0.0, steps: settings().len(), windows, more };
    Part::new("tradeoff", "The knob's values against each other, under patterns of traffic", time)
        .claims(settings().into_iter().flat_map(Setting::claims))
        .stage(|ground: &Ground, _| {
            let step = |setting: &Setting| Step {
                name: setting.name(),
                gives: AlienFree::ALL.map(|mode| (setting.case(mode), "s")).into(),
            };
            let measure =
                Measure::new(settings(), step, |setting, now| measure(ground, *setting, now));
            Ok(measure.note(format!(
                "A measurement of a knob's value is the sum of {SLICES} slices under the same \
                 threads, between which the other values had theirs. 'best of both' is recycle or \
                 defer, by median."
            )))
        })
}

fn settings() -> Vec<Setting> {
    use Pattern::{AllToAll, Bursts, OneWay, PingPong, Stop};
    let mut settings = Vec::new();
    for pattern in [PingPong, OneWay, AllToAll, Bursts, Stop] {
        for flows in [1, MANY] {
            for (two_lanes, touch) in [(true, true), (true, false), (false, true)] {
                settings.push(Setting { pattern, flows, two_lanes, touch });
            }
        }
    }
    settings
}

impl Setting {
    fn name(self) -> String {
        let pattern = match self.pattern {
            Pattern::PingPong => "ping-pong",
            Pattern::OneWay => "one-way",
            Pattern::AllToAll => "all-to-all",
            Pattern::Bursts => "bursts",
            Pattern::Stop => "one thread stops",
        };
        let flows = if self.flows == 1 { "one flow" } else { "many flows" };
        let lanes = if self.two_lanes { "" } else { ", one lane" };
        let touch = if self.touch { "" } else { ", untouched" };
        format!("{pattern}, {flows}{lanes}{touch}")
    }

    fn case(self, mode: AlienFree) -> String {
        format!("{}, {mode}", self.name())
    }

    /// Auto against the better of the others, and these against each other.
    fn claims(self) -> [Claim; 2] {
        let [recycle, defer, auto] = AlienFree::ALL.map(|mode| self.case(mode));
        let bar = self.touch.then_some(Bar::AtMost(BAR));
        let best = format!("auto / best of both: {}", self.name());
        let others = format!("defer / recycle: {}", self.name());
        [
            Claim::ratio(best, auto, &recycle).or_to(&defer).bar(bar),
            Claim::ratio(others, &defer, &recycle),
        ]
    }
}

/// Measures a setting under every value of the knob: seconds a frame.
fn measure(ground: &Ground, setting: Setting, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
    let cpus = if setting.two_lanes { ground.places.far() } else { ground.places.near() };
    // The lanes' numbers mean nothing but same or not.
    let lanes: Vec<u16> =
        (0..cpus.len() as u16).map(|cpu| cpu * setting.two_lanes as u16).collect();
    let pool = frame_pool(FRAMES * setting.flows as u32, cpus, &lanes)?;
    let traffic = Traffic::new(&pool, setting, cpus);
    let work = traffic.work()?;
    let slice = now.window / SLICES as u32;
    let (stop, rng) = (now.stop, &mut *now.rng);
    let sums = thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(work)).collect();
        let mut sums = [(0.0, 0); AlienFree::ALL.len()];
        let mut modes: Vec<usize> = (0..sums.len()).collect();
        for number in 0..SLICES {
            match number % 2 {
                0 => modes.shuffle(rng),
                _ => modes.reverse(),
            }
            for &mode in &modes {
                if stop.is_asked() {
                    break;
                }
                pool.set_alien_free(AlienFree::ALL[mode]);
                thread::sleep(slice.min(SETTLE));
                let (before, started) = (traffic.count(), Instant::now());
                thread::sleep(slice);
                // On a busy host none of the threads may have had a CPU in a short slice.
                while traffic.count() == before && started.elapsed() < PATIENCE {
                    thread::sleep(SETTLE);
                }
                sums[mode].1 += traffic.count() - before;
                sums[mode].0 += started.elapsed().as_secs_f64();
            }
        }
        traffic.stop();
        threads.into_iter().try_for_each(join)?;
        anyhow::Ok(sums)
    })?;
    stop.check()?;
    ensure!(sums.iter().all(|(_, frames)| *frames > 0), Absent("no frame was put".into()));
    Ok(sums.iter().map(|(seconds, frames)| seconds / *frames as f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_bears_the_claim_for_one_flow_and_many_in_one_lane_and_two() {
        let bearing: Vec<_> = settings().into_iter().filter(|setting| setting.touch).collect();
        assert_eq!(bearing.len(), 5 * 2 * 2);
        let mut names: Vec<_> = bearing.iter().map(|setting| setting.name()).collect();
        names.dedup();
        assert_eq!(names.len(), 20);
    }
}
