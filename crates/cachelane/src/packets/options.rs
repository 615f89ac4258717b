//! What commands with sockets of AF_XDP have in common on the command line.

use std::sync::Arc;

use bpf::Expression;
use frames::{AlienFree, AreaOptions, HugePages};
use lanes::CpuSpec;
use xsk::{Attach, BusyPoll, Device, Filter, Mode, ProgramOptions, SocketOptions, Vlans};

use super::values::{Ports, Queues, VlanRange, number};
use crate::args::{Choice, LanesArg, NameArg, RunArgs, choice, name_of};

/// What all of them take.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Run")]
pub(crate) struct CommonArgs {
    /// Stop after this many packets [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) name: NameArg,
    /// Check the arguments and this host, print what would be done, and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) places: PlaceArgs,
    #[command(flatten)]
    pub(crate) sockets: SocketArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

impl CommonArgs {
    /// An option that is for sockets alone, if one was given another value than its default.
    pub(crate) fn for_sockets(&self) -> Option<&'static str> {
        let CommonArgs { places, sockets, memory, .. } = self;
        [
            ("--queues", places.queues.is_some()),
            ("--mode", sockets.mode != Mode::Auto),
            ("--ring", sockets.ring != RING),
            ("--batch", sockets.batch != BATCH),
            ("--busy-poll", sockets.busy_poll.is_some()),
            ("--multi-buffer", sockets.multi_buffer),
            ("--frames", memory.frames.is_some()),
            ("--frame-size", memory.frame_size != FRAME_SIZE),
            ("--huge-pages", memory.huge_pages != HugePages::Try),
            ("--alien-free", memory.alien_free != AlienFree::Auto),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }
}

/// Defaults of options.
const RING: u32 = 2048;
const BATCH: u32 = 128;
const FRAME_SIZE: u32 = 2048;

/// Which queues, and where their threads run.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Queues and threads")]
pub(crate) struct PlaceArgs {
    /// Queues of the device: a list such as 0-3,6 [default: all of them; to send only, queue 0]
    #[arg(long, value_name = "LIST")]
    pub(crate) queues: Option<Queues>,
    /// Pin the threads to these CPUs, one after the other: a list such as 0-3,8, lane:N for the
    /// CPUs of lane N, or all [default: not pinned]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSpec>,
    #[command(flatten)]
    lanes: LanesArg,
}

/// Where one thread runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The CPU that it is pinned to.
    pub(crate) cpu: Option<usize>,
    /// Its lane; threads that are not pinned are taken for neighbours.
    pub(crate) lane: u16,
    /// The CPU's NUMA node, on machines with several.
    pub(crate) node: Option<u32>,
}

impl PlaceArgs {
    /// A place for each CPU that was given, or one.
    pub(crate) fn each(&self) -> anyhow::Result<Vec<Place>> {
        let cpus = match &self.cpus {
            Some(spec) => spec.resolve(&self.lanes.map()?)?.len(),
            None => 1,
        };
        self.places(cpus)
    }

    /// The places of so many threads.
    pub(crate) fn places(&self, threads: usize) -> anyhow::Result<Vec<Place>> {
        let Some(spec) = &self.cpus else {
            return Ok(vec![Place::default(); threads]);
        };
        let map = self.lanes.map()?;
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
pub(crate) struct MemoryArgs {
    /// Frames (packet buffers) of the pool that all queues and threads share, from 64 to 16777216
    /// [default: 4096 for each socket; for lend, enough for --borrowers, and at least 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    frames: Option<u32>,
    /// Size of a frame in bytes: 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = FRAME_SIZE)]
    pub(crate) frame_size: u32,
    /// Whether to keep frames in huge pages: never, try (where there are any) or require
    #[arg(long, value_name = "WHEN", default_value = "try", value_parser = choice(HUGE_PAGES))]
    huge_pages: HugePages,
    /// Where a frame goes that is freed away from its home, by another thread than took it: recycle
    /// (it stays), defer (it goes home) or auto (it stays inside its lane; across lanes, the
    /// surplus goes home); can be changed while it runs: knob frames.alien_free
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = |s: &str| s.parse::<AlienFree>())]
    pub(crate) alien_free: AlienFree,
}

const HUGE_PAGES: Choice<HugePages> =
    &[("never", HugePages::Never), ("try", HugePages::Try), ("require", HugePages::Require)];

impl MemoryArgs {
    /// The area for so many sockets; to be shared with others if it is `lent`, with so many frames
    /// for each socket.
    pub(crate) fn area(&self, sockets: usize, lent: Option<u32>) -> AreaOptions {
        let for_each = lent.unwrap_or(4096);
        let enough = for_each.saturating_mul(sockets as u32);
        AreaOptions::default()
            .frames(self.frames.unwrap_or(enough))
            .frame_size(self.frame_size)
            .huge_pages(self.huge_pages)
            .shared(lent.is_some())
    }
}

/// The sockets.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Sockets")]
pub(crate) struct SocketArgs {
    /// How packets reach the frames: copy (the kernel copies them), zero-copy (the device uses the
    /// frames itself) or auto (zero-copy where the device can)
    #[arg(long, default_value = "auto", value_parser = choice(MODES))]
    mode: Mode,
    /// Slots of each ring of a socket, a power of two
    #[arg(long, value_name = "N", default_value_t = RING, value_parser = ring)]
    pub(crate) ring: u32,
    /// Most packets to handle at once, from 1 to 16384
    #[arg(long, value_name = "N", default_value_t = BATCH, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(crate) batch: u32,
    /// Poll the device from this command's own calls, for so many microseconds each time, instead of
    /// handling packets in interrupts
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) busy_poll: Option<u32>,
    /// Allow packets that need several frames
    #[arg(long)]
    pub(crate) multi_buffer: bool,
}

const MODES: Choice<Mode> =
    &[("auto", Mode::Auto), ("copy", Mode::Copy), ("zero-copy", Mode::ZeroCopy)];

/// Reads the slots of a ring.
fn ring(s: &str) -> Result<u32, String> {
    const MOST: u32 = 1 << 30;
    let slots = s.parse::<u32>().ok().filter(|n| n.is_power_of_two() && *n <= MOST);
    slots.ok_or_else(|| format!("'{s}' cannot be (expected a power of two up to {MOST})"))
}

impl SocketArgs {
    /// A socket that receives, sends, or does both.
    pub(crate) fn options(&self, receives: bool, sends: bool) -> SocketOptions {
        /// As much as the kernel gives without privileges of its own.
        const BUDGET: u32 = 64;
        let ring = |used| if used { self.ring } else { 0 };
        let busy_poll = |microseconds| BusyPoll { microseconds, budget: BUDGET };
        SocketOptions::default()
            .rx_size(ring(receives))
            .tx_size(ring(sends))
            .fill_size(self.ring)
            .completion_size(self.ring)
            .mode(self.mode)
            .busy_poll(self.busy_poll.map(busy_poll))
            .multi_buffer(self.multi_buffer)
            .tx_budget((sends && self.ring >= 32).then_some(self.ring))
    }

    pub(crate) fn mode_is(&self, mode: Mode) -> bool {
        self.mode == mode
    }

    /// As it is written.
    pub(crate) fn mode_name(&self) -> &'static str {
        name_of(MODES, self.mode)
    }

    /// As people read it.
    pub(crate) fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Auto => "zero-copy where the device can, else copy",
            _ => self.mode_name(),
        }
    }
}

/// The XDP program: where it runs and what it takes from the kernel.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Which packets")]
pub(crate) struct FilterArgs {
    /// Take UDP packets to these ports, a list such as 53,8000-8099. If several of --udp-port,
    /// --tcp-port, --ethertype and --protocol are given, what any of them takes is taken; the kernel
    /// receives all others. They look behind up to two VLAN tags
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    udp_port: Vec<Ports>,
    /// Take TCP packets to these ports, likewise
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tcp_port: Vec<Ports>,
    /// Take frames of these Ethernet types, a list such as 0x88b5,0x0806; a VLAN tag is of type 0x8100
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = number)]
    ethertype: Vec<u16>,
    /// Take IP packets of these protocols, a list of numbers such as 17 for UDP
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    protocol: Vec<u8>,
    /// Take only packets of these VLANs, by their outermost tag (802.1Q or 802.1ad): a list of IDs such
    /// as 5,100-199, 0 for a tag without VLAN, none for packets without tag; the other options choose
    /// among these packets [default: whatever VLAN, or none]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    vlan: Vec<VlanRange>,
    /// Take only packets that this expression matches, as tcpdump has it (man pcap-filter): 'tcp and
    /// net 10.0.0.0/8'; the other options choose among these packets. Needs libpcap on this host
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Where the XDP program, which takes the packets, runs: native (in the driver), generic
    /// (behind the driver, which is slower) or auto (native where the driver can)
    #[arg(long, default_value = "auto", value_parser = choice(PLACES))]
    xdp: Attach,
}

const PLACES: Choice<Attach> =
    &[("auto", Attach::Auto), ("native", Attach::Native), ("generic", Attach::Generic)];

impl FilterArgs {
    /// UDP packets to these ports, and IP packets of this protocol, wherever a program can be.
    pub(crate) fn of(udp_port: Vec<Ports>, protocol: Option<u8>) -> FilterArgs {
        FilterArgs {
            udp_port,
            tcp_port: Vec::new(),
            ethertype: Vec::new(),
            protocol: protocol.into_iter().collect(),
            vlan: Vec::new(),
            filter: None,
            xdp: Attach::Auto,
        }
    }

    /// The program, with the filter as it was compiled.
    pub(crate) fn program(
        &self,
        expression: Option<Arc<Expression>>,
        multi_buffer: bool,
    ) -> ProgramOptions {
        let mut options = ProgramOptions::default().attach(self.xdp).filters(self.filters());
        (options.vlans, options.expression) = (self.vlans(), expression);
        options.multi_buffer(multi_buffer)
    }

    /// Whether its program is to run behind the driver.
    pub(crate) fn is_generic(&self) -> bool {
        self.xdp == Attach::Generic
    }

    fn filters(&self) -> Vec<Filter> {
        let ports = |given: &[Ports]| given.iter().flat_map(|p| p.first..=p.last).collect();
        let all = [
            (!self.udp_port.is_empty()).then(|| Filter::UdpPorts(ports(&self.udp_port))),
            (!self.tcp_port.is_empty()).then(|| Filter::TcpPorts(ports(&self.tcp_port))),
            (!self.ethertype.is_empty()).then(|| Filter::EtherTypes(self.ethertype.clone())),
            (!self.protocol.is_empty()).then(|| Filter::IpProtocols(self.protocol.clone())),
        ];
        all.into_iter().flatten().collect()
    }

    fn vlans(&self) -> Option<Vlans> {
        let mut vlans = Vlans::default();
        for range in &self.vlan {
            match *range {
                VlanRange::Untagged => vlans.untagged = true,
                VlanRange::Ids { first, last } => vlans.ids.extend(first..=last),
            }
        }
        (!self.vlan.is_empty()).then_some(vlans)
    }

    /// What it takes, as people read it.
    pub(crate) fn what(&self) -> String {
        let ethertypes: Vec<_> = self.ethertype.iter().map(|kind| format!("{kind:#06x}")).collect();
        let parts = [
            part("UDP to port", &self.udp_port),
            part("TCP to port", &self.tcp_port),
            part("frames of type", &ethertypes),
            part("IP packets of protocol", &self.protocol),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let what = if parts.is_empty() { "every packet".into() } else { parts.join(" or ") };
        let matches = self.filter.as_ref().map(|filter| format!(" where '{filter}' matches"));
        what + &part(" in VLAN", &self.vlan).unwrap_or_default() + &matches.unwrap_or_default()
    }

    /// The option that says where it runs, as far as it matters for what a driver takes.
    pub(crate) fn option(&self, multi_buffer: bool) -> String {
        let place = name_of(PLACES, self.xdp);
        let parts = if multi_buffer { " --multi-buffer" } else { " without --multi-buffer" };
        format!("--xdp {place}{parts}")
    }

    /// What a dry run says of it.
    pub(crate) fn would_attach(&self, device: &Device) -> String {
        let place = match self.xdp {
            Attach::Auto => "in the driver, or generic where that cannot be",
            Attach::Native => "in the driver",
            Attach::Generic => "generic",
        };
        let what = self.what();
        format!(
            "would attach an XDP program to {device} ({place}) that takes {what} from the kernel on \
             these queues"
        )
    }
}

/// What one option says, if it was given.
fn part<T: ToString>(what: &str, values: &[T]) -> Option<String> {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    (!values.is_empty()).then(|| format!("{what} {}", values.join(", ")))
}
