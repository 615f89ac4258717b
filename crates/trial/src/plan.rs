//! What a trial will do, fixed before it starts.
//!
//! # The order of the windows
//!
//! A block is a random permutation of the arms followed by its reverse: with two arms ABBA or BAAB.
//! The reverse cancels any drift that is linear within the block. The random start is what the test
//! rests on: where the arms make no difference, swapping two arms' names in a block was as likely a
//! draw, so the block's difference is as likely to have either sign, *whatever* the traffic did. No
//! assumption about noise is needed; see `stats`.
//!
//! # What looking early costs
//!
//! Who watches a trial and stops it when it looks good would find differences that are not there.
//! So the plan fixes after which blocks the trial looks at what it has, and shares the error
//! budget, 1 - confidence, out among these looks before it starts: nine tenths to the planned end,
//! the last tenth in equal parts to the looks before it. A trial that ends between two looks is
//! judged by what it had at the earlier one. The shares add up to the budget, so no rule for
//! stopping can exceed it.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::measure::Measure;

/// The share of the error budget that belongs to the planned end.
const SHARE_OF_END: f64 = 0.9;

/// How sure a guard is that it does not end a trial without harm, in all its looks at all arms together.
const GUARDED: f64 = 0.99;

/// The share of a guard's error budget that belongs to the pilot, where that holds arms.
const SHARE_OF_PILOT: f64 = 0.2;

/// The share that belongs to the first look after the pilot.
const SHARE_OF_FIRST: f64 = 0.4;

/// How many times as many blocks there are at a guard's next look.
const NEXT_LOOK: f64 = 1.3;

/// The most arms that a plan may have.
const MOST_ARMS: usize = 100;

/// The shortest window: in less, what reading takes is no longer small.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);

/// The most blocks that a plan may have.
pub(crate) const MOST_BLOCKS: u32 = 10_000;

/// What a trial does: arms, windows, blocks and how it will be judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The arms' names, two to 100; the first is the baseline that the others are compared with.
    pub arms: Vec<String>,
    /// How long each window is measured; at least 10 ms.
    pub window: Duration,
    /// How long to wait between setting an arm and measuring it; zero is allowed.
    pub settle: Duration,
    /// How many blocks, each of two windows of every arm; at least 6 for two arms at confidence
    /// 0.95, more for more of either, at most 10,000.
    pub blocks: u32,
    /// How far from 1 a ratio may be and still make no difference, as a share in (0, 1): 0.01 is 1 %.
    pub margin: f64,
    /// The confidence of intervals, from 0.5 to 0.999; 1 - confidence bounds the share of false
    /// alarms.
    pub confidence: f64,
    /// How often to look at what there is, the end included; 1 to the number of blocks. The looks are equally far
    /// apart; those at which there are too few blocks for any result are left out.
    pub looks: u32,
    /// Whether to end at the first look that finds every arm better, worse or no different by the
    /// first measure.
    pub ends_early: bool,
    /// What must not get worse.
    pub guards: Vec<Guard>,
    /// What an arm reaches, and when.
    pub reach: Reach,
    /// What the order of the windows, and the sign patterns that the test draws, follow from.
    pub seed: u64,
}

/// What must not get worse: a trial, or its pilot, that finds with 99 % confidence that it did ends at
/// once. It looks after 8 blocks of two arms, and then after every third more: see
/// [`Plan::guards_look`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// The measure, an index into the subject's.
    pub measure: usize,
    /// How far an arm's ratio to the baseline may go: up where less is better, down where more is.
    pub limit: f64,
}

/// What an arm reaches, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// All work from the moment that it is set, or the subject tells how much: see
    /// [`Sample::exposure`](crate::Sample::exposure).
    AtOnce,
    /// Nobody knows: nothing is called "no difference" that was not also tried for longer than a
    /// window, by a [`pilot`](crate::pilot).
    Unknown,
}

/// One place in the order: which block, which arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The block, from 0.
    pub block: u32,
    /// The arm, an index into [`Plan::arms`].
    pub arm: usize,
}

impl Plan {
    /// A plan for these arms: 44 blocks of windows of 1 s after 250 ms to settle, margin 1 %,
    /// confidence 0.95, four looks, no guards, and a seed drawn from the system.
    ///
    /// 44 blocks find an effect of 3 % under noise of 5 % per window in 96 % of trials
    /// (`tests/simulation.rs`).
    pub fn new<S: Into<String>>(arms: impl IntoIterator<Item = S>) -> Self {
        Self {
            arms: arms.into_iter().map(Into::into).collect(),
            window: Duration::from_secs(1),
            settle: Duration::from_millis(250),
            blocks: 44,
            margin: 0.01,
            confidence: 0.95,
            looks: 4,
            ends_early: false,
            guards: Vec::new(),
            reach: Reach::AtOnce,
            seed: rand::rng().next_u64(),
        }
    }

    /// Whether it can be run and can find anything, which [`run`](crate::run) asks first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPlan`] if there are fewer than two arms or two of the same name, if a
    /// window is too short, if margin or confidence are out of range, or if there are too few blocks for
    /// any result to be called a difference, were it the only one among these arms.
    pub fn check(&self) -> Result<(), Error> {
        let Self { arms, window, blocks, margin, confidence, looks, guards, .. } = self;
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidPlan, what));
        if arms.len() < 2 {
            return invalid(format!("a trial compares at least two arms, got {}", arms.len()));
        }
        if arms.len() > MOST_ARMS {
            return invalid(format!("arms: {}; expected at most {MOST_ARMS}", arms.len()));
        }
        for (i, arm) in arms.iter().enumerate() {
            if arms[..i].contains(arm) {
                return invalid(format!("arm '{arm}' is named twice"));
            }
        }
        if *window < SHORTEST_WINDOW {
            return invalid(format!("window: {window:?}; expected at least {SHORTEST_WINDOW:?}"));
        }
        if !(*margin > 0.0 && *margin < 1.0) {
            return invalid(format!("margin: {margin}; expected more than 0, less than 1"));
        }
        if !(0.5..=0.999).contains(confidence) {
            return invalid(format!("confidence: {confidence}; expected 0.5 to 0.999"));
        }
        if let Some(Guard { limit, .. }) =
            guards.iter().find(|guard| guard.limit.is_nan() || guard.limit <= 0.0)
        {
            return invalid(format!("guard: {limit}; expected a ratio above 0, such as 1.05"));
        }
        let least = fewest_blocks(self.alpha(SHARE_OF_END));
        if !(least..=MOST_BLOCKS).contains(blocks) {
            let arms = arms.len();
            return invalid(format!(
                "blocks: {blocks}; expected {least} to {MOST_BLOCKS} (with fewer than {least} of \
                 {arms} arms, no result could be told from chance at confidence {confidence})"
            ));
        }
        if !(1..=*blocks).contains(looks) {
            return invalid(format!(
                "looks: {looks}; expected 1 to {blocks}, the number of blocks"
            ));
        }
        Ok(())
    }

    /// Whether its guards are of these measures.
    pub(crate) fn check_guards(&self, measures: &[Measure]) -> Result<(), Error> {
        match self.guards.iter().find(|guard| guard.measure >= measures.len()) {
            Some(Guard { measure, .. }) => {
                let what = format!("guard: no measure {measure}; there are {}", measures.len());
                Err(Error::new(ErrorKind::InvalidPlan, what))
            }
            None => Ok(()),
        }
    }

    /// The order of the windows: the same for the same plan.
    pub fn schedule(&self) -> Vec<Slot> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let mut order: Vec<usize> = (0..self.arms.len()).collect();
        let mut slots = Vec::new();
        for block in 0..self.blocks {
            order.shuffle(&mut rng);
            slots.extend(order.iter().chain(order.iter().rev()).map(|&arm| Slot { block, arm }));
        }
        slots
    }

    /// After how many blocks it looks: the last look is the end.
    pub fn looks_after(&self) -> Vec<u32> {
        let Self { blocks, looks, .. } = *self;
        let early = looks.saturating_sub(1);
        let fewest = fewest_blocks(self.alpha((1.0 - SHARE_OF_END) / f64::from(early.max(1))));
        let after = |look| (u64::from(blocks) * u64::from(look) / u64::from(looks)) as u32;
        let early = (1..looks).map(after).filter(|&after| after >= fewest);
        let mut all: Vec<u32> = early.filter(|&after| after < blocks).collect();
        all.dedup();
        all.push(blocks);
        all
    }

    /// The last look at which so many blocks are done, and its share of the error budget; none
    /// before the first one.
    pub(crate) fn look(&self, done: u32) -> Option<(u32, f64)> {
        let looks = self.looks_after();
        let at = looks.iter().copied().rfind(|&after| after <= done)?;
        let share = match looks.len() - 1 {
            0 => 1.0,
            _ if at == self.blocks => SHARE_OF_END,
            early => (1.0 - SHARE_OF_END) / early as f64,
        };
        Some((at, share))
    }

    /// The error budget of an arm's comparison by the first measure, at a look with this share of the
    /// whole: Holm's procedure asks the most certain of them for no less.
    fn alpha(&self, share: f64) -> f64 {
        share * (1.0 - self.confidence) / self.others()
    }

    /// The same at the planned end, where there are looks before it.
    pub(crate) fn alpha_of_end(&self) -> f64 {
        self.alpha(SHARE_OF_END)
    }

    /// How many arms are compared with the baseline.
    fn others(&self) -> f64 {
        self.arms.len().saturating_sub(1).max(1) as f64
    }

    /// After how many blocks the guards first look; none if there are none, or if the trial has no
    /// more blocks than that. Where the reach is unknown they look in the pilot, too.
    pub fn guards_look(&self) -> Option<u32> {
        self.guard_looks().first().copied().filter(|_| !self.guards.is_empty())
    }

    /// After how many blocks guards look.
    fn guard_looks(&self) -> Vec<u32> {
        let first = fewest_blocks(2.0 * self.guard_budget() * SHARE_OF_FIRST);
        let next = |blocks: &u32| Some((f64::from(*blocks) * NEXT_LOOK).ceil() as u32);
        let looks = std::iter::successors(Some(first), next);
        looks.take_while(|blocks| *blocks < self.blocks).collect()
    }

    /// How likely a guard may end a trial without harm at its look after so many blocks, for each arm;
    /// none where it does not look.
    pub(crate) fn guard_alpha(&self, done: u32) -> Option<f64> {
        let looks = self.guard_looks();
        let left = match self.reach {
            Reach::AtOnce => 1.0,
            Reach::Unknown => 1.0 - SHARE_OF_PILOT,
        };
        let share = match looks.iter().position(|blocks| *blocks == done)? {
            0 if looks.len() == 1 => left,
            0 => SHARE_OF_FIRST,
            _ => (left - SHARE_OF_FIRST) / (looks.len() - 1) as f64,
        };
        Some(share * self.guard_budget())
    }

    /// The same in the pilot.
    pub(crate) fn guard_alpha_of_pilot(&self) -> f64 {
        SHARE_OF_PILOT * self.guard_budget()
    }

    /// How likely a guard may end a trial without harm, for each arm.
    fn guard_budget(&self) -> f64 {
        (1.0 - GUARDED) / self.others()
    }

    pub(crate) fn windows_per_block(&self) -> usize {
        2 * self.arms.len()
    }
}

/// The least number of blocks with which the most extreme result is within this error budget.
pub(crate) fn fewest_blocks(budget: f64) -> u32 {
    // All n blocks agree by chance with probability 2 / 2^n.
    (2.0 / budget).log2().ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_a_permutation_and_its_reverse() {
        for arms in [vec!["a", "b"], vec!["a", "b", "c", "d"]] {
            let schedule = Plan { blocks: 50, seed: 1, ..Plan::new(arms.clone()) }.schedule();
            assert_eq!(schedule.len(), 50 * 2 * arms.len());
            for (number, block) in schedule.chunks(2 * arms.len()).enumerate() {
                let order: Vec<usize> = block.iter().map(|slot| slot.arm).collect();
                assert!(block.iter().all(|slot| slot.block as usize == number));
                let mut first = order[..arms.len()].to_vec();
                assert!(order[arms.len()..].iter().eq(first.iter().rev()), "{order:?}");
                first.sort_unstable();
                assert!(first.into_iter().eq(0..arms.len()), "{order:?}");
            }
        }
    }

    #[test]
    fn blocks_start_with_either_arm_about_as_often() {
        let plan = Plan { blocks: 1000, seed: 3, ..Plan::new(["a", "b"]) };
        let baab = plan.schedule().chunks(4).filter(|block| block[0].arm == 1).count();
        assert!((450..=550).contains(&baab), "{baab} of 1000 blocks start with b");
    }

    #[test]
    fn the_order_follows_from_the_seed() {
        let plan = |seed| Plan { seed, ..Plan::new(["a", "b"]) }.schedule();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn shares_of_the_looks_add_up_to_one() {
        for (blocks, looks, expected) in [
            (6, 4, vec![6]),
            (44, 1, vec![44]),
            (44, 4, vec![11, 22, 33, 44]),
            (20, 4, vec![15, 20]),
            (1000, 2, vec![500, 1000]),
        ] {
            let plan = Plan { blocks, looks, ..Plan::new(["a", "b"]) };
            assert_eq!(plan.looks_after(), expected, "{blocks} blocks, {looks} looks");
            let sum: f64 = expected.iter().map(|&done| plan.look(done).unwrap().1).sum();
            assert!(sum <= 1.0 + 1e-9 && sum > 0.9, "{blocks} blocks, {looks} looks: {sum}");
        }
    }

    #[test]
    fn a_guard_spends_its_budget_over_its_looks_and_arms() {
        let names = |arms: usize| (0..arms).map(|arm| arm.to_string());
        for (arms, blocks, expected) in [
            (2, 8, vec![]),
            (2, 9, vec![8]),
            (2, 44, vec![8, 11, 15, 20, 26, 34]),
            (2, 10_000, vec![8, 11, 15, 20, 26, 34, 45, 59]),
            (3, 9, vec![]),
            (3, 44, vec![9, 12, 16, 21, 28, 37]),
        ] {
            for reach in [Reach::AtOnce, Reach::Unknown] {
                let plan = Plan { blocks, reach, ..Plan::new(names(arms)) };
                let looks: Vec<u32> =
                    (1..blocks).filter(|&n| plan.guard_alpha(n).is_some()).collect();
                assert!(looks.starts_with(&expected), "{blocks} blocks: {looks:?}");
                assert_eq!(looks.is_empty(), expected.is_empty());
                let pilot = [plan.guard_alpha_of_pilot()];
                let pilot = pilot.iter().filter(|_| reach == Reach::Unknown).copied();
                let each = looks.iter().filter_map(|&done| plan.guard_alpha(done)).chain(pilot);
                let sum = each.sum::<f64>() * (arms - 1) as f64;
                assert!(sum < 0.01 + 1e-9 && (sum > 0.0099 || looks.is_empty()), "{blocks}: {sum}");
                assert_eq!(plan.guards_look(), None, "there are none");
                let guards = vec![Guard { measure: 0, limit: 1.5 }];
                let guarded = Plan { guards, ..plan };
                assert_eq!(guarded.guards_look(), expected.first().copied());
            }
        }
    }

    #[test]
    fn between_two_looks_the_earlier_one_counts() {
        let plan = Plan { blocks: 44, looks: 4, ..Plan::new(["a", "b"]) };
        assert_eq!(plan.look(10), None);
        assert_eq!(plan.look(21), plan.look(11));
        assert_eq!(plan.look(44).unwrap().0, 44);
    }

    #[test]
    fn bad_plans_are_refused_with_the_value_and_what_was_expected() {
        let two = || Plan::new(["off", "on"]);
        for (plan, expected) in [
            (Plan::new(["off"]), "at least two arms, got 1"),
            (Plan::new(["off", "on", "off"]), "arm 'off' is named twice"),
            (Plan { window: Duration::ZERO, ..two() }, "window: 0ns; expected at least 10ms"),
            (Plan { window: Duration::from_millis(9), ..two() }, "window: 9ms;"),
            (Plan { margin: 0.0, ..two() }, "margin: 0;"),
            (Plan { margin: f64::NAN, ..two() }, "margin: NaN;"),
            (Plan { confidence: 1.0, ..two() }, "confidence: 1;"),
            (Plan { blocks: 5, ..two() }, "blocks: 5; expected 6 to 10000"),
            (Plan { blocks: 6, ..Plan::new(["a", "b", "c"]) }, "blocks: 6; expected 7 to 10000"),
            (Plan { confidence: 0.99, blocks: 7, ..two() }, "blocks: 7; expected 8 to 10000"),
            (Plan { blocks: 10_001, ..two() }, "blocks: 10001;"),
            (Plan { looks: 0, ..two() }, "looks: 0; expected 1 to 44"),
            (Plan { looks: u32::MAX, ..two() }, "looks: 4294967295;"),
            (Plan::new((0..101).map(|arm| arm.to_string())), "arms: 101; expected at most 100"),
            (Plan { guards: vec![Guard { measure: 0, limit: 0.0 }], ..two() }, "guard: 0;"),
        ] {
            let error = plan.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidPlan);
            assert!(error.to_string().contains(expected), "'{error}' lacks '{expected}'");
        }
    }
}
