//! `cachelane trial`: whether a setting helps, found out on live traffic.

mod args;
mod arms;
mod combine;
mod guards;
mod layout;
mod output;
mod tried;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sources::{MeasureSpec, Meter};
use trial::report::Page;
use trial::{Ended, Outcome, Pilot, Plan, Record, Step, Verdict};

use crate::exit::Exit;
use crate::run::{self, Foreground, View};
use crate::{out, terminal};
use args::Action;
use arms::{Candidate, Left};
use layout::Layout;
use tried::Tried;

pub(crate) use args::Args;

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    if let Some(Action::Combine(args)) = &args.action {
        return combine::run(args);
    }
    if args.list {
        return list(args.json);
    }
    let candidate = Candidate::of(args)?;
    let mut layout = Layout::of(args, &candidate)?;
    let asked = Asked::of(args, &candidate)?;
    let meter = Meter::open(&asked.specs)?;
    layout.plan.guards.clone_from(&asked.guards);
    if args.dry_run {
        return out::dry_run(would(&candidate, &meter, &asked, &layout, args));
    }
    if let Some(path) = &args.html {
        output::check_writable(path)?;
    }
    let _foreground = Foreground::new()?;
    run::end_on_hangup()?;
    let failure = Rc::new(RefCell::new(None));
    let in_force = candidate.hold()?;
    let mut tried = Tried::new(in_force, meter, &candidate, args, Rc::clone(&failure))?;
    tried.only_guards_after(asked.chosen);
    let outcome = try_out(&mut tried, layout, args, quiet, &failure)?;
    let failed = failure.borrow_mut().take();
    let may_keep = args.keep_winner && failed.is_none() && !run::is_asked_to_end();
    let keep = may_keep.then(|| winner(&outcome)).flatten();
    let left = tried.end(keep);
    let arm = |arm: usize| outcome.plan.arms[arm].clone();
    let kept = keep.filter(|_| matches!(left, Ok(Left::Kept))).map(arm);
    let mut notes = asked.notes(&outcome, args);
    notes.extend(tried.notes());
    notes.extend(failed.iter().map(|error| format!("ended early: {error:#}")));
    notes.push(match &left {
        Ok(Left::Restored) => "restored".into(),
        Ok(Left::Kept) => format!("kept {}", kept.as_deref().unwrap_or_default()),
        Ok(Left::Taken(why)) => format!("left alone: {why}"),
        Err(error) => format!("not restored: {error:#}"),
    });
    let shown = Record::new(candidate.name(), terminal::command_line(), outcome, notes)
        .map_err(anyhow::Error::from)
        .and_then(|record| {
            let record = Record { kept, ..record };
            show(&record, args).map(|()| exit(&record))
        });
    // The first is returned, and none is lost: a full disk must not hide what was not restored.
    let (shown, not_shown) = match shown {
        Ok(exit) => (Some(exit), None),
        Err(error) => (None, Some(error)),
    };
    let mut errors = [left.err(), failed, not_shown].into_iter().flatten();
    let first = errors.next();
    errors.for_each(|error| tracing::error!("{error:#}"));
    match first {
        Some(error) => Err(error),
        None => Ok(shown.unwrap_or(Exit::Failed)),
    }
}

/// What is measured, and what must not get worse.
struct Asked {
    specs: Vec<MeasureSpec>,
    /// How many of them, the first ones, are not there for their guards alone.
    chosen: usize,
    guards: Vec<trial::Guard>,
}

impl Asked {
    /// The measures in the order of the trial's: the command's number, if there is a command, stands
    /// before them.
    fn of(args: &Args, candidate: &Candidate) -> anyhow::Result<Self> {
        let mut specs = Vec::new();
        for spec in &args.measures {
            specs.push(match &args.load {
                Some(load) => spec.clone().by(load)?,
                None => spec.clone(),
            });
        }
        let before = usize::from(!args.command.is_empty());
        if specs.is_empty() && before == 0 {
            specs.push(candidate.default_measure()?.parse()?);
        }
        let chosen = specs.len();
        let mut guards = Vec::new();
        for guard in &args.guards {
            guards.push(guard.among(&mut specs, before));
        }
        if !args.no_guards {
            let (process, elsewhere) = (candidate.process(), candidate.is_elsewhere());
            let given = &args.guards;
            guards.extend(guards::by_default(process, elsewhere, given, &mut specs, before)?);
        }
        Ok(Self { specs, chosen, guards })
    }

    /// What a reader must know of the figures.
    fn notes(&self, outcome: &Outcome, args: &Args) -> Vec<String> {
        let first = self.specs.first().filter(|_| args.command.is_empty());
        let is_demand =
            first.is_some_and(|spec| spec.is_rate() && spec.better() == trial::Better::Higher);
        let judged = outcome.judge().unwrap_or_default();
        let same = judged.first().is_some_and(|j| j.comparison.verdict == Verdict::NoDifference);
        let name = first.map(ToString::to_string).unwrap_or_default();
        let demand = format!(
            "{name} is by second: where clients send what they want to, whatever becomes of it \
             (open loop), that is their demand. Measure what it costs, such as cpu.busy/{name}, or \
             give the demand with --load"
        );
        (is_demand && same).then_some(demand).into_iter().collect()
    }
}

/// The pilot, then the trial. If something fails, what was measured before is kept.
fn try_out(
    tried: &mut Tried,
    layout: Layout,
    args: &Args,
    quiet: bool,
    failure: &Failure,
) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let goes_on = || match run::is_asked_to_end() || failure.borrow().is_some() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let view = View::new(false, None, quiet);
    let Layout { plan, pilot, hold, .. } = layout.clone();
    let before = |step: &Step<'_>| {
        let Step { window, windows, arm, .. } = step;
        view.show(format!("pilot: window {} of {windows} ({arm})", window + 1));
        goes_on()
    };
    let pilot = trial::pilot(&plan, tried, pilot, hold, before)?;
    let measures = trial::Subject::measures(tried);
    if pilot.stopped {
        view.clear();
        return Ok(Outcome::of_pilot(plan, measures, pilot));
    }
    layout::check_events(&pilot, &measures)?;
    let plan = layout.after(&pilot, args, start.elapsed())?;
    for line in said_of_pilot(&pilot, &plan, &measures[0].name, args, &layout) {
        tracing::info!("{line}");
    }
    let mut blocks = None;
    let mut found = String::new();
    let begin = Instant::now();
    let before = |step: &Step<'_>| {
        // A comparison is work, so once a block and only for somebody who sees it.
        if view.is_shown() && blocks != Some(step.slot.block) {
            blocks = Some(step.slot.block);
            found = so_far(step.seen);
        }
        view.show(live(step, &found, begin.elapsed()));
        goes_on()
    };
    let mut outcome = trial::run(&plan, tried, before)?;
    view.clear();
    outcome.pilot = Some(pilot);
    Ok(outcome)
}

/// Why a trial ended that nobody asked to end.
type Failure = RefCell<Option<anyhow::Error>>;

/// The primary measure's ratios until now.
fn so_far(seen: &Outcome) -> String {
    let arms = 1..seen.plan.arms.len();
    let found = arms.filter_map(|arm| {
        let comparison = seen.compare(arm).ok()?;
        let ratio = comparison.ratio?;
        let interval = comparison
            .interval
            .map(|interval| format!(" [{:.3}, {:.3}]", interval.low, interval.high));
        Some(format!("{} {ratio:.3}{}", seen.plan.arms[arm], interval.unwrap_or_default()))
    });
    found.collect::<Vec<_>>().join(", ")
}

fn live(step: &Step<'_>, found: &str, elapsed: Duration) -> String {
    let Step { window, windows, slot, arm, seen } = step;
    let left = match window {
        0 => String::new(),
        _ => {
            let left = elapsed.as_secs_f64() / *window as f64 * (windows - window) as f64;
            format!(", {} left", in_words(left))
        }
    };
    let name = &seen.measures[0].name;
    let found = if found.is_empty() { String::new() } else { format!("{name}: {found}, ") };
    format!("{found}block {} of {} ({arm}){left}", slot.block + 1, seen.plan.blocks)
}

fn in_words(seconds: f64) -> String {
    humantime::format_duration(Duration::from_secs(seconds.ceil() as u64)).to_string()
}

fn said_of_pilot(
    pilot: &Pilot,
    plan: &Plan,
    name: &str,
    args: &Args,
    layout: &Layout,
) -> Vec<String> {
    let took = layout.block_time(plan, pilot);
    let in_time = |blocks: u32| in_words(f64::from(blocks) * took);
    let noise = 100.0 * pilot.noise[0];
    let blocks = plan.blocks;
    let smallest = 100.0 * pilot.smallest_effect(plan);
    let mut said = vec![format!(
        "{name} varies by {noise:.1} % from window to window: {blocks} blocks in {} find an effect \
         of {smallest:.1} % nine times out of ten",
        in_time(blocks)
    )];
    if let Some(effect) = args.find.filter(|effect| 100.0 * effect < smallest) {
        let needed = pilot.blocks_for(effect, plan);
        let effect = 100.0 * effect;
        said.push(match needed {
            Some(needed) => {
                format!("an effect of {effect} % needs {needed} blocks: --for {}", in_time(needed))
            }
            None => format!(
                "an effect of {effect} % cannot be found in 10,000 blocks ({}): make windows longer, \
                 or choose a measure that varies less",
                in_time(10_000)
            ),
        });
    }
    if plan.settle > layout.plan.settle {
        let settle = humantime::format_duration(plan.settle);
        let takes = pilot.settle().unwrap_or_default();
        said.push(match takes > plan.settle.as_secs_f64() + 0.001 {
            true => format!(
                "effects take {} to appear; windows begin {settle} after each change: what is found is \
                 a lower bound, and longer windows would find more",
                in_words(takes)
            ),
            false => format!(
                "effects take {settle} to appear: windows begin so long after each change"
            ),
        });
    }
    said
}

/// The arm to keep: the one that is better than the baseline by the first measure, by most if there are
/// several, and worse by none.
fn winner(outcome: &Outcome) -> Option<usize> {
    if matches!(outcome.ended, Ended::Guard { .. } | Ended::Stopped) {
        return None;
    }
    let judged = outcome.judge().ok()?;
    let is_worse = |arm: usize| {
        judged.iter().any(|judged| judged.arm == arm && judged.comparison.verdict == Verdict::Worse)
    };
    let better = judged.iter().filter(|judged| {
        judged.measure == 0 && judged.comparison.verdict == Verdict::Better && !is_worse(judged.arm)
    });
    let gain = |judged: &trial::Judged| {
        let ratio = judged.comparison.ratio.unwrap_or(f64::INFINITY);
        match outcome.measures[0].better {
            trial::Better::Higher => ratio,
            trial::Better::Lower => 1.0 / ratio,
        }
    };
    better.max_by(|a, b| gain(a).total_cmp(&gain(b))).map(|judged| judged.arm)
}

fn show(record: &Record, args: &Args) -> anyhow::Result<()> {
    let object = args.json.then(|| serde_json::to_string(record)).transpose()?;
    output::show(&Page::from_record(record), object, args.html.as_deref())
}

/// What it means for the exit status.
fn exit(record: &Record) -> Exit {
    if matches!(record.outcome.ended, Ended::Guard { .. }) {
        return Exit::Failed;
    }
    let first = record.judged.iter().filter(|judged| judged.measure == 0);
    output::exit(first.map(|judged| judged.comparison.verdict))
}

fn would(
    candidate: &Candidate,
    meter: &Meter,
    asked: &Asked,
    layout: &Layout,
    args: &Args,
) -> Vec<String> {
    let Plan { arms, window, settle, blocks, .. } = &layout.plan;
    let mut would = vec![format!("would compare, of {}: {}", candidate.name(), arms.join(", "))];
    let command = (!args.command.is_empty()).then(|| tried::COMMAND.to_owned());
    let measures: Vec<String> =
        command.into_iter().chain(meter.measures().into_iter().map(|m| m.name)).collect();
    would.push(format!("would measure {}", measures.join(", ")));
    would.extend(asked.guards.iter().map(|guard| {
        format!(
            "would end if {} came to {} times the baseline",
            measures[guard.measure], guard.limit
        )
    }));
    let (windows, of) =
        (2 * arms.len(), format!("windows of {window:?}, each {settle:?} after its arm is set"));
    would.push(match args.find.is_some() && args.time.is_none() {
        true => {
            format!("would take as many blocks of {windows} {of}, as a pilot finds to be needed")
        }
        false => format!(
            "would take {blocks} blocks of {windows} {of}, and a pilot before: {} in all",
            in_words(layout.planned().as_secs_f64())
        ),
    });
    would
}

/// Prints what can be measured.
fn list(as_json: bool) -> anyhow::Result<Exit> {
    let listed = sources::list()?;
    if as_json {
        let one = |listed: &sources::Listed| {
            let sources::Quantity { name, unit, help, kind } = &listed.quantity;
            serde_json::json!({
                "name": name, "unit": unit, "kind": kind.to_string(), "help": help,
                "better": listed.better, "absent": listed.absent,
            })
        };
        let all: Vec<_> = listed.iter().map(one).collect();
        return out::lines([serde_json::json!({"schema": 1, "quantities": all})])
            .map(|()| Exit::Ok);
    }
    let row = |listed: sources::Listed| {
        let absent = listed.absent.map(|reason| format!(" (not here: {reason})"));
        let quantity = listed.quantity;
        let help = quantity.help + &absent.unwrap_or_default();
        [quantity.name, quantity.unit, quantity.kind.to_string(), help]
    };
    let rows: Vec<_> = listed.into_iter().map(row).collect();
    out::print(&terminal::table(["NAME", "UNIT", "KIND", "IS"], &rows)).map(|()| Exit::Ok)
}
