//! `cachelane knob set`: in one process in one step, in several in all of them or in none.
//!
//! In several processes the knob is first held, which also says what it is and that nobody else is
//! changing it, then set, and only when all have been set are the holds ended. If one refuses, all are
//! put back; if this command is killed in between, the processes do that themselves when the holds run
//! out. `--for` is the same, with the holds renewed until the time is over.

use std::time::Duration;

use anyhow::bail;
use knobs::{Held, KnobInfo, Process, Subject, Values, side_by_side};
use serde_json::json;

use super::ask::{Answered, Everyone, Silent, is_own};
use super::{SetArgs, eprint_line, print_values};
use crate::exit::{Exit, usage};
use crate::out;
use crate::run::{Followed, Foreground};
use crate::terminal::clean;

/// How long a knob stays held without a sign of life of this command.
const LEASE: Duration = Duration::from_secs(30);

/// How often to give one.
const RENEWAL: Duration = Duration::from_secs(2);

/// A process in which the knob is set.
struct Target<'a> {
    one: &'a Answered,
    info: &'a KnobInfo,
}

/// A knob that is held in a process, or what became of it.
struct Holding<'a> {
    target: Target<'a>,
    held: Held,
    before: String,
    now: String,
}

pub(super) fn set(everyone: Everyone, args: &SetArgs, as_json: bool) -> anyhow::Result<Exit> {
    let mut having = everyone.having(&args.knob)?;
    if args.all && everyone.select.is_any() {
        having = only_own(having, &args.knob)?;
    }
    let like = everyone.silent_like(&having);
    // With --all it is asked for in whoever may have it.
    let silent = if args.all { everyone.silent_of_all() } else { Vec::new() };
    if !args.all && having.len() + like.len() > 1 {
        return Err(several(&args.knob, &having, &like));
    }
    if !args.all {
        everyone.silent.iter().for_each(|one| eprint_line(&one.why()));
    }
    let targets: Vec<_> = having.into_iter().map(|(one, info)| Target { one, info }).collect();
    if let ([target], None) = (&targets[..], args.time) {
        let process = &target.one.process;
        let now = set_one(process, args)
            .map_err(|error| anyhow::Error::from(error).context(target.one.label()))?;
        let before = target.info.value.value().cloned();
        let change = [(target.one, before, now)];
        report(&change, &silent, args, as_json)?;
        return everyone.complain(&silent);
    }
    // Before anything is held: from here on a signal must put all back.
    let mut foreground = Foreground::new()?;
    let holdings = set_in_all(targets, args)?;
    let changes: Vec<_> = holdings
        .iter()
        .map(|holding| (holding.target.one, Some(holding.before.clone()), holding.now.clone()))
        .collect();
    let Some(time) = args.time else {
        let kept = end_all(holdings, Held::keep);
        report(&changes, &silent, args, as_json)?;
        return Ok(worse(kept, everyone.complain(&silent)?));
    };
    report(&changes, &silent, args, as_json)?;
    let mut waiting = Waiting { holdings };
    let followed = foreground.follow(Some(time), &mut waiting);
    let restored = end_all(waiting.holdings, Held::restore);
    followed?;
    Ok(worse(restored, everyone.complain(&silent)?))
}

/// Those that are this user's: another user could refuse for one of the others, and so keep all as they
/// are.
fn only_own<'a>(
    mut having: Vec<(&'a Answered, &'a KnobInfo)>,
    knob: &str,
) -> anyhow::Result<Vec<(&'a Answered, &'a KnobInfo)>> {
    let all = having.len();
    having.retain(|(one, _)| is_own(&one.process));
    let others = all - having.len();
    if having.is_empty() {
        return Err(usage(format!(
            "knob {knob} is only in processes of other users ({others}), which --all leaves alone; \
             choose one with --name or --pid"
        )));
    }
    if others > 0 {
        eprint_line(&format!(
            "knob {knob} is also in {others} processes of other users, which --all leaves alone; \
             choose one with --name or --pid"
        ));
    }
    Ok(having)
}

fn worse(a: Exit, b: Exit) -> Exit {
    if a == Exit::Ok { b } else { a }
}

fn set_one(process: &Process, args: &SetArgs) -> knobs::Result<String> {
    let mut client = process.connect()?;
    match &args.only_if {
        Some(old) => client.set_if(&args.knob, old, &args.value),
        None if args.force => client.set_by_force(&args.knob, &args.value),
        None => client.set(&args.knob, &args.value),
    }
}

/// Sets it in all, or changes nothing.
fn set_in_all<'a>(targets: Vec<Target<'a>>, args: &SetArgs) -> anyhow::Result<Vec<Holding<'a>>> {
    for Target { one, info } in &targets {
        if let Values::OneOf(values) = &info.values
            && !values.contains(&args.value)
        {
            let (knob, value, values) = (&args.knob, &args.value, &info.values);
            return Err(usage(format!(
                "{}: knob {knob} does not take \"{value}\" (expected {values}); nothing is changed",
                one.label()
            )));
        }
    }
    let held = side_by_side(targets, |target| hold(target, args));
    let mut holdings = all_of(held, "nothing is changed")?;
    let set = side_by_side(holdings.iter_mut().collect(), |holding| {
        holding.now = holding.held.set(&args.value)?;
        Ok::<_, knobs::Error>(())
    });
    let refused = holdings
        .iter()
        .zip(set)
        .find_map(|(holding, set)| Some((holding.target.one.label(), set.err()?)));
    let Some((label, error)) = refused else { return Ok(holdings) };
    let rest = match end_all(holdings, Held::restore) {
        Exit::Ok => "all are as they were",
        _ => "not all are as they were, as said above",
    };
    Err(anyhow::Error::from(error).context(format!("{label} ({rest})")))
}

/// Holds the knob, if it is what it is thought to be.
fn hold<'a>(target: Target<'a>, args: &SetArgs) -> anyhow::Result<Holding<'a>> {
    let label = target.one.label();
    let hold = || {
        let subject = Subject::of_knob(target.one.process.clone(), target.info.clone());
        if args.force {
            target.one.process.connect()?.end_hold(&args.knob)?;
        }
        subject.hold(&format!("knob set, pid {}", std::process::id()), LEASE)
    };
    let held = hold().map_err(|error| anyhow::Error::from(error).context(label.clone()))?;
    let before = held.before().to_owned();
    if let Some(old) = args.only_if.as_ref().filter(|old| **old != before) {
        bail!("{label}: knob {} is {before:?}, not {old:?}", args.knob);
    }
    Ok(Holding { target, held, now: before.clone(), before })
}

fn all_of<T>(results: Vec<anyhow::Result<T>>, otherwise: &str) -> anyhow::Result<Vec<T>> {
    let all: anyhow::Result<Vec<T>> = results.into_iter().collect();
    all.map_err(|error| error.context(otherwise.to_owned()))
}

/// Ends all holds in one way, and says where that failed.
fn end_all(holdings: Vec<Holding<'_>>, end: fn(Held) -> knobs::Result<()>) -> Exit {
    let ended = side_by_side(holdings, |Holding { target, held, .. }| {
        end(held).map_err(|error| format!("{}: {error}", target.one.label()))
    });
    let troubles: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    troubles.iter().for_each(|trouble| eprint_line(trouble));
    if troubles.is_empty() { Exit::Ok } else { Exit::Failed }
}

/// Renews the holds.
struct Waiting<'a> {
    holdings: Vec<Holding<'a>>,
}

impl Followed for Waiting<'_> {
    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        let holdings = std::mem::take(&mut self.holdings);
        let renewed = side_by_side(holdings, |mut holding| match holding.held.renew() {
            Ok(()) => Ok(holding),
            Err(error) => Err((holding.target.one.label(), error)),
        });
        let mut lost = None;
        for renewed in renewed {
            match renewed {
                Ok(holding) => self.holdings.push(holding),
                Err((label, error)) => lost = Some((label, error)),
            }
        }
        if let Some((label, error)) = lost {
            return Err(anyhow::Error::from(error).context(label));
        }
        Ok(Some(RENEWAL))
    }

    fn log(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

fn several(knob: &str, having: &[(&Answered, &KnobInfo)], like: &[&Silent]) -> anyhow::Error {
    let having = having.iter().map(|(one, _)| format!("'{}' (pid {})", one.name, one.process.pid));
    let silent = like.iter().map(|one| format!("{} (does not answer)", one.process.label()));
    let all = Vec::from_iter(having.chain(silent)).join(", ");
    usage(format!(
        "knob {knob} is in several processes: {all}; choose one with --name or --pid, or set it in \
         all with --all"
    ))
}

/// What was set: the value alone where that is in one process, for a shell script.
fn report(
    changes: &[(&Answered, Option<String>, String)],
    silent: &[&Silent],
    args: &SetArgs,
    as_json: bool,
) -> anyhow::Result<()> {
    if as_json {
        let changed = changes
            .iter()
            .map(|(one, before, now)| one.object(json!({"before": before, "value": now})));
        let silent = silent.iter().map(|one| one.object());
        return print_values(&args.knob, changed.chain(silent).collect());
    }
    if let [(_, _, now)] = changes {
        return out::lines([clean(now)]);
    }
    out::lines(changes.iter().map(|(one, before, now)| {
        let before = before.as_deref().unwrap_or("?");
        clean(&format!("{}: {before} -> {now}", one.label()))
    }))
}
