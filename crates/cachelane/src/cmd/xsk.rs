//! `cachelane xsk`: AF_XDP traffic tools on the frame pool.
//!
//! Each of `send`, `drop` and `forward`, and `cachelane lend` as well, builds devices, memory and sockets (`setup`), gives every
//! thread its sockets and its handle on the pool, and runs them (`session`) until a count, a time
//! or a signal ends them. Threads count for themselves (`meter`); the live line (`live`) and the
//! report read that.

mod check;
mod drop;
mod forward;
pub(super) mod idle;
pub(super) mod live;
mod meter;
pub(super) mod options;
mod pacer;
mod probe;
pub(super) mod report;
mod send;
pub(super) mod session;
pub(super) mod setup;
mod template;
mod values;
mod view;

use crate::exit::Exit;

/// Send, receive and forward packets through AF_XDP sockets
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(clap::Subcommand, Debug)]
enum Tool {
    Send(send::Args),
    Drop(drop::Args),
    Forward(forward::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args, quiet: bool) -> anyhow::Result<Exit> {
    match args.tool {
        Tool::Send(args) => send::run(&args, quiet),
        Tool::Drop(args) => drop::run(&args, quiet),
        Tool::Forward(args) => forward::run(&args, quiet),
    }
}
