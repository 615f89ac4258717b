//! Counters that libraries and commands declare: as the control socket shows them, and in JSON.

use std::convert::Infallible;

use knobs::{Field, MeterKind, Registry};
use serde_json::{Map, Value};

/// Adds counters called `PREFIX.NAME` to `registry`, which can always be read.
pub(crate) fn register<const N: usize>(
    registry: &Registry,
    kind: MeterKind,
    prefix: &str,
    fields: [Field; N],
    read: impl Fn() -> [u64; N] + Send + Sync + 'static,
) -> Result<(), knobs::Error> {
    registry.meters(kind, prefix, fields, move || Ok::<_, Infallible>(read()))
}

/// Names and values.
pub(crate) fn named<const N: usize>(
    fields: [Field; N],
    values: [u64; N],
) -> impl Iterator<Item = (&'static str, u64)> {
    fields.into_iter().zip(values).map(|((name, ..), value)| (name, value))
}

/// The same for programs.
pub(crate) fn object<const N: usize>(fields: [Field; N], values: [u64; N]) -> Map<String, Value> {
    named(fields, values).map(|(name, value)| (name.to_owned(), value.into())).collect()
}
