//! The subcommands.

mod bench;
mod knob;
mod relay;

use crate::exit::Exit;

/// What the command can do.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    Relay(relay::Args),
    Knob(knob::Args),
    Bench(bench::Args),
}

/// Runs one subcommand.
pub(crate) fn run(command: Command, quiet: bool) -> anyhow::Result<Exit> {
    match command {
        Command::Relay(args) => relay::run(args),
        Command::Knob(args) => knob::run(args),
        Command::Bench(args) => bench::run(args, quiet),
    }
}
