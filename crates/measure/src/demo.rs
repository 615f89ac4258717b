//! `cachelane demo`: each mechanism off and on by turns, on a test host, under real traffic.
//!
//! A mechanism is a module here that sets one or more rows of the table up; `ENTRIES` lists them.
//! Everything is set up before the first window, so that what has to be left out is said before the
//! waiting begins, and costs nothing while it idles; each mechanism makes its traffic only while its
//! own windows are measured.

mod bridge_fastpath;
mod in_place;
mod output;
mod relay_against_proxy;
mod relay_cpus;
mod sockmap_buffer;
mod stage;
mod steer_lanes;
mod trying;

use std::time::Duration;

use anyhow::Context as _;
use trial::Better::{self, Higher, Lower};

use crate::bench::{Absent, Progress, Stop};
pub use output::Findings;
use stage::Stage;

/// The rows of the table, in its order.
const ENTRIES: [Entry; 10] = [
    entry("sockmap buffer", "rate", "B/s", Higher, sockmap_buffer::set_up),
    entry("relay", "per CPU-second", "B", Higher, relay_against_proxy::set_up_bulk),
    entry("relay", "p99 latency", "s", Lower, relay_against_proxy::set_up_exchanges),
    entry("relay.cpus", "rate", "B/s", Higher, relay_cpus::set_up),
    entry("bridge", "exchanges", "1/s", Higher, bridge_fastpath::set_up),
    entry("frames", "frames passed", "1/s", Higher, in_place::frames),
    entry("xsk send", "packets", "1/s", Higher, in_place::xsk_send),
    entry("lend", "frames accounted", "1/s", Higher, in_place::lend),
    entry("steer", "in lane", "", Higher, steer_lanes::set_up_lane),
    entry("steer", "records", "1/s", Lower, steer_lanes::set_up_records),
];

/// Something that can be off and on while traffic flows.
trait Mechanism {
    /// Turns it on or off. Called before every window, also where it stays as it was.
    fn set(&mut self, on: bool) -> anyhow::Result<()>;

    /// One value, finite and 0 or more, for the traffic of the next `window`. A window in which
    /// nothing arrives is a value too; that the mechanism has died is for [`set`](Self::set) to
    /// find out.
    fn measure(&mut self, window: Duration) -> anyhow::Result<f64>;
}

/// A row of the table: a mechanism by one measure.
struct Entry {
    mechanism: &'static str,
    measure: &'static str,
    unit: &'static str,
    better: Better,
    set_up: SetUp,
}

/// Sets a mechanism up. An error that is [`Absent`] says why this host cannot run it.
type SetUp = fn(&Stage) -> anyhow::Result<Ready<'_>>;

const fn entry(
    mechanism: &'static str,
    measure: &'static str,
    unit: &'static str,
    better: Better,
    set_up: SetUp,
) -> Entry {
    Entry { mechanism, measure, unit, better, set_up }
}

/// What can run.
struct Ready<'a> {
    mechanism: Box<dyn Mechanism + 'a>,
    /// What off and on are, for people.
    arms: String,
}

impl<'a> Ready<'a> {
    /// A mechanism that is set while what `begin` gives, for the first window, goes on.
    fn kept<T: 'a>(
        arms: String,
        begin: impl FnMut() -> anyhow::Result<T> + 'a,
        set: impl FnMut(&mut T, bool) -> anyhow::Result<()> + 'a,
        measure: impl FnMut(&T, Duration) -> anyhow::Result<f64> + 'a,
    ) -> Ready<'a> {
        Ready { mechanism: Box::new(Kept { there: None, begin, set, measure }), arms }
    }

    /// A mechanism that begins every window anew, with what `start` gives for the arm, once what it
    /// gave for the window before is dropped.
    fn anew<T: 'a>(
        arms: String,
        mut start: impl FnMut(bool) -> anyhow::Result<T> + 'a,
        mut measure: impl FnMut(&T, Duration) -> anyhow::Result<f64> + 'a,
    ) -> Ready<'a> {
        let set = move |there: &mut Option<T>, on| {
            *there = None;
            *there = Some(start(on)?);
            Ok(())
        };
        let measure = move |there: &Option<T>, window| {
            measure(there.as_ref().context("nothing was started")?, window)
        };
        Ready::kept(arms, || Ok(None), set, measure)
    }
}

/// What begins with the first window, and is set before each.
struct Kept<T, B, S, M> {
    there: Option<T>,
    begin: B,
    set: S,
    measure: M,
}

impl<T, B, S, M> Mechanism for Kept<T, B, S, M>
where
    B: FnMut() -> anyhow::Result<T>,
    S: FnMut(&mut T, bool) -> anyhow::Result<()>,
    M: FnMut(&T, Duration) -> anyhow::Result<f64>,
{
    fn set(&mut self, on: bool) -> anyhow::Result<()> {
        let there = match &mut self.there {
            Some(there) => there,
            none => none.insert((self.begin)()?),
        };
        (self.set)(there, on)
    }

    fn measure(&mut self, window: Duration) -> anyhow::Result<f64> {
        (self.measure)(self.there.as_ref().context("nothing was begun")?, window)
    }
}

/// How much is measured of each mechanism.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    blocks: u32,
    window: Duration,
    settle: Duration,
    /// A mechanism whose windows take longer than this is judged by what it has.
    limit: Duration,
}

impl Extent {
    /// Windows of one mechanism: a block has two of each arm.
    const fn windows(self) -> usize {
        4 * self.blocks as usize
    }

    /// All rows within three minutes.
    pub const FULL: Extent = Extent {
        blocks: 8,
        window: Duration::from_millis(320),
        settle: Duration::from_millis(200),
        limit: Duration::from_secs(17),
    };

    /// The fewest blocks that can tell a difference, in short windows: shows that it runs.
    pub const QUICK: Extent = Extent {
        blocks: 6,
        window: Duration::from_millis(120),
        settle: Duration::from_millis(60),
        limit: Duration::from_secs(10),
    };
}

/// Runs every mechanism that can run here.
///
/// What is left out is said on stderr as soon as it is known. `command` is what the report says was
/// called.
pub fn run(extent: Extent, seed: u64, quiet: bool, command: String) -> anyhow::Result<Findings> {
    let stop = Stop::on_signals()?;
    let mut findings = Findings::new(seed, command);
    let stage = Stage::build()?;
    findings.notes.push(stage.describe().into());
    let mut ready = Vec::new();
    for entry in &ENTRIES {
        stop.check()?;
        match (entry.set_up)(&stage) {
            Ok(Ready { mechanism, arms }) => {
                findings.notes.push(format!("{}: {arms}", entry.name()));
                ready.push((entry, mechanism));
            }
            Err(error) => {
                // Ctrl-C ends what is being set up as well.
                stop.check()?;
                match error.downcast::<Absent>() {
                    Ok(Absent(reason)) => findings.leave_out(&entry.name(), reason),
                    Err(error) => findings.fail(&entry.name(), &error),
                }
            }
        }
    }
    let seconds = extent.windows() as f64 * (extent.window + extent.settle).as_secs_f64();
    let progress = Progress::new(seconds * ready.len() as f64, quiet);
    let mut broken = Vec::new();
    for (number, (entry, mechanism)) in (0..).zip(ready) {
        let plan = trying::plan(extent, seed.wrapping_add(number));
        // Tried to its end and dropped, with its traffic, before the next one.
        let tried = trying::run(entry, mechanism, &plan, extent.limit, &progress, &stop);
        stop.check()?;
        match tried {
            Ok(row) => findings.rows.push(row),
            Err(error) => broken.push((entry.name(), error)),
        }
    }
    // Said when the line is free.
    drop(progress);
    broken.iter().for_each(|(name, error)| findings.fail(name, error));
    Ok(findings)
}

impl Entry {
    /// As the table names it.
    fn name(&self) -> String {
        format!("{}, {}", self.mechanism, self.measure)
    }
}
