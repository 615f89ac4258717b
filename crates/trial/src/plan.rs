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

/// The share of the error budget that belongs to the planned end.
const SHARE_OF_END: f64 = 0.9;

/// What a trial does: arms, windows, blocks and how it will be judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The arms' names, at least two; the first is the baseline that the others are compared with.
    pub arms: Vec<String>,
    /// How long each window is measured; more than zero.
    pub window: Duration,
    /// How long to wait between setting an arm and measuring it; zero is allowed.
    pub settle: Duration,
    /// How many blocks, each of two windows of every arm; at least 6 at confidence 0.95, at most
    /// 10,000.
    pub blocks: u32,
    /// How far from 1 a ratio may be and still make no difference, as a share in (0, 1): 0.01 is 1 %.
    pub margin: f64,
    /// The confidence of intervals, from 0.5 to 0.999; 1 - confidence bounds the share of false
    /// alarms.
    pub confidence: f64,
    /// How often to look at what there is, the end included; at least 1. The looks are equally far
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

/// What must not get worse: a trial that finds with 99 % confidence that it did ends at once.
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
    /// window is empty, if margin or confidence are out of range, or if there are too few blocks for
    /// any result to be called a difference.
    pub fn check(&self) -> Result<(), Error> {
        let Self { arms, window, blocks, margin, confidence, looks, guards, .. } = self;
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidPlan, what));
        if arms.len() < 2 {
            return invalid(format!("a trial compares at least two arms, got {}", arms.len()));
        }
        for (i, arm) in arms.iter().enumerate() {
            if arms[..i].contains(arm) {
                return invalid(format!("arm '{arm}' is named twice"));
            }
        }
        if window.is_zero() {
            return invalid("window: 0 s measures nothing; expected more than 0 s".into());
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
        if *looks == 0 {
            return invalid("looks: 0; expected at least 1".into());
        }
        let least = fewest_blocks(SHARE_OF_END * (1.0 - confidence));
        if !(least..=10_000).contains(blocks) {
            return invalid(format!(
                "blocks: {blocks}; expected {least} to 10000 (with fewer than {least}, no result \
                 could be told from chance at confidence {confidence})"
            ));
        }
        Ok(())
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
        let Self { blocks, looks, confidence, .. } = *self;
        let early = looks.saturating_sub(1);
        let share = (1.0 - SHARE_OF_END) / f64::from(early.max(1)) * (1.0 - confidence);
        let after = |look| (u64::from(blocks) * u64::from(look) / u64::from(looks)) as u32;
        let early = (1..looks).map(after).filter(|&after| after >= fewest_blocks(share));
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

    pub(crate) fn windows_per_block(&self) -> usize {
        2 * self.arms.len()
    }
}

/// The least number of blocks with which the most extreme result is within this error budget.
fn fewest_blocks(budget: f64) -> u32 {
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
            (Plan { window: Duration::ZERO, ..two() }, "window: 0 s"),
            (Plan { margin: 0.0, ..two() }, "margin: 0;"),
            (Plan { margin: f64::NAN, ..two() }, "margin: NaN;"),
            (Plan { confidence: 1.0, ..two() }, "confidence: 1;"),
            (Plan { blocks: 5, ..two() }, "blocks: 5; expected 6 to 10000"),
            (Plan { confidence: 0.99, blocks: 7, ..two() }, "blocks: 7; expected 8 to 10000"),
            (Plan { blocks: 10_001, ..two() }, "blocks: 10001;"),
            (Plan { looks: 0, ..two() }, "looks: 0;"),
            (Plan { guards: vec![Guard { measure: 0, limit: 0.0 }], ..two() }, "guard: 0;"),
        ] {
            let error = plan.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidPlan);
            assert!(error.to_string().contains(expected), "'{error}' lacks '{expected}'");
        }
    }
}
