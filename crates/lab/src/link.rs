//! Links between hosts: veth pairs with addresses.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use crate::{Error, Host, Mac, Result};

/// How a link is made. The default is a plain veth pair on a subnet that the lab chooses.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The addresses' subnet; none lets the lab choose one that no other link of it has.
    pub subnet: Option<Subnet>,
    /// Turns segmentation and receive offloads (TSO, GSO, GRO) and checksum offload off at both
    /// ends, so that the receiver sees packets as a wire carries them: of its size, and with
    /// their checksums filled in.
    pub wire_like: bool,
    /// Largest packet in bytes, 1280 to 65535.
    pub mtu: u16,
    /// Receive and transmit queues of each end, 1 to 4096.
    pub queues: u32,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self { subnet: None, wire_like: false, mtu: 1500, queues: 1 }
    }
}

/// A link's addresses: an IPv4 /24 and an IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The first three bytes of the IPv4 addresses.
    pub v4: [u8; 3],
    /// The first four groups of the IPv6 addresses.
    pub v6: [u16; 4],
}

/// A veth pair between two hosts.
#[derive(Clone, Debug)]
pub struct Link {
    /// The end at the first host.
    pub a: End,
    /// The end at the second host.
    pub b: End,
}

/// One end of a link: a device of a host and its addresses.
#[derive(Clone, Debug)]
pub struct End {
    /// The host that the device is in.
    pub host: Host,
    /// The device's name.
    pub device: String,
    /// Its hardware address.
    pub mac: Mac,
    /// Its IPv4 address, of a /24.
    pub v4: Ipv4Addr,
    /// Its IPv6 address, of a /64. Not set on a kernel without IPv6.
    pub v6: Ipv6Addr,
}

/// Packets and bytes that a device has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes received, link headers included.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Bytes sent, link headers included.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets to send that were dropped.
    pub tx_dropped: u64,
}

impl Subnet {
    /// The subnet of a lab's `number`th link.
    pub(crate) fn numbered(number: u8) -> Self {
        Self { v4: [10, 83, number], v6: [0xfd83, 0x6361, 0x6c61, u16::from(number)] }
    }

    /// The IPv4 address with this last byte.
    pub fn v4(&self, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.v4;
        Ipv4Addr::new(a, b, c, host)
    }

    /// The IPv6 address with this last group.
    pub fn v6(&self, host: u8) -> Ipv6Addr {
        let [a, b, c, d] = self.v6;
        Ipv6Addr::new(a, b, c, d, 0, 0, 0, u16::from(host))
    }
}

impl End {
    /// The IPv4 address with a port.
    pub fn socket(&self, port: u16) -> SocketAddr {
        (self.v4, port).into()
    }

    /// The IPv6 address with a port.
    pub fn socket_v6(&self, port: u16) -> SocketAddr {
        (self.v6, port).into()
    }

    /// What the device has counted since it was made.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the host cannot be read.
    pub fn counters(&self) -> Result<DeviceCounters> {
        let path = "/proc/thread-self/net/dev";
        let text = self.host.run(|| std::fs::read_to_string(path))?;
        let text = text.map_err(|error| Error::io(path, error))?;
        device_counters(&text, &self.device)
            .ok_or_else(|| Error::invalid(format!("{}: no device {}", self.host, self.device)))
    }
}

/// A hardware address of the locally administered range, the same in each run: the link's
/// number, which side of the link, and the host's number.
pub(crate) fn mac(link: u8, side: u8, number: u8) -> Mac {
    Mac([0x02, 0x63, 0x6c, link, side, number])
}

/// One end of a pair that is to be made.
pub(crate) struct PlannedEnd<'a> {
    pub(crate) host: &'a Host,
    pub(crate) device: String,
    pub(crate) mac: Mac,
    /// The last byte of its addresses; none for a device without addresses.
    pub(crate) number: Option<u8>,
}

/// Makes a veth pair inside the two namespaces, never by way of the machine's own.
pub(crate) fn pair(
    a: &PlannedEnd<'_>,
    b: &PlannedEnd<'_>,
    subnet: Subnet,
    options: &LinkOptions,
) -> Result<()> {
    check(options)?;
    a.host.refuse_here("a link")?;
    b.host.refuse_here("a link")?;
    let peer = b.host.namespace_path().unwrap_or_default();
    let (mtu, queues) = (options.mtu.to_string(), options.queues.to_string());
    let (mac_a, mac_b) = (a.mac.to_string(), b.mac.to_string());
    let common = ["mtu", &mtu, "numrxqueues", &queues, "numtxqueues", &queues];
    let add = a.host.command("ip").args(["link", "add", &a.device, "address", &mac_a]);
    let add = add.args(common).args(["type", "veth", "peer", "name", &b.device]);
    let add = add.args(["address", &mac_b]).args(common).arg("netns").arg(peer);
    add.run()?;
    for end in [a, b] {
        if options.wire_like {
            wire_like(end.host, &end.device)?;
        }
        if let Some(number) = end.number {
            address(end.host, &end.device, subnet, number)?;
        }
        end.host.ip(["link", "set", &end.device, "up"])?;
    }
    Ok(())
}

/// Gives a device its IPv4 and IPv6 address, the latter usable at once.
pub(crate) fn address(host: &Host, device: &str, subnet: Subnet, number: u8) -> Result<()> {
    host.ip(["address", "add", &format!("{}/24", subnet.v4(number)), "dev", device])?;
    if Path::new("/proc/sys/net/ipv6").exists() {
        let v6 = format!("{}/64", subnet.v6(number));
        host.ip(["address", "add", &v6, "dev", device, "nodad"])?;
    }
    Ok(())
}

fn wire_like(host: &Host, device: &str) -> Result<()> {
    let features = ["tso", "off", "gso", "off", "gro", "off", "tx", "off"];
    host.command("ethtool").args(["-K", device]).args(features).run().map(drop)
}

fn check(options: &LinkOptions) -> Result<()> {
    if options.mtu < 1280 {
        return Err(Error::invalid(format!("mtu {}: expected 1280 to 65535", options.mtu)));
    }
    if !(1..=4096).contains(&options.queues) {
        return Err(Error::invalid(format!("{} queues: expected 1 to 4096", options.queues)));
    }
    Ok(())
}

/// Finds a device in the text of `/proc/net/dev`.
fn device_counters(text: &str, device: &str) -> Option<DeviceCounters> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |index: usize| fields.get(index).copied();
    Some(DeviceCounters {
        rx_bytes: field(0)?,
        rx_packets: field(1)?,
        rx_dropped: field(3)?,
        tx_bytes: field(8)?,
        tx_packets: field(9)?,
        tx_dropped: field(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_counters_are_found_by_the_whole_name() {
        let text = "Inter-|   Receive\n face |bytes\n\
                    \x20 eth10: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    \x20  eth1: 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36\n";
        let counters = device_counters(text, "eth1").expect("eth1 is there");
        assert_eq!((counters.rx_bytes, counters.rx_packets, counters.rx_dropped), (21, 22, 24));
        assert_eq!((counters.tx_bytes, counters.tx_packets, counters.tx_dropped), (29, 30, 32));
        assert_eq!(device_counters(text, "eth2"), None);
    }
}
