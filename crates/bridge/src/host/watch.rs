//! Following the host's changes by netlink notifications.
//!
//! Not everything that [`State`](crate::state::State) holds is announced: sysctls, packet
//! sockets, tcx programs and XDP programs attached by a BPF link change in silence.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use kit::netlink::{Message, attributes_after, find_after, is, messages, number, receive};
use libc::{
    RTM_DELLINK, RTM_DELQDISC, RTM_DELTFILTER, RTM_NEWLINK, RTM_NEWQDISC, RTM_NEWTFILTER,
    RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_TC,
};
use netlink_packet_route::{link::LinkHeader, tc::TcHeader};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::{
    filter, neighbour,
    netfilter::{NFNL_SUBSYS_NFTABLES, NFPROTO_BRIDGE, NFPROTO_INET, NFPROTO_NETDEV},
    vlan::{self, About, RTM_DELVLAN, RTM_NEWVLAN, RTNLGRP_BRVLAN},
};
use crate::error::Context as _;
use crate::{Error, ErrorKind, Result, state::Change, state::State};

/// Room for some 15,000 changes of the forwarding table. The kernel takes the memory only while
/// they wait.
pub(crate) const ROOM: usize = 16 << 20;

/// The most notifications that are taken at a time: more than the room holds, so that all that
/// waited at a call is taken, and few enough to come to an end while a flood goes on.
const AT_A_TIME: usize = 32 << 10;

/// The longest notification that is looked at; of longer ones nothing is needed but that they
/// came.
const BUFFER: usize = 64 << 10;

const NFNLGRP_NFTABLES: u32 = 7;

const LINK_HEADER: usize = 16; // struct ifinfomsg
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINK_NETNSID: u16 = 37;

/// nft's messages about tables, chains and flow tables; what is in them does not matter.
const NFT_PLACES: [u16; 6] = [0, 2, 3, 5, 22, 24];

/// What was announced to have changed, and is to be looked at.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Settings of the bridge itself.
    pub(crate) bridge: bool,
    /// Queue disciplines or filters of ports, which are among `ports` as well.
    pub(crate) queues: bool,
    /// nft's chains and tables.
    pub(crate) hooks: bool,
    /// Nobody knows what: everything.
    pub(crate) everything: bool,
    /// Devices by index, that are ports, were, or come to be.
    pub(crate) ports: BTreeSet<u32>,
}

impl Heard {
    /// Whether something has changed that is no single port's.
    pub(crate) fn concerns_all(&self) -> bool {
        self.bridge || self.hooks || self.everything
    }

    /// Whether there is something to be looked at.
    pub(crate) fn is_something(&self) -> bool {
        self.concerns_all() || !self.ports.is_empty()
    }

    fn add(&mut self, more: Heard) {
        self.bridge |= more.bridge;
        self.queues |= more.queues;
        self.hooks |= more.hooks;
        self.everything |= more.everything;
        self.ports.extend(more.ports);
    }
}

/// Hears of a bridge's changes.
#[derive(Debug)]
pub(crate) struct Watch {
    bridge: u32,
    /// Indexes of the ports; none if all devices matter.
    ports: Option<HashSet<u32>>,
    /// Devices, forwarding tables, tc and VLANs of bridges of this namespace.
    route: netlink_sys::Socket,
    /// Devices of all namespaces that this one has met.
    links: netlink_sys::Socket,
    /// nft; none if the kernel has no netfilter.
    netfilter: Option<netlink_sys::Socket>,
    buffer: Vec<u8>,
    /// What is to be looked at; whoever looks takes it out before that.
    pub(crate) heard: Heard,
}

impl Watch {
    /// Hears of the changes of the bridge with this index from now on, with room for so many bytes
    /// of notifications in each socket. What was before has to be read after this call.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] without `CAP_NET_ADMIN`; [`ErrorKind::Io`].
    pub(crate) fn new(bridge: u32, bytes: usize) -> Result<Self> {
        let open = || -> io::Result<Self> {
            let groups = [RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_TC, RTNLGRP_BRVLAN];
            let route = subscribe(NETLINK_ROUTE, &groups, bytes)?;
            filter::only_stations_of(&route, bridge)?;
            let links = subscribe(NETLINK_ROUTE, &[RTNLGRP_LINK], bytes)?;
            links.set_listen_all_namespaces(true)?;
            let netfilter = match subscribe(NETLINK_NETFILTER, &[NFNLGRP_NFTABLES], bytes) {
                Err(error) if is(&error, Errno::PROTONOSUPPORT) => None,
                socket => Some(socket?),
            };
            Ok(Self {
                bridge,
                ports: None,
                route,
                links,
                netfilter,
                buffer: vec![0; BUFFER],
                heard: Heard::default(),
            })
        };
        open().context("subscribing to netlink notifications")
    }

    /// Takes only what this state depends on for a change from now on. Until told, every device's
    /// change counts.
    pub(crate) fn follow(&mut self, state: &State) {
        self.ports = Some(state.ports.iter().map(|port| port.index).collect());
    }

    /// What to poll for reading.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = [Some(&self.route), Some(&self.links), self.netfilter.as_ref()];
        sockets.into_iter().flatten().map(|socket| socket.as_fd()).collect()
    }

    /// Appends the changes of the forwarding table since the last call, in order, and adds to
    /// what is to be looked at. Returns whether it has added something there.
    ///
    /// # Errors
    /// [`ErrorKind::Overrun`] if notifications were lost. Nothing is left waiting then, and what
    /// was appended is worth nothing: read the state and the table again.
    pub(crate) fn drain(&mut self, changes: &mut Vec<Change>) -> Result<bool> {
        let Self { bridge, ports, route, links, netfilter, buffer, heard } = self;
        let mut new = Heard::default();
        let mut listener = Listener { bridge: *bridge, ports: ports.as_mut(), heard: &mut new };
        let mut lost = each(route, buffer, |message| match message {
            Some(message) => match neighbour::change(message.kind, message.payload, *bridge) {
                Some(change) => changes.push(change),
                None => listener.route(&message),
            },
            None => listener.heard.everything = true,
        })?;
        lost |= each(links, buffer, |message| match message {
            Some(message) => listener.elsewhere(&message),
            None => listener.heard.everything = true,
        })?;
        if let Some(netfilter) = netfilter {
            lost |= each(netfilter, buffer, |message| {
                listener.heard.hooks |= message.is_none_or(|message| is_of_hooks(&message));
            })?;
        }
        new.everything |= lost;
        let something = new.is_something();
        heard.add(new);
        match lost {
            true => Err(Error::new(ErrorKind::Overrun, "netlink notifications were lost")),
            false => Ok(something),
        }
    }
}

/// Hears that some device has come, gone or changed.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
}

impl LinkWatch {
    /// Hears of what happens from now on.
    pub(crate) fn new() -> Result<Self> {
        // What finds no room is heard as well: that there was something.
        let socket = subscribe(NETLINK_ROUTE, &[RTNLGRP_LINK], BUFFER)
            .context("subscribing to netlink notifications")?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Whether something has happened since the last call.
    pub(crate) fn heard(&mut self) -> Result<bool> {
        let mut some = false;
        let lost = each(&self.socket, &mut self.buffer, |_| some = true)?;
        Ok(some || lost)
    }
}

/// Takes down what notifications are about.
struct Listener<'a> {
    bridge: u32,
    ports: Option<&'a mut HashSet<u32>>,
    heard: &'a mut Heard,
}

impl Listener<'_> {
    fn route(&mut self, message: &Message<'_>) {
        match message.kind {
            RTM_NEWLINK | RTM_DELLINK => self.link(message.payload),
            RTM_NEWQDISC | RTM_DELQDISC | RTM_NEWTFILTER | RTM_DELTFILTER => {
                self.tc(message.payload);
            }
            RTM_NEWVLAN | RTM_DELVLAN => match vlan::about(message.payload) {
                // Which VLANs the host itself is in is nothing to us.
                Some(About::Device(index)) if index == self.bridge => {}
                Some(About::Device(index)) => self.device(index),
                Some(About::All(index)) => self.heard.everything |= index == self.bridge,
                None => {}
            },
            _ => {}
        }
    }

    /// A device of any namespace: what matters is that it may be the other end of a port. Whoever
    /// has a namespace of his own chooses the indexes there, so nothing else is taken from it.
    fn elsewhere(&mut self, message: &Message<'_>) {
        if !matches!(message.kind, RTM_NEWLINK | RTM_DELLINK) {
            return;
        }
        let find = |kind| find_after(LINK_HEADER, message.payload, kind);
        let peer = find(IFLA_LINK).filter(|_| find(IFLA_LINK_NETNSID).is_some());
        if let Some(port) = peer.and_then(number) {
            self.device(port);
        }
    }

    /// A device itself, one that joins or leaves the bridge, or one at the other end of a port.
    fn link(&mut self, message: &[u8]) {
        let Ok(header) = LinkHeader::parse(message) else {
            self.heard.everything = true;
            return;
        };
        self.device(header.index);
        for (kind, value) in attributes_after(LINK_HEADER, message) {
            match (kind, number(value)) {
                (IFLA_LINK, Some(port)) => self.device(port),
                // The bridge says of itself that it is its own.
                (IFLA_MASTER, Some(master))
                    if master == self.bridge && header.index != self.bridge =>
                {
                    self.heard.ports.insert(header.index);
                    let known =
                        self.ports.as_mut().is_some_and(|ports| !ports.insert(header.index));
                    // What was on it before it came was no port's.
                    self.heard.queues |= !known;
                }
                _ => {}
            }
        }
    }

    fn tc(&mut self, message: &[u8]) {
        match TcHeader::parse(message).map(|header| header.index.cast_unsigned()) {
            // Of filters that devices share: nobody says which.
            Ok(TcHeader::TCM_IFINDEX_MAGIC_BLOCK) | Err(_) => self.heard.everything = true,
            Ok(index) => {
                self.heard.queues |= self.is_port(index);
                self.device(index);
            }
        }
    }

    fn device(&mut self, index: u32) {
        self.heard.bridge |= index == self.bridge;
        if self.is_port(index) {
            self.heard.ports.insert(index);
        }
    }

    fn is_port(&self, index: u32) -> bool {
        index != self.bridge && self.ports.as_ref().is_none_or(|ports| ports.contains(&index))
    }
}

/// Whether nft says something about what may be hooked in where bridged packets pass.
fn is_of_hooks(message: &Message<'_>) -> bool {
    let families = [NFPROTO_INET, NFPROTO_NETDEV, NFPROTO_BRIDGE];
    let family = message.payload.first();
    message.kind & 0xff00 == NFNL_SUBSYS_NFTABLES
        && NFT_PLACES.contains(&(message.kind & 0xff))
        && family.is_none_or(|family| families.contains(family))
}

fn subscribe(protocol: isize, groups: &[u32], bytes: usize) -> io::Result<netlink_sys::Socket> {
    let mut socket = netlink_sys::Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.set_non_blocking(true)?;
    if set_socket_recv_buffer_size_force(&socket, bytes).is_err() {
        // Up to the limit of the host, then.
        socket.set_rx_buf_sz(i32::try_from(bytes).unwrap_or(i32::MAX))?;
    }
    for group in groups {
        socket.add_membership(*group)?;
    }
    Ok(socket)
}

/// Hands over what waits in a socket, none for a message that is too long. Returns whether some
/// was lost. All that waited at the call has been taken, for only then does the kernel add again.
fn each(
    socket: &netlink_sys::Socket,
    buffer: &mut [u8],
    mut handle: impl FnMut(Option<Message<'_>>),
) -> Result<bool> {
    let mut lost = false;
    for _ in 0..AT_A_TIME {
        match receive(socket, buffer) {
            Ok(length) => match buffer.get(..length) {
                Some(bytes) => messages(bytes).for_each(|message| handle(Some(message))),
                None => handle(None),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lost),
            Err(error) if is(&error, Errno::NOBUFS) => lost = true,
            Err(error) => return Err(Error::io("receiving netlink notifications", error)),
        }
    }
    Ok(lost)
}
