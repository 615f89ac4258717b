//! A change that the kernel announces, on a bridge with many ports: how long frames still go by what
//! was before it.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lab::traffic::{FrameCapture, FrameSender};
use trial::bench::Bar;

use super::Ground;
use super::net::{ARMS, Arm, Net, PATIENCE};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};

/// Ports of the bridge.
const PORTS: usize = 1000;
/// Changes in a round, of each arm.
const CHANGES: usize = 9;
/// Between two frames.
const PACE: Duration = Duration::from_micros(20);
/// How long frames go on after a change.
const AFTER: Duration = Duration::from_millis(50);
/// A protocol that no host's stack sends.
const PROTOCOL: [u8; 2] = [0x88, 0xb5];

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
    let sender = FrameSender::open(&net.a().host, &net.a().device)?;
    let mut capture = FrameCapture::open(&net.b().host, &net.b().device)?;
    let head = [&net.b().mac.0[..], &net.a().mac.0, &PROTOCOL].concat();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&sender, &head, &stop));
        // The port was announced to have changed just before.
        let told = net.settle(arm).and_then(|()| tell(&mut lines, &mut capture, &head));
        stop.store(true, Relaxed);
        let sent = sending.join().ok().context("the sender has panicked")?;
        let (told, last) = told?;
        Ok(sent.get(last).copied().unwrap_or(told).saturating_duration_since(told))
    })
}

/// Sends numbered frames until it is told to stop. Returns when each was sent.
fn send(sender: &FrameSender, head: &[u8], stop: &AtomicBool) -> Vec<Instant> {
    let mut sent = Vec::new();
    while !stop.load(Relaxed) {
        let mut frame = [head, &(sent.len() as u64).to_be_bytes()].concat();
        frame.resize(60, 0);
        sent.push(Instant::now());
        // What is dropped does not arrive.
        let _ = sender.send(&frame);
        thread::sleep(PACE);
    }
    sent
}

/// Makes the change once frames arrive. Returns when, and the number of the last that arrived.
fn tell(
    lines: &mut impl std::io::Write,
    capture: &mut FrameCapture,
    head: &[u8],
) -> anyhow::Result<(Instant, usize)> {
    let begin = Instant::now();
    let mut last = None;
    while last.is_none() || begin.elapsed() < AFTER {
        ensure!(begin.elapsed() < PATIENCE, Absent("no frame arrived".into()));
        last = newest(capture, head)?.or(last);
        thread::sleep(Duration::from_millis(1));
    }
    let told = Instant::now();
    lines.write_all(b"link set dev p0 isolated on\n")?;
    thread::sleep(AFTER);
    let last = newest(capture, head)?.or(last);
    Ok((told, last.ok_or_else(|| Absent("no frame arrived".into()))?))
}

/// The highest number among the frames that wait.
fn newest(capture: &mut FrameCapture, head: &[u8]) -> anyhow::Result<Option<usize>> {
    let frames = capture.waiting()?;
    let number = |bytes: &[u8]| {
        let number = bytes.strip_prefix(head)?.first_chunk()?;
        Some(u64::from_be_bytes(*number) as usize)
    };
    Ok(frames.iter().filter_map(|frame| number(&frame.bytes)).max())
}
