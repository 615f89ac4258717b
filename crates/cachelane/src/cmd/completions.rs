//! `cachelane completions`: the completions for a shell.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Cli;
use crate::exit::Exit;
use crate::out;

/// Print the completions for a shell
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Examples:
  cachelane completions bash > /etc/bash_completion.d/cachelane
  cachelane completions fish > ~/.config/fish/completions/cachelane.fish")]
pub(crate) struct Args {
    /// Shell to print them for
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cachelane", &mut script);
    out::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}
