//! What is asked of records, and what each says.

use crate::measure::Measure;
use crate::record::Record;
use crate::stats::Estimate;

/// The fewest blocks that a record is taken with.
const LEAST_BLOCKS: usize = 6;

/// A measure, and two arms to compare.
pub(super) struct Asked {
    pub(super) measure: Measure,
    pub(super) is_first: bool,
    pub(super) arms: [String; 2],
}

impl Asked {
    /// All that can be asked of at least two records, in the first's order.
    pub(super) fn all(records: &[Record]) -> Vec<Self> {
        let first = &records[0].outcome;
        let base = &first.plan.arms[0];
        let mut measures: Vec<Measure> = Vec::new();
        let mut arms: Vec<&String> = Vec::new();
        for record in records {
            for measure in &record.outcome.measures {
                match measures.iter_mut().find(|known| known.is_like(measure)) {
                    Some(known) => known.only_guarded &= measure.only_guarded,
                    None => measures.push(measure.clone()),
                }
            }
            for arm in &record.outcome.plan.arms {
                if arm != base && !arms.contains(&arm) {
                    arms.push(arm);
                }
            }
        }
        let pairs = measures.iter().flat_map(|measure| arms.iter().map(move |&arm| (measure, arm)));
        let asked = pairs.map(|(measure, arm)| Self {
            measure: measure.clone(),
            is_first: measure.is_like(&first.measures[0]),
            arms: [base.clone(), arm.clone()],
        });
        asked.filter(|asked| records.iter().filter(|r| asked.of(r).is_ok()).count() > 1).collect()
    }

    /// In which family its comparison shares the error budget: that of the first measure, of the others,
    /// or of those that are only guarded.
    pub(super) fn family(&self) -> usize {
        match (self.is_first, self.measure.only_guarded) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    }

    /// Where a record has it: the measure and the arms.
    pub(super) fn of(&self, record: &Record) -> Result<(usize, [usize; 2]), String> {
        let outcome = &record.outcome;
        let measure = outcome.measures.iter().position(|measure| measure.is_like(&self.measure));
        let measure =
            measure.ok_or_else(|| format!("it does not measure '{}'", self.measure.name))?;
        let arm = |name: &String| {
            let arm = outcome.plan.arms.iter().position(|arm| arm == name);
            arm.ok_or_else(|| format!("it has no arm '{name}'"))
        };
        Ok((measure, [arm(&self.arms[0])?, arm(&self.arms[1])?]))
    }

    /// What a record says, or why it does not count.
    pub(super) fn estimate(&self, record: &Record) -> Result<Counted, Unusable> {
        let (measure, arms) = self.of(record)?;
        let outcome = &record.outcome;
        if let Some(reason) = outcome.withheld() {
            return Err(reason.into());
        }
        let blocks = outcome.blocks() as usize - outcome.void_blocks();
        if blocks < LEAST_BLOCKS {
            return Err(format!("{blocks} blocks; expected at least {LEAST_BLOCKS}").into());
        }
        let found = outcome.estimate(measure, arms).map_err(|error| error.to_string())?;
        let silent = |arm: usize, points_up: Option<bool>| {
            let name = &self.arms[arm];
            let reason = format!("zero in every window of '{name}', so there is no ratio");
            Unusable { reason, points_up }
        };
        match found {
            ([0.0, 0.0], _) => Err("zero in every window of both arms".to_owned().into()),
            ([0.0, _], _) => Err(silent(0, Some(true))),
            ([_, 0.0], _) => Err(silent(1, Some(false))),
            ([base, other], Some(estimate)) if base.is_finite() && other.is_finite() => {
                Ok(Counted { blocks, base, estimate, measure, arms })
            }
            _ => Err("its windows do not tell how sure its ratio is".to_owned().into()),
        }
    }
}

/// What a record that counts says.
pub(super) struct Counted {
    pub(super) blocks: usize,
    /// The baseline's value.
    pub(super) base: f64,
    /// The logarithm of the ratio.
    pub(super) estimate: Estimate,
    pub(super) measure: usize,
    pub(super) arms: [usize; 2],
}

/// Why a record does not count.
pub(super) struct Unusable {
    pub(super) reason: String,
    /// Where its ratio would be infinite (true) or zero (false).
    pub(super) points_up: Option<bool>,
}

impl From<String> for Unusable {
    fn from(reason: String) -> Self {
        Self { reason, points_up: None }
    }
}
