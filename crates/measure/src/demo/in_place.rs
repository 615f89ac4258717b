//! Mechanisms that take the place of something else: either of them runs in a window.

use anyhow::ensure;

use super::Ready;
use super::stage::Stage;
use crate::bench::Absent;
use crate::bench::frames::{passing, sending};
use crate::bench::lend::keeping;

/// Frames that one thread takes and another gives back, from the frame pool (on), or from what
/// programs have without one (off).
pub(super) fn frames(_: &Stage) -> anyhow::Result<Ready<'_>> {
    let (cpus, rate) = passing()?;
    let arms = format!(
        "one thread takes frames, another gives them back, on {cpus}; off: from a lock-free queue that \
         they share; on: from cachelane's frame pool."
    );
    Ok(Ready::anew(arms, Ok, move |on, window| rate(*on, window)))
}

/// Account of lent frames, by a counter beside each (on), or by an allocator of ids under a lock, as
/// kernels keep it today (off).
pub(super) fn lend(_: &Stage) -> anyhow::Result<Ready<'_>> {
    let (cpus, rate) = keeping()?;
    let arms = format!(
        "one thread takes frames into account, their tokens pass another, on {cpus}; off: the other \
         returns them to an allocator of ids under a lock; on: tokens come back to the first, \
         which has a counter for each frame."
    );
    Ok(Ready::anew(arms, Ok, move |on, window| rate(*on, window)))
}

/// As many small packets as can be from one CPU into a veth, by `cachelane xsk send` (on), or by a
/// plain AF_XDP loop (off).
pub(super) fn xsk_send(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    ensure!(stage.is_test_host, Absent("AF_XDP on a veth needs root".into()));
    let rate = sending()?;
    let arms = "64-byte packets over AF_XDP in skb mode from one CPU into a veth; off: a plain \
                loop in C, as the usual sample has it; on: cachelane xsk send.";
    Ok(Ready::anew(arms.into(), Ok, move |on, window| rate(*on, window)))
}
