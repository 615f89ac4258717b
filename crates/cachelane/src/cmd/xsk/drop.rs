//! `cachelane xsk drop`: receives packets, counts them, and throws them away.

use std::sync::Arc;
use std::time::Instant;

use frames::{Frame, FrameArea, LaneCache};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::PollFlags;
use serde_json::json;
use xsk::{Device, Packet, Socket};

use super::check::Checker;
use super::options::{FilterArgs, MemoryArgs, PlaceArgs, RunArgs, SocketArgs};
use super::report::{self, More};
use super::session::{Context, Control, Session, Work};
use super::{idle, setup};
use crate::exit::Exit;
use crate::privileges::{DEVICES, PROGRAMS, SOCKETS};

/// Receive packets, count them, and throw them away
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Takes the packets from the kernel: without --udp-port, --ethertype or --protocol all that come in \
on these queues, also those of your own session on this device. The kernel gets them again as soon \
as this ends, however it ends.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs how it goes. With --check the exit code is 1 if \
packets were lost, reordered, duplicated or corrupt.

Examples:
  cachelane xsk drop eth1 --udp-port 9 --for 10s
  cachelane xsk drop eth1 --udp-port 9 --check --count 1000000 --json
  cachelane xsk drop eth1 --queues 0-3 --cpus lane:0 --xdp native")]
pub(super) struct Args {
    /// The device to receive from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Check packets of `send --pattern seq`: lost, reordered, duplicated, corrupt
    #[arg(long)]
    check: bool,
    /// Threads, which share the queues [default: one for each queue]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
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

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    let queues = setup::queues(&args.places, &device, |there| (0..there).collect())?;
    let threads = usize::from(args.threads.unwrap_or(u16::MAX)).min(queues.len());
    let places = args.places.places(threads)?;
    if args.run.dry_run {
        println!("{}", setup::would_map(&args.memory, queues.len(), None));
        for (number, &queue) in queues.iter().enumerate() {
            let place = places[number % threads];
            println!("{}", setup::would_open(&device, queue, &args.sockets, place));
        }
        println!("{}", setup::would_attach(&device, &args.filter));
        println!("would count those packets and throw them away");
        println!("would change nothing else on this host");
        return Ok(Exit::Ok);
    }
    setup::look_first("receiving", &[SOCKETS, PROGRAMS, DEVICES], [&device])?;
    let (pool, umem) = setup::memory(&args.memory, &places, queues.len(), None)?;
    let bind = |&queue: &u32| setup::bind(&umem, &device, queue, &args.sockets, (true, false));
    let sockets = queues.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    let mut more = More::default();
    more.lines.extend(
        sockets.iter().map(|s| format!("queue {} of {device}: {}", s.queue(), s.in_force())),
    );
    let checker = args.check.then(|| Arc::new(Mutex::new(Checker::new())));
    let mut receivers = Vec::new();
    for home in 0..threads {
        receivers.push(Receiver::new(pool.cache(home as u16)?, args, checker.clone()));
    }
    for (number, socket) in sockets.into_iter().enumerate() {
        receivers[number % threads].add(socket);
    }
    let there = receivers.iter().flat_map(|receiver| &receiver.sockets);
    let program = setup::program(&device, &args.filter, &args.sockets, there)?;
    let work = |receiver: Receiver| -> Work { Box::new(move |context| receiver.run(context)) };
    drop(umem);
    let session = Session {
        process: "xsk",
        command: "drop",
        interfaces: vec![args.interface.clone()],
        pool,
        control: Arc::new(Control::new(args.run.count)),
        programs: vec![Arc::new(Mutex::new(program))],
        threads: places.into_iter().zip(receivers.into_iter().map(work)).collect(),
        announcement: format!(
            "receiving {} on {device}, queue{} {}",
            args.filter.what(),
            if queues.len() == 1 { "" } else { "s" },
            queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        ),
        beside: &(),
    };
    let outcome = session.run(&args.run, quiet)?;
    let fields = json!({"queues": queues, "sockets": more.lines});
    more.fields.extend(fields.as_object().cloned().unwrap_or_default());
    if let Some(checker) = &checker {
        add_check(&mut more, &lock(checker));
    }
    report::finish(outcome, args.run.json, &more)
}

fn add_check(more: &mut More, checker: &Checker) {
    let tally = checker.tally();
    more.lines.push(format!(
        "checked {} packets: {} lost, {} reordered, {} duplicated, {} corrupt; {} without a probe",
        tally.probes, tally.lost, tally.reordered, tally.duplicated, tally.corrupt, tally.other
    ));
    let mut fields = json!({
        "probes": tally.probes,
        "lost": tally.lost,
        "reordered": tally.reordered,
        "duplicated": tally.duplicated,
        "corrupt": tally.corrupt,
        "other": tally.other,
    });
    if let Some([median, most, worst]) = checker.delays([0.5, 0.99, 1.0]) {
        more.lines.push(format!(
            "delay, if the sender is on this host: median {median:.1?}, 99 % below {most:.1?}, at \
             most {worst:.1?}"
        ));
        let microseconds = [median, most, worst].map(|delay| delay.as_secs_f64() * 1e6);
        fields["delay_us"] = json!({
            "median": microseconds[0],
            "p99": microseconds[1],
            "max": microseconds[2],
        });
    }
    more.fields.insert("check".into(), fields);
    more.findings = !tally.is_clean();
}

/// One thread's part: some queues.
struct Receiver {
    sockets: Vec<Socket>,
    cache: LaneCache,
    checker: Option<Arc<Mutex<Checker>>>,
    batch: usize,
    /// How many frames are with the kernel to receive into.
    fill: usize,
    /// Whether a packet can be in several frames.
    parts: bool,
    /// Whether the device has to be polled by our calls.
    polls: bool,
    packets: Vec<Packet>,
    frames: Vec<Frame>,
}

impl Receiver {
    fn new(cache: LaneCache, args: &Args, checker: Option<Arc<Mutex<Checker>>>) -> Receiver {
        Receiver {
            sockets: Vec::new(),
            cache,
            checker,
            batch: args.sockets.batch as usize,
            fill: args.sockets.ring as usize,
            parts: args.sockets.multi_buffer,
            polls: args.sockets.busy_poll.is_some(),
            packets: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Takes over a socket, and lets it receive from the first packet on.
    fn add(&mut self, mut socket: Socket) {
        socket.fill(&mut self.cache, self.fill);
        self.sockets.push(socket);
    }

    fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        let mut patience = idle::Patience::default();
        while !context.control.is_over() {
            let now = Instant::now();
            let mut received = 0;
            for socket in 0..self.sockets.len() {
                received += self.turn(socket, context, now)?;
            }
            self.cache.maintain();
            context.turn(now, &self.sockets);
            if patience.is_over(now, received > 0 || self.polls) {
                let wanted = self.sockets.iter().map(|socket| (socket as _, PollFlags::IN));
                idle::sleep(wanted, &mut self.cache, idle::LONGEST)?;
            }
        }
        context.write_down(&self.sockets);
        Ok(())
    }

    /// Takes a batch from one socket; how many packets it was.
    fn turn(
        &mut self,
        socket: usize,
        context: &mut Context,
        now: Instant,
    ) -> anyhow::Result<usize> {
        /// More parts than a packet has.
        const PARTS: usize = 32;
        let socket = &mut self.sockets[socket];
        socket.fill(&mut self.cache, self.fill);
        if self.polls || socket.rx_needs_wakeup() {
            socket.wake_rx()?;
        }
        let claimed = context.control.claim(self.batch);
        let most = if self.parts && claimed > 0 { claimed.max(PARTS) } else { claimed };
        if socket.receive(&mut self.packets, most) == 0 {
            context.control.settle(0, claimed);
            return Ok(0);
        }
        let packets = self.packets.iter().filter(|packet| !packet.more).count();
        let bytes: u64 = self.packets.iter().map(|packet| u64::from(packet.len)).sum();
        context.meter().rx_packets.add(packets as u64);
        context.meter().rx_bytes.add(bytes);
        context.saw_packets(now);
        if let Some(checker) = &self.checker {
            let mut checker = lock(checker);
            check(&mut checker, &self.packets, self.cache.pool().area());
            context.tally(checker.tally());
        }
        self.frames.extend(self.packets.drain(..).map(|packet| packet.frame));
        self.cache.put_bulk(&mut self.frames);
        context.control.settle(packets, claimed.saturating_sub(packets));
        Ok(packets)
    }
}

fn check(checker: &mut Checker, packets: &[Packet], area: &FrameArea) {
    let now = super::send::monotonic();
    let mut parts: Vec<&[u8]> = Vec::new();
    for packet in packets {
        parts.push(packet.bytes(area));
        if !packet.more {
            checker.packet(&parts, now);
            parts.clear();
        }
    }
}

fn lock(checker: &Mutex<Checker>) -> MutexGuard<'_, Checker> {
    // A thread that panicked in it has ended the run.
    checker.lock()
}
