//! By how much longer an event takes while traffic is watched, and what share of a CPU that is at
//! the rate that is said.

use std::cell::RefCell;

use anyhow::ensure;
use trial::bench::Bar;

use super::RATE;
use super::events::{Events, KINDS, Kind};
use super::programs::{ARMS, Case, Programs};
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};

pub(super) fn part() -> Part<()> {
    let claims = KINDS.iter().flat_map(|(_, kind)| {
        let claim = |name: &str, arm: &str| {
            let name = format!("load of {name}, cpu share: {kind}");
            Claim::difference(name, case(kind, arm), case(kind, "nothing"))
        };
        let watching = claim("watching", "watching").bar(Bar::AtMost(0.01));
        [watching, claim("empty programs", "empty programs")]
    });
    let steps = 2 * ARMS.len() * KINDS.len();
    let time = Time { once: 0.1, steps, windows: 0.5, more: 0.1 };
    let about = "By how much longer events take while they are watched";
    Part::new("load", about, time).claims(claims).stage(|(), _| measure())
}

fn measure() -> anyhow::Result<Measure<'static>> {
    let events = RefCell::new(Events::new()?);
    let note = format!(
        "load: a TCP socket received single bytes, or datagrams were dropped, on CPU {}; its share \
         of a CPU is that of {RATE} such events a second, each with one program's run. 'nothing' is \
         what the events take by themselves. The median stretch of some hundred counts, so that \
         interruptions do not.",
        events.borrow().cpu()
    );
    let cases = KINDS.into_iter().flat_map(|kind| ARMS.map(|arm| (kind, arm)));
    let step = |((_, kind), (_, arm)): &Case| Step {
        name: case(kind, arm),
        gives: vec![(case(kind, arm), "CPU"), (format!("{kind} a second, {arm}"), "1/s")],
    };
    let slice = move |((kind, _), (arm, _)): &Case, blocks: &mut Vec<f64>, now: &mut Now<'_>| {
        let programs = Programs::attach(*arm)?;
        events.borrow_mut().go(*kind, now.window / 2, blocks)?;
        if let Programs::Watching(watching) = programs {
            let seen = watching.so_far()?;
            let seen = if *kind == Kind::Receives { seen.receives } else { seen.frees };
            ensure!(seen > 0, Absent("the programs saw no event".into()));
        }
        Ok(())
    };
    let figures = |_: &_, mut blocks: Vec<f64>| {
        ensure!(!blocks.is_empty(), Absent("nothing happened".into()));
        let middle = blocks.len() / 2;
        let (_, median, _) = blocks.select_nth_unstable_by(middle, f64::total_cmp);
        Ok(vec![*median * RATE, 1.0 / *median])
    };
    Ok(Measure::there_and_back(cases, step, slice, figures).note(note))
}

fn case(kind: &str, arm: &str) -> String {
    format!("cpu share, {kind}, {arm}")
}
