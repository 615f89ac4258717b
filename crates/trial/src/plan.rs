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
//! # What stopping early costs
//!
//! Who watches a trial and stops it when it looks good would find differences that are not there.
//! So the error budget, 1 - confidence, is shared out before the trial starts: nine tenths to the
//! planned end, the last tenth in equal parts to every earlier block. A trial that stops after block
//! n is judged within the share of n alone. The shares add up to the budget, so no rule for stopping
//! can exceed it.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::error::{Error, ErrorKind};

/// The share of the error budget that belongs to the planned end.
const SHARE_OF_END: f64 = 0.9;

/// What a trial does: arms, windows, blocks and how it will be judged.
#[derive(Debug, Clone, PartialEq)]
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
    /// What the order of the windows, and the sign patterns that the test draws, follow from.
    pub seed: u64,
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
    /// confidence 0.95, and a seed drawn from the system.
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
        let Self { arms, window, blocks, margin, confidence, .. } = self;
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
        let least = fewest_blocks(*confidence);
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

    /// The share of the error budget to judge a trial within that ended after `done` blocks.
    pub(crate) fn budget_share(&self, done: u32) -> f64 {
        if done >= self.blocks {
            SHARE_OF_END
        } else {
            (1.0 - SHARE_OF_END) / f64::from(self.blocks - 1)
        }
    }

    pub(crate) fn windows_per_block(&self) -> usize {
        2 * self.arms.len()
    }
}

/// The least number of blocks with which the most extreme result is within the error budget.
fn fewest_blocks(confidence: f64) -> u32 {
    // All n blocks agree by chance with probability 2 / 2^n.
    (2.0 / (SHARE_OF_END * (1.0 - confidence))).log2().ceil() as u32
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
    fn budget_shares_add_up_to_one() {
        for blocks in [6, 44, 1000] {
            let plan = Plan { blocks, ..Plan::new(["a", "b"]) };
            let sum: f64 = (1..=blocks).map(|done| plan.budget_share(done)).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{blocks} blocks: {sum}");
        }
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
        ] {
            let error = plan.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidPlan);
            assert!(error.to_string().contains(expected), "'{error}' lacks '{expected}'");
        }
    }
}
