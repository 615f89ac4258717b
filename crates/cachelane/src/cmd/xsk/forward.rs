//! `cachelane xsk forward`: sends packets back where they came from, or on to another interface.

mod bell;
mod direct;
mod split;

use std::sync::Arc;

use frames::{FrameArea, LaneCache};
use parking_lot::Mutex;
use serde_json::json;
use xsk::{Device, Packet, Program, Socket, Umem};

use super::options::{FilterArgs, MemoryArgs, Place, PlaceArgs, RunArgs, SocketArgs};
use super::report::{self, More};
use super::session::{Context, Control, Session, Work};
use super::setup;
use crate::exit::{Exit, usage};
use crate::privileges::{DEVICES, PROGRAMS, SOCKETS};
use direct::Direct;

/// Forward packets back out of the interface, or to another one
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Without --to, packets go back out of the queue that they came from, with their hardware addresses \
swapped. With --to they go on as they are, out of the queue of the same number. What is not chosen \
by --udp-port, --ethertype or --protocol is the kernel's; so is everything as soon as this ends, \
however it ends.

With --split, every queue has a thread for each interface: the one receives, the other sends, so \
that each frame is freed by another thread than took it. Which way such frames go back is the \
knob frames.alien_free.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs how it goes.

Examples:
  cachelane xsk forward eth1 --udp-port 7
  cachelane xsk forward eth1 --to eth2 --both --cpus lane:0
  cachelane xsk forward eth1 --to eth2 --split --cpus 0,8
  cachelane knob set frames.alien_free defer")]
pub(super) struct Args {
    /// The device to receive from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// The device to send to [default: the same, with hardware addresses swapped]
    #[arg(long, value_name = "IFACE")]
    to: Option<String>,
    /// With --to: also the other way
    #[arg(long, requires = "to")]
    both: bool,
    /// With --to: receive in one thread and send in another
    #[arg(long, requires = "to")]
    split: bool,
    /// Threads, which share the queues [default: one for each queue]
    #[arg(long, value_name = "N", conflicts_with = "split", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
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

/// What is to be built: checked as far as that goes without building it.
struct Plan<'a> {
    args: &'a Args,
    from: Device,
    to: Option<Device>,
    queues: Vec<u32>,
    places: Vec<Place>,
}

impl<'a> Plan<'a> {
    fn new(args: &'a Args) -> anyhow::Result<Plan<'a>> {
        let from = Device::find(&args.interface)?;
        let to = args.to.as_deref().map(Device::find).transpose()?;
        if to.as_ref() == Some(&from) {
            return Err(usage(format!(
                "--to {from}: packets come from there (leave out --to to send them back)"
            )));
        }
        let queues = setup::queues(&args.places, &from, |there| (0..there).collect())?;
        let threads = match args.split {
            true => 2 * queues.len(),
            false => usize::from(args.threads.unwrap_or(u16::MAX)).min(queues.len()),
        };
        if let Some(to) = &to {
            setup::check_queues(to, to.queues()?, &queues)?;
        }
        let places = args.places.places(threads)?;
        Ok(Plan { args, from, to, queues, places })
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        std::iter::once(&self.from).chain(&self.to)
    }

    fn receives(&self, device: &Device) -> bool {
        *device == self.from || self.args.both
    }

    fn sends(&self, device: &Device) -> bool {
        self.to.is_none() || Some(device) == self.to.as_ref() || self.args.both
    }

    fn socket_count(&self) -> usize {
        self.queues.len() * self.devices().count()
    }

    /// The thread that has the socket of a device's `number`th queue.
    fn thread(&self, number: usize, device: &Device) -> usize {
        match self.args.split {
            true => 2 * number + usize::from(*device != self.from),
            false => number % self.places.len(),
        }
    }

    fn describe(&self) -> String {
        let what = self.args.filter.what();
        let from = &self.from;
        match &self.to {
            None => format!("{what} back out of {from}, hardware addresses swapped"),
            Some(to) if self.args.both => format!("{what} between {from} and {to}"),
            Some(to) => format!("{what} from {from} to {to}"),
        }
    }

    fn dry_run(&self) -> anyhow::Result<Exit> {
        println!("{}", setup::would_map(&self.args.memory, self.socket_count(), None));
        for device in self.devices() {
            for (number, &queue) in self.queues.iter().enumerate() {
                let place = self.places[self.thread(number, device)];
                println!("{}", setup::would_open(device, queue, &self.args.sockets, place));
            }
        }
        for device in self.devices().filter(|device| self.receives(device)) {
            println!("{}", setup::would_attach(device, &self.args.filter));
        }
        println!("would send {}", self.describe());
        println!("would change nothing else on this host");
        Ok(Exit::Ok)
    }

    /// The sockets of a device, a queue each, ready to receive from the first packet on.
    fn bind(
        &self,
        umem: &Umem,
        device: &Device,
        caches: &mut [LaneCache],
    ) -> anyhow::Result<Vec<Socket>> {
        let does = (self.receives(device), self.sends(device));
        let bind = |(number, &queue): (usize, &u32)| {
            let mut socket = setup::bind(umem, device, queue, &self.args.sockets, does)?;
            if self.receives(device) {
                let cache = &mut caches[self.thread(number, device)];
                socket.fill(cache, self.args.sockets.ring as usize);
            }
            Ok(socket)
        };
        self.queues.iter().enumerate().map(bind).collect()
    }

    fn attach(&self, device: &Device, sockets: &[Socket]) -> anyhow::Result<Option<Program>> {
        let attach = || setup::program(device, &self.args.filter, &self.args.sockets, sockets);
        self.receives(device).then(attach).transpose()
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let plan = Plan::new(args)?;
    if args.run.dry_run {
        return plan.dry_run();
    }
    setup::look_first("forwarding", &[SOCKETS, PROGRAMS, DEVICES], plan.devices())?;
    let (pool, umem) = setup::memory(&args.memory, &plan.places, plan.socket_count(), None)?;
    let homes = 0..plan.places.len();
    let mut caches = homes.map(|home| pool.cache(home as u16)).collect::<Result<Vec<_>, _>>()?;
    let mut sockets = Vec::new();
    let mut programs = Vec::new();
    for device in plan.devices() {
        let bound = plan.bind(&umem, device, &mut caches)?;
        programs.extend(plan.attach(device, &bound)?);
        sockets.push(bound);
    }
    drop(umem);
    let mut more = More::default();
    let line = |s: &Socket| format!("queue {} of {}: {}", s.queue(), s.device(), s.in_force());
    more.lines.extend(sockets.iter().flatten().map(line));
    let mut sides = sockets.into_iter();
    let (from, to) = (sides.next().unwrap_or_default(), sides.next());
    let work = match to {
        Some(to) if args.split => split::threads(&plan, caches, from, to)?,
        to => direct(&plan, caches, from, to),
    };
    let session = Session {
        process: "xsk",
        command: "forward",
        interfaces: plan.devices().map(|device| device.name().to_owned()).collect(),
        pool,
        control: Arc::new(Control::new(args.run.count)),
        programs: programs.into_iter().map(Mutex::new).map(Arc::new).collect(),
        threads: plan.places.iter().copied().zip(work).collect(),
        announcement: format!("forwarding {}", plan.describe()),
        beside: &(),
    };
    let outcome = session.run(&args.run, quiet)?;
    let fields = json!({"queues": plan.queues, "sockets": more.lines, "split": args.split});
    more.fields.extend(fields.as_object().cloned().unwrap_or_default());
    report::finish(outcome, args.run.json, &more)
}

/// Threads that each receive and send on some queues.
fn direct(
    plan: &Plan<'_>,
    caches: Vec<LaneCache>,
    from: Vec<Socket>,
    to: Option<Vec<Socket>>,
) -> Vec<Work> {
    let thread = |cache| Direct::new(cache, &plan.args.sockets);
    let mut threads: Vec<Direct> = caches.into_iter().map(thread).collect();
    let count = threads.len();
    let mut to = to.map(Vec::into_iter);
    for (number, socket) in from.into_iter().enumerate() {
        let thread = &mut threads[number % count];
        match to.as_mut().and_then(Iterator::next) {
            Some(other) => thread.add_pair(socket, other, plan.args.both),
            None => thread.add_swap(socket),
        }
    }
    let work =
        |thread: Direct| -> Work { Box::new(move |context: &mut Context| thread.run(context)) };
    threads.into_iter().map(work).collect()
}

/// Sends a packet back: source and destination hardware address change places.
fn swap_addresses(packet: &mut Packet, area: &FrameArea) {
    if let Some((to, from)) =
        packet.bytes_mut(area).first_chunk_mut::<12>().map(|a| a.split_at_mut(6))
    {
        to.swap_with_slice(from);
    }
}

/// Packets and bytes in a list of parts.
fn measure(packets: &[Packet]) -> (usize, u64) {
    let bytes = packets.iter().map(|packet| u64::from(packet.len)).sum();
    (packets.iter().filter(|packet| !packet.more).count(), bytes)
}
