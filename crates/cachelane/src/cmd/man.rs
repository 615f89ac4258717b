//! `cachelane man`: the manual pages.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::Cli;
use crate::exit::Exit;

/// Write the manual pages, one for each subcommand
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to write them to; created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir))
        .and_then(|()| examples().try_for_each(|(of, lines)| append(&args.dir, of, &lines)))
        .with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    Ok(Exit::Ok)
}

/// Commands, such as `xsk send`, and each one's options by example.
fn examples() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let sections = include_str!("man/examples.txt").split("\n[").skip(1);
    sections.filter_map(|section| {
        let (of, lines) = section.split_once("]\n")?;
        Some((of, lines.lines().filter(|line| !line.is_empty()).collect()))
    })
}

/// Adds the examples of a command to its page, if this build has the command.
fn append(dir: &Path, of: &str, lines: &[&str]) -> std::io::Result<()> {
    let page = dir.join(format!("cachelane-{}.1", of.replace(' ', "-")));
    if !page.exists() {
        return Ok(());
    }
    let mut text = String::from(".SH \"EVERY OPTION BY EXAMPLE\"\n.nf\n");
    for line in lines {
        // In roff, a backslash and a hyphen mean something else.
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        text += &format!("cachelane {of} {line}\n");
    }
    fs::OpenOptions::new().append(true).open(page)?.write_all((text + ".fi\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Command;

    use super::*;

    /// Words as a shell makes them.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        let words = parts.flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    /// All commands, by their paths.
    fn commands(command: &Command, path: &str) -> Vec<(String, Command)> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help");
        let below = below.flat_map(|below| {
            let path = format!("{path} {}", below.get_name());
            commands(below, path.trim())
        });
        below.chain([(path.to_owned(), command.clone())]).collect()
    }

    #[test]
    fn examples_are_what_the_commands_take() {
        let mut wrong = Vec::new();
        for (of, lines) in examples() {
            for line in lines {
                let args = ["cachelane"].into_iter().chain(of.split(' ')).map(str::to_owned);
                let read = Cli::command().try_get_matches_from(args.chain(words(line)));
                wrong.extend(read.err().map(|error| format!("cachelane {of} {line}: {error}")));
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[test]
    fn every_option_is_in_an_example() {
        let mut missing = Vec::new();
        for (path, command) in commands(&Cli::command(), "") {
            // Those of benches are alike, and explained by `bench --list`.
            if path.starts_with("bench ") || command.has_subcommands() && path != "trial" {
                continue;
            }
            let lines: Vec<_> =
                examples().filter(|(of, _)| *of == path).flat_map(|(_, lines)| lines).collect();
            let used: BTreeSet<String> = lines.iter().flat_map(|line| words(line)).collect();
            let own =
                command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
            for long in own.filter_map(|arg| arg.get_long()) {
                let short = if long == "config" { "-c" } else { "" };
                if !used.contains(&format!("--{long}")) && !used.contains(short) {
                    missing.push(format!("{path} --{long}"));
                }
            }
        }
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn pages_end_with_the_examples() {
        let dir = tempfile::TempDir::new().expect("a folder");
        run(&Args { dir: dir.path().join("man") }).expect("pages");
        let page = fs::read_to_string(dir.path().join("man/cachelane-xsk-send.1")).expect("a page");
        let (_, end) = page.split_once("EVERY OPTION BY EXAMPLE").expect("a section");
        assert!(end.contains("cachelane xsk send eth1 \\-\\-size imix"), "{end}");
    }
}
