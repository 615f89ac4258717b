//! `cachelane trial combine`: what the trials of several hosts, or of several hours, say together.

use std::path::PathBuf;

use anyhow::Context as _;
use trial::{CombinedReport, Record};

use super::output;
use crate::exit::Exit;
use crate::terminal;

/// Combine the results of trials on several hosts, or in several hours
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Each file is what `cachelane trial --json` printed. The arms are compared by every measure that all \
have, with the spread between hosts shown.

Exit codes: 0: every arm was found better, worse or no different by the first measure; 5: it cannot \
be told; 1: something failed.")]
pub(super) struct Args {
    /// Files of cachelane trial --json
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write an HTML page with plots to this file as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    if let Some(path) = &args.html {
        output::check_writable(path)?;
    }
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Record::read(&text).with_context(|| path.display().to_string())
    };
    let records = args.files.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    let names: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
    let report = CombinedReport::new(&records, &names, terminal::command_line())?;
    let object = args.json.then(|| serde_json::to_string(&report)).transpose()?;
    output::show(&report.page(), object, args.html.as_deref())?;
    let first = report.combined.iter().filter(|combined| combined.is_first);
    Ok(output::exit(first.map(|combined| combined.comparison.verdict)))
}
