//! The receive buffer behind a sockmap's ingress redirect, sized for the jiffy (on) or as the
//! kernel gives it (off).

use std::time::Duration;

use anyhow::Context as _;
use trial::Better;

use super::stage::Stage;
use super::{Entry, Mechanism, SetUp};
use crate::bench::relay::jiffy::{Redirected, jiffy, sized};

/// How much arrives.
pub(super) const RATE: Entry = Entry {
    mechanism: "sockmap buffer",
    measure: "rate",
    unit: "B/s",
    better: Better::Higher,
    set_up,
};

fn set_up(stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    if !stage.is_test_host() {
        return Ok(SetUp::LeftOut("loading a BPF program needs root".into()));
    }
    let mechanism = Buffer { stage, sized: sized(), traffic: None };
    // Some hosts refuse BPF to root too.
    if let Err(error) = mechanism.start(true) {
        return Ok(SetUp::LeftOut(format!("{error:#}")));
    }
    let arms = format!(
        "what a client sends is redirected in the kernel into another socket's receive queue; \
         off: the receive buffer that the kernel gives; on: one of {} MB, sized for the jiffy of \
         {:?}.",
        mechanism.sized / 1_000_000,
        jiffy()
    );
    Ok(SetUp::Ready { mechanism: Box::new(mechanism), arms })
}

struct Buffer<'a> {
    stage: &'a Stage,
    sized: usize,
    traffic: Option<Redirected>,
}

impl Buffer<'_> {
    fn start(&self, on: bool) -> anyhow::Result<Redirected> {
        let buffer = on.then_some(self.sized);
        self.stage.host().run(|| Redirected::start(buffer))?
    }
}

impl Mechanism for Buffer<'_> {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        // The old one ends first.
        self.traffic = None;
        self.traffic = Some(self.start(on)?);
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        Ok(self.traffic.as_ref().context("no traffic")?.rate(window))
    }
}
