//! `cachelane xsk send`: sends packets as fast as it can, or at a rate, or as a capture file has them.
//! By sockets, or by frames that the kernel makes in [`live`].

mod capture;
mod live;
mod replay;

use std::iter::once;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use frames::{AlienFree, FramePool};
use kit::Mac;
use serde_json::Value;
use xsk::Device;

use super::args::{FlowArgs, check_mtu, comes_back, longest};
use super::maker::{Make, Streams, Templated};
use super::pacer::Pacing;
use super::sender::{Echo, Echoes, senders};
use super::template::{Kind, Pattern, Recipe, Template};
use super::turns::Turns;
use super::values::{Rate, Sizes, Span};
use crate::exit::{Exit, usage};
use crate::figures::si;
use crate::packets::job::{Beside, Job, Report};
use crate::packets::options::CommonArgs;
use crate::packets::setup::{Interface, Plan};
use capture::Capture;
use replay::{Replay, Replayed, Timing};

/// Send packets as fast as possible, at a rate, or as a capture file has them
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Each queue has a thread that sends. The packet is written into every frame (packet buffer) once; \
after that, each send writes only the bytes that vary, and reuses few frames so that they stay \
in the cache. The default addresses are of the ranges that are reserved for measurements.

What is a range gives flows: with --sport 1000-1999 --dst 198.18.0.0/24 there are 256,000. Ports \
change from packet to packet, then addresses, then hardware addresses, then VLANs.

With a rate, sockets say at the end how far off it was, and how late packets were. Packets that are due \
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
    #[arg(long)]
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
    /// What packets are
    #[arg(long, value_name = "KIND", value_enum, default_value = "udp")]
    packet: Kind,
    /// Size of a packet in bytes: its Ethernet frame without the checksum. A list such as 64,590,1514 or
    /// 64:7,590:4,1514 (with how many of each) sends them in turn; imix is 60:7,590:4,1514:1
    /// [default: 64, or what headers and pattern need]
    #[arg(long, value_name = "SIZES")]
    size: Option<Sizes>,
    /// What the payload holds
    #[arg(long, value_enum, default_value = "zeros")]
    pattern: Pattern,
    #[command(flatten)]
    flows: FlowArgs,
}

/// What is sent of a file.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Capture files")]
struct ReplayArgs {
    /// Send the packets of this file, pcap or pcapng, when they were recorded, or at --rate; - for stdin
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "latency", "packet", "size", "pattern", "vlan", "dst", "src", "dport", "sport", "flows",
            "order", "rss",
        ]
    )]
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
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    if let Some(path) = &args.replay.pcap {
        return replay(args, path, device, quiet);
    }
    let PacketArgs { packet, size, pattern, flows, .. } = &args.packets;
    let pattern = if args.latency { Pattern::Seq } else { *pattern };
    let size = size.clone().unwrap_or_default();
    let recipe = flows.recipe(&device, *packet, size.clone(), pattern)?;
    check_mtu("--size", size.largest() as usize, &device, flows.vlan.is_some())?;
    let comes_back = args.latency.then(|| comes_back(&recipe)).transpose()?;
    let template = Arc::new(Template::new(&recipe)?);
    let what = describe(args, &recipe, &template);
    if live::is_chosen(args, &device, &template)? {
        return live::run(args, &device, &template, &what, quiet);
    }
    check_frame(args, &template)?;
    let interfaces = vec![Interface::new(device, comes_back.as_ref(), true)];
    let mut plan = Plan::new(&args.common, interfaces, None, false)?;
    plan.shares = args.latency;
    let then = vec![format!("would send {what}")];
    let Some(mut built) = plan.build("sending", then)? else { return Ok(Exit::Ok) };
    write_everywhere(&built.pool, &template)?;
    let queues = plan.queues.len();
    let streams = Streams::new(queues);
    let batch = args.common.sockets.batch as usize;
    let rate = args.packets.rate().packets(template.mean_length()) / queues as f64;
    let burst = args.packets.burst.map_or(Templated::usual_burst(rate), |burst| burst as usize);
    let pacing = Pacing::default();
    let makers = (0..queues).map(|home| {
        let thread = (home, queues);
        let mut maker = Templated::new(&template, thread, streams, rate, args.latency);
        maker.burst = burst.clamp(1, batch);
        maker.pacing = pacing.clone();
        Box::new(maker) as Box<dyn Make>
    });
    let echoes = args.latency.then(Echoes::new);
    if let Some(echoes) = &echoes {
        echoes.renew(streams);
    }
    let echo = || {
        let fill = plan.fill() as usize;
        echoes.clone().map(|echoes| Echo { echoes, fill, packets: Vec::new() })
    };
    let threads = senders(&mut built, makers, args.packets.burst.map_or(batch, |_| burst), echo);
    let job = Job {
        process: "xsk",
        command: "send",
        announcement: format!("sending {what}"),
        beside: &Sent {
            size: said_size(&size, &template),
            pacing,
            turns: recipe.turns.clone(),
            echoes: echoes.clone(),
        },
    };
    built.run(&plan, threads, job, quiet)
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
    let macs = [one("--dst-mac", packets.flows.dst_mac)?, one("--src-mac", packets.flows.src_mac)?];
    let capture = Capture::open(path, args.replay.times)?;
    let timing = packets.rate.map_or(Timing::Recorded(args.replay.speed), Timing::Rate);
    let most = longest(&device, true)?;
    let frame = args.common.memory.frame_size as usize;
    let parts = if sockets.multi_buffer { sockets.ring as usize } else { 1 };
    let most = most.min(frame.saturating_mul(parts));
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
    let interfaces = vec![Interface::new(device, None, true)];
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

/// One size as a number, or several as they are written.
fn said_size(sizes: &Sizes, template: &Template) -> Value {
    match sizes.is_one() {
        true => template.bytes().len().into(),
        false => sizes.to_string().into(),
    }
}

/// What came of packets that were made.
struct Sent {
    /// For programs.
    size: Value,
    pacing: Pacing,
    turns: Option<Arc<Turns>>,
    echoes: Option<Echoes>,
}

impl Beside for Sent {
    fn add_to(&self, report: &mut Report) {
        report.fields["size"] = self.size.clone();
        self.pacing.add_to(report);
        if let Some(turns) = &self.turns {
            turns.add_to(report);
        }
        if let Some(echoes) = &self.echoes {
            echoes.add_to(report);
        }
    }
}

fn check_frame(args: &Args, template: &Template) -> anyhow::Result<()> {
    let (size, frame) = (template.bytes().len(), args.common.memory.frame_size);
    if size > frame as usize && !args.common.sockets.multi_buffer {
        return Err(usage(format!(
            "--size {size}: a frame has {frame} bytes (expected --frame-size 4096, or \
             --multi-buffer)"
        )));
    }
    let (parts, ring) = (size.div_ceil(frame as usize), args.common.sockets.ring as usize);
    if parts > ring {
        return Err(usage(format!(
            "--size {size}: a packet of {parts} frames does not fit into --ring {ring}"
        )));
    }
    if let Some(burst) = args.packets.burst.filter(|burst| *burst > args.common.sockets.batch) {
        let batch = args.common.sockets.batch;
        return Err(usage(format!("--burst {burst}: expected at most --batch, which is {batch}")));
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
    let turns = match &recipe.turns {
        Some(turns) => format!(" (by the receiver's queue: {})", turns.words()),
        None => String::new(),
    };
    let sizes = match recipe.sizes.is_one() {
        true => format!("{} bytes", template.bytes().len()),
        false => format!("sizes {}", recipe.sizes),
    };
    let tags = match recipe.tags.0.is_empty() {
        true => String::new(),
        false => format!(" in VLAN {}", recipe.tags),
    };
    format!(
        "{} of {sizes} from {} ({}) to {} ({}){tags} out of {}, {flows}{turns}, {}",
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
