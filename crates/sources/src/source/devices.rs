//! `net/dev`: what the network devices of this namespace counted.
//!
//! A packet passes several devices: a bond and its members, a bridge and its ports, a VLAN and what
//! it is on. So that it is counted once, only the devices with hardware count, physical or virtual;
//! in a namespace that has none, the ends of links that lead out of it: veth, netkit, macvlan and
//! ipvlan. Which those are is decided when the source is opened.

use std::io;

use kit::netlink::{Socket, find, find_after, string};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::error::Context as _;
use crate::spec::Named;
use crate::value::{Nature, Part};
use crate::{Error, ErrorKind, Result, Value};

const PATH: &str = "/proc/thread-self/net/dev";

/// The columns after a device's name.
const RECEIVED: Columns = Columns { bytes: 0, packets: 1, drops: 3 };
const SENT: Columns = Columns { bytes: 8, packets: 9, drops: 11 };

struct Columns {
    bytes: usize,
    packets: usize,
    drops: usize,
}

/// Of linux/rtnetlink.h, linux/if_link.h and linux/if_arp.h.
mod kernel {
    pub(super) const RTM_GETLINK: u16 = 18;
    /// `struct ifinfomsg`.
    pub(super) const HEADER: usize = 16;
    pub(super) const IFLA_IFNAME: u16 = 3;
    pub(super) const IFLA_LINKINFO: u16 = 18;
    pub(super) const IFLA_INFO_KIND: u16 = 1;
    pub(super) const ARPHRD_LOOPBACK: u16 = 772;
}

/// A device of the namespace.
#[derive(Debug)]
struct Device {
    name: String,
    loopback: bool,
    /// Such as `veth`; none where there is hardware.
    kind: Option<String>,
}

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let file = Kept::open(PATH, "the kernel has no network")?;
    let there = devices().context("cannot ask for the network devices")?;
    Text::new(vec![file], names, |name| {
        let devices = chosen(name, &there)?;
        let columns = match name.known.name {
            "net.bytes" => [RECEIVED.bytes, SENT.bytes],
            "net.packets" => [RECEIVED.packets, SENT.packets],
            _ => [RECEIVED.drops, SENT.drops],
        };
        Ok(Box::new(move |files| counted(files[0].text()?, &devices, columns)))
    })
}

/// The devices that a name is of.
fn chosen(name: &Named, there: &[Device]) -> Result<Vec<String>> {
    let listed = || {
        let names: Vec<&str> = there.iter().map(|device| device.name.as_str()).collect();
        names.join(", ")
    };
    if let Some(wanted) = &name.of {
        if there.iter().any(|device| device.name == *wanted) {
            return Ok(vec![wanted.clone()]);
        }
        let message = format!("{name}: there is no device {wanted} (there are: {})", listed());
        return Err(Error::new(ErrorKind::Unknown, message));
    }
    let found = once(there);
    if found.is_empty() {
        let message = format!(
            "{name}: no device here leads anywhere; name one, as in {}@lo (there are: {})",
            name.known.name,
            listed()
        );
        return Err(Error::new(ErrorKind::Absent, message));
    }
    Ok(found)
}

/// The devices that see each packet once.
fn once(there: &[Device]) -> Vec<String> {
    let of = |wanted: fn(&Device) -> bool| -> Vec<String> {
        there.iter().filter(|device| wanted(device)).map(|device| device.name.clone()).collect()
    };
    let hardware = of(|device| device.kind.is_none() && !device.loopback);
    if !hardware.is_empty() {
        return hardware;
    }
    of(|device| {
        let kind = device.kind.as_deref();
        kind.is_some_and(|kind| ["veth", "netkit", "macvlan", "ipvlan"].contains(&kind))
    })
}

fn devices() -> io::Result<Vec<Device>> {
    Socket::open(NETLINK_ROUTE)?.dump(kernel::RTM_GETLINK, &[0; kernel::HEADER], |message| {
        let attribute = |kind| find_after(kernel::HEADER, message, kind);
        let device_type = message.get(2..4).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = attribute(kernel::IFLA_LINKINFO)
            .and_then(|info| find(info, kernel::IFLA_INFO_KIND))
            .map(string);
        let loopback = device_type == Some(kernel::ARPHRD_LOOPBACK);
        let name = attribute(kernel::IFLA_IFNAME).map(string);
        Ok(name.map(|name| Device { name, loopback, kind }))
    })
}

/// A part for each device that is still there.
fn counted(text: &str, devices: &[String], columns: [usize; 2]) -> Result<Value> {
    let mut parts = Vec::new();
    for line in text.lines() {
        let Some((name, figures)) = line.rsplit_once(": ").or_else(|| line.rsplit_once(':')) else {
            continue;
        };
        let name = name.trim();
        if !devices.iter().any(|device| device == name) {
            continue;
        }
        let figures: Vec<&str> = figures.split_ascii_whitespace().collect();
        let figure = |column: usize| figures.get(column)?.parse::<f64>().ok();
        let [Some(received), Some(sent)] = columns.map(figure) else {
            return Err(unexpected(PATH, "twelve figures for each device"));
        };
        parts.push(Part { of: name.into(), value: received + sent, nature: Nature::Fixed });
    }
    // A device that went between two readings shows by its part; one that went before, here.
    match devices.iter().find(|device| !parts.iter().any(|part| part.of == **device)) {
        Some(gone) => Err(Error::void(format!("network device {gone} is gone"))),
        None => Ok(Value::Total(parts)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Linux 6.18, with a name that has a colon in it.
    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1000      10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
  eth0:20000     200    1    3    0     0          0         0    40000     400    2    5    0     0       0          0
 wan:1: 7       8    0    0    0     0          0         0    9      10    0    0    0     0       0          0
";

    #[test]
    fn both_directions_of_the_chosen_devices_count() {
        let counted = |devices: &[&str], columns| {
            let devices: Vec<String> = devices.iter().map(|name| (*name).into()).collect();
            match counted(TEXT, &devices, columns) {
                Ok(Value::Total(parts)) => Ok(parts.iter().map(|part| part.value).sum::<f64>()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        assert_eq!(counted(&["eth0"], [RECEIVED.packets, SENT.packets]), Ok(600.0));
        assert_eq!(counted(&["eth0", "lo"], [RECEIVED.bytes, SENT.bytes]), Ok(62_000.0));
        assert_eq!(counted(&["eth0"], [RECEIVED.drops, SENT.drops]), Ok(8.0));
        assert_eq!(counted(&["wan:1"], [RECEIVED.packets, SENT.packets]), Ok(18.0));
        let gone = counted(&["eth0", "eth1"], [0, 8]).unwrap_err();
        assert!(gone.contains("eth1 is gone"), "{gone}");
    }

    #[test]
    fn a_packet_is_counted_once() {
        let device = |(name, kind): &(&str, &str)| Device {
            name: (*name).into(),
            loopback: *name == "lo",
            kind: (!kind.is_empty()).then(|| (*kind).into()),
        };
        for (there, expected) in [
            (
                &[("lo", ""), ("eth0", ""), ("eth1", ""), ("bond0", "bond"), ("v1", "vlan")][..],
                "eth0 eth1",
            ),
            (&[("lo", ""), ("eth0", ""), ("br0", "bridge"), ("veth1", "veth")], "eth0"),
            (&[("lo", ""), ("eth0", "veth"), ("br0", "bridge"), ("d", "dummy")], "eth0"),
            (&[("lo", ""), ("br0", "bridge")], ""),
        ] {
            let there: Vec<Device> = there.iter().map(device).collect();
            assert_eq!(once(&there).join(" "), expected, "{there:?}");
        }
    }
}
