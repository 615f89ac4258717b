//! Requests and responses, against kernel RFS, kernel RPS and no steering.
//!
//! All arms steer the same connections, by turns. A veth is no network card: without an XDP program
//! it hands over the sender's socket buffer as it is, and with one it makes a frame of it first,
//! which is where a card's driver begins. So what cachelane is compared with has a program too, one
//! that does nothing; how it does without is shown beside it.

use std::time::Duration;

use anyhow::Context as _;
use lab::traffic::ExchangeWindow;
use lab::usage::SystemCpu;
use trial::bench::Bar;

use super::arms::{Arm, Device, Kernel, Switch};
use super::hosts::{CONNECTIONS, Rpc, THREADS};
use crate::bench::claim::Claim;
use crate::bench::exchanges::{add, check};
use crate::bench::experiment::{Measure, Now, Part, Step, Time};
use crate::bench::found::Found;

/// Answers of a thread between two of its moves: some 200 moves a second, about as many as the
/// scheduler makes where it places such threads.
pub(super) const STAY: u64 = 256;

/// What is compared, and its unit.
const MEASURES: [(&str, &str); 3] =
    [("rpc throughput", "1/s"), ("rpc p99", "s"), ("rpc cpu time per exchange", "s")];

pub(super) fn part() -> Part<()> {
    let claims = |arm: Arm| {
        // cachelane against each other arm.
        let claimed = arm == Arm::Kernel(Kernel::Rfs, Device::Passing);
        let bars = [Some(Bar::AtLeast(0.98)), Some(Bar::AtMost(1.02)), None];
        let of = MEASURES.into_iter().zip(bars);
        of.map(move |((measure, _), bar)| {
            let name = format!("{measure}: steer / {}", arm.name());
            let (of, to) = (case(measure, Arm::Steer), case(measure, arm));
            Claim::ratio(name, of, to).bar(bar.filter(|_| claimed))
        })
    };
    let time = Time { once: 1.0, steps: 2 * Arm::ALL.len(), windows: 0.5, more: 1.2 };
    let about = "Requests and responses, against kernel RFS, kernel RPS and no steering";
    Part::new("rpc", about, time)
        .claims(Arm::ALL[1..].iter().copied().flat_map(claims))
        .stage(|(), found| measure(found))
}

/// All arms, under the same connections.
fn measure(found: &mut Found) -> anyhow::Result<Measure<'static>> {
    let rpc = Rpc::start(STAY, false, CONNECTIONS)?;
    let mut switch = Switch::new(rpc, found)?;
    let (arms, entries) = (switch.those_of(Arm::ALL), switch.note());
    let step = |arm: &Arm| Step {
        name: format!("rpc, {}", arm.name()),
        gives: MEASURES.map(|(measure, unit)| (case(measure, *arm), unit)).into(),
    };
    // What an arm exchanged, and the CPU time.
    type Sum = (Option<ExchangeWindow>, Duration);
    let slice = move |arm: &Arm, (sum, busy): &mut Sum, now: &mut Now<'_>| {
        switch.set(*arm)?;
        let rpc = switch.hosts();
        rpc.settle();
        let before = SystemCpu::now()?;
        let window = rpc.measure(now.window / 2)?;
        *busy += SystemCpu::now()?.since(&before).busy;
        add(sum, window);
        Ok(())
    };
    let figures = |arm: &Arm, (window, busy): Sum| {
        let window = check(window.context("nothing was measured")?, &arm.name())?;
        let per_exchange = busy.as_secs_f64() / window.exchanges as f64;
        Ok(vec![window.rate(), window.latency.p99().as_secs_f64(), per_exchange])
    };
    let mut measure = Measure::there_and_back(arms, step, slice, figures);
    measure.notes.extend(entries);
    Ok(measure
        .note(format!(
            "rpc: {CONNECTIONS} connections, a request of 64 bytes in flight on each; a server \
             with {THREADS} threads, each of which moved to the next CPU after {STAY} answers and \
             was pinned there until then. The clients ran on the CPU to which the device's \
             packets come. steer had a lane per CPU."
        ))
        .note(
            "rpc: a veth with an XDP program handles packets as a network card's driver does, \
             which costs what it does not cost without. So the other arms had a program as well, \
             one that lets everything pass, except where it says 'no program on the veth'.",
        ))
}

fn case(measure: &str, arm: Arm) -> String {
    format!("{measure}, {}", arm.name())
}
