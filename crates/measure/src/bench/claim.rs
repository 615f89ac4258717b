//! What a part compares, and what is claimed of it.

use trial::bench::Bar;

/// Two cases that a part compares, and what is claimed of them, if anything is.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) of: String,
    /// What it is compared with: of several, the case with the lowest median.
    pub(super) to: Vec<String>,
    pub(super) is_difference: bool,
    pub(super) bar: Option<Bar>,
}

impl Claim {
    /// `of / to`, paired by run.
    pub(super) fn ratio(
        name: impl Into<String>,
        of: impl Into<String>,
        to: impl Into<String>,
    ) -> Claim {
        let to = vec![to.into()];
        Claim { name: name.into(), of: of.into(), to, is_difference: false, bar: None }
    }

    /// `of - less`, paired by run.
    pub(super) fn difference(
        name: impl Into<String>,
        of: impl Into<String>,
        less: impl Into<String>,
    ) -> Claim {
        Claim { is_difference: true, ..Claim::ratio(name, of, less) }
    }

    /// Compared with this one, if its median is lower.
    pub(super) fn or_to(mut self, to: impl Into<String>) -> Claim {
        self.to.push(to.into());
        self
    }

    pub(super) fn bar(mut self, bar: impl Into<Option<Bar>>) -> Claim {
        self.bar = bar.into();
        self
    }
}
