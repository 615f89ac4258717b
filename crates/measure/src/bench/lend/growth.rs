//! How many packets reach workers as there are more and more of them: borrowers of one lender, or
//! readers of AF_PACKET rings.

use trial::Better;

use super::Ground;
use super::delivered::{Receivers, Who, flood};
use super::wire::Pace;
use crate::bench::experiment::{Measure, Part, Step, Time};
use crate::bench::growth::Growth;

const WORKERS: [usize; 4] = [1, 4, 16, 64];

pub(super) fn part() -> Part<Ground> {
    let growth = growth();
    let steps = growth.cases().len();
    let time = Time { once: 1.0, steps, windows: 1.0, more: 2.0 };
    let about = "Packets that reach more and more workers, against AF_PACKET rings (needs root)";
    Part::new("growth", about, time).growth(&growth).stage(move |ground, found| {
        let receivers = Receivers::build(ground, found)?;
        let there = receivers.who();
        let cases = growth.cases().into_iter().filter_map(|(arm, workers)| {
            let who = there.iter().find(|who| who.name() == arm)?;
            Some((*who, workers, growth.case(arm, workers)))
        });
        let step = |(.., case): &(Who, usize, String)| Step::of(case.clone(), "pps");
        Ok(Measure::new(cases, step, move |(who, workers, _), now| {
            Ok(vec![receivers.measure(*who, *workers, flood(Pace::Driver), now.window)?.pps])
        }))
    })
}

fn growth() -> Growth {
    Growth {
        figure: "delivered pps",
        along: "workers",
        arms: vec![Who::Lend.name(), Who::AfPacket.name()],
        counts: WORKERS.into(),
        better: Better::Higher,
    }
}
