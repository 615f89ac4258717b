//! `cachelane xsk forward`: sends packets back where they came from, or on to another interface.

mod bell;
mod direct;
mod split;

use std::mem;

use frames::LaneCache;
use xsk::{Device, Socket};

use crate::exit::{Exit, usage};
use crate::packets::job::Job;
use crate::packets::options::{CommonArgs, FilterArgs};
use crate::packets::session::Work;
use crate::packets::setup::{Interface, Plan};
use crate::packets::sockets::Handler;
use crate::packets::values::QueueOrder;
use direct::Direct;

/// Forward packets back out of the device, or to another one
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Without --to, packets go back out of the queue on which they came, with their source and \
destination hardware addresses swapped. With --to, they go unchanged out of the queue of the \
same number, or of those of --to-queues. Packets that the options of \"Which packets\" leave out go \
to the kernel; when this ends, however it ends, all packets do.

With --split, each queue has two threads: one receives from one device, the other sends to the \
other. Each frame (packet buffer) is then freed by another thread than the one that took it. The \
knob frames.alien_free says where such frames go.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the current figures.

Examples:
  cachelane xsk forward eth1 --udp-port 7
  cachelane xsk forward eth1 --to eth2 --both --cpus lane:0
  cachelane xsk forward eth1 --to eth2 --split --cpus 0,8
  cachelane xsk forward eth1 --queues 0-3 --to eth2 --to-queues 4-7
  cachelane knob set frames.alien_free defer")]
pub(super) struct Args {
    /// Device to receive from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Device to send to [default: the same, with hardware addresses swapped]
    #[arg(long, value_name = "IFACE")]
    to: Option<String>,
    /// With --to: its queues, in the order of those of --queues, such as 4-7 or 1,0 [default: those of
    /// the same numbers]
    #[arg(long, value_name = "LIST", requires = "to")]
    to_queues: Option<QueueOrder>,
    /// With --to: forward in the other direction as well
    #[arg(long, requires = "to")]
    both: bool,
    /// With --to: receive in one thread and send in another
    #[arg(long, requires = "to")]
    split: bool,
    /// Threads, among which the queues are shared out [default: one for each queue]
    #[arg(long, value_name = "N", conflicts_with = "split", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let from = Device::find(&args.interface)?;
    let to = args.to.as_deref().map(Device::find).transpose()?;
    if to.as_ref() == Some(&from) {
        return Err(usage(format!(
            "--to {from}: packets come from there (leave out --to to send them back)"
        )));
    }
    let what = describe(args, &from, to.as_ref());
    let (filter, sends) = (Some(&args.filter), to.is_none() || args.both);
    let mut interfaces = vec![Interface::new(from, filter, sends)];
    let receives = filter.filter(|_| args.both);
    let queues = args.to_queues.as_ref().map(|queues| &queues.0[..]);
    let to = to.map(|device| Interface { queues, ..Interface::new(device, receives, true) });
    interfaces.extend(to);
    let plan = Plan::new(&args.common, interfaces, args.threads, args.split)?;
    if let Some(to) = queues.filter(|to| to.len() != plan.queues.len()) {
        return Err(usage(format!(
            "--to-queues: {} queues for the {} of {} (expected one for each: see --queues)",
            to.len(),
            plan.queues.len(),
            args.interface
        )));
    }
    let then = vec![format!("would send {what}")];
    let Some(mut built) = plan.build("forwarding", then)? else { return Ok(Exit::Ok) };
    let (caches, sockets) = (mem::take(&mut built.caches), mem::take(&mut built.sockets));
    let mut sockets = sockets.into_iter();
    let (from, to) = (sockets.next().unwrap_or_default(), sockets.next());
    let threads = match to {
        Some(to) if args.split => split::threads(args, caches, from, to)?,
        to => direct(args, caches, from, to),
    };
    let job = Job {
        process: "xsk",
        command: "forward",
        announcement: format!("forwarding {what}"),
        beside: &[("split", args.split.into())],
    };
    built.run(&plan, threads, job, quiet)
}

fn describe(args: &Args, from: &Device, to: Option<&Device>) -> String {
    let what = args.filter.what();
    match to {
        None => format!("{what} back out of {from}, hardware addresses swapped"),
        Some(to) if args.both => format!("{what} between {from} and {to}"),
        Some(to) => format!("{what} from {from} to {to}"),
    }
}

/// Threads that each receive and send on some queues.
fn direct(
    args: &Args,
    caches: Vec<LaneCache>,
    from: Vec<Socket>,
    to: Option<Vec<Socket>>,
) -> Vec<Work> {
    let thread = |cache| Direct::new(cache, &args.common.sockets);
    let mut threads: Vec<Direct> = caches.into_iter().map(thread).collect();
    let count = threads.len();
    let mut to = to.map(Vec::into_iter);
    for (number, socket) in from.into_iter().enumerate() {
        let thread = &mut threads[number % count];
        match to.as_mut().and_then(Iterator::next) {
            Some(other) => thread.add_pair(socket, other, args.both),
            None => thread.add_swap(socket),
        }
    }
    threads.into_iter().map(Handler::work).collect()
}
