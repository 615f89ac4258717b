//! `cachelane trial combine`: what the trials of several hosts, or of several hours, say together.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use trial::{CombinedReport, Record};

use super::output;
use crate::exit::Exit;
use crate::terminal;

/// Combine the results of trials on several hosts, or in several hours
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Each file is what `cachelane trial --json` printed, once or several times, such as the logs of a cluster's \
pods: each record has a line of its own there, and lines of others are passed over. The arms are compared by \
every measure that all have, with the spread between hosts shown.

Exit codes: 0: every arm was found better, worse or no different by the first measure; 5: it cannot \
be told; 1: something failed.")]
pub(super) struct Args {
    /// Files with what cachelane trial --json has printed
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
    let mut records = Vec::new();
    let mut names = Vec::new();
    for path in &args.files {
        for (name, record) in read(path)? {
            names.push(name);
            records.push(record);
        }
    }
    let report = CombinedReport::new(&records, &names, terminal::command_line())?;
    let object = args.json.then(|| serde_json::to_string(&report)).transpose()?;
    output::show(&report.page(), object, args.html.as_deref())?;
    let first = report.combined.iter().filter(|combined| combined.is_first);
    Ok(output::exit(first.map(|combined| combined.comparison.verdict)))
}

/// The records of a file, and what to call each.
fn read(path: &Path) -> anyhow::Result<Vec<(String, Record)>> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let whole = match Record::read(&text) {
        Ok(record) => return Ok(vec![(name, record)]),
        Err(error) => error,
    };
    // A record as it is printed. One that is spread over lines begins with less.
    let is_record = |line: &str| line.starts_with("{\"");
    if text.lines().count() < 2 || !text.lines().any(is_record) {
        return Err(whole).context(name);
    }
    let mut records = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let name = format!("{name}:{}", at + 1);
        match is_record(line) {
            true => records.push((name.clone(), Record::read(line).context(name)?)),
            false => tracing::warn!("{name} is not the record of a trial, and is passed over"),
        }
    }
    Ok(records)
}
