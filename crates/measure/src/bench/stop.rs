//! Ctrl-C: a long run ends at its next step, and what it built is taken down on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether somebody asked the run to end. A second request ends it at once.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches SIGINT and SIGTERM from now on.
    pub fn on_signals() -> anyhow::Result<Stop> {
        // Relaxed: a request that is seen a step later is as good.
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Conditional first: it exits only if the flag was set by an earlier signal.
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
                .context("cannot catch signals")?;
        }
        Ok(Stop(asked))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// An error if somebody asked, for `?` between two steps.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_asked() {
            bail!("interrupted");
        }
        Ok(())
    }
}
