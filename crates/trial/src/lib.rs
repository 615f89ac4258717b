//! trial.
