//! `cachelane xsk send` against a plain AF_XDP loop, each sending as many small packets as it can
//! from one CPU into a veth.

use std::time::Duration;

use trial::Better;

use super::stage::Stage;
use super::{Entry, Mechanism, SetUp};
use crate::bench::frames::Sending;

/// How many packets are sent.
pub(super) const RATE: Entry = Entry {
    mechanism: "xsk send",
    measure: "packets",
    unit: "1/s",
    better: Better::Higher,
    set_up,
};

fn set_up(stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    if !stage.is_test_host() {
        return Ok(SetUp::LeftOut("AF_XDP on a veth needs root".into()));
    }
    match Sending::build()? {
        Err(reason) => Ok(SetUp::LeftOut(format!("the plain loop to compare with: {reason}"))),
        Ok(sending) => {
            let arms = "64-byte packets over AF_XDP in skb mode from one CPU into a veth; off: a \
                        plain loop in C, as the usual sample has it; on: cachelane xsk send."
                .into();
            Ok(SetUp::Ready { mechanism: Box::new(Sender { sending, ours: false }), arms })
        }
    }
}

struct Sender {
    sending: Sending,
    ours: bool,
}

impl Mechanism for Sender {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        self.ours = on;
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        match self.ours {
            true => self.sending.by_cachelane(window),
            false => self.sending.by_plain_loop(window),
        }
    }
}
