//! Windows of exchanges, as parts of several experiments use them.

use lab::traffic::ExchangeWindow;

use super::experiment::Absent;

/// Adds a window to those before it.
pub(crate) fn add(sum: &mut Option<ExchangeWindow>, window: ExchangeWindow) {
    let Some(sum) = sum else { return *sum = Some(window) };
    sum.elapsed += window.elapsed;
    sum.exchanges += window.exchanges;
    sum.latency.merge(&window.latency);
    sum.errors += window.errors;
    sum.last_error = window.last_error.or_else(|| sum.last_error.take());
}

/// A window with errors says nothing about speed.
pub(crate) fn check(window: ExchangeWindow, through: &str) -> anyhow::Result<ExchangeWindow> {
    if window.errors > 0 || window.exchanges == 0 {
        let error = window.last_error.as_deref().unwrap_or("no exchange completed");
        let errors = window.errors;
        let reason = format!("{errors} exchanges through {through} failed: {error}");
        return Err(Absent(reason).into());
    }
    Ok(window)
}
