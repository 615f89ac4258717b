//! Hosts behind a Linux bridge.

use std::{path::Path, time::Duration};

use crate::{
    Error, Host, Result,
    link::{End, LinkOptions, Subnet, pair},
};

const DEVICE: &str = "br0";
/// The last byte of the bridge's own addresses.
const OWN_NUMBER: u8 = 254;

/// How a bridge is made.
#[derive(Clone, Debug)]
pub struct BridgeOptions {
    /// How each member is joined to it.
    pub link: LinkOptions,
    /// How long an address that is not seen stays known; the kernel's default is 300 s. Zero
    /// makes the bridge learn nothing.
    pub ageing: Duration,
    /// No IP addresses anywhere and no IPv6 in any of its hosts: nothing is sent but what is
    /// asked for, and the forwarding table holds nothing but the ports' own addresses.
    pub quiet: bool,
}

impl Default for BridgeOptions {
    fn default() -> Self {
        let ageing = Duration::from_secs(300);
        Self { link: LinkOptions::default(), ageing, quiet: false }
    }
}

/// A Linux bridge in a host of its own, without STP, and the hosts joined to it.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// The bridge itself: its host, `br0`, and its addresses.
    pub own: End,
    /// The names of its ports, in the order of `members`.
    pub ports: Vec<String>,
    /// The members' ends, in the order given.
    pub members: Vec<End>,
}

impl Bridge {
    pub(crate) fn new(
        host: Host,
        members: &[&Host],
        subnet: Subnet,
        options: &BridgeOptions,
    ) -> Result<Self> {
        if members.is_empty() || members.len() > 250 {
            return Err(Error::invalid(format!("{} members: expected 1 to 250", members.len())));
        }
        if options.quiet {
            [&host].iter().chain(members).try_for_each(|host| without_ipv6(host))?;
        }
        let own = subnet.end(&host, DEVICE.into(), 1, OWN_NUMBER);
        add_bridge(&own, options)?;
        if !options.quiet {
            own.set_addresses()?;
        }
        own.set_up()?;
        let (mut ports, mut ends) = (Vec::new(), Vec::new());
        for (number, member) in (1u8..).zip(members) {
            let there = subnet.end(member, member.next_device(), 0, number);
            let port = subnet.end(&host, format!("p{}", number - 1), 1, number);
            pair(&there, &port, &options.link)?;
            if !options.quiet {
                there.set_addresses()?;
            }
            there.set_up()?;
            port.set_up()?;
            host.ip(["link", "set", &port.device, "master", DEVICE])?;
            ports.push(port.device);
            ends.push(there);
        }
        Ok(Self { own, ports, members: ends })
    }
}

fn without_ipv6(host: &Host) -> Result<()> {
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return Ok(());
    }
    // Of the devices that are there, and of those to come.
    ["all", "default"].iter().try_for_each(|devices| {
        host.set_sysctl(&format!("net.ipv6.conf.{devices}.disable_ipv6"), "1")
    })
}

fn add_bridge(own: &End, options: &BridgeOptions) -> Result<()> {
    // The kernel counts it in hundredths of a second.
    let ageing = (options.ageing.as_millis() / 10).to_string();
    let (mac, mtu) = (own.mac.to_string(), options.link.mtu.to_string());
    let device = ["link", "add", DEVICE, "address", &mac, "mtu", &mtu, "type", "bridge"];
    own.host.ip([&device[..], &["stp_state", "0", "ageing_time", &ageing]].concat()).map(drop)
}
