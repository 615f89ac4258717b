//! Network devices: whether there is one of a name, and what an AF_XDP socket has to know of it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::{fmt, io};

use kit::netlink::{Socket, emitted};
use netlink_packet_core::Parseable as _;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::{Error, ErrorKind, Result};

/// A network device of the namespace that the caller is in. It is found again by its index, so
/// that a device that is renamed stays the same.
///
/// Each question asks the kernel, and fails with [`ErrorKind::NoDevice`] once the device is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    name: String,
    index: u32,
}

impl Device {
    /// The device of this name.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] if there is none.
    pub fn find(name: &str) -> Result<Self> {
        let missing = || {
            let message = format!("no device '{name}' here (`ip -br link` lists them)");
            Error::new(ErrorKind::NoDevice, message)
        };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(missing());
        }
        match any_socket().and_then(|socket| netdevice::name_to_index(&socket, name)) {
            Ok(index) => Ok(Self { name: name.into(), index }),
            Err(Errno::NODEV) => Err(missing()),
            Err(error) => Err(Error::io(format!("cannot look for the device '{name}'"), error)),
        }
    }

    /// The same device by the name that it has now.
    pub fn renamed(&self) -> Result<Self> {
        Self::at(self.index)?.ok_or_else(|| self.gone())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How many queues it has now that a socket can be bound to: the queues' numbers are below
    /// this.
    pub fn queues(&self) -> Result<u32> {
        let link = self.link()?;
        // The device's own word, where it has one, on the queues in use; else those it was made
        // with.
        let in_use = channels(self.index).ok().filter(|queues| *queues > 0);
        Ok(in_use.unwrap_or(link.queues.max(1)))
    }

    /// The largest packet in bytes that it sends or receives, without the Ethernet header.
    pub fn mtu(&self) -> Result<u32> {
        Ok(self.link()?.mtu)
    }

    /// Its hardware address; zeros for a device whose addresses are not Ethernet's.
    pub fn mac(&self) -> Result<[u8; 6]> {
        Ok(self.link()?.mac)
    }

    /// What kind of device it is, if it is one that software makes: veth, tun, bridge.
    pub fn kind(&self) -> Result<Option<String>> {
        Ok(self.link()?.kind)
    }

    /// The driver's name, if it says one; None if that cannot be found out.
    pub(crate) fn driver(&self) -> Option<String> {
        match driver(self.index) {
            Ok(name) => Some(name),
            // A device without a driver to ask: software.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Some(String::new()),
            Err(_) => None,
        }
    }

    /// Whether it is up, as an administrator sets it.
    pub fn is_up(&self) -> Result<bool> {
        Ok(self.link()?.is_up)
    }

    /// Whether it is up and can send: it has a carrier.
    pub fn has_carrier(&self) -> Result<bool> {
        Ok(self.link()?.has_carrier)
    }

    /// The other end of a veth, if that is in the caller's network namespace.
    pub fn peer(&self) -> Result<Option<Self>> {
        let Link { kind, other, .. } = self.link()?;
        let Some(index) = other.filter(|_| kind.as_deref() == Some("veth")) else {
            return Ok(None);
        };
        Self::at(index)
    }

    /// The device of this index, if there is one.
    fn at(index: u32) -> Result<Option<Self>> {
        match any_socket().and_then(|socket| netdevice::index_to_name(&socket, index)) {
            Ok(name) => Ok(Some(Self { name, index })),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(Error::io(format!("cannot look for device {index}"), error)),
        }
    }

    fn link(&self) -> Result<Link> {
        ask(self.index).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) => self.gone(),
            _ => Error::io(format!("{self}: cannot ask for its state"), error),
        })
    }

    pub(crate) fn gone(&self) -> Error {
        let message = "the device is gone (`ip -br link` lists those that are there)";
        Error::new(ErrorKind::NoDevice, format!("{self}: {message}"))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What netlink says of a device.
#[derive(Clone, Debug, Default)]
struct Link {
    mtu: u32,
    queues: u32,
    mac: [u8; 6],
    kind: Option<String>,
    is_up: bool,
    has_carrier: bool,
    /// The device that it is on, or a veth's other end, if that is in its network namespace.
    other: Option<u32>,
}

/// Asks for one device (`RTM_GETLINK`).
fn ask(index: u32) -> io::Result<Link> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    Socket::open(NETLINK_ROUTE)?.one(libc::RTM_GETLINK, &emitted(&request), |message| {
        let link = LinkMessage::parse(message);
        Ok(read(&link.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?))
    })
}

fn read(link: &LinkMessage) -> Link {
    let has = |flag| link.header.flags.contains(flag);
    let (is_up, has_carrier) = (has(LinkFlags::Up), has(LinkFlags::LowerUp));
    let mut found = Link { is_up, has_carrier, ..Link::default() };
    let mut is_elsewhere = false;
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => found.mtu = *mtu,
            LinkAttribute::NumRxQueues(n) | LinkAttribute::NumTxQueues(n) => {
                found.queues = found.queues.max(*n);
            }
            LinkAttribute::Address(address) => {
                found.mac = address.as_slice().try_into().unwrap_or_default();
            }
            LinkAttribute::LinkInfo(infos) => {
                found.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            LinkAttribute::Link(index) => found.other = Some(*index),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            _ => (),
        }
    }
    found.other = found.other.filter(|_| !is_elsewhere);
    found
}

/// Asks the driver for the queues in use (`ETHTOOL_GCHANNELS`).
fn channels(index: u32) -> io::Result<u32> {
    /// `struct ethtool_channels` of linux/ethtool.h.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        max: [u32; 4],
        rx: u32,
        tx: u32,
        other: u32,
        combined: u32,
    }
    /// `ETHTOOL_GCHANNELS` of linux/ethtool.h.
    const GET_CHANNELS: u32 = 0x3c;

    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    // SAFETY: the command fills in this struct.
    unsafe { ethtool(index, &mut channels) }?;
    Ok(channels.rx.max(channels.tx) + channels.combined)
}

/// Asks the driver for its name (`ETHTOOL_GDRVINFO`).
fn driver(index: u32) -> io::Result<String> {
    /// `struct ethtool_drvinfo` of linux/ethtool.h.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        others: [u8; 160],
    }
    const _: () = assert!(size_of::<DriverInfo>() == 196);
    /// `ETHTOOL_GDRVINFO` of linux/ethtool.h.
    const GET_DRIVER_INFO: u32 = 0x03;

    let mut info = DriverInfo { command: GET_DRIVER_INFO, driver: [0; 32], others: [0; 160] };
    // SAFETY: the command fills in this struct.
    unsafe { ethtool(index, &mut info) }?;
    let name = info.driver.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Has a device's driver fill in a struct.
///
/// # Safety
/// `T` is the struct of the command that it begins with.
unsafe fn ethtool<T>(index: u32, value: &mut T) -> io::Result<()> {
    /// Of linux/sockios.h.
    const SIOCETHTOOL: libc::Ioctl = 0x8946;

    let socket = any_socket()?;
    let name = netdevice::index_to_name(&socket, index)?;
    // SAFETY: all zeros is a value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut *value).cast();
    // SAFETY: the request names a device and points to a struct as the caller vouches for; both
    // outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A socket to ask about devices with.
fn any_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_there() {
        let device = Device::find("lo").expect("lo");
        assert_eq!((device.name(), device.queues().expect("queues")), ("lo", 1));
        assert!(device.mtu().expect("an MTU") >= 1280);
        assert_eq!(device.mac().expect("an address"), [0; 6]);
        assert_eq!(device.kind().expect("a state"), None);
        // It has nobody to ask.
        assert_eq!(device.driver().as_deref(), Some(""));
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        for name in ["nosuch0", "", "a-name-longer-than-allowed", "a\0b"] {
            let error = Device::find(name).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::NoDevice);
            assert!(error.to_string().contains(name), "{error}");
        }
        let gone = Device { name: "gone0".into(), index: i32::MAX as u32 };
        assert_eq!(gone.mtu().expect_err("gone").kind(), ErrorKind::NoDevice);
    }
}
