//! A change that the kernel announces, on a bridge with many ports: how long frames still go by what
//! was before it.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use lab::traffic::PacedFrames;
use trial::bench::Bar;

use super::Ground;
use super::net::{ARMS, Arm, Net};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};

/// Ports of the bridge.
const PORTS: usize = 1000;
/// Changes in a round, of each arm.
const CHANGES: usize = 9;
/// Between two frames.
const PACE: Duration = Duration::from_micros(20);
/// How long frames go on before a change, and after it.
const AFTER: Duration = Duration::from_millis(50);

pub(super) fn part() -> Part<Ground> {
    let title = format!("announced change to effect, {PORTS} ports: cachelane - linux bridge");
    let claim = Claim::difference(title, case("cachelane"), case("linux bridge"));
    let time = Time { once: 5.0, steps: ARMS.len(), windows: 0.0, more: 5.0 };
    Part::new("changes", "A bridge with many ports, one of which is told something", time)
        .claims([claim.bar(Bar::AtMost(5.0))])
        .stage(|ground: &Ground, _| {
            let mut net = Net::build(&ground.lab)?;
            net.widen(&ground.lab.host("crowd")?, PORTS - 2)?;
            // It has waited for all these devices, and for a while would not trust its looks.
            net.restart()?;
            let step = |(arm, _): &(&str, Arm)| Step::of(case(arm), "ms");
            // Two ports are isolated from one another and are not, by turns.
            let measure = Measure::new(ARMS, step, move |(_, arm), _| {
                net.set(*arm)?;
                let mut late = Duration::ZERO;
                for _ in 0..CHANGES {
                    late = late.max(change(&net, *arm)?);
                }
                Ok(vec![late.as_secs_f64() * 1e3])
            });
            Ok(measure.note(format!(
                "A change is 'bridge link set dev p0 isolated on', timed from the moment that the \
                 command is given it to the last frame sent that still arrives; each run is the \
                 worst of {CHANGES}."
            )))
        })
}

fn case(arm: &str) -> String {
    format!("announced change to effect, {PORTS} ports {arm}")
}

/// How long after one change frames still arrived.
fn change(net: &Net, arm: Arm) -> anyhow::Result<Duration> {
    // One that waits for lines: what it takes to start is not in the time.
    let (input, mut lines) = std::io::pipe().context("a pipe to bridge")?;
    let _process = net.host().command("bridge").args(["-batch", "-"]).stdin(input).spawn()?;
    lines.write_all(b"link set dev p1 isolated on\nlink set dev p0 isolated off\n")?;
    let frames = PacedFrames::start(net.a(), net.b(), PACE)?;
    // The port was announced to have changed just before.
    net.settle(arm)?;
    thread::sleep(AFTER);
    let told = Instant::now();
    lines.write_all(b"link set dev p0 isolated on\n")?;
    thread::sleep(AFTER);
    let last = frames.last()?.ok_or_else(|| Absent("no frame arrived".into()))?;
    Ok(last.saturating_duration_since(told))
}
