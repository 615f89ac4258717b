//! Receive flow steering under an RPC server whose threads move: the kernel processes packets where
//! they arrive (off), or cachelane sends them to the CPU of their consumer (on); and the knob
//! `steer.llc_affinity`, by the records that are written.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab::PassProgram;
use xsk::Hook;

use super::stage::Stage;
use super::{Mechanism, Ready};
use crate::bench::Absent;
use crate::bench::steer::hosts::{self, Attended, Behaviour, CONNECTIONS, Lanes, Rpc, THREADS};

/// Answers of a thread between two of its moves.
const STAY: u64 = 1024;

/// How often a packet was processed on the CPU that received it.
pub(super) fn set_up_lane(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    ensure_possible(stage)?;
    let arms = format!(
        "receives whose packet was processed on their CPU, a lane; {THREADS} threads answer on \
         {CONNECTIONS} TCP connections and move between CPUs; off: packets are processed where they \
         arrive; on: where their thread is."
    );
    let passing = PassProgram::load()?;
    Ok(Ready::new(arms, Following { passing, there: None, rpc: None }))
}

/// How often the flow table is written.
pub(super) fn set_up_records(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    ensure_possible(stage)?;
    let arms = "steer.llc_affinity under the same threads, all CPUs in one lane; off: a record is \
                written whenever a thread has moved; on: only when it left its lane.";
    Ok(Ready::new(arms.into(), Recording { steering: None, rpc: None }))
}

fn ensure_possible(stage: &Stage) -> anyhow::Result<()> {
    ensure!(stage.is_test_host, Absent("test hosts need root".into()));
    hosts::ensure_possible()
}

/// The server and its clients, once they are needed.
fn started(rpc: &mut Option<Rpc>, look: bool) -> anyhow::Result<&Rpc> {
    if rpc.is_none() {
        *rpc = Some(Rpc::start(Behaviour { stay: STAY, look, connections: CONNECTIONS })?);
    }
    rpc.as_ref().context("no server")
}

/// What is on the device.
#[expect(dead_code, reason = "held for as long as it is to be there")]
enum There {
    Steering(Attended),
    Passing(Hook),
}

struct Following {
    passing: PassProgram,
    // Dropped before the hosts.
    there: Option<There>,
    rpc: Option<Rpc>,
}

impl Mechanism for Following {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        if matches!(
            (&self.there, on),
            (Some(There::Steering(_)), true) | (Some(There::Passing(_)), false)
        ) {
            return Ok(());
        }
        self.there = None;
        let rpc = started(&mut self.rpc, true)?;
        self.there = Some(match on {
            true => There::Steering(rpc.steer(Lanes::PerCpu, true)?),
            false => There::Passing(rpc.pass(&self.passing)?),
        });
        rpc.settle();
        Ok(())
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let rpc = self.rpc.as_ref().context("no server")?;
        let before = rpc.counters();
        rpc.measure(window)?;
        let after = rpc.counters();
        let received = after.looked_at - before.looked_at;
        ensure!(received > 0, "the server received nothing");
        Ok((after.same_cpu - before.same_cpu) as f64 / received as f64)
    }
}

struct Recording {
    steering: Option<Attended>,
    rpc: Option<Rpc>,
}

impl Mechanism for Recording {
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        if self.steering.is_none() {
            let rpc = started(&mut self.rpc, false)?;
            self.steering = Some(rpc.steer(Lanes::One, on)?);
            // Each flow has a record before anything is measured.
            rpc.settle();
        }
        Ok(self.steering.as_ref().context("nothing steers")?.set_llc_affinity(on)?)
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        let steering = self.steering.as_ref().context("nothing steers")?;
        let before = steering.counters()?.written;
        let window = self.rpc.as_ref().context("no server")?.measure(window)?;
        let written = steering.counters()?.written.wrapping_sub(before);
        Ok(written as f64 / window.elapsed.as_secs_f64())
    }
}
