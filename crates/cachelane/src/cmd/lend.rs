//! `cachelane lend`: lends received frames to other processes.
//!
//! A thread for each queue receives and lends (`thread`), and rests by how many packets come (`pace`);
//! the crate `lend` keeps the accounts and admits borrowers in a thread of its own. Everything else is
//! as with `cachelane xsk` (`packets`).
//!
//! While nobody borrows, a queue's socket is not in the XDP program's map, so that its packets are
//! the kernel's.

mod options;
mod pace;
mod status;
mod thread;

use std::sync::Arc;

use lend::Lender;
use xsk::Device;

use crate::exit::Exit;
use crate::member;
use crate::packets::job::Job;
use crate::packets::options::{CommonArgs, FilterArgs};
use crate::packets::setup::{Interface, Plan};
use crate::packets::sockets::Handler as _;
use options::LendArgs;
use status::Status;
use thread::Thread;

/// Lend received packets to other processes
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Borrowers are the processes that receive the packets: `cachelane borrow PATH`, and your own with \
the clients for Rust, C and Python. They connect to the socket, map the frames (packet buffers) \
read-only, and are told which frames to read. All packets of a flow go to the same borrower.

A borrower can read everything that is lent here for as long as it keeps the memory mapped, even \
after it has left. If borrowers must not see each other's packets, run a lender for each, or use \
--private.

While nobody borrows, and when this ends, however it ends, the kernel receives all packets. \
Without an option of \"Which packets\", all packets on these queues are lent, including those of \
your own session on this device.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the current figures.

Examples:
  cachelane lend eth1 --socket /run/eth1.lend --udp-port 53
  cachelane lend eth1 --socket /run/eth1.lend --socket-mode 0660 --socket-group dns
  cachelane lend eth1 --socket /run/eth1.lend --udp-port 53 --tcp-port 53,853 --vlan none,100-199
  cachelane lend eth1 --socket /run/eth1.lend --filter 'tcp and net 10.0.0.0/8'
  cachelane borrow /run/eth1.lend
  cachelane knob set lend.autorelease on")]
pub(crate) struct Args {
    /// Device to receive from
    #[arg(value_name = "IFACE")]
    interface: String,
    #[command(flatten)]
    lend: LendArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    let announcement = format!("lending {} on {device}, ", args.filter.what());
    let interfaces = vec![Interface::new(device, Some(&args.filter), false)];
    let mut plan = Plan::new(&args.common, interfaces, None, false)?;
    let (queues, sockets) = (plan.queues.len() as u32, &args.common.sockets);
    plan.stamps = args.lend.stamps();
    plan.lent = Some(args.lend.frames(queues, sockets));
    let frames = plan.area().frames;
    let options = args.lend.options(frames, queues, sockets)?.device(args.interface.clone());
    let room = args.lend.room(frames, queues, &options);
    let then = vec![
        options::would_listen(&options),
        format!("would lend {room}"),
        "would lend those packets while somebody borrows, and leave them to the kernel else".into(),
    ];
    let Some(mut built) = plan.build("lending", then)? else { return Ok(Exit::Ok) };
    member::has_attached();
    let (lender, distributors) = Lender::open(&built.pool, queues, &options)?;
    let status = Status::new(lender);
    let program = &built.programs[0];
    let work = |((socket, cache), distributor)| {
        let pace = args.lend.pace(sockets);
        Thread::new(socket, distributor, cache, Arc::clone(program), pace, sockets).work()
    };
    let sockets = built.sockets.drain(..).flatten().zip(built.caches.drain(..));
    let threads = sockets.zip(distributors).map(work).collect();
    let job = Job {
        process: "lend",
        command: "lend",
        announcement: announcement
            + &format!("{}, at {} {room}", plan.queues_text(), options.socket.display()),
        beside: &status,
    };
    built.run(&plan, threads, job, quiet)
}
