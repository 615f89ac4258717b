//! What can go wrong.

/// What a subject fails with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// A plan asks for something that cannot be run or cannot be judged.
        InvalidPlan => BadInput,
        /// A measured value is not a number, is infinite or negative, or values are missing.
        InvalidData => Failed,
        /// A file is not the record of a trial, or contradicts itself.
        InvalidRecord => BadInput,
        /// There is not one complete block, or not one pair of runs, to judge from.
        TooFewBlocks => Failed,
        /// The subject failed to set an arm or to measure.
        Subject => Failed,
    }
}

impl Error {
    pub(crate) fn subject(message: impl Into<String>, source: BoxError) -> Self {
        Self { source: Some(source), ..Self::new(ErrorKind::Subject, message) }
    }
}
