//! How long everything takes: the plan before the pilot, and after it.

use std::time::Duration;

use trial::{Measure, Pilot, Plan, Reach};

use super::args::Args;
use super::arms::Candidate;
use crate::exit::usage;

/// How long a trial takes if nobody says.
const TIME: Duration = Duration::from_secs(180);

/// How many windows of the baseline a pilot looks at.
const PILOT: u32 = 10;

/// The longest hold by default.
const HOLD: Duration = Duration::from_secs(3600);

/// Into how many windows at least the time is parted, up to windows of a second.
const WINDOWS: u32 = 180;

/// The longest time to settle by default.
const SETTLE: Duration = Duration::from_millis(250);

/// How much more than the baseline arms may settle, in windows, if the pilot asks for it.
const MOST_SETTLE: f64 = 10.0;

/// The plan, and what goes before it.
#[derive(Clone)]
pub(super) struct Layout {
    pub(super) plan: Plan,
    /// How many windows of the baseline the pilot has.
    pub(super) pilot: u32,
    /// How long it holds an arm, where the reach is unknown.
    pub(super) hold: Duration,
    /// In all.
    time: Duration,
}

impl Layout {
    /// What the arguments say, before anything is known of the traffic.
    pub(super) fn of(args: &Args, candidate: &Candidate) -> anyhow::Result<Self> {
        let time = args.time.unwrap_or(TIME);
        let window = args.window.unwrap_or_else(|| {
            whole(time / WINDOWS).clamp(Duration::from_millis(100), Duration::from_secs(1))
        });
        let settle = args.settle.unwrap_or_else(|| SETTLE.min(whole(window / 4)));
        let reach = args.reach.unwrap_or_else(|| candidate.reach());
        let default = Plan::new(candidate.arms.clone());
        let plan = Plan {
            window,
            settle,
            reach,
            margin: args.margin,
            confidence: args.confidence,
            ends_early: args.early,
            seed: args.seed.unwrap_or(default.seed),
            ..default
        };
        if args.hold.is_some() && reach == Reach::AtOnce {
            return Err(usage(format!(
                "--hold: what {} is set to shows at once, or its process says how much of the work ran \
                 under it, so the pilot holds nothing (leave it out, or give --reach unknown)",
                candidate.name()
            )));
        }
        let others = plan.arms.len().saturating_sub(1) as u32;
        let hold = args.hold.unwrap_or_else(|| (time / 3 / (1 + 3 * others)).min(HOLD)).max(window);
        let fewest = fewest_blocks(&plan)?;
        let mut layout = Self { plan, pilot: PILOT, hold, time };
        trial::pilot_windows(&layout.plan, layout.pilot, hold)?;
        let (least, one) = (layout.pilot_time(), layout.planned_block());
        match args.blocks {
            Some(blocks) => layout.plan.blocks = blocks,
            None => {
                let left = time.saturating_sub(least).as_secs_f64();
                let fit = (left / one.as_secs_f64()).min(10_000.0) as u32;
                if fit < fewest && args.time.is_some() {
                    let needed = least + one * fewest;
                    return Err(usage(format!(
                        "--for {}: too short for a pilot of {} and {fewest} blocks of {}, the fewest \
                         that can find anything (expected at least {}; or a shorter --window{})",
                        words(time),
                        words(least),
                        words(one),
                        words(needed),
                        if layout.plan.reach == Reach::Unknown {
                            ", --settle or --hold"
                        } else {
                            ""
                        },
                    )));
                }
                layout.plan.blocks = fit.max(fewest);
            }
        }
        layout.plan.check()?;
        Ok(layout)
    }

    /// How long it is to take in all.
    pub(super) fn planned(&self) -> Duration {
        self.pilot_time().saturating_add(self.planned_block() * self.plan.blocks)
    }

    fn planned_block(&self) -> Duration {
        (self.plan.window + self.plan.settle) * 2 * self.plan.arms.len() as u32
    }

    fn pilot_time(&self) -> Duration {
        trial::pilot_time(&self.plan, self.pilot, self.hold)
    }

    /// How long a block takes, in seconds, if windows take as long as the pilot's.
    pub(super) fn block_time(&self, plan: &Plan, pilot: &Pilot) -> f64 {
        let windows = &pilot.windows;
        let took: f64 = windows.iter().map(|window| window.ended - window.started).sum();
        let window = took / windows.len().max(1) as f64;
        (window.max(plan.window.as_secs_f64()) + plan.settle.as_secs_f64())
            * 2.0
            * plan.arms.len() as f64
    }

    /// The plan, now that the traffic is known.
    pub(super) fn after(
        &self,
        pilot: &Pilot,
        args: &Args,
        elapsed: Duration,
    ) -> anyhow::Result<Plan> {
        let mut plan = self.plan.clone();
        let fewest = fewest_blocks(&plan)?;
        if let Some(settle) = pilot.settle().filter(|_| args.settle.is_none()) {
            let most = MOST_SETTLE * plan.window.as_secs_f64();
            let settle = whole(Duration::from_secs_f64(settle.min(most)));
            plan.settle = plan.settle.max(settle);
        }
        if args.blocks.is_some() {
            return Ok(plan);
        }
        let fit = |time: Duration| (time.as_secs_f64() / self.block_time(&plan, pilot)) as u32;
        let blocks = match (args.find, args.time) {
            (Some(effect), None) => pilot.blocks_for(effect, &plan).ok_or_else(|| {
                let hours = 10_000.0 * self.block_time(&plan, pilot) / 3600.0;
                anyhow::anyhow!(
                    "an effect of {} % cannot be found in 10,000 blocks ({hours:.0} hours): make \
                     windows longer, choose a measure that varies less, or say with --for how long to \
                     try",
                    100.0 * effect
                )
            })?,
            _ => fit(self.time.saturating_sub(elapsed)),
        };
        plan.blocks = blocks.clamp(fewest, 10_000);
        Ok(plan)
    }
}

/// The fewest blocks with which such a plan can find anything.
fn fewest_blocks(plan: &Plan) -> anyhow::Result<u32> {
    let is_enough = |blocks: &u32| Plan { blocks: *blocks, ..plan.clone() }.check().is_ok();
    match (1..100).find(is_enough) {
        Some(blocks) => Ok(blocks),
        // What is wrong is not the blocks.
        None => Err(plan.check().err().map_or_else(|| usage("no such plan".into()), Into::into)),
    }
}

/// Says so if there was nothing to measure.
pub(super) fn check_events(pilot: &Pilot, measures: &[Measure]) -> anyhow::Result<()> {
    let has_events = |window: &trial::Window| match window.values.first() {
        Some(trial::Value::Part(part)) => part.den > 0.0,
        Some(trial::Value::Histogram(histogram)) => histogram.count() > 0.0,
        None => false,
    };
    if pilot.windows.iter().any(has_events) {
        return Ok(());
    }
    let why = pilot.windows.iter().find_map(|window| window.void.clone());
    let name = &measures[0].name;
    let why = why.unwrap_or_else(|| "what it is taken by did not happen".into());
    anyhow::bail!(
        "{name} gave nothing in the whole pilot: {why}. A trial needs live traffic; or choose a \
         measure that counts yours with --measure (cachelane trial --list)"
    )
}

/// In milliseconds, which read well.
fn whole(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

fn words(time: Duration) -> String {
    // Whole seconds read best; shorter times keep their digits.
    let time = match time.as_secs() {
        0..10 => whole(time),
        seconds => Duration::from_secs(seconds + u64::from(time.subsec_nanos() > 0)),
    };
    humantime::format_duration(time).to_string()
}
