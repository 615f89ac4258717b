//! Links between hosts: veth pairs with addresses.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use crate::{Error, Host, Mac, Result};

/// How a link is made. The default is a plain veth pair.
#[derive(Clone, Debug)]
pub struct LinkOptions {
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
        Self { wire_like: false, mtu: 1500, queues: 1 }
    }
}

/// A link's addresses: an IPv4 /24 and an IPv6 /64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subnet {
    /// Its number among those of its lab.
    pub(crate) number: u8,
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

impl Subnet {
    /// The IPv4 address with this last byte.
    fn v4(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 83, self.number, host)
    }

    /// The IPv6 address with this last group.
    fn v6(self, host: u8) -> Ipv6Addr {
        let [number, host] = [self.number, host].map(u16::from);
        Ipv6Addr::new(0xfd83, 0x6361, 0x6c61, number, 0, 0, 0, host)
    }

    /// An end that has these addresses' last part `number`. Its hardware address, of the locally
    /// administered range, is the same in each run, and another one on each side of the link.
    pub(crate) fn end(self, host: &Host, device: String, side: u8, number: u8) -> End {
        let mac = Mac([0x02, 0x63, 0x6c, self.number, side, number]);
        End { host: host.clone(), device, mac, v4: self.v4(number), v6: self.v6(number) }
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

    /// Gives the device its IPv4 and IPv6 address, the latter usable at once.
    pub(crate) fn set_addresses(&self) -> Result<()> {
        self.host.ip(["address", "add", &format!("{}/24", self.v4), "dev", &self.device])?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            let v6 = format!("{}/64", self.v6);
            self.host.ip(["address", "add", &v6, "dev", &self.device, "nodad"])?;
        }
        Ok(())
    }

    pub(crate) fn set_up(&self) -> Result<()> {
        self.host.ip(["link", "set", &self.device, "up"]).map(drop)
    }
}

/// Makes a veth pair inside the two namespaces, never by way of the machine's own.
pub(crate) fn pair(a: &End, b: &End, options: &LinkOptions) -> Result<()> {
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
    for end in [a, b].into_iter().filter(|_| options.wire_like) {
        let features = ["tso", "off", "gso", "off", "gro", "off", "tx", "off"];
        end.host.command("ethtool").args(["-K", &end.device]).args(features).run()?;
    }
    Ok(())
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
