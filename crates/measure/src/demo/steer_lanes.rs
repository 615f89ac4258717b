//! Receive flow steering under an RPC server whose threads move: the kernel processes packets where
//! they arrive (off), or cachelane sends them to the CPU of their consumer (on); and the knob
//! `steer.llc_affinity`, by the records that are written.

use std::any::Any;

use anyhow::{bail, ensure};
use lab::PassProgram;

use super::Ready;
use super::stage::Stage;
use crate::bench::Absent;
use crate::bench::steer::hosts::{self, Attended, CONNECTIONS, Lanes, Rpc, THREADS};

/// Answers of a thread between two of its moves.
const STAY: u64 = 1024;
/// How long the server may receive nothing, in windows.
const MOST_WINDOWS: u32 = 20;

/// How often a packet was processed on the CPU that received it.
pub(super) fn set_up_lane(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    ensure_possible(stage)?;
    let arms = format!(
        "receives whose packet was processed on their CPU, a lane; {THREADS} threads answer on \
         {CONNECTIONS} TCP connections and move between CPUs; off: packets are processed where they \
         arrive; on: where their thread is."
    );
    let passing = PassProgram::load()?;
    // What is on the device, and for which arm, is dropped before the hosts.
    type There = Option<(bool, Box<dyn Any>)>;
    let begin = || Ok((None, server(true)?));
    let set = move |(there, rpc): &mut (There, Rpc), on| {
        if there.as_ref().is_some_and(|(is_on, _)| *is_on == on) {
            return Ok(());
        }
        *there = None;
        *there = Some(match on {
            true => (on, Box::new(rpc.steer(Lanes::PerCpu, true)?)),
            false => (on, Box::new(rpc.pass(&passing)?)),
        });
        rpc.settle();
        Ok(())
    };
    Ok(Ready::kept(arms, begin, set, |(_, rpc), window| {
        let before = rpc.counters();
        // Of nothing there is no share: a busy machine gets more time.
        for _ in 0..MOST_WINDOWS {
            rpc.measure(window)?;
            let after = rpc.counters();
            let received = after.looked_at - before.looked_at;
            if received > 0 {
                return Ok((after.same_cpu - before.same_cpu) as f64 / received as f64);
            }
        }
        bail!("the server received nothing in {:?}", window * MOST_WINDOWS)
    }))
}

/// How often the flow table is written.
pub(super) fn set_up_records(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    ensure_possible(stage)?;
    let arms = "steer.llc_affinity under the same threads, all CPUs in one lane; off: a record is \
                written whenever a thread has moved; on: only when it left its lane.";
    let begin = || {
        let rpc = server(false)?;
        let steering = rpc.steer(Lanes::One, true)?;
        // Each flow has a record before anything is measured.
        rpc.settle();
        // Dropped in this order.
        Ok((steering, rpc))
    };
    let set = |(steering, _): &mut (Attended, Rpc), on| Ok(steering.set_llc_affinity(on)?);
    Ok(Ready::kept(arms.into(), begin, set, |(steering, rpc), window| {
        let before = steering.counters()?.written;
        let window = rpc.measure(window)?;
        let written = steering.counters()?.written.wrapping_sub(before);
        Ok(written as f64 / window.elapsed.as_secs_f64())
    }))
}

fn ensure_possible(stage: &Stage) -> anyhow::Result<()> {
    ensure!(stage.is_test_host, Absent("test hosts need root".into()));
    hosts::ensure_possible()
}

/// The server and its clients.
fn server(look: bool) -> anyhow::Result<Rpc> {
    Rpc::start(STAY, look, CONNECTIONS)
}
