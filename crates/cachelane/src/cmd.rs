//! The subcommands.

#[cfg(feature = "measure")]
mod bench;
mod borrow;
mod bridge;
mod completions;
mod config;
#[cfg(feature = "measure")]
mod demo;
mod doctor;
mod knob;
mod lend;
mod man;
mod metrics;
mod relay;
mod steer;
mod top;
mod trial;
mod undo;
mod up;
mod xsk;

use crate::exit::Exit;
use crate::member;

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
    Up(up::Args),
    Config(config::Args),
    Knob(knob::Args),
    Metrics(metrics::Args),
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
            Command::Doctor(_)
                | Command::Config(_)
                | Command::Undo(_)
                | Command::Completions(_)
                | Command::Man(_)
        )
    }

    /// Whether it is a bench, which flips knobs and moves ports thousands of times.
    pub(crate) fn is_bench(&self) -> bool {
        #[cfg(feature = "measure")]
        if matches!(self, Command::Bench(_)) {
            return true;
        }
        false
    }

    /// Whether a configuration may say what is logged.
    pub(crate) fn sets_filter(&self) -> bool {
        matches!(self, Command::Up(_)) || member::name().is_some()
    }
}

/// Runs one subcommand.
pub(crate) fn run(command: Command, quiet: bool, verbose: u8) -> anyhow::Result<Exit> {
    // A member may not, and what has started it has done so.
    if command.restores() && member::name().is_none() {
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
        Command::Up(args) => up::run(&args, quiet, verbose),
        Command::Config(args) => config::run(&args),
        Command::Knob(args) => knob::run(args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Undo(args) => undo::run(&args),
        #[cfg(feature = "measure")]
        Command::Bench(args) => bench::run(args, quiet),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
