//! `cachelane doctor`: what stands in the way of this host's network work, and what would help.

use std::path::PathBuf;

use doctor::{Finding, Found, Host, LookOptions, Place, Severity, Subject, Watch, find, findings};
use serde_json::{Value, json};

use crate::args::{LanesArg, Timeout, timeout};
use crate::exit::Exit;
use crate::out;
use crate::terminal::{width, wrap};

/// Say what of this host stands in the way of its network work, and what would help
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit codes: 0: nothing was found but findings of severity info; 1: a warning or a problem was found.

It changes nothing and leaves nothing behind. To watch traffic it has BPF programs count at \
tracepoints, as long as it runs and no longer; on a machine with one lane there is nothing to watch. \
Without root it says what it could not see.")]
pub(crate) struct Args {
    /// Explain this finding, such as CL004, and look at nothing
    #[arg(value_name = "ID", value_parser = finding, conflicts_with_all = [
        "json", "only", "severity", "pid", "root", "record", "watch", "no_watch", "lanes",
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
    /// Watch traffic for this time, such as 500ms or 10s, where a finding is asked for that needs it;
    /// 0: do not
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = timeout,
        conflicts_with = "root")]
    watch: Timeout,
    /// Do not watch traffic
    #[arg(long, conflicts_with = "watch")]
    no_watch: bool,
    #[command(flatten)]
    lanes: LanesArg,
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
    let is_asked = |finding: &Finding| {
        let only = args.only.iter().any(|one| one.id == finding.id);
        finding.severity >= args.severity && (args.only.is_empty() || only)
    };
    let needs_watch = findings().any(|one| one.subject == Subject::Traffic && is_asked(one));
    let watch = args.watch.0.filter(|_| needs_watch && !args.no_watch && args.root.is_none());
    if let Some(time) = watch {
        tracing::debug!("watching traffic for {time:?}");
    }
    let host = Host::look(&place, &LookOptions { lanes: args.lanes.lanes.clone(), watch })?;
    if let Some(folder) = &args.record {
        host.record(folder)?;
        return Ok(Exit::Ok);
    }
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
    if let Some(watch) = host.facts.watch() {
        text += &(wrap(&watched(watch), width) + "\n");
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

/// What traffic did, also where that is no finding.
fn watched(watch: &Watch) -> String {
    let share = |part: u64, all: u64| match all {
        0 => "none".to_owned(),
        _ => format!("about {all}, {:.0} % across lanes", part as f64 / all as f64 * 100.0),
    };
    format!(
        "traffic of {:.1} s: receives: {}; buffers freed: {}",
        watch.seconds,
        share(watch.receives_other_lane, watch.receives),
        share(watch.frees_other_lane, watch.frees)
    )
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use clap::CommandFactory as _;

    use crate::Cli;

    /// The words of a command line, as a shell makes them.
    fn words(line: &str) -> Vec<String> {
        let script = format!("printf '%s\\0' {line}");
        let output = Command::new("sh").args(["-c", &script]).output().expect("sh runs");
        assert!(output.status.success(), "{line}: {output:?}");
        let words = String::from_utf8(output.stdout).expect("text");
        words.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn the_command_lines_of_the_findings_pages_are_understood() {
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings");
        let mut lines = 0;
        for page in std::fs::read_dir(pages).expect("a folder") {
            let page = page.expect("a page").path();
            let text = std::fs::read_to_string(&page).expect("text");
            let commands = text
                .lines()
                .filter_map(|line| line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")));
            for line in commands.filter(|line| line.starts_with("cachelane ")) {
                let words = words(line);
                lines += 1;
                // Not every build has all subcommands.
                if cfg!(not(feature = "measure")) && ["bench", "demo"].contains(&words[1].as_str())
                {
                    continue;
                }
                let parsed = Cli::command().try_get_matches_from(&words);
                parsed.unwrap_or_else(|error| panic!("{}: {line}: {error}", page.display()));
            }
        }
        let pages = doctor::findings().count();
        assert!(lines >= pages, "{lines} command lines on {pages} pages");
    }
}
