//! `cachelane doctor`: what stands in the way of this host's network work, and what would help.

use std::path::PathBuf;

use doctor::{Finding, Found, Host, Place, Severity, find, findings};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::out;
use crate::terminal::{width, wrap};

/// Say what of this host stands in the way of its network work, and what would help
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit codes: 0: nothing was found but findings of severity info; 1: a warning or a problem was found.

It changes nothing and leaves nothing behind. Without root it says what it could not see.")]
pub(crate) struct Args {
    /// Explain this finding, such as CL004, and look at nothing
    #[arg(value_name = "ID", value_parser = finding, conflicts_with_all = [
        "json", "only", "severity", "pid", "root", "record",
    ])]
    explain: Option<&'static Finding>,
    /// Only these findings, such as CL004,CL009
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = finding)]
    only: Vec<&'static Finding>,
    /// Only findings of at least this severity: info, warning or problem
    #[arg(long, value_name = "SEVERITY", default_value = "info", value_parser = severity)]
    severity: Severity,
    /// Look at the limits of this process [default: doctor's own]
    #[arg(long, value_name = "PID", conflicts_with = "root",
        value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Look at the host that was recorded into this folder
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Write down what was looked at into this folder, which must be new or empty, and print
    /// nothing. Addresses, host names, serial numbers and other processes are left out
    #[arg(long, value_name = "DIR", conflicts_with_all = ["root", "json", "only", "severity"])]
    record: Option<PathBuf>,
    /// Print an object with all that was found and looked at
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    if let Some(finding) = args.explain {
        out::print(finding.page)?;
        return Ok(Exit::Ok);
    }
    let place = match &args.root {
        Some(folder) => Place::Recorded(folder.clone()),
        None => Place::Here { pid: args.pid },
    };
    let host = Host::look(&place)?;
    if let Some(folder) = &args.record {
        host.record(folder)?;
        return Ok(Exit::Ok);
    }
    let is_asked = |finding: &Finding| {
        let only = args.only.iter().any(|one| one.id == finding.id);
        finding.severity >= args.severity && (args.only.is_empty() || only)
    };
    let looked = findings().filter(|finding| is_asked(finding));
    let mut found: Vec<(&Finding, Found)> =
        looked.filter_map(|finding| Some((finding, finding.check(&host.facts)?))).collect();
    // Findings of one severity stay in the order of their ids.
    found.sort_by_key(|(finding, _)| std::cmp::Reverse(finding.severity));
    out::print(&match args.json {
        true => format!("{:#}\n", object(&host, &found)?),
        false => text(&host, &found, width()),
    })?;
    let counts = found.iter().any(|(finding, _)| finding.severity > Severity::Info);
    Ok(if counts { Exit::Failed } else { Exit::Ok })
}

fn object(host: &Host, found: &[(&Finding, Found)]) -> anyhow::Result<Value> {
    let one = |(finding, found): &(&Finding, Found)| {
        json!({
            "id": finding.id,
            "title": finding.title,
            "severity": finding.severity,
            "subject": finding.subject,
            "mechanisms": finding.mechanisms,
            "evidence": found.evidence,
            "cost": finding.cost,
            "command": found.command,
            "check": found.check,
        })
    };
    Ok(json!({
        "schema": 1,
        "findings": found.iter().map(one).collect::<Vec<_>>(),
        "host": serde_json::to_value(&host.facts)?,
        "not_seen": host.not_seen,
    }))
}

/// For people. Commands are not broken, so that they can be copied.
fn text(host: &Host, found: &[(&Finding, Found)], width: usize) -> String {
    let mut text = String::new();
    for (finding, found) in found {
        let severity = finding.severity.to_string();
        text += &wrap(&format!("{severity} {}: {}", finding.id, finding.title), width);
        for line in &found.evidence {
            text += &indented(line, width);
        }
        text += &indented(&format!("costs: {}", finding.cost), width);
        text += &format!("  helps: {}\n  check: {}\n\n", found.command, found.check);
    }
    if !host.not_seen.is_empty() {
        text += "not seen:\n";
        host.not_seen.iter().for_each(|line| text += &indented(line, width));
        text += "\n";
    }
    text += &match found {
        [] => "nothing was found\n".to_owned(),
        [(first, _), ..] => {
            format!("{} found; `cachelane doctor {}` explains the first\n", found.len(), first.id)
        }
    };
    // The name of a device may have anything in it but blanks.
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

fn indented(text: &str, width: usize) -> String {
    wrap(text, width - 2).lines().map(|line| format!("  {line}\n")).collect()
}

fn finding(id: &str) -> Result<&'static Finding, String> {
    let known = || findings().last().map_or("none", |last| last.id);
    find(&id.to_uppercase()).ok_or_else(|| format!("expected an id from CL001 to {}", known()))
}

fn severity(name: &str) -> Result<Severity, String> {
    name.parse().map_err(|_| "expected info, warning or problem".into())
}
