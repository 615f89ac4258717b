//! Windows of exchanges, as parts of several experiments use them.

use anyhow::ensure;
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

/// A window with errors, or with no exchange, says nothing about speed.
pub(crate) fn check(window: ExchangeWindow, through: &str) -> anyhow::Result<ExchangeWindow> {
    let window = unbroken(window, through)?;
    ensure!(window.exchanges > 0, Absent(format!("no exchange through {through} was completed")));
    Ok(window)
}

/// A window without errors. It may be empty: on a busy machine the clients may not come to run in a
/// short one.
pub(crate) fn unbroken(window: ExchangeWindow, through: &str) -> anyhow::Result<ExchangeWindow> {
    let (errors, last) = (window.errors, window.last_error.as_deref().unwrap_or("unknown"));
    ensure!(errors == 0, Absent(format!("{errors} exchanges through {through} failed: {last}")));
    Ok(window)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use lab::Host;
    use lab::testing::comes_true;
    use lab::traffic::{RrOptions, RrSession};

    use super::*;

    #[test]
    fn an_empty_window_is_unbroken_and_has_no_speed_and_a_broken_one_is_refused() {
        // Connections wait in its queue, and nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = Host::here().unwrap();
        let address = silent.local_addr().unwrap();
        let session = RrSession::start(&host, address, &RrOptions::default()).unwrap();
        let window = session.measure(Duration::from_millis(20));
        assert_eq!(unbroken(window.clone(), "x").unwrap().exchanges, 0);
        let error = check(window, "x").unwrap_err();
        assert_eq!(error.downcast::<Absent>().unwrap().0, "no exchange through x was completed");

        drop(silent);
        let mut refused = None;
        assert!(comes_true(|| {
            refused = unbroken(session.measure(Duration::from_millis(20)), "x").err();
            refused.is_some()
        }));
        let reason = refused.unwrap().downcast::<Absent>().unwrap().0;
        assert!(reason.contains(" exchanges through x failed: "), "{reason}");
    }
}
