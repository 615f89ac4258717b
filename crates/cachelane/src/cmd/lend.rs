//! `cachelane lend`: lends received frames to other processes.
//!
//! A thread for each queue receives and lends (`thread`); the crate `lend` keeps the accounts and
//! admits borrowers in a thread of its own. Everything else is as with `cachelane xsk`: devices,
//! memory and sockets, signals, the live line, the report.
//!
//! While nobody borrows, a queue's socket is not in the XDP program's map, so that its packets are
//! the kernel's.

mod options;
mod status;
mod thread;

use std::sync::Arc;

use lend::Lender;
use parking_lot::Mutex;
use xsk::{Device, Socket};

use super::xsk::options::{FilterArgs, MemoryArgs, Place, PlaceArgs, RunArgs, SocketArgs};
use super::xsk::report::{self, More};
use super::xsk::session::{Control, Session, SharedProgram, Work};
use super::xsk::setup;
use crate::exit::Exit;
use crate::privileges::{DEVICES, PROGRAMS, SOCKETS};
use options::LendArgs;
use status::Status;
use thread::Thread;

/// Lend received packets to other processes
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Borrowers connect to the socket, map the frames read-only, and get packets as tokens, a flow \
always to the same borrower: `cachelane borrow PATH`, and the clients for Rust, C and Python. What \
a borrower can read is everything that this lends, for as long as it keeps the memory mapped, also \
after it has left. Borrowers that must not see each other's packets get a lender each, or copies in \
areas of their own (--private). While nobody borrows, and as soon as this ends, however it ends, all packets \
are the kernel's.

Without --udp-port, --ethertype or --protocol all packets on these queues are lent, also those of \
your own session on this device.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs how it goes.

Examples:
  cachelane lend eth1 --socket /run/eth1.lend --udp-port 53
  cachelane lend eth1 --socket /run/eth1.lend --socket-mode 0660 --socket-group dns
  cachelane borrow /run/eth1.lend --count
  cachelane knob set lend.autorelease on")]
pub(crate) struct Args {
    /// The device to receive from
    #[arg(value_name = "IFACE")]
    interface: String,
    #[command(flatten)]
    lend: LendArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    sockets: SocketArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

impl Args {
    /// The frames for each queue, unless somebody says how many there are.
    fn lent(&self, queues: usize) -> Option<u32> {
        Some(self.lend.frames(queues as u32, &self.sockets))
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    let queues = setup::queues(&args.places, &device, |there| (0..there).collect())?;
    let places = args.places.places(queues.len())?;
    let frames = args.memory.area(queues.len(), args.lent(queues.len())).frames;
    let options = args.lend.options(frames, queues.len() as u32, &args.sockets)?;
    if args.run.dry_run {
        return dry_run(args, &device, &queues, &places, &options);
    }
    setup::look_first("lending", &[SOCKETS, PROGRAMS, DEVICES], [&device])?;
    let (pool, umem) = setup::memory(&args.memory, &places, queues.len(), args.lent(queues.len()))?;
    let bind = |&queue: &u32| setup::bind(&umem, &device, queue, &args.sockets, (true, false));
    let sockets = queues.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    drop(umem);
    let mut more = More::default();
    let line =
        |socket: &Socket| format!("queue {} of {device}: {}", socket.queue(), socket.in_force());
    more.lines.extend(sockets.iter().map(line));
    let fields = [("queues", queues.clone().into()), ("sockets", more.lines.clone().into())];
    more.fields.extend(fields.map(|(name, value): (_, serde_json::Value)| (name.into(), value)));
    // No socket is in it yet: whoever borrows has it put in.
    let program = setup::program(&device, &args.filter, &args.sockets, [])?;
    let program: SharedProgram = Arc::new(Mutex::new(program));
    let (lender, distributors) = Lender::open(&pool, queues.len() as u32, &options)?;
    let status = Status::new(lender);
    let mut threads = Vec::new();
    for (home, ((socket, distributor), place)) in
        sockets.into_iter().zip(distributors).zip(places).enumerate()
    {
        let cache = pool.cache(home as u16)?;
        let thread = Thread::new(socket, distributor, cache, Arc::clone(&program), &args.sockets);
        threads.push((place, work(thread)));
    }
    let session = Session {
        process: "lend",
        command: "lend",
        interfaces: vec![args.interface.clone()],
        pool,
        control: Arc::new(Control::new(args.run.count)),
        programs: vec![program],
        threads,
        announcement: format!(
            "lending {} on {device}, {}, at {} {}",
            args.filter.what(),
            options::queues(&queues),
            options.socket.display(),
            args.lend.room(frames, queues.len() as u32, &options)
        ),
        beside: &status,
    };
    let outcome = session.run(&args.run, quiet)?;
    status.add_to(&mut more);
    report::finish(outcome, args.run.json, &more)
}

fn work(thread: Thread) -> Work {
    Box::new(move |context| thread.run(context))
}

fn dry_run(
    args: &Args,
    device: &Device,
    queues: &[u32],
    places: &[Place],
    options: &lend::LenderOptions,
) -> anyhow::Result<Exit> {
    println!("{}", setup::would_map(&args.memory, queues.len(), args.lent(queues.len())));
    for (&queue, &place) in queues.iter().zip(places) {
        println!("{}", setup::would_open(device, queue, &args.sockets, place));
    }
    println!("{}", setup::would_attach(device, &args.filter));
    println!("{}", options::would_listen(options));
    let frames = args.memory.area(queues.len(), args.lent(queues.len())).frames;
    println!("would lend {}", args.lend.room(frames, queues.len() as u32, options));
    println!("would lend those packets while somebody borrows, and leave them to the kernel else");
    println!("would change nothing else on this host");
    Ok(Exit::Ok)
}
