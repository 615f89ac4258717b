//! How many objects go at a time.

/// Objects that go at a time where they go in bulk.
pub(super) const BATCH: usize = 32;
/// What is passed from thread to thread: a ring's slot holds a whole batch.
pub(super) type Batch<T> = [T; BATCH];
