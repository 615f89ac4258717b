//! `cachelane demo`: shows what each mechanism does on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use measure::demo::{self, Extent, Findings};
use serde_json::json;

use crate::exit::Exit;
use crate::{out, terminal};

/// Try every mechanism off and on, between test hosts on this machine, and report what each does
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
It takes less than three minutes and keeps two CPUs busy. The test hosts are network namespaces \
of its own, which are removed at the end; the network of this host is not touched. Without root, \
it runs only what needs no privileges, over loopback.")]
pub(crate) struct Args {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// File to write the HTML page with plots to
    #[arg(long, value_name = "FILE", default_value = "cachelane-demo.html")]
    html: PathBuf,
    /// Do not write the page
    #[arg(long, conflicts_with = "html")]
    no_html: bool,
    /// Take about twenty seconds, with short measurements: shows that everything runs, and finds
    /// large differences only
    #[arg(long)]
    quick: bool,
    /// Seed of the random order of the measurements
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
pub(crate) fn run(args: Args, quiet: bool) -> anyhow::Result<Exit> {
    let html = (!args.no_html).then_some(args.html.as_path());
    if let Some(path) = html {
        out::check_writable(path).with_context(|| cannot_write(path))?;
    }
    let extent = if args.quick { Extent::QUICK } else { Extent::FULL };
    let findings = demo::run(extent, args.seed, quiet, terminal::command_line())?;
    let written = html.map_or(Ok(()), |path| fs::write(path, findings.page().render()));
    // Shown first: minutes of measuring are not lost to a full disk.
    show(&findings, html.filter(|_| written.is_ok()), args.json)?;
    written.with_context(|| html.map(cannot_write).unwrap_or_default())?;
    Ok(match () {
        () if findings.is_broken() => Exit::Failed,
        () if findings.is_empty() => Exit::HostCannot,
        () => Exit::Ok,
    })
}

fn show(findings: &Findings, html: Option<&Path>, as_json: bool) -> anyhow::Result<()> {
    let text = if as_json {
        let mut object = findings.to_json();
        object["html"] = json!(html);
        format!("{object:#}\n")
    } else {
        let width = terminal::width();
        let mut text = findings.page().to_table(width, terminal::colour());
        text.push('\n');
        text.extend(findings.notes.iter().map(|note| terminal::wrap(note, width)));
        if let Some(path) = html {
            text.push_str(&format!("\nThe page with plots is {}\n", path.display()));
        }
        text
    };
    out::print(&text)
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {} (choose another place with --html, or --no-html)", path.display())
}
