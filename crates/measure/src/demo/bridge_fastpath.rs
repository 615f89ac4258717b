//! The knob `bridge.fastpath`, flipped while two hosts behind a Linux bridge exchange requests and
//! responses: the bridge forwards them itself (off), or cachelane does (on).

use std::time::Duration;

use anyhow::Context as _;
use bridge::Table;
use lab::ErrorKind;
use lab::traffic::RrSession;
use trial::Better;

use super::stage::Stage;
use super::{Entry, Mechanism, SetUp};
use crate::bench::bridge::net::{Arm, Net};
use crate::bench::bridge::tcp::Servers;
use crate::bench::exchanges::check;
use crate::bench::relay::exchange::CONNECTIONS;

/// How many exchanges there are.
pub(super) const RATE: Entry = Entry {
    mechanism: "bridge",
    measure: "exchanges",
    unit: "1/s",
    better: Better::Higher,
    set_up,
};

fn set_up(stage: &Stage) -> anyhow::Result<SetUp<'_>> {
    if !stage.is_test_host() {
        return Ok(SetUp::LeftOut("a bridge with hosts behind it needs root".into()));
    }
    let net = match Net::build(stage.lab()) {
        Ok(net) => net,
        Err(error) if lacks_something(&error) => {
            return Ok(SetUp::LeftOut(format!("{error:#}")));
        }
        Err(error) => return Err(error),
    };
    if let Some(obstacle) = net.obstacle()? {
        return Ok(SetUp::LeftOut(obstacle));
    }
    let servers = Servers::start(&net)?;
    let arms = format!(
        "two hosts behind a Linux bridge exchange single bytes over {CONNECTIONS} TCP \
         connections; off: the bridge forwards; on: cachelane does, straight from host to host."
    );
    let mechanism = Box::new(Forwarding { session: None, servers, net });
    Ok(SetUp::Ready { mechanism, arms })
}

/// Whether the error says that this host cannot, and not that something went wrong.
fn lacks_something(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(|e: &bridge::Error| {
            matches!(e.kind(), bridge::ErrorKind::Unsupported | bridge::ErrorKind::NotPermitted)
        }) || cause.downcast_ref().is_some_and(|e: &lab::Error| {
            matches!(e.kind(), ErrorKind::NotPermitted | ErrorKind::Missing { .. })
        })
    })
}

struct Forwarding {
    /// The same connections for all windows; they are made for the first.
    session: Option<RrSession>,
    servers: Servers,
    net: Net,
}

impl Mechanism for Forwarding {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        self.net.set(if on { Arm::Cachelane(Table::Split) } else { Arm::Linux })?;
        if self.session.is_none() {
            self.session = Some(self.servers.exchange(&self.net, CONNECTIONS)?);
        }
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let session = self.session.as_ref().context("no connections")?;
        Ok(check(session.measure(window), "the bridge")?.rate())
    }
}
