//! `cachelane xsk send`: sends UDP packets as fast as it can, or at a rate. By sockets here, by frames
//! that the kernel makes in [`live`].

mod live;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::{AlienFree, Frame, FramePool, LaneCache};
use rand::random;
use xsk::{Device, Packet, Socket};

use super::pacer::Pacer;
use super::probe::{Probe, monotonic};
use super::template::{Flows, Pattern, Recipe, Template};
use crate::exit::{Exit, usage};
use crate::packets::job::Job;
use crate::packets::options::CommonArgs;
use crate::packets::session::{Context, Work};
use crate::packets::setup::{Interface, Plan};
use crate::packets::values::Ports;
use kit::Mac;

/// Send UDP packets as fast as possible, or at a rate
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Each queue has a thread that sends. The packet is written into every frame (packet buffer) once; \
after that, each send writes only the bytes that vary, and reuses few frames so that they stay \
in the cache. The default addresses are of the ranges that are reserved for measurements.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the current figures.

Examples:
  cachelane xsk send eth1 --dst-mac 02:00:00:00:00:02 --for 10s
  cachelane xsk send eth1 --size 1514 --rate 100000 --count 1000000 --sport 1000-1999
  cachelane xsk send eth1 --pattern seq --queues 0-3 --cpus 0-3 --json")]
pub(super) struct Args {
    /// Device to send from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// How packets are sent: socket (from AF_XDP sockets), live (the kernel makes frames without
    /// socket buffers and redirects them to the device, which has to take them) or auto (live where the
    /// device takes frames and has no zero-copy, unless options for sockets are given)
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    #[command(flatten)]
    packets: PacketArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// How packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    Auto,
    Socket,
    Live,
}

/// What is sent.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Packets")]
struct PacketArgs {
    /// Size of a packet in bytes: its Ethernet frame without the checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: u32,
    /// Packets a second, over all queues; 0 for as many as possible
    #[arg(long, value_name = "PPS", default_value_t = 0)]
    rate: u64,
    /// What the payload holds
    #[arg(long, value_enum, default_value = "zeros")]
    pattern: Pattern,
    /// Hardware (MAC) address to send to
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02")]
    dst_mac: Mac,
    /// Hardware (MAC) address to send from [default: the device's]
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Mac>,
    /// IP address to send to [default: 198.18.0.2, or 2001:2::2 if --src is IPv6]
    #[arg(long, value_name = "ADDR")]
    dst: Option<IpAddr>,
    /// IP address to send from [default: 198.18.0.1, or 2001:2::1 if --dst is IPv6]
    #[arg(long, value_name = "ADDR")]
    src: Option<IpAddr>,
    /// UDP port to send to, or a range such as 1000-1999 that packets use in turn, so that there
    /// are many flows
    #[arg(long, value_name = "PORTS", default_value = "9")]
    dport: Ports,
    /// UDP port to send from, or a range such as 1000-1999 that packets use in turn, so that there
    /// are many flows
    #[arg(long, value_name = "PORTS", default_value = "9")]
    sport: Ports,
}

impl PacketArgs {
    fn recipe(&self, device: &Device) -> anyhow::Result<Recipe> {
        let six = self.src.or(self.dst).is_some_and(|given| given.is_ipv6());
        let default = |host: u16| match six {
            true => IpAddr::from(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host)),
            false => IpAddr::from(Ipv4Addr::new(198, 18, 0, host as u8)),
        };
        Ok(Recipe {
            size: self.size as usize,
            source_mac: self.src_mac.map_or_else(|| device.mac().map(Mac), Ok)?,
            target_mac: self.dst_mac,
            source: self.src.unwrap_or_else(|| default(1)),
            target: self.dst.unwrap_or_else(|| default(2)),
            source_ports: self.sport,
            target_ports: self.dport,
            pattern: self.pattern,
        })
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    let recipe = args.packets.recipe(&device)?;
    check_mtu(args, &device)?;
    let template = Arc::new(Template::new(&recipe)?);
    if live::is_chosen(args, &device)? {
        return live::run(args, &device, &template, &describe(args, &recipe, &template), quiet);
    }
    check_frame(args, &template)?;
    let interfaces = vec![Interface { device, receives: None, sends: true }];
    let plan = Plan::new(&args.common, interfaces, None, false)?;
    let what = describe(args, &recipe, &template);
    let then = vec![format!("would send {what}")];
    let Some(mut built) = plan.build("sending", then)? else { return Ok(Exit::Ok) };
    write_everywhere(&built.pool, &template)?;
    let run_id = random::<u32>() & 0xffff_ff00;
    let queues = plan.queues.len();
    let (sockets, batch) = (built.sockets.drain(..).flatten(), args.common.sockets.batch as usize);
    let sender = |(home, (socket, cache)): (usize, (Socket, LaneCache))| {
        let rate = args.packets.rate as f64 / queues as f64;
        let flows = template.flows();
        let from = flows.count() * home as u64 / queues as u64;
        let sender = Sender {
            socket,
            cache,
            template: Arc::clone(&template),
            flows: flows.skip(from),
            stream: run_id | home as u32 & 0xff,
            number: 0,
            chunk: ((rate / 5000.0) as usize).clamp(1, batch),
            pacer: Pacer::new(rate, Instant::now()),
            batch,
            packets: Vec::new(),
            frames: Vec::new(),
            completed: 0,
        };
        Box::new(move |context: &mut Context| sender.run(context)) as Work
    };
    let threads = sockets.zip(built.caches.drain(..)).enumerate().map(sender).collect();
    let job = Job {
        process: "xsk",
        command: "send",
        announcement: format!("sending {what}"),
        beside: &[("size", args.packets.size.into())],
    };
    built.run(&plan, threads, job, quiet)
}

fn check_mtu(args: &Args, device: &Device) -> anyhow::Result<()> {
    const ETHERNET: u32 = 14;
    /// Of any device.
    const MTU: u32 = 65535;
    let (size, mtu) = (args.packets.size, device.mtu()?);
    let most = mtu.saturating_add(ETHERNET);
    if size <= most {
        return Ok(());
    }
    let larger = match size - ETHERNET {
        needed @ ..=MTU => format!(" (ip link set {device} mtu {needed})"),
        _ => String::new(),
    };
    Err(usage(format!("--size {size}: {device} sends packets of at most {most} bytes{larger}")))
}

fn check_frame(args: &Args, template: &Template) -> anyhow::Result<()> {
    let (size, frame) = (args.packets.size, args.common.memory.frame_size);
    if size > frame && !args.common.sockets.multi_buffer {
        return Err(usage(format!(
            "--size {size}: a frame has {frame} bytes (expected --frame-size 4096, or \
             --multi-buffer)"
        )));
    }
    if (frame as usize) < template.head() {
        return Err(usage(format!("--frame-size {frame}: expected 2048 or 4096")));
    }
    Ok(())
}

fn describe(args: &Args, recipe: &Recipe, template: &Template) -> String {
    let rate = match args.packets.rate {
        0 => "as many as possible".to_owned(),
        rate => format!("{rate} a second"),
    };
    let flows = match template.flows().count() {
        1 => "one flow".to_owned(),
        many => format!("{many} flows"),
    };
    format!(
        "UDP packets of {} bytes from {} ({}) to {} ({}) out of {}, {flows}, {rate}",
        recipe.size,
        recipe.source,
        recipe.source_mac,
        recipe.target,
        recipe.target_mac,
        args.interface
    )
}

/// Writes the packet into every frame, so that sending one costs only what varies.
fn write_everywhere(pool: &FramePool, template: &Template) -> anyhow::Result<()> {
    let mode = pool.alien_free();
    // Each goes back to its home.
    pool.set_alien_free(AlienFree::Defer);
    let mut cache = pool.cache(0)?;
    let mut frames = Vec::new();
    cache.get_bulk(pool.area().frames() as usize, &mut frames);
    for frame in &mut frames {
        let bytes = pool.area().bytes_mut(frame);
        let len = template.bytes().len().min(bytes.len());
        bytes[..len].copy_from_slice(&template.bytes()[..len]);
    }
    cache.put_bulk(&mut frames);
    drop(cache);
    pool.set_alien_free(mode);
    Ok(())
}

/// One thread's part: a queue.
struct Sender {
    socket: Socket,
    cache: LaneCache,
    template: Arc<Template>,
    flows: Flows,
    stream: u32,
    /// The next packet's number in the stream.
    number: u64,
    /// How many packets are waited for at the rate.
    chunk: usize,
    pacer: Pacer,
    batch: usize,
    /// Made, not yet posted.
    packets: Vec<Packet>,
    frames: Vec<Frame>,
    /// Frames that came back.
    completed: u64,
}

impl Sender {
    fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        while !context.control.is_over() {
            let now = Instant::now();
            let made = self.make(context, now);
            self.socket.send(&mut self.packets);
            self.socket.kick()?;
            let sent = self.complete(context, now);
            self.cache.maintain();
            context.turn(now, [&self.socket]);
            if made == 0 && sent == 0 {
                self.idle(now);
            }
        }
        self.drain(context)
    }

    /// Makes the packets that are due, unless some still wait to be posted; how many.
    fn make(&mut self, context: &Context, now: Instant) -> usize {
        if !self.packets.is_empty() {
            return 0;
        }
        let claimed = context.control.claim(self.pacer.due(now, self.batch));
        let parts = self.parts();
        self.cache.get_bulk(claimed * parts, &mut self.frames);
        let made = self.frames.len() / parts;
        for frame in self.frames.drain(made * parts..) {
            self.cache.put(frame);
        }
        context.control.settle(0, claimed - made);
        self.pacer.sent(made);
        if parts > 1 {
            self.make_in_parts();
        } else if self.flows.vary() || self.template.probes() {
            self.make_varied();
        } else {
            let len = self.template.bytes().len() as u32;
            self.packets.extend(self.frames.drain(..).map(|frame| Packet::new(frame, len)));
        }
        made
    }

    fn make_varied(&mut self) {
        let area = self.cache.pool().area();
        let len = self.template.bytes().len() as u32;
        let mut probe = Probe { stream: self.stream, number: 0, nanoseconds: monotonic() };
        for mut frame in self.frames.drain(..) {
            let flow = self.flows.next();
            let bytes = area.bytes_mut(&mut frame);
            if self.template.probes() {
                probe.number = self.number;
                self.number += 1;
                self.template.stamp(bytes, flow, Some(&probe));
            } else {
                self.template.stamp(bytes, flow, None);
            }
            self.packets.push(Packet::new(frame, len));
        }
    }

    /// Packets that need several frames. Any frame has held any part, so all is written.
    fn make_in_parts(&mut self) {
        let area = self.cache.pool().area();
        let mut bytes = self.template.bytes().to_vec();
        let (size, parts) = (area.frame_size() as usize, self.parts());
        let nanoseconds = monotonic();
        let mut frames = self.frames.drain(..);
        while frames.len() >= parts {
            let probe = Probe { stream: self.stream, number: self.number, nanoseconds };
            self.number += 1;
            let probe = self.template.probes().then_some(&probe);
            self.template.stamp(&mut bytes, self.flows.next(), probe);
            for (part, mut frame) in bytes.chunks(size).zip(&mut frames) {
                area.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
                let len = part.len() as u32;
                self.packets.push(Packet { frame, offset: 0, len, more: true });
            }
            if let Some(last) = self.packets.last_mut() {
                last.more = false;
            }
        }
    }

    /// Frames of a packet.
    fn parts(&self) -> usize {
        let size = self.cache.pool().area().frame_size() as usize;
        self.template.bytes().len().div_ceil(size)
    }

    /// Takes sent frames back; how many.
    fn complete(&mut self, context: &mut Context, now: Instant) -> usize {
        let frames = self.socket.complete(&mut self.cache, usize::MAX);
        if frames > 0 {
            let parts = self.parts() as u64;
            let before = self.completed / parts;
            self.completed += frames as u64;
            let packets = self.completed / parts - before;
            let traffic = &context.meter().traffic;
            traffic.tx_packets.add(packets);
            traffic.tx_bytes.add(packets * self.template.bytes().len() as u64);
            context.control.settle(packets as usize, 0);
            context.saw_packets(now);
        }
        frames
    }

    /// Waits for what the rate allows next, or for the kernel to send what it has.
    fn idle(&mut self, now: Instant) {
        const LEAST: Duration = Duration::from_micros(20);
        const MOST: Duration = Duration::from_millis(10);
        let wait = self.pacer.wait(now, self.chunk);
        if wait > LEAST {
            std::thread::sleep(wait.min(MOST));
        } else {
            std::thread::yield_now();
        }
    }

    /// Lets the kernel send what it has, and takes all frames back.
    fn drain(mut self, context: &mut Context) -> anyhow::Result<()> {
        const LONGEST: Duration = Duration::from_secs(1);
        for packet in self.packets.drain(..) {
            self.cache.put(packet.frame);
        }
        let until = Instant::now() + LONGEST;
        loop {
            let now = Instant::now();
            self.complete(context, now);
            if self.socket.outstanding().tx == 0 || now > until {
                break;
            }
            self.socket.kick()?;
            std::thread::yield_now();
        }
        context.write_down([&self.socket]);
        Ok(())
    }
}
