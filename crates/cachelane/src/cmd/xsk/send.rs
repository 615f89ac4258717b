//! `cachelane xsk send`: sends packets as fast as it can, or at a rate, or as a capture file has them.
//! By sockets in [`sender`], whose packets a [`maker`] makes; by frames that the kernel makes in
//! [`live`].

mod capture;
mod live;
mod maker;
mod replay;
mod sender;

use std::iter::once;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use frames::{AlienFree, FramePool, LaneCache};
use kit::Mac;
use rand::random;
use xsk::{Device, Socket};

use super::flows::Order;
use super::pacer::{Pacer, Pacing};
use super::template::{Kind, Pattern, Recipe, Template};
use super::values::{Rate, Sizes, Span, Tags};
use crate::exit::{Exit, usage};
use crate::figures::si;
use crate::packets::job::{Beside, Job, Report};
use crate::packets::options::{CommonArgs, FilterArgs};
use crate::packets::session::{Context, Work};
use crate::packets::setup::{Built, Interface, Plan};
use crate::packets::values::Ports;
use capture::Capture;
use maker::{Make, Templated};
use replay::{Replay, Replayed, Timing};
use sender::{Echo, Echoes, Flight, Sender};

/// Send packets as fast as possible, at a rate, or as a capture file has them
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Each queue has a thread that sends. The packet is written into every frame (packet buffer) once; \
after that, each send writes only the bytes that vary, and reuses few frames so that they stay \
in the cache. The default addresses are of the ranges that are reserved for measurements.

What is a range gives flows: with --sport 1000-1999 --dst 198.18.0.0/24 there are 256,000. Ports \
change from packet to packet, then addresses, then hardware addresses, then VLANs.

With a rate, the end says how far off it was, and how late packets were. Packets that are due \
together in 200 microseconds are sent at once; --burst 1 sends each when it is due, and keeps a \
CPU busy for that. What a sender could not send within 10 ms, since it had no CPU, is not made up \
for, and counted.

With --latency, each packet carries a number and the time at which its batch was made; on the way \
back it is taken by an XDP program on this device. The exit code is 1 if none came back.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the current figures.

Examples:
  cachelane xsk send eth1 --dst-mac 02:00:00:00:00:02 --for 10s
  cachelane xsk send eth1 --size imix --rate 1Gbit --sport 1000-1999
  cachelane xsk send eth1 --packet tcp-syn --dst 198.18.0.0/24 --order random --rate 10k
  cachelane xsk send eth1 --latency --rate 10k --burst 1 --for 10s
  cachelane xsk send eth1 --vlan 100,10-19 --pattern seq --queues 0-3 --cpus 0-3 --json
  cachelane xsk send eth1 --pcap web.pcapng --speed 2 --loop 10 --dst-mac 02:00:00:00:00:02")]
pub(super) struct Args {
    /// Device to send from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// How packets are sent: socket (from AF_XDP sockets), live (the kernel makes frames without
    /// socket buffers and redirects them to the device, which has to take them) or auto (live where the
    /// device takes frames and has no zero-copy, unless options that need sockets are given)
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// Measure how long packets take there and back, where another host sends them back: `xsk forward`,
    /// or with --packet icmp-echo any host. Needs a CPU for each queue
    #[arg(long, conflicts_with = "pcap")]
    latency: bool,
    #[command(flatten)]
    packets: PacketArgs,
    #[command(flatten)]
    replay: ReplayArgs,
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
    /// Packets a second over all queues, such as 5000 or 1.5M, or bits of packets a second, such as
    /// 100Mbit or 10Gbit; 0 for as many as possible [default: 0, or as --pcap has them]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Packets that are sent at once at a rate, from 1 to --batch [default: what is due in 200
    /// microseconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    burst: Option<u32>,
    /// Hardware (MAC) addresses to send to: one, or a range such as
    /// 02:00:00:00:00:01-02:00:00:00:00:ff [default: 02:00:00:00:00:02; for ARP all]
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<Span<Mac>>,
    /// Hardware (MAC) addresses to send from, likewise [default: the device's]
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Span<Mac>>,
    /// What packets are
    #[arg(long, value_name = "KIND", value_enum, default_value = "udp", conflicts_with = "pcap")]
    packet: Kind,
    /// Size of a packet in bytes: its Ethernet frame without the checksum. A list such as 64,590,1514 or
    /// 64:7,590:4,1514 (with how many of each) sends them in turn; imix is 60:7,590:4,1514:1
    #[arg(long, value_name = "SIZES", default_value = "64", conflicts_with = "pcap")]
    size: Sizes,
    /// What the payload holds
    #[arg(long, value_enum, default_value = "zeros", conflicts_with = "pcap")]
    pattern: Pattern,
    /// VLAN tags, the outer one first: IDs or ranges of them, and a priority behind a colon, such as
    /// 10, 10-19:5 or 100,10 (802.1ad, then 802.1Q)
    #[arg(long, value_name = "TAGS", conflicts_with = "pcap")]
    vlan: Option<Tags>,
    /// IP addresses to send to: one, a range such as 198.18.0.1-198.18.3.254, or a block such as
    /// 198.18.0.0/22 [default: 198.18.0.2, or 2001:2::2 if --src is IPv6]
    #[arg(long, value_name = "ADDR", conflicts_with = "pcap")]
    dst: Option<Span<IpAddr>>,
    /// IP addresses to send from, likewise [default: 198.18.0.1, or 2001:2::1 if --dst is IPv6]
    #[arg(long, value_name = "ADDR", conflicts_with = "pcap")]
    src: Option<Span<IpAddr>>,
    /// Port to send to, or a range such as 1000-1999 [default: 9]
    #[arg(long, value_name = "PORTS", conflicts_with = "pcap")]
    dport: Option<Ports>,
    /// Port to send from, or a range such as 1000-1999 [default: 9]
    #[arg(long, value_name = "PORTS", conflicts_with = "pcap")]
    sport: Option<Ports>,
    /// Most flows: the first so many of all combinations [default: all of them]
    #[arg(long, value_name = "N", conflicts_with = "pcap", value_parser = clap::value_parser!(u64).range(1..))]
    flows: Option<u64>,
    /// In which order flows have packets
    #[arg(long, value_enum, default_value = "counting", conflicts_with = "pcap")]
    order: Order,
}

/// What is sent of a file.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Capture files")]
struct ReplayArgs {
    /// Send the packets of this file, pcap or pcapng, when they were recorded, or at --rate; - for stdin
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// So many times as fast as it was recorded
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "pcap", conflicts_with = "rate", value_parser = speed)]
    speed: f64,
    /// Send the file so many times; 0 for no end
    #[arg(long = "loop", value_name = "N", default_value_t = 1, requires = "pcap")]
    times: u64,
}

/// Reads a factor.
fn speed(s: &str) -> Result<f64, String> {
    let factor = s.parse().ok().filter(|factor| (1e-6..=1e6).contains(factor));
    factor.ok_or_else(|| format!("'{s}' is no factor (expected such as 0.5 or 10)"))
}

impl PacketArgs {
    fn rate(&self) -> Rate {
        self.rate.unwrap_or(Rate::Unlimited)
    }

    fn recipe(&self, device: &Device, latency: bool) -> anyhow::Result<Recipe> {
        let given = self.src.or(self.dst);
        let six = given.is_some_and(|given| given.first.is_ipv6());
        let default = |host: u16| {
            Span::one(match six {
                true => IpAddr::from(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host)),
                false => IpAddr::from(Ipv4Addr::new(198, 18, 0, host as u8)),
            })
        };
        let ports = [("--dport", self.dport), ("--sport", self.sport)];
        if !self.packet.has_ports()
            && let Some((option, Some(ports))) = ports.iter().find(|(_, given)| given.is_some())
        {
            let kind = self.packet.name();
            return Err(usage(format!("{option} {ports}: --packet {kind} has no ports")));
        }
        let discard = Ports { first: 9, last: 9 };
        let nobody = match self.packet {
            Kind::Arp => Mac([0xff; 6]),
            _ => Mac([2, 0, 0, 0, 0, 2]),
        };
        let own = || device.mac().map(|mac| Span::one(Mac(mac)));
        Ok(Recipe {
            kind: self.packet,
            sizes: self.size.clone(),
            source_mac: self.src_mac.map_or_else(own, Ok)?,
            target_mac: self.dst_mac.unwrap_or(Span::one(nobody)),
            tags: self.vlan.clone().unwrap_or_default(),
            source: self.src.unwrap_or_else(|| default(1)),
            target: self.dst.unwrap_or_else(|| default(2)),
            source_ports: self.sport.unwrap_or(discard),
            target_ports: self.dport.unwrap_or(discard),
            pattern: if latency { Pattern::Seq } else { self.pattern },
            limit: self.flows,
            order: self.order,
        })
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    if let Some(path) = &args.replay.pcap {
        return replay(args, path, device, quiet);
    }
    let recipe = args.packets.recipe(&device, args.latency)?;
    check_mtu(args, &device)?;
    let comes_back = args.latency.then(|| comes_back(&recipe)).transpose()?;
    let template = Arc::new(Template::new(&recipe)?);
    let what = describe(args, &recipe, &template);
    if live::is_chosen(args, &device, &template)? {
        return live::run(args, &device, &template, &what, quiet);
    }
    check_frame(args, &template)?;
    let interfaces = vec![Interface { device, receives: comes_back.as_ref(), sends: true }];
    let plan = Plan::new(&args.common, interfaces, None, false)?;
    let then = vec![format!("would send {what}")];
    let Some(mut built) = plan.build("sending", then)? else { return Ok(Exit::Ok) };
    write_everywhere(&built.pool, &template)?;
    let queues = plan.queues.len();
    let streams = Streams::new(queues);
    let batch = args.common.sockets.batch as usize;
    let rate = args.packets.rate().packets(template.mean_length()) / queues as f64;
    // At least what a thread handles that is awake so often.
    let burst = args.packets.burst.map_or((rate / 5000.0) as usize, |burst| burst as usize);
    let pacing = Pacing::default();
    let makers = (0..queues).map(|home| {
        Box::new(Templated {
            template: Arc::clone(&template),
            flows: template.flows().of_thread(home, queues),
            stream: streams.of_thread(home),
            number: 0,
            burst: burst.clamp(1, batch),
            pacer: Pacer::new(rate, Instant::now()),
            pacing: pacing.clone(),
            renews: args.latency,
            frames: Vec::new(),
        }) as Box<dyn Make>
    });
    let echoes = args.latency.then(Echoes::new);
    let echo = || {
        let fill = args.common.sockets.ring as usize;
        echoes.clone().map(|echoes| Echo { echoes, fill, packets: Vec::new() })
    };
    let threads = senders(&mut built, makers, args.packets.burst.map_or(batch, |_| burst), echo);
    let job = Job {
        process: "xsk",
        command: "send",
        announcement: format!("sending {what}"),
        beside: &Sent { sizes: args.packets.size.clone(), pacing, echoes: echoes.clone() },
    };
    built.run(&plan, threads, job, quiet)
}

/// Numbers of the streams of a run: each thread has one for each flow.
#[derive(Clone, Copy, Debug)]
struct Streams {
    first: u32,
    each: u32,
}

impl Streams {
    fn new(threads: usize) -> Streams {
        Streams { first: random(), each: u32::MAX / threads.max(1) as u32 }
    }

    /// The one of a thread's first flow.
    fn of_thread(self, thread: usize) -> u32 {
        self.first.wrapping_add(self.each.wrapping_mul(thread as u32))
    }
}

/// A thread for each socket, with what makes its packets.
fn senders(
    built: &mut Built,
    makers: impl Iterator<Item = Box<dyn Make>>,
    batch: usize,
    echo: impl Fn() -> Option<Echo>,
) -> Vec<Work> {
    let sockets = built.sockets.drain(..).flatten().zip(built.caches.drain(..));
    let sender = |((socket, cache), maker): ((Socket, LaneCache), Box<dyn Make>)| {
        let (flight, echo) = (Flight::default(), echo());
        let sender = Sender { socket, cache, maker, batch, flight, echo };
        Box::new(move |context: &mut Context| sender.run(context)) as Work
    };
    sockets.zip(makers).map(sender).collect()
}

/// Sends a file.
fn replay(args: &Args, path: &Path, device: Device, quiet: bool) -> anyhow::Result<Exit> {
    let (packets, sockets) = (&args.packets, &args.common.sockets);
    if args.engine == Engine::Live {
        return Err(usage("--engine live: --pcap needs sockets (expected --engine socket)".into()));
    }
    if let Some(burst) = packets.burst {
        return Err(usage(format!("--burst {burst}: --pcap sends each packet when it is due")));
    }
    if args.common.places.queues.as_ref().is_some_and(|queues| queues.0.len() > 1) {
        return Err(usage(
            "--queues: --pcap sends from one queue, so that packets keep their order (expected one)"
                .into(),
        ));
    }
    let one = |option, span: Option<Span<Mac>>| match span {
        Some(span) if span.count > 1 => {
            Err(usage(format!("{option} {span}: --pcap takes one address (expected that)")))
        }
        span => Ok(span.map(|span| span.first)),
    };
    let macs = [one("--dst-mac", packets.dst_mac)?, one("--src-mac", packets.src_mac)?];
    let capture = Capture::open(path, args.replay.times)?;
    let timing = packets.rate.map_or(Timing::Recorded(args.replay.speed), Timing::Rate);
    let most = longest(&device, true)?;
    let frame = args.common.memory.frame_size as usize;
    let most = if sockets.multi_buffer { most } else { most.min(frame) };
    let name = if path == Path::new("-") { "stdin".into() } else { path.display().to_string() };
    let how = match timing {
        Timing::Recorded(1.0) => "as they were recorded".to_owned(),
        Timing::Recorded(speed) => format!("{speed} times as fast as they were recorded"),
        Timing::Rate(rate) => rate.to_string(),
    };
    let times = match args.replay.times {
        0 => ", over and over".into(),
        1 => String::new(),
        times => format!(", {times} times"),
    };
    let what = format!("the packets of {name} out of {device}, {how}{times}");
    let interfaces = vec![Interface { device, receives: None, sends: true }];
    let plan = Plan::new(&args.common, interfaces, None, false)?;
    let Some(mut built) = plan.build("sending", vec![format!("would send {what}")])? else {
        return Ok(Exit::Ok);
    };
    let outcome = Replayed::new(path.to_owned());
    let chunks = capture.read(args.replay.times)?;
    let maker = Box::new(Replay::new(chunks, timing, macs, most, outcome.clone())) as Box<dyn Make>;
    let threads = senders(&mut built, once(maker), sockets.batch as usize, || None);
    let job = Job {
        process: "xsk",
        command: "send",
        announcement: format!("sending {what}"),
        beside: &outcome,
    };
    built.run(&plan, threads, job, quiet)
}

/// What came of packets that were made.
struct Sent {
    sizes: Sizes,
    pacing: Pacing,
    echoes: Option<Echoes>,
}

impl Beside for Sent {
    fn add_to(&self, report: &mut Report) {
        report.fields["size"] = match self.sizes.is_one() {
            true => self.sizes.largest().into(),
            false => self.sizes.to_string().into(),
        };
        self.pacing.add_to(report);
        if let Some(echoes) = &self.echoes {
            echoes.add_to(report);
        }
    }
}

/// Which packets come back: they keep their ports, or have them swapped.
fn comes_back(recipe: &Recipe) -> anyhow::Result<FilterArgs> {
    const ICMP: u8 = 1;
    match (recipe.kind, recipe.source.first) {
        (Kind::Udp, _) => Ok(FilterArgs::of(vec![recipe.target_ports, recipe.source_ports], None)),
        (Kind::IcmpEcho, IpAddr::V4(_)) => Ok(FilterArgs::of(Vec::new(), Some(ICMP))),
        // Neighbour discovery is ICMPv6 as well, and has to reach the kernel.
        (Kind::IcmpEcho, IpAddr::V6(source)) => Err(usage(format!(
            "--latency, --src {source}: expected IPv4 with --packet icmp-echo, or --packet udp"
        ))),
        (kind, _) => Err(usage(format!(
            "--latency, --packet {}: its answers do not carry what was sent (expected udp, or \
             icmp-echo over IPv4)",
            kind.name()
        ))),
    }
}

/// The longest packet that a device sends, with a VLAN tag or without.
fn longest(device: &Device, is_tagged: bool) -> anyhow::Result<usize> {
    const ETHERNET: u32 = 14;
    const TAG: u32 = 4;
    let tag = if is_tagged { TAG } else { 0 };
    Ok(device.mtu()?.saturating_add(ETHERNET + tag) as usize)
}

fn check_mtu(args: &Args, device: &Device) -> anyhow::Result<()> {
    /// Of any device.
    const MTU: usize = 65535;
    let most = longest(device, args.packets.vlan.is_some())?;
    let size = args.packets.size.largest() as usize;
    if size <= most {
        return Ok(());
    }
    let header = most - device.mtu()? as usize;
    let larger = match size - header {
        needed @ ..=MTU => format!(" (ip link set {device} mtu {needed})"),
        _ => String::new(),
    };
    Err(usage(format!("--size {size}: {device} sends packets of at most {most} bytes{larger}")))
}

fn check_frame(args: &Args, template: &Template) -> anyhow::Result<()> {
    let (size, frame) = (template.bytes().len(), args.common.memory.frame_size);
    if size > frame as usize && !args.common.sockets.multi_buffer {
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
    let flows = match template.flows().count() {
        1 => "one flow".to_owned(),
        many @ ..1_000_000 => format!("{many} flows"),
        many => format!("{}flows", si(many as f64)),
    };
    let sizes = match recipe.sizes.is_one() {
        true => format!("{} bytes", recipe.sizes.largest()),
        false => format!("sizes {}", recipe.sizes),
    };
    let tags = match recipe.tags.0.is_empty() {
        true => String::new(),
        false => format!(" in VLAN {}", recipe.tags),
    };
    format!(
        "{} of {sizes} from {} ({}) to {} ({}){tags} out of {}, {flows}, {}",
        recipe.kind.words(),
        recipe.source,
        recipe.source_mac,
        recipe.target,
        recipe.target_mac,
        args.interface,
        args.packets.rate()
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
