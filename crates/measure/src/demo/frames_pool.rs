//! The frame pool, against what programs have without one: frames that one thread takes and another
//! gives back come from a queue that all threads share (off), or from the pool (on).

use std::time::Duration;

use trial::Better;

use super::stage::Stage;
use super::{Entry, Mechanism, SetUp};
use crate::bench::frames::Passing;

/// How many frames pass.
pub(super) const RATE: Entry = Entry {
    mechanism: "frames",
    measure: "frames passed",
    unit: "1/s",
    better: Better::Higher,
    set_up,
};

fn set_up(_stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    let passing = Passing::new()?;
    let arms = format!(
        "one thread takes frames, another gives them back, on {}; off: from a lock-free queue that \
         they share; on: from cachelane's frame pool.",
        passing.place()
    );
    Ok(SetUp::Ready { mechanism: Box::new(Frames { passing, pool: false }), arms })
}

struct Frames {
    passing: Passing,
    pool: bool,
}

impl Mechanism for Frames {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        self.pool = on;
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let seconds = match self.pool {
            true => self.passing.by_pool(window)?,
            false => self.passing.by_queue(window)?,
        };
        Ok(1.0 / seconds)
    }
}
