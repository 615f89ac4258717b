//! The receive buffer behind a sockmap's ingress redirect, sized for the jiffy (on) or as the
//! kernel gives it (off).

use anyhow::ensure;

use super::Ready;
use super::stage::Stage;
use crate::bench::Absent;
use crate::bench::relay::jiffy::{Redirected, jiffy, sized};

pub(super) fn set_up(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    ensure!(stage.is_test_host, Absent("loading a BPF program needs root".into()));
    let sized = sized();
    let start = move |on: bool| stage.host.run(|| Redirected::start(on.then_some(sized)))?;
    // Some hosts refuse BPF to root too.
    start(true).map_err(|error| Absent(format!("{error:#}")))?;
    let arms = format!(
        "what a client sends is redirected in the kernel into another socket's receive queue; \
         off: the receive buffer that the kernel gives; on: one of {} MB, sized for the jiffy of \
         {:?}.",
        sized / 1_000_000,
        jiffy()
    );
    Ok(Ready::anew(arms, start, |traffic, window| Ok(traffic.rate(window))))
}
