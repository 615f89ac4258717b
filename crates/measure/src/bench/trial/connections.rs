//! Simulated connections, each under the arm that was in force when it was opened.
//!
//! Time is made up: a trial of hours takes milliseconds. How fast work goes is the mean over all
//! connections, and how much faster those of the second arm are is the effect.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use trial::{Better, BoxError, Measure, Part, Sample, Subject, Value};

/// Connections at a time.
const CONNECTIONS: usize = 50;
/// What they do in a second, together.
const RATE: f64 = 1000.0;

/// A subject whose arm reaches new connections only.
#[derive(Debug)]
pub(super) struct Connections {
    /// How long one lasts, on average, in seconds; exponentially distributed.
    pub(super) life: f64,
    /// The ratio of the second arm's rate to the first one's.
    pub(super) effect: f64,
    /// The standard deviation of a window, as a share.
    pub(super) noise: f64,
    /// Whether it says how much work ran under its arm.
    pub(super) tells_exposure: bool,
    arm: usize,
    /// Until when each lasts, and its arm.
    all: Vec<(f64, usize)>,
    now: f64,
    rng: Xoshiro256PlusPlus,
}

/// Work of a stretch of time, in seconds of connections, by arm.
type Work = [f64; 2];

impl Connections {
    pub(super) fn new(life: Duration, effect: f64, seed: u64) -> Connections {
        let (life, rng) = (life.as_secs_f64(), Xoshiro256PlusPlus::seed_from_u64(seed));
        let mut it = Connections {
            life,
            effect,
            noise: 0.01,
            tells_exposure: false,
            arm: 0,
            all: Vec::new(),
            now: 0.0,
            rng,
        };
        // What is left of a life that is exponentially distributed is so, too.
        it.all = (0..CONNECTIONS).map(|_| (it.lasts(), 0)).collect();
        it
    }

    fn lasts(&mut self) -> f64 {
        -self.life * (1.0 - self.rng.random::<f64>()).ln()
    }

    /// Lets time pass.
    fn pass(&mut self, time: f64) -> Work {
        let until = self.now + time;
        let mut work = Work::default();
        for index in 0..self.all.len() {
            let mut from = self.now;
            loop {
                let (closes, arm) = self.all[index];
                work[arm] += closes.min(until) - from;
                if closes >= until {
                    break;
                }
                self.all[index] = (closes + self.lasts(), self.arm);
                from = closes;
            }
        }
        self.now = until;
        work
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle): (f64, f64) = (self.rng.random(), self.rng.random());
        (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// What such work comes to.
    fn part(&mut self, [base, other]: Work, time: f64) -> Part {
        let noise = (1.0 + 2_f64.sqrt() * self.noise * self.normal()).max(0.0);
        let speed = RATE / CONNECTIONS as f64 * (base + self.effect * other);
        Part { num: speed * noise, den: time }
    }
}

impl Subject for Connections {
    fn measures(&self) -> Vec<Measure> {
        vec![Measure::new("rate", "/s", Better::Higher)]
    }

    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.arm = arm;
        Ok(())
    }

    fn settle(&mut self, duration: Duration) {
        self.pass(duration.as_secs_f64());
    }

    fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
        let half = window.as_secs_f64() / 2.0;
        let work = [(), ()].map(|()| self.pass(half));
        let [early, late] = work.map(|work| self.part(work, half));
        let mut whole = early;
        whole += late;
        let under = work.iter().map(|work| work[self.arm]).sum::<f64>();
        let all = work.iter().flatten().sum::<f64>();
        Ok(Sample {
            early: Some(vec![Value::Part(early)]),
            exposure: self.tells_exposure.then_some((under / all).clamp(0.0, 1.0)),
            ..Value::Part(whole).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_reaches_connections_as_they_are_renewed() {
        let mut it = Connections::new(Duration::from_secs(10), 2.0, 1);
        assert_eq!(it.pass(5.0)[1], 0.0);
        it.set_arm(1).unwrap();
        // After the mean life of a connection, those that were there before are fewer by a factor e.
        let shares: Vec<f64> = (0..40).map(|_| it.pass(1.0)[1] / CONNECTIONS as f64).collect();
        assert!(shares[0] < 0.25 && (0.4..0.85).contains(&shares[9]), "{shares:?}");
        assert!(shares[39] > 0.9, "{shares:?}");
        it.set_arm(0).unwrap();
        let [base, other] = it.pass(1.0);
        assert!((base + other - CONNECTIONS as f64).abs() < 1e-9, "no time is lost");
        assert!(other > base);
    }

    #[test]
    fn the_rate_follows_the_effect_and_exposure_the_arms() {
        let mut it = Connections::new(Duration::from_secs(1), 1.5, 2);
        (it.noise, it.tells_exposure) = (0.0, true);
        let rate = |it: &mut Connections| {
            let sample = it.measure(Duration::from_secs(1)).unwrap();
            let [Value::Part(part)] = sample.values[..] else { panic!("{sample:?}") };
            (part.ratio(), sample.exposure.unwrap())
        };
        let (before, exposure) = rate(&mut it);
        assert!((before - RATE).abs() < 1e-6 && exposure == 1.0);
        it.set_arm(1).unwrap();
        assert!(rate(&mut it).1 < 0.6);
        it.settle(Duration::from_secs(20));
        let (after, exposure) = rate(&mut it);
        assert!((after - 1.5 * RATE).abs() < 1e-6 && exposure == 1.0, "{after} {exposure}");
    }
}
