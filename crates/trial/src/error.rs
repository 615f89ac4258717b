use std::error::Error as StdError;
use std::fmt;

/// What went wrong, with enough context to act on it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The sorts of [`Error`] that a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A plan asks for something that cannot be run or cannot be judged.
    InvalidPlan,
    /// A measured value is not a number, is infinite or negative, or values are missing.
    InvalidData,
    /// There is not one complete block, or not one pair of runs, to judge from.
    TooFewBlocks,
    /// The subject failed to set an arm or to measure.
    Subject,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: Box<dyn StdError + Send + Sync>,
    ) -> Self {
        Self { kind, context: context.into(), source: Some(source) }
    }

    /// The sort of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
