//! `cachelane xsk`: AF_XDP traffic tools on the frame pool.

mod args;
mod check;
mod drop;
mod flows;
mod forward;
mod maker;
mod pacer;
mod probe;
mod rss;
mod search;
mod send;
mod sender;
mod template;
mod times;
mod turns;
mod values;

use crate::exit::Exit;

/// Send, receive and forward packets through AF_XDP sockets, past the kernel's network stack
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(clap::Subcommand, Debug)]
enum Tool {
    Send(Box<send::Args>),
    Drop(drop::Args),
    Forward(forward::Args),
    Search(Box<search::Args>),
}

/// Runs the command.
pub(crate) fn run(args: Args, quiet: bool) -> anyhow::Result<Exit> {
    match args.tool {
        Tool::Send(args) => send::run(&args, quiet),
        Tool::Drop(args) => drop::run(&args, quiet),
        Tool::Forward(args) => forward::run(&args, quiet),
        Tool::Search(args) => search::run(&args, quiet),
    }
}
