//! Counters in tables: as the control socket shows them, and as reports do.

use std::convert::Infallible;

use knobs::{Field, MeterKind, Registry};
use serde_json::{Map, Value};

/// A counter's name, its unit, what it means, and how to read it.
pub(crate) type Count<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

/// Adds counters called `PREFIX.NAME` to `registry`, all of which read what `state` gives.
///
/// # Errors
/// A name that the registry holds already.
pub(crate) fn register<T: 'static, const N: usize>(
    registry: &Registry,
    kind: MeterKind,
    prefix: &str,
    table: &'static [Count<T>; N],
    state: impl Fn() -> T + Send + Sync + 'static,
) -> Result<(), knobs::Error> {
    let read = move || {
        let state = state();
        Ok::<_, Infallible>(table.each_ref().map(|(.., read)| read(&state)))
    };
    registry.meters(
        kind,
        prefix,
        table.each_ref().map(|&(name, unit, help, _)| (name, unit, help)),
        read,
    )
}

/// Names and values of counters that a library declares, for programs.
pub(crate) fn declared<const N: usize>(fields: [Field; N], values: [u64; N]) -> Map<String, Value> {
    let named = fields.into_iter().zip(values);
    named.map(|((name, ..), value)| (name.to_owned(), value.into())).collect()
}

/// Names and values.
pub(crate) fn values<T>(
    table: &[Count<T>],
    state: &T,
) -> impl Iterator<Item = (&'static str, u64)> {
    table.iter().map(|(name, _, _, read)| (*name, read(state)))
}

/// The same for programs.
pub(crate) fn object<T>(table: &[Count<T>], state: &T) -> Map<String, Value> {
    values(table, state).map(|(name, value)| (name.to_owned(), value.into())).collect()
}
