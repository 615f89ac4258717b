//! `cachelane demo`: each mechanism off and on by turns, on a test host, under real traffic.
//!
//! A mechanism is a module here that implements `Mechanism` and offers one or more entries,
//! each a row of the table; `ENTRIES` lists them. Everything is set up before the first window,
//! so that what has to be left out is said before the waiting begins, and costs nothing while it
//! idles; each mechanism makes its traffic only while its own windows are measured.

mod bridge_fastpath;
mod frames_pool;
mod lend_accounts;
mod output;
mod relay_against_proxy;
mod relay_cpus;
mod sockmap_buffer;
mod stage;
mod steer_lanes;
mod trying;
mod xsk_send;

use std::time::Duration;

use trial::Better;

use crate::bench::{Progress, Stop};
pub use output::Findings;
use stage::Stage;

/// The rows of the table, in its order.
const ENTRIES: [Entry; 10] = [
    sockmap_buffer::RATE,
    relay_against_proxy::PER_CPU,
    relay_against_proxy::LATENCY,
    relay_cpus::RATE,
    bridge_fastpath::RATE,
    frames_pool::RATE,
    xsk_send::RATE,
    lend_accounts::RATE,
    steer_lanes::LANE,
    steer_lanes::RECORDS,
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
    set_up: fn(&Stage) -> anyhow::Result<SetUp<'_>>,
}

/// What setting up comes to.
enum SetUp<'a> {
    /// It can run.
    Ready {
        mechanism: Box<dyn Mechanism + 'a>,
        /// What off and on are, for people.
        arms: String,
    },
    /// It cannot, on this host, for this reason.
    LeftOut(String),
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
        window: Duration::from_millis(450),
        settle: Duration::from_millis(200),
        limit: Duration::from_secs(25),
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
/// What is left out is said on stderr as soon as it is known. `command` is what the report says was called.
pub fn run(extent: Extent, seed: u64, quiet: bool, command: String) -> anyhow::Result<Findings> {
    let stop = Stop::on_signals()?;
    let mut findings = Findings::new(seed, command);
    let stage = Stage::build()?;
    findings.notes.push(stage.describe().into());
    let mut ready = Vec::new();
    for entry in &ENTRIES {
        stop.check()?;
        match (entry.set_up)(&stage) {
            Ok(SetUp::Ready { mechanism, arms }) => {
                findings.notes.push(format!("{}: {arms}", entry.name()));
                ready.push((entry, mechanism));
            }
            Ok(SetUp::LeftOut(reason)) => findings.leave_out(&entry.name(), reason),
            Err(error) => {
                // Ctrl-C ends what is being set up as well.
                stop.check()?;
                findings.fail(&entry.name(), &error);
            }
        }
    }
    let windows = extent.windows();
    let progress = Progress::new(windows * ready.len(), quiet);
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
