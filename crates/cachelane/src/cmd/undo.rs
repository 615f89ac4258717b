//! `cachelane undo`: restore what processes that were killed left changed.

use knobs::{Outcome, Undone};
use serde_json::json;

use crate::exit::Exit;
use crate::out;

/// Restore the settings of the host that killed cachelane processes left changed
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Before a cachelane process changes a sysctl or a file of sysfs, it writes down what that was, and at \
its end it restores it. If it is killed, the next cachelane command does so, or this one. A setting \
that somebody else has changed since is left alone. What a process that runs has changed is left to \
it.

Programs on devices need no undo: they go with their process.

Exit codes: 0: nothing is left to restore; 1: something was left alone, or could not be restored.

Examples:
  cachelane undo --dry-run
  cachelane undo")]
pub(crate) struct Args {
    /// Print what would be restored, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let all = knobs::undo(args.dry_run)?;
    if args.json {
        let dry_run = args.dry_run;
        out::lines([json!({"schema": 1, "dry_run": dry_run, "settings": all})])?;
    } else if all.is_empty() {
        out::lines(["nothing to restore"])?;
    } else {
        out::lines(all.iter().map(|undone| match undone.outcome {
            Outcome::Restored if args.dry_run => format!("would change {undone}"),
            _ => undone.to_string(),
        }))?;
    }
    Ok(if all.iter().any(Undone::is_trouble) { Exit::Failed } else { Exit::Ok })
}

/// What every command does first, if dead processes have left something.
pub(crate) fn at_start() {
    match knobs::undo(false) {
        Ok(all) => all.iter().for_each(Undone::log),
        Err(error) => tracing::debug!("nothing is restored: {error}"),
    }
}
