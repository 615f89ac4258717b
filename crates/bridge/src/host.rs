//! Reads the host into a [`State`], and the kernel's forwarding table, by netlink and `/proc`.
//!
//! All of it is about the network namespace of the calling thread, but for the other ends of
//! veths: those are asked for where they are.

mod bridge;
mod ethtool;
mod filter;
mod link;
mod neighbour;
mod netfilter;
mod proc;
mod tc;
#[cfg(test)]
mod tests;
mod vlan;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bpf::tcx::{self, Hook};
use kit::netlink::{Socket, is};
use netlink_packet_route::link::InfoKind;
use netlink_packet_route::tc::TcHandle;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use rustix::io::Errno;

use self::{
    bridge::bridge_of,
    link::{Link, Which},
    netfilter::Hooks,
    tc::FilterHolder,
};
pub(crate) use self::{
    proc::CALLS,
    watch::{Heard, LinkWatch, ROOM, Watch},
};
use crate::error::Context as _;
use crate::{
    Error, ErrorKind, Result,
    state::{Bridge, Entry, Key, Netfilter, Peer, PeerDetails, Port, State, Xdp},
};

/// Asks the kernel about bridges of the namespace in which it was made.
#[derive(Debug)]
pub(crate) struct Reader {
    route: Socket,
    generic: Socket,
    /// The number of ethtool's family of generic netlink.
    ethtool: u16,
    /// None if the kernel has no netfilter.
    netfilter: Option<Hooks>,
    /// Which devices have queue disciplines that hold filters, as last read.
    holders: HashMap<u32, FilterHolder>,
}

/// A reading of everything about a bridge, port by port.
#[derive(Debug)]
pub(crate) struct Survey {
    bridge: Link,
    /// Those that are still to be read.
    links: VecDeque<Link>,
    ports: Vec<Port>,
}

impl Reader {
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel is too old, which is asked first: nothing that is read
    /// there is of use. [`ErrorKind::Io`] if it has no netlink, or no ethtool by netlink (5.6).
    pub(crate) fn new() -> Result<Self> {
        bpf::kernel::expect("tcx links").map_err(|error| {
            Error::new(ErrorKind::Unsupported, format!("the fast path of a bridge: {error}"))
        })?;
        let open = || -> io::Result<Self> {
            let mut generic = Socket::open(NETLINK_GENERIC)?;
            let ethtool = generic.family("ethtool")?;
            let route = Socket::open(NETLINK_ROUTE)?.strict()?;
            let netfilter = Hooks::open()?;
            Ok(Self { route, generic, ethtool, netfilter, holders: HashMap::new() })
        };
        open().context("opening netlink")
    }

    /// Reads everything about the bridge with this name. A port that leaves while it is read may
    /// be missing; its leaving is announced.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`], [`ErrorKind::NotABridge`]; [`ErrorKind::NotPermitted`] without
    /// `CAP_NET_ADMIN`; [`ErrorKind::Io`].
    pub(crate) fn state(&mut self, bridge: &str) -> Result<State> {
        let index = self.bridge(bridge)?.index;
        let mut survey = self.survey(index)?;
        while self.survey_port(&mut survey)? {}
        self.finish(survey)
    }

    /// The indexes and names of all bridges, by name.
    pub(crate) fn bridges(&mut self) -> Result<Vec<(u32, String)>> {
        link::bridges(&mut self.route).context("listing the bridges")
    }

    /// Begins to read everything about the bridge with this index, whatever it is called.
    pub(crate) fn survey(&mut self, index: u32) -> Result<Survey> {
        let bridge = self.bridge_at(index)?;
        let links =
            link::ports(&mut self.route, index).context(reading("the ports", &bridge.name))?;
        self.read_queues()?;
        Ok(Survey { bridge, ports: Vec::with_capacity(links.len()), links: links.into() })
    }

    /// Reads one more port. Returns whether there was one.
    pub(crate) fn survey_port(&mut self, survey: &mut Survey) -> Result<bool> {
        let Some(link) = survey.links.pop_front() else { return Ok(false) };
        let name = link.name.clone();
        match self.port(link, survey.bridge.looks_at_vlans()) {
            Ok(port) => survey.ports.extend(port),
            Err(error) if is(&error, Errno::NODEV) => {}
            Err(error) if is(&error, Errno::PERM) => {
                let message = format!(
                    "asking which tcx programs port '{name}' has needs CAP_NET_ADMIN in the host's user \
                     namespace, which no BPF token stands in for"
                );
                return Err(Error::new(ErrorKind::NotPermitted, message));
            }
            Err(error) => return Err(Error::io(format!("reading port '{name}'"), error)),
        }
        Ok(true)
    }

    /// Reads what is left, and puts all together.
    pub(crate) fn finish(&mut self, survey: Survey) -> Result<State> {
        let Survey { bridge, ports, .. } = survey;
        let calls = proc::calls().context(reading("the settings", &bridge.name))?;
        let mut state = State {
            bridge: bridge_of(bridge, calls),
            ports,
            netfilter: Netfilter::default(),
            taps: Vec::new(),
            longest_look: Duration::ZERO,
        };
        self.look_around(&mut state)?;
        Ok(state)
    }

    /// Reads again what matters to a bridge beside its own settings and those of its ports:
    /// netfilter's hooks, and packet sockets.
    pub(crate) fn look_around(&mut self, state: &mut State) -> Result<()> {
        let name = &state.bridge.name;
        state.netfilter =
            self.netfilter(&state.ports).context(reading("the netfilter hooks", name))?;
        state.taps = taps(&state.ports).context("reading the packet sockets")?;
        Ok(())
    }

    /// Reads the bridge alone again, and the VLANs of its ports where they have begun to matter.
    pub(crate) fn look_at_bridge(&mut self, state: &mut State) -> Result<()> {
        let link = self.bridge_at(state.bridge.index)?;
        let calls = proc::calls().context(reading("the settings", &link.name))?;
        state.bridge = bridge_of(link, calls);
        self.follow_vlans(state, false)
    }

    /// Reads the VLANs of those ports of which they are not known, or of all; of none where the
    /// bridge does not look at them.
    fn follow_vlans(&mut self, state: &mut State, all: bool) -> Result<()> {
        let wanted = state.bridge.vlans.is_some();
        for port in &mut state.ports {
            if !wanted {
                port.vlans = None;
            } else if all || port.vlans.is_none() {
                port.vlans = match vlan::vlans(&mut self.route, port.index) {
                    Ok(vlans) => Some(Arc::new(vlans)),
                    // It has left, which is announced.
                    Err(error) if is(&error, Errno::NODEV) => None,
                    Err(error) => {
                        return Err(Error::io(reading("the VLANs", &port.name), error));
                    }
                };
            }
        }
        Ok(())
    }

    /// Reads one device again. None: it is no port of this bridge.
    pub(crate) fn look_at_port(&mut self, bridge: &Bridge, index: u32) -> Result<Option<Port>> {
        let mut read = || {
            let link = link::link(&mut self.route, Which::Index(index))?;
            match link.master == Some(bridge.index) {
                true => self.port(link, bridge.vlans.is_some()),
                false => Ok(None),
            }
        };
        match read() {
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            read => read.context(format_args!("reading device {index}")),
        }
    }

    /// Reads again which devices have queue disciplines that hold filters.
    pub(crate) fn read_queues(&mut self) -> Result<()> {
        self.holders =
            tc::filter_holders(&mut self.route).context("reading the queue disciplines")?;
        Ok(())
    }

    /// Reads again what changes without a notification, where it costs little: the bridge itself
    /// with the settings of `br_netfilter`, packet sockets, tcx programs, netfilter's hooks, and
    /// VLANs that have spanning trees of their own. What the peers have is not among it.
    pub(crate) fn glance(&mut self, state: &mut State) -> Result<()> {
        let link = self.bridge_at(state.bridge.index)?;
        let read = || {
            state.bridge = bridge_of(link, proc::calls()?);
            for port in &mut state.ports {
                match tcx::programs(port.index, Hook::Ingress) {
                    Ok(programs) => port.tcx_ingress = programs,
                    // It has left, which is announced.
                    Err(error) if is(&error, Errno::NODEV) => continue,
                    Err(error) => return Err(error),
                }
                port.tcx_egress = tcx::programs(port.index, Hook::Egress)?;
            }
            state.taps = taps(&state.ports)?;
            state.netfilter = self.netfilter(&state.ports)?;
            Ok(())
        };
        read().context("looking for what is not announced")?;
        self.follow_vlans(state, state.bridge.mst)
    }

    /// How many packets a device has received; none if it is gone.
    pub(crate) fn received(&mut self, index: u32) -> Result<Option<u64>> {
        match link::received(&mut self.route, index) {
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            packets => {
                packets.map(Some).context(format_args!("reading the counters of device {index}"))
            }
        }
    }

    /// The whole forwarding table of a bridge.
    ///
    /// An entry that is removed while the kernel writes the table down can hide another one:
    /// where that matters, read again after a removal.
    pub(crate) fn stations(&mut self, bridge_index: u32) -> Result<Vec<Entry>> {
        neighbour::stations(&mut self.route, bridge_index).context("reading the forwarding table")
    }

    /// What the kernel has for an address in a VLAN.
    pub(crate) fn station(&mut self, bridge_index: u32, key: Key) -> Result<Option<Entry>> {
        neighbour::station(&mut self.route, bridge_index, key)
            .context(format_args!("looking up {key}"))
    }

    /// Has questions answered, or fail. For tests.
    #[cfg(test)]
    pub(crate) fn is_answered(&mut self, answered: bool) {
        // Nobody listens there.
        let protocol =
            if answered { NETLINK_ROUTE } else { netlink_sys::protocols::NETLINK_USERSOCK };
        self.route = Socket::open(protocol).and_then(Socket::strict).expect("a socket");
    }

    fn bridge(&mut self, name: &str) -> Result<Link> {
        let link = match link::link(&mut self.route, Which::Name(name)) {
            Ok(link) => link,
            // Longer names than a device can have are refused in other words.
            Err(error) if is(&error, Errno::NODEV) || name.is_empty() || name.len() > 15 => {
                let message = format!("no such device: '{name}' ({})", self.meant()?);
                return Err(Error::new(ErrorKind::NoDevice, message));
            }
            Err(error) => return Err(Error::io(format!("reading '{name}'"), error)),
        };
        if link.kind == Some(InfoKind::Bridge) {
            return Ok(link);
        }
        let master = link.master.filter(|_| link.port.is_some());
        let name_of = |index| link::link(&mut self.route, Which::Index(index)).ok();
        let master = master.and_then(name_of).map(|link| link.name);
        let message = match master {
            Some(bridge) => format!("'{name}' is a port of '{bridge}'; give the bridge"),
            None => {
                let own = || "device of its own".to_owned();
                let kind = link.kind.map_or_else(own, |kind| kind.to_string());
                format!("'{name}' is not a bridge; it is a {kind} ({})", self.meant()?)
            }
        };
        Err(Error::new(ErrorKind::NotABridge, message))
    }

    fn bridge_at(&mut self, index: u32) -> Result<Link> {
        match link::link(&mut self.route, Which::Index(index)) {
            Ok(link) if link.kind == Some(InfoKind::Bridge) => Ok(link),
            Err(error) if !is(&error, Errno::NODEV) => Err(Error::io("reading the bridge", error)),
            _ => Err(Error::new(ErrorKind::NoDevice, "the bridge was removed")),
        }
    }

    /// The bridges that could have been meant.
    fn meant(&mut self) -> Result<String> {
        let names: Vec<String> = self.bridges()?.into_iter().map(|(_, name)| name).collect();
        let none = "there are no bridges here".to_owned();
        Ok(if names.is_empty() { none } else { format!("bridges here: {}", names.join(", ")) })
    }

    /// None for what is no port of a bridge. `vlans` is whether the bridge looks at them.
    fn port(&mut self, link: Link, vlans: bool) -> io::Result<Option<Port>> {
        let Some(settings) = &link.port else { return Ok(None) };
        let index = link.index;
        let holder = self.holders.get(&index).copied();
        let vlans = vlans.then(|| vlan::vlans(&mut self.route, index).map(Arc::new)).transpose()?;
        Ok(Some(Port {
            number: settings.number,
            running: link.up && link.carrier,
            ethernet: link.ethernet,
            mtu: link.mtu,
            gso: link.gso,
            stp: settings.stp,
            flags: settings.flags,
            switch: link.switch,
            // `noop` stands in until a device comes up, and is nothing that anybody set.
            noqueue: matches!(link.qdisc.as_deref(), None | Some("noqueue" | "noop")),
            ingress_filters: holder.is_some()
                && tc::has_filters(&mut self.route, index, TcHandle::MIN_INGRESS)?,
            egress_filters: holder == Some(FilterHolder::Clsact)
                && tc::has_filters(&mut self.route, index, TcHandle::MIN_EGRESS)?,
            xdp: link.xdp.unwrap_or(Xdp::None),
            tcx_ingress: tcx::programs(index, Hook::Ingress)?,
            tcx_egress: tcx::programs(index, Hook::Egress)?,
            takes_unfinished: ethtool::takes_unfinished(&mut self.generic, self.ethtool, index)?,
            peer: self.peer(&link),
            refused: None,
            unseen: false,
            vlans,
            no_vlan_room: false,
            index,
            name: link.name,
        }))
    }

    fn peer(&mut self, port: &Link) -> Option<Peer> {
        let index = port.link.filter(|_| port.kind == Some(InfoKind::Veth))?;
        let which = match port.link_namespace {
            None => Which::Index(index),
            Some(namespace) => Which::Elsewhere(index, namespace),
        };
        // Without the right to look there, or the moment that it goes, nothing is known of it.
        let peer = link::link(&mut self.route, which).ok();
        let peer =
            peer.filter(|peer| peer.kind == Some(InfoKind::Veth) && peer.link == Some(port.index));
        let details = peer.and_then(|peer| {
            let xdp = peer.xdp.unwrap_or(Xdp::None);
            Some(PeerDetails { mac: peer.mac?, up: peer.up, mtu: peer.mtu, xdp })
        });
        Some(Peer { index, here: port.link_namespace.is_none(), details })
    }

    fn netfilter(&mut self, ports: &[Port]) -> io::Result<Netfilter> {
        let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        match &mut self.netfilter {
            Some(hooks) => hooks.read(&names),
            None => Ok(Netfilter::default()),
        }
    }
}

fn reading(what: &str, bridge: &str) -> String {
    format!("reading {what} of '{bridge}'")
}

/// The packet sockets that watch one of the ports, or all devices.
fn taps(ports: &[Port]) -> io::Result<Vec<u32>> {
    let mut taps = proc::taps()?;
    taps.retain(|tap| *tap == 0 || ports.iter().any(|port| port.index == *tap));
    taps.sort_unstable();
    taps.dedup();
    Ok(taps)
}
