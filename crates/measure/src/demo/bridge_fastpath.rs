//! The knob `bridge.fastpath`, flipped while two hosts behind a Linux bridge exchange requests and
//! responses: the bridge forwards them itself (off), or cachelane does (on).

use std::rc::Rc;

use anyhow::{bail, ensure};
use lab::ErrorKind;

use super::Ready;
use super::stage::Stage;
use crate::bench::Absent;
use crate::bench::bridge::net::{ARMS, Net};
use crate::bench::bridge::tcp::Servers;
use crate::bench::exchanges::unbroken;
use crate::bench::relay::exchange::CONNECTIONS;

pub(super) fn set_up(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    let is_test_host = stage.is_test_host;
    ensure!(is_test_host, Absent("a bridge with hosts behind it needs root".into()));
    let net = Net::build(&stage.lab).map_err(|error| match lacks_something(&error) {
        true => Absent(format!("{error:#}")).into(),
        false => error,
    })?;
    if let Some(obstacle) = net.obstacle()? {
        bail!(Absent(obstacle));
    }
    let servers = Servers::start(&net)?;
    let arms = format!(
        "two hosts behind a Linux bridge exchange single bytes over {CONNECTIONS} TCP \
         connections; off: the bridge forwards; on: cachelane does, straight from host to host."
    );
    let net = Rc::new(net);
    let (of_net, set_net) = (Rc::clone(&net), net);
    Ok(Ready::kept(
        arms,
        // The same connections for all windows.
        move || servers.exchange(&of_net, CONNECTIONS),
        move |_, on| set_net.set(ARMS[usize::from(on)].1),
        |session, window| Ok(unbroken(session.measure(window), "the bridge")?.rate()),
    ))
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
