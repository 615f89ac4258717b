//! What a run has found so far, and what it compares of that.

use trial::bench::BenchOutput;

use super::Series;
use super::claim::Claim;

/// What was found so far.
pub struct Found {
    pub(super) output: BenchOutput,
    pub(super) series: Series,
    /// Why something is not there: a case, or what cases and claims are called after.
    pub(super) reasons: Vec<(String, String)>,
}

impl Found {
    pub(super) fn new(output: BenchOutput) -> Found {
        Found { output, series: Series::default(), reasons: Vec::new() }
    }

    /// Something is not there, which is said; and so is no case and no claim that is called after it.
    pub(super) fn absent(&mut self, what: &str, reason: impl AsRef<str>) {
        let said = format!("{what}: {}", reason.as_ref());
        if !self.output.absent.contains(&said) {
            self.output.absent.push(said);
            self.lacks(what, reason.as_ref());
        }
    }

    /// Why a case will not be there.
    pub(super) fn lacks(&mut self, case: &str, reason: impl Into<String>) {
        self.reasons.push((case.into(), reason.into()));
    }

    /// Compares what can be, and says of the rest why it cannot.
    pub(super) fn compare(&mut self, claims: &[Claim], is_incomplete: bool) {
        for claim in claims {
            let compared = match self.missed(claim) {
                Some(reason) => Err(reason),
                None => self.series.compare(claim, is_incomplete),
            };
            match compared {
                Ok(ratio) => self.output.ratios.push(ratio),
                Err(reason) => {
                    let said = format!("{}: {reason}", claim.name);
                    if !self.output.absent.contains(&said) {
                        self.output.absent.push(said);
                    }
                }
            }
        }
        self.reasons.retain(|(what, _)| !what.is_empty());
    }

    /// Why one of the claim's cases is not there, or not in every round.
    fn missed(&self, claim: &Claim) -> Option<String> {
        let cases = || claim.cases();
        let of_case = |case: &String| self.reasons.iter().find(|(what, _)| what == case);
        if let Some((_, reason)) = cases().find_map(of_case) {
            return Some(reason.clone());
        }
        let unmeasured = cases().find(|case| self.series.runs(case).is_empty())?;
        let is_of = |what: &str| unmeasured.contains(what) || claim.name.starts_with(what);
        let fitting = self.reasons.iter().filter(|(what, _)| is_of(what));
        // The longest says most exactly what it is of; what is of the whole part says least.
        let reason = fitting.max_by_key(|(what, _)| what.len()).map(|(_, reason)| reason.clone());
        Some(reason.unwrap_or_else(|| format!("'{unmeasured}' was not measured")))
    }
}
