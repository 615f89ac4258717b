//! What a stream costs with other steps and low-water marks than the relay chooses. For
//! whoever wants to know whether the relay chooses well on a host; nothing is claimed.

use std::net::SocketAddr;

use anyhow::Context as _;
use lab::traffic::{BulkOptions, BulkSession};
use relay::{Config, Engine, Tuning};

use super::bulk::{WARM, carried};
use super::targets::Targets;
use crate::bench::experiment::{Measure, Part, Step, Time};

const KIB: usize = 1 << 10;
/// The most that one call moves.
const STEPS: [usize; 7] =
    [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB, 2048 * KIB];
/// What wakes the worker.
const LOW_WATER: [usize; 3] = [256 * KIB, 512 * KIB, 1024 * KIB];
const ENGINES: [Engine; 2] = [Engine::Copy, Engine::Splice];

#[derive(Clone, Copy, Debug)]
struct Case {
    engine: Engine,
    step: usize,
    low_water: usize,
}

pub(super) fn part() -> Part<Targets> {
    let time = Time { once: 0.0, steps: cases().count(), windows: 1.0, more: 0.4 };
    Part::new("sweep", "Steps and low-water marks of other sizes", time)
        // The table has many cases.
        .rounds(|rounds| rounds.div_ceil(8))
        .stage(|targets, _| {
            Ok(Measure::new(cases(), step, |case, now| {
                let config = case.config(targets)?;
                let relay = targets.host.run(|| relay::Relay::start(config))??;
                let to = *relay.addrs().first().context("a relay without a listener")?;
                let session = BulkSession::start(&targets.host, to, &BulkOptions::default())?;
                session.measure(&targets.bulk_server, WARM)?;
                Ok(carried(&session, &targets.bulk_server, now.window)?.into())
            }))
        })
}

fn cases() -> impl Iterator<Item = Case> {
    let of = |engine| {
        STEPS.into_iter().flat_map(move |step| {
            LOW_WATER.into_iter().map(move |low_water| Case { engine, step, low_water })
        })
    };
    ENGINES.into_iter().flat_map(of)
}

fn step(case: &Case) -> Step {
    let name = case.name();
    Step { gives: vec![(name.clone(), "B/s"), (format!("{name}, of cpu"), "B/CPU-s")], name }
}

impl Case {
    fn name(self) -> String {
        let (engine, step, mark) = (self.engine, self.step / KIB, self.low_water / KIB);
        format!("sweep {engine}, steps of {step} KiB, woken at {mark} KiB")
    }

    fn config(self, targets: &Targets) -> anyhow::Result<Config> {
        let cpus = lanes::LaneMap::detect()?.allowed().clone();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let Case { engine, step, low_water } = self;
        let tuning = Tuning { step: Some(step), low_water: Some(low_water) };
        let to = targets.bulk_server.address();
        Ok(Config { engine, tuning, ..Config::new(vec![listen], vec![to], cpus) })
    }
}
