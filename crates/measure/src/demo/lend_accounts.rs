//! Keeping account of lent frames: an allocator of ids under a lock, as kernels do it today (off),
//! or a counter beside each frame (on).

use std::time::Duration;

use trial::Better;

use super::stage::Stage;
use super::{Entry, Mechanism, SetUp};
use crate::bench::lend::Keeping;

/// How many frames are taken and returned.
pub(super) const RATE: Entry = Entry {
    mechanism: "lend",
    measure: "frames accounted",
    unit: "1/s",
    better: Better::Higher,
    set_up,
};

fn set_up(_stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    let keeping = Keeping::new()?;
    let arms = format!(
        "one thread takes frames into account, their tokens pass another, on {}; off: the other \
         returns them to an allocator of ids under a lock; on: tokens come back to the first, \
         which has a counter for each frame.",
        keeping.place()
    );
    Ok(SetUp::Ready { mechanism: Box::new(Accounts { keeping, counters: false }), arms })
}

struct Accounts {
    keeping: Keeping,
    counters: bool,
}

impl Mechanism for Accounts {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        self.counters = on;
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let seconds = match self.counters {
            true => self.keeping.by_counters(window)?,
            false => self.keeping.by_ledger(window)?,
        };
        Ok(1.0 / seconds)
    }
}
