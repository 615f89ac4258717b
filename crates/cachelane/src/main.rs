//! The `cachelane` command: keeps Linux network work on the CPUs whose cache already holds it,
//! and measures whether that helps. Each subcommand is a module of `cmd`.

mod args;
mod cmd;
mod config;
mod counters;
mod exit;
mod figures;
mod help;
mod holder;
mod log;
mod member;
mod out;
mod packets;
mod passed;
mod privileges;
mod run;
mod terminal;
mod version;

use std::env;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};

use exit::Exit;

/// Keeps Linux network work on the CPUs whose cache already holds it, and measures whether that
/// helps
#[derive(clap::Parser, Debug)]
#[command(
    name = "cachelane",
    version,
    disable_version_flag = true,
    propagate_version = true,
    after_long_help = "\
A lane is a set of CPUs that share a last-level cache. A knob is a setting of a running process, \
which `cachelane knob` changes while traffic flows. What a killed process left changed on the host, \
the next command restores first; `cachelane undo` says what that is.

Exit codes: 0: success; 1: something failed, or a check found something; 2: an argument is wrong; \
3: this host lacks something that is needed; 4: not permitted; 5: a trial cannot tell.

Environment: CACHELANE_LOG is a log filter such as debug; CACHELANE_RUNTIME_DIR is the directory of \
control sockets and of what undo restores; NO_COLOR turns colours off."
)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
    /// Log only errors, and show no live line
    #[arg(short, long, global = true, display_order = 990)]
    quiet: bool,
    /// Log more: -v for debug messages, -vv for everything
    #[arg(short, long, global = true, display_order = 991, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print the version; with -v, also what a report of a problem needs to say, with -v --json as JSON
    #[arg(short = 'V', long, global = true, display_order = 992, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Print help with all options
    #[arg(long, global = true, display_order = 1000, action = clap::ArgAction::HelpLong)]
    help_all: Option<bool>,
}

impl Cli {
    /// Reads the arguments.
    fn read() -> Result<Cli, clap::Error> {
        // What follows belongs to a command of the user's.
        let own = || env::args_os().skip(1).take_while(|arg| arg != "--");
        let has = |wanted: &[&str]| own().any(|arg| wanted.iter().any(|one| arg == *one));
        let command = match has(&["-h", "--help", "help"]) && !has(&["--help-all"]) {
            true => help::short(Cli::command()),
            false => Cli::command(),
        };
        Cli::from_arg_matches(&command.try_get_matches()?)
    }
}

fn main() -> ExitCode {
    member::join();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(said) => return say(&said),
    };
    let log = log::to_stderr(cli.quiet, cli.verbose, &cli.command);
    match cmd::run(cli.command, cli.quiet, cli.verbose) {
        Ok(exit) => exit.into(),
        Err(error) => {
            // After what was logged before it.
            drop(log);
            let (mut why, exit) = (describe(&error), Exit::of(&error));
            if exit == Exit::NotPermitted
                && why.contains("BPF")
                && !why.contains("token")
                && privileges::is_in_user_namespace()
            {
                why += "\n(in this user namespace, the kernel grants BPF by a token alone: a BPF file \
                        system at /sys/fs/bpf with delegate_cmds and its like, see docs/up.md)";
            }
            out::complain(&why);
            member::fail(&why);
            exit.into()
        }
    }
}

/// What the arguments ask for by themselves, such as help, or what is wrong with them.
fn say(said: &clap::Error) -> ExitCode {
    if said.use_stderr() {
        // Where nobody reads it, the exit code still says it.
        let _ = said.print();
        return Exit::Usage.into();
    }
    let args = || env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    if said.kind() == ErrorKind::DisplayVersion && version::wants_details(args()) {
        return print(&match version::wants_json(args()) {
            true => format!("{}\n", version::json()),
            false => version::text(),
        });
    }
    let styled = said.render();
    print(&match terminal::colour() {
        true => styled.ansi().to_string(),
        false => styled.to_string(),
    })
}

fn print(text: &str) -> ExitCode {
    match out::print(text) {
        Ok(()) => Exit::Ok.into(),
        Err(error) => {
            out::complain(&describe(&error));
            Exit::Failed.into()
        }
    }
}

/// An error and its causes, each once: those of our crates say theirs themselves.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cause_is_said_once() {
        let system = || std::io::Error::from_raw_os_error(13);
        let error = anyhow::Error::from(system()).context(format!("cannot: {}", system()));
        assert_eq!(super::describe(&error), format!("cannot: {}", system()));
        let error = anyhow::Error::from(system()).context("cannot");
        assert_eq!(super::describe(&error), format!("cannot: {}", system()));
    }
}
