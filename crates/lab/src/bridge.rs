//! Hosts behind a Linux bridge.

use std::{path::Path, time::Duration};

use crate::{
    Error, Host, Mac, Result,
    link::{End, LinkOptions, PlannedEnd, Subnet, address, pair},
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
        let own_mac = subnet.mac(1, OWN_NUMBER);
        add_bridge(&host, own_mac, options)?;
        if !options.quiet {
            address(&host, DEVICE, subnet, OWN_NUMBER)?;
        }
        host.ip(["link", "set", DEVICE, "up"])?;
        let mut ports = Vec::new();
        let mut ends = Vec::new();
        for (number, member) in (1u8..).zip(members) {
            let device = member.next_device();
            let port = format!("p{}", number - 1);
            let addressed = (!options.quiet).then_some(number);
            let there =
                PlannedEnd { host: member, device, mac: subnet.mac(0, number), number: addressed };
            let here =
                PlannedEnd { host: &host, device: port, mac: subnet.mac(1, number), number: None };
            pair(&there, &here, subnet, &options.link)?;
            host.ip(["link", "set", &here.device, "master", DEVICE])?;
            ports.push(here.device);
            ends.push(End {
                host: (*member).clone(),
                device: there.device,
                mac: there.mac,
                v4: subnet.v4(number),
                v6: subnet.v6(number),
            });
        }
        let own = End {
            host,
            device: DEVICE.into(),
            mac: own_mac,
            v4: subnet.v4(OWN_NUMBER),
            v6: subnet.v6(OWN_NUMBER),
        };
        Ok(Self { own, ports, members: ends })
    }

    /// The bridge's forwarding table, as `bridge fdb show` prints it.
    ///
    /// # Errors
    /// As [`Command::run`](crate::Command::run).
    pub fn fdb(&self) -> Result<String> {
        self.own.host.command("bridge").args(["fdb", "show", "br", DEVICE]).run()
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

fn add_bridge(host: &Host, mac: Mac, options: &BridgeOptions) -> Result<()> {
    // The kernel counts it in hundredths of a second.
    let ageing = (options.ageing.as_millis() / 10).to_string();
    let (mac, mtu) = (mac.to_string(), options.link.mtu.to_string());
    let device = ["link", "add", DEVICE, "address", &mac, "mtu", &mtu, "type", "bridge"];
    host.ip([&device[..], &["stp_state", "0", "ageing_time", &ageing]].concat()).map(drop)
}
