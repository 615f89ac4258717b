//! Beside programs that spin: what a stream carries, and how long a new connection waits.
//!
//! Every CPU is busy all the time, so what a stream costs shows in what it carries.

use std::time::Duration;

use lab::traffic::{Spinners, Then};
use trial::bench::Bar;

use super::bulk::{SIZES, auto, streams};
use super::exchange::{compare, exchanges};
use super::targets::{Target, Targets};
use crate::bench::claim::Claim;
use crate::bench::exchanges::check;
use crate::bench::experiment::{Measure, Part, Step, Time};

const SPINNERS: usize = 4;
/// What streams go through: auto, and what it chooses from.
const ENGINES: [&str; 3] = ["relay", "relay-copy", "relay-splice"];
/// What connections go through; nothing at all is the floor.
const PROXIES: [&str; 3] = ["relay", "haproxy", "direct"];
/// Before each measurement: several turns of everybody.
const WARM: Duration = Duration::from_millis(300);

pub(super) fn part() -> Part<Targets> {
    let of_size = |size: usize| auto(&what(size), "");
    let steps = SIZES.len() * ENGINES.len() + PROXIES.len();
    let time = Time { once: 0.2, steps, windows: 1.0, more: 0.4 };
    Part::new("busy", "Streams and new connections beside programs that spin", time)
        .claims(SIZES.map(of_size))
        .claims([connect_claim()])
        // The table has many cases.
        .rounds(|rounds| rounds.div_ceil(2))
        .stage(|targets: &Targets, _| {
            let spinners = Spinners::start(SPINNERS)?;
            let chosen = targets.bulk.iter().filter(|target| ENGINES.contains(&target.name));
            let sizes = |to: &Target| SIZES.map(|size| (what(size), size, *to));
            let mut measure = streams(targets, chosen.flat_map(sizes));
            // They spin for as long as this is measured.
            measure.begin = Some(Box::new(move |_| {
                let _ = &spinners;
                Ok(Vec::new())
            }));
            let note = format!("busy: beside {SPINNERS} programs that spin, by turns on all CPUs.");
            Ok(measure.note(note))
        })
        .stage(|targets: &Targets, _| {
            let spinners = Spinners::start(SPINNERS)?;
            let chosen = targets.exchange.iter().filter(|to| PROXIES.contains(&to.name)).copied();
            let step = |to: &Target| Step::of(connect_case(to.name), "s");
            Ok(Measure::new(chosen, step, move |to, now| {
                let _spinning = &spinners;
                let session = exchanges(&targets.host, to.addr, Then::Reopen)?;
                session.measure(WARM);
                let window = check(session.measure(now.window), to.name)?;
                Ok(vec![window.latency.p99().as_secs_f64()])
            }))
        })
}

fn what(size: usize) -> String {
    format!("busy {size} B writes")
}

fn connect_case(through: &str) -> String {
    format!("busy connect p99 {through}")
}

fn connect_claim() -> Claim {
    compare("busy connect p99", "busy connect p99", "haproxy").bar(Bar::AtMost(1.0))
}
