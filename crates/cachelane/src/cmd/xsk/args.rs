//! What `send` and `search` take to say which packets: their addresses and what varies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use kit::Mac;
use xsk::Device;

use super::flows::Order;
use super::rss::Rss;
use super::template::{Kind, Pattern, Recipe};
use super::turns::{self, Turns};
use super::values::{Sizes, Span, Tags};
use crate::exit::usage;
use crate::packets::options::FilterArgs;
use crate::packets::values::Ports;

/// Which flows packets are of.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Addresses and flows")]
pub(super) struct FlowArgs {
    /// Hardware (MAC) addresses to send to: one, or a range such as
    /// 02:00:00:00:00:01-02:00:00:00:00:ff [default: 02:00:00:00:00:02; for ARP all]
    #[arg(long, value_name = "MAC")]
    pub(super) dst_mac: Option<Span<Mac>>,
    /// Hardware (MAC) addresses to send from, likewise [default: the device's]
    #[arg(long, value_name = "MAC")]
    pub(super) src_mac: Option<Span<Mac>>,
    /// VLAN tags, the outer one first: IDs or ranges of them, and a priority behind a colon, such as
    /// 10, 10-19:5 or 100,10 (802.1ad, then 802.1Q)
    #[arg(long, value_name = "TAGS")]
    pub(super) vlan: Option<Tags>,
    /// IP addresses to send to: one, a range such as 198.18.0.1-198.18.3.254, or a block such as
    /// 198.18.0.0/22 [default: 198.18.0.2, or 2001:2::2 if --src is IPv6]
    #[arg(long, value_name = "ADDR")]
    pub(super) dst: Option<Span<IpAddr>>,
    /// IP addresses to send from, likewise [default: 198.18.0.1, or 2001:2::1 if --dst is IPv6]
    #[arg(long, value_name = "ADDR")]
    pub(super) src: Option<Span<IpAddr>>,
    /// Port to send to, or a range such as 1000-1999 [default: 9]
    #[arg(long, value_name = "PORTS")]
    pub(super) dport: Option<Ports>,
    /// Port to send from, or a range such as 1000-1999 [default: 9]
    #[arg(long, value_name = "PORTS")]
    pub(super) sport: Option<Ports>,
    /// Order the source ports so that flows go to the receiver's queues in turn: what `ethtool -x DEVICE`
    /// prints there, also with --json; - for stdin. --sport is 16384-32767 then, if not given
    #[arg(long, value_name = "FILE")]
    pub(super) rss: Option<PathBuf>,
    /// Most flows: the first so many of all combinations [default: all of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) flows: Option<u64>,
    /// In which order flows have packets
    #[arg(long, value_enum, default_value = "counting")]
    pub(super) order: Order,
}

impl FlowArgs {
    /// All of what packets are. Reads --rss, which may be stdin, so it is done once.
    pub(super) fn recipe(
        &self,
        device: &Device,
        kind: Kind,
        sizes: Sizes,
        pattern: Pattern,
    ) -> anyhow::Result<Recipe> {
        let given = self.src.or(self.dst);
        let six = given.is_some_and(|given| given.first.is_ipv6());
        let default = |host: u16| {
            Span::one(match six {
                true => IpAddr::from(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host)),
                false => IpAddr::from(Ipv4Addr::new(198, 18, 0, host as u8)),
            })
        };
        let ports = [("--dport", self.dport), ("--sport", self.sport)];
        if !kind.has_ports()
            && let Some((option, Some(ports))) = ports.iter().find(|(_, given)| given.is_some())
        {
            let kind = kind.name();
            return Err(usage(format!("{option} {ports}: --packet {kind} has no ports")));
        }
        if let Some(path) = self.rss.as_ref().filter(|_| !kind.has_ports()) {
            let (path, kind) = (path.display(), kind.name());
            return Err(usage(format!("--rss {path}: --packet {kind} has no ports")));
        }
        let discard = Ports { first: 9, last: 9 };
        let nobody = match kind {
            Kind::Arp => Mac([0xff; 6]),
            _ => Mac([2, 0, 0, 0, 0, 2]),
        };
        let own = || device.mac().map(|mac| Span::one(Mac(mac)));
        let sources = if self.rss.is_some() { turns::PORTS } else { discard };
        let recipe = Recipe {
            option: "--size",
            kind,
            sizes,
            source_mac: self.src_mac.map_or_else(own, Ok)?,
            target_mac: self.dst_mac.unwrap_or(Span::one(nobody)),
            tags: self.vlan.clone().unwrap_or_default(),
            source: self.src.unwrap_or_else(|| default(1)),
            target: self.dst.unwrap_or_else(|| default(2)),
            source_ports: self.sport.unwrap_or(sources),
            target_ports: self.dport.unwrap_or(discard),
            pattern,
            limit: self.flows,
            order: self.order,
            turns: None,
        };
        let Some(path) = &self.rss else { return Ok(recipe) };
        recipe.check()?;
        let turns = Turns::new(path, &Rss::read(path)?, &recipe)?;
        Ok(Recipe { turns: Some(Arc::new(turns)), ..recipe })
    }
}

/// The longest packet that a device sends, with a VLAN tag or without.
pub(super) fn longest(device: &Device, is_tagged: bool) -> anyhow::Result<usize> {
    const ETHERNET: u32 = 14;
    const TAG: u32 = 4;
    let tag = if is_tagged { TAG } else { 0 };
    Ok(device.mtu()?.saturating_add(ETHERNET + tag) as usize)
}

/// Whether packets of this size can be sent.
pub(super) fn check_mtu(
    option: &str,
    size: usize,
    device: &Device,
    is_tagged: bool,
) -> anyhow::Result<()> {
    /// Of any device.
    const MTU: usize = 65535;
    let most = longest(device, is_tagged)?;
    if size <= most {
        return Ok(());
    }
    let header = most - device.mtu()? as usize;
    let larger = match size - header {
        needed @ ..=MTU => format!(" (ip link set {device} mtu {needed})"),
        _ => String::new(),
    };
    Err(usage(format!("{option} {size}: {device} sends packets of at most {most} bytes{larger}")))
}

/// Which packets come back: they keep their ports, or have them swapped.
pub(super) fn comes_back(recipe: &Recipe) -> anyhow::Result<FilterArgs> {
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
