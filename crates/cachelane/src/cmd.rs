//! The subcommands.

#[cfg(feature = "measure")]
mod bench;
mod borrow;
mod bridge;
mod completions;
#[cfg(feature = "measure")]
mod demo;
mod doctor;
mod knob;
mod lend;
mod man;
mod relay;
mod steer;
mod top;
mod trial;
mod undo;
mod xsk;

use crate::exit::Exit;

/// What the command can do.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    Doctor(doctor::Args),
    Trial(Box<trial::Args>),
    #[cfg(feature = "measure")]
    Demo(demo::Args),
    Relay(Box<relay::Args>),
    Bridge(bridge::Args),
    Steer(steer::Args),
    Xsk(Box<xsk::Args>),
    Lend(Box<lend::Args>),
    Borrow(borrow::Args),
    Knob(knob::Args),
    Top(top::Args),
    Undo(undo::Args),
    #[cfg(feature = "measure")]
    Bench(bench::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Whether it begins with restoring what dead processes left.
    fn restores(&self) -> bool {
        !matches!(
            self,
            Command::Doctor(_) | Command::Undo(_) | Command::Completions(_) | Command::Man(_)
        )
    }
}

/// Runs one subcommand.
pub(crate) fn run(command: Command, quiet: bool) -> anyhow::Result<Exit> {
    if command.restores() {
        undo::at_start();
    }
    match command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Trial(args) => trial::run(&args, quiet),
        #[cfg(feature = "measure")]
        Command::Demo(args) => demo::run(args, quiet),
        Command::Relay(args) => relay::run(*args),
        Command::Bridge(args) => bridge::run(&args),
        Command::Steer(args) => steer::run(&args, quiet),
        Command::Xsk(args) => xsk::run(*args, quiet),
        Command::Lend(args) => lend::run(&args, quiet),
        Command::Borrow(args) => borrow::run(&args, quiet),
        Command::Knob(args) => knob::run(args),
        Command::Top(args) => top::run(&args),
        Command::Undo(args) => undo::run(&args),
        #[cfg(feature = "measure")]
        Command::Bench(args) => bench::run(args, quiet),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
