//! What `send`, `drop` and `forward` have in common on the command line.

use std::time::Duration;

use frames::{AlienFree, AreaOptions, HugePages};
use lanes::{CpuSpec, LaneMap};
use xsk::{Attach, BusyPoll, Filter, Mode, ProgramOptions, SocketOptions};

use super::values::{Ports, Queues, number};
use crate::args::duration;

/// How long it runs and what it prints.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Run")]
pub(in crate::cmd) struct RunArgs {
    /// End after this many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(in crate::cmd) count: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(in crate::cmd) time: Option<Duration>,
    /// Time between two live lines, or with --json between two lines of JSON
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(in crate::cmd) interval: Option<Duration>,
    /// Print JSON: one object at the end, and with --interval one for each interval, a line each
    #[arg(long)]
    pub(in crate::cmd) json: bool,
    /// Check what can be checked, say what would be done, and do nothing
    #[arg(long)]
    pub(in crate::cmd) dry_run: bool,
}

/// Reads the time between two lines.
pub(in crate::cmd) fn interval(s: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(10);
    let interval = duration(s)?;
    if interval < LEAST {
        return Err("too short (expected at least 10ms)".into());
    }
    Ok(interval)
}

/// Which queues, and where their threads run.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Queues and threads")]
pub(in crate::cmd) struct PlaceArgs {
    /// Queues of the device: a list such as 0-3,6
    #[arg(long, value_name = "LIST")]
    pub(in crate::cmd) queues: Option<Queues>,
    /// Pin the threads, one after the other, to these CPUs: a list such as 0-3,8, or lane:N, or
    /// all [default: threads are not pinned]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSpec>,
    /// Which CPUs share a cache, where the machine does not say, e.g. '0-7|8-15'
    #[arg(long, value_name = "LANES")]
    lanes: Option<String>,
}

/// Where one thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cmd) struct Place {
    /// The CPU that it is pinned to.
    pub(in crate::cmd) cpu: Option<usize>,
    /// Its lane; threads that are not pinned are taken for neighbours.
    pub(in crate::cmd) lane: u16,
    /// The CPU's NUMA node, on machines with several.
    pub(in crate::cmd) node: Option<u32>,
}

impl PlaceArgs {
    /// The places of so many threads.
    pub(in crate::cmd) fn places(&self, threads: usize) -> anyhow::Result<Vec<Place>> {
        let Some(spec) = &self.cpus else {
            return Ok(vec![Place { cpu: None, lane: 0, node: None }; threads]);
        };
        let map = match &self.lanes {
            Some(lanes) => LaneMap::detect()?.with_override(lanes)?,
            None => LaneMap::detect()?,
        };
        let cpus = spec.resolve(&map)?;
        let lane = |cpu| map.lane_of(cpu).map_or(0, |lane| lane.0);
        let place = |cpu| Place { cpu: Some(cpu), lane: lane(cpu), node: map.node_of(cpu) };
        // A set that resolves is never empty.
        let places: Vec<_> = cpus.iter().map(place).collect();
        Ok(places.into_iter().cycle().take(threads).collect())
    }
}

/// The frames.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Memory")]
pub(in crate::cmd) struct MemoryArgs {
    /// Frames of the pool, shared by all queues and threads [default: 4096 for each socket; where
    /// they are lent, what --borrowers can have, and at least 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    frames: Option<u32>,
    /// Bytes of a frame: 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 2048)]
    pub(in crate::cmd) frame_size: u32,
    /// Huge pages under the frames: never, try or require
    #[arg(long, value_name = "WHEN", default_value = "try", value_enum)]
    huge_pages: Huge,
    /// What happens to a frame that is freed away from its home: recycle, defer or auto (knob
    /// frames.alien_free)
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = |s: &str| s.parse::<AlienFree>())]
    pub(in crate::cmd) alien_free: AlienFree,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Huge {
    Never,
    Try,
    Require,
}

impl MemoryArgs {
    /// The area for so many sockets; to be shared with others if it is `lent`, with so many frames
    /// for each socket.
    pub(in crate::cmd) fn area(&self, sockets: usize, lent: Option<u32>) -> AreaOptions {
        let for_each = lent.unwrap_or(4096);
        let huge_pages = match self.huge_pages {
            Huge::Never => HugePages::Never,
            Huge::Try => HugePages::Try,
            Huge::Require => HugePages::Require,
        };
        let enough = for_each.saturating_mul(sockets as u32);
        AreaOptions {
            frames: self.frames.unwrap_or(enough),
            frame_size: self.frame_size,
            huge_pages,
            shared: lent.is_some(),
            nodes: Vec::new(),
        }
    }
}

/// The sockets.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Sockets")]
pub(in crate::cmd) struct SocketArgs {
    /// Whether the device reads and writes the frames itself: auto, copy or zero-copy
    #[arg(long, default_value = "auto", value_enum)]
    mode: ModeArg,
    /// Slots of each of a socket's rings, a power of two
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = ring)]
    pub(in crate::cmd) ring: u32,
    /// The most packets that are handled in one go
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(in crate::cmd) batch: u32,
    /// Process the device's packets in this command's own calls, polling so long, instead of in
    /// interrupts
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::cmd) busy_poll: Option<u32>,
    /// Let a packet lie in several frames
    #[arg(long)]
    pub(in crate::cmd) multi_buffer: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ModeArg {
    Auto,
    Copy,
    ZeroCopy,
}

/// Reads the slots of a ring.
fn ring(s: &str) -> Result<u32, String> {
    const MOST: u32 = 1 << 30;
    let slots = s.parse::<u32>().ok().filter(|n| n.is_power_of_two() && *n <= MOST);
    slots.ok_or_else(|| format!("'{s}' cannot be (expected a power of two up to {MOST})"))
}

impl SocketArgs {
    /// A socket that receives, sends, or does both.
    pub(in crate::cmd) fn options(&self, receives: bool, sends: bool) -> SocketOptions {
        /// As much as the kernel gives without privileges of its own.
        const BUDGET: u32 = 64;
        let mode = match self.mode {
            ModeArg::Auto => Mode::Auto,
            ModeArg::Copy => Mode::Copy,
            ModeArg::ZeroCopy => Mode::ZeroCopy,
        };
        let ring = |used| if used { self.ring } else { 0 };
        SocketOptions {
            rx_size: ring(receives),
            tx_size: ring(sends),
            fill_size: self.ring,
            completion_size: self.ring,
            mode,
            need_wakeup: true,
            busy_poll: self.busy_poll.map(|microseconds| BusyPoll { microseconds, budget: BUDGET }),
            multi_buffer: self.multi_buffer,
            tx_budget: (sends && self.ring >= 32).then_some(self.ring),
        }
    }

    /// As it is written.
    pub(in crate::cmd) fn mode_name(&self) -> &'static str {
        match self.mode {
            ModeArg::Auto => "auto",
            ModeArg::Copy => "copy",
            ModeArg::ZeroCopy => "zero-copy",
        }
    }

    /// As people read it.
    pub(in crate::cmd) fn mode(&self) -> &'static str {
        match self.mode {
            ModeArg::Auto => "zero-copy where the device can, else copy",
            ModeArg::Copy => "copy",
            ModeArg::ZeroCopy => "zero-copy",
        }
    }
}

/// The XDP program: where it runs and what it takes from the kernel.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Which packets")]
pub(in crate::cmd) struct FilterArgs {
    /// Take only UDP to these ports, a list such as 53,8000-8099; the kernel gets the rest
    #[arg(long, value_name = "LIST", value_delimiter = ',', group = "filter")]
    udp_port: Vec<Ports>,
    /// Take only frames of this Ethernet type, e.g. 0x88b5
    #[arg(long, value_name = "TYPE", value_parser = number, group = "filter")]
    ethertype: Option<u16>,
    /// Take only IP packets of this protocol, e.g. 17 for UDP
    #[arg(long, value_name = "NUMBER", group = "filter")]
    protocol: Option<u8>,
    /// Where the XDP program runs: in the driver, on the kernel's buffers (generic), or auto: in
    /// the driver where that can be
    #[arg(long, default_value = "auto", value_enum)]
    xdp: XdpArg,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum XdpArg {
    Auto,
    Native,
    Generic,
}

impl FilterArgs {
    pub(in crate::cmd) fn program(&self, multi_buffer: bool) -> ProgramOptions {
        let attach = match self.xdp {
            XdpArg::Auto => Attach::Auto,
            XdpArg::Native => Attach::Native,
            XdpArg::Generic => Attach::Generic,
        };
        ProgramOptions { attach, filter: self.filter(), multi_buffer }
    }

    fn filter(&self) -> Filter {
        match (self.ethertype, self.protocol) {
            (Some(ethertype), _) => Filter::EtherType(ethertype),
            (_, Some(protocol)) => Filter::IpProtocol(protocol),
            _ if self.udp_port.is_empty() => Filter::Everything,
            _ => Filter::UdpPorts(self.udp_port.iter().flat_map(|p| p.first..=p.last).collect()),
        }
    }

    /// What it takes, as people read it.
    pub(in crate::cmd) fn what(&self) -> String {
        match self.filter() {
            Filter::Everything => "every packet".into(),
            Filter::UdpPorts(_) => {
                let ports: Vec<String> = self.udp_port.iter().map(Ports::to_string).collect();
                format!("UDP to port {}", ports.join(", "))
            }
            Filter::EtherType(kind) => format!("frames of type {kind:#06x}"),
            Filter::IpProtocol(protocol) => format!("IP packets of protocol {protocol}"),
        }
    }

    /// The option that says where it runs, as far as it matters for what a driver takes.
    pub(in crate::cmd) fn option(&self, multi_buffer: bool) -> String {
        let place = match self.xdp {
            XdpArg::Auto => "auto",
            XdpArg::Native => "native",
            XdpArg::Generic => "generic",
        };
        let parts = if multi_buffer { " --multi-buffer" } else { " without --multi-buffer" };
        format!("--xdp {place}{parts}")
    }

    /// Where it runs, as people read it.
    pub(in crate::cmd) fn attach(&self) -> &'static str {
        match self.xdp {
            XdpArg::Auto => "in the driver, or generic where that cannot be",
            XdpArg::Native => "in the driver",
            XdpArg::Generic => "generic",
        }
    }
}
