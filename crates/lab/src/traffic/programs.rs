//! The BPF programs that make frames inside the kernel and count them there, and the frames.

use std::{io, net::Ipv4Addr};

use bpf::{Map, Object, Program};
use etherparse::{EtherType, Ethernet2Header, IpNumber, Ipv4Header, UdpHeader};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

use crate::{Error, Host, Mac, Result};

include!(concat!(env!("OUT_DIR"), "/generator.rs"));

/// The loaded programs, which threads may run at the same time, and their maps.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) inject: Program,
    pub(super) send_live: Program,
    pub(super) sink: Program,
    settings: Map,
    counts: Map,
}

impl Programs {
    /// Loads them with these values of `enum setting`.
    pub(super) fn load(values: &[(u32, u32)]) -> Result<Self> {
        let load = || -> io::Result<Self> {
            let object = Object::load(OBJECT)?;
            let programs = Self {
                inject: object.program("inject")?,
                send_live: object.program("send_live")?,
                sink: object.program("sink")?,
                settings: object.map("settings")?,
                counts: object.map("counts")?,
            };
            values.iter().try_for_each(|(setting, value)| programs.set(*setting, *value))?;
            Ok(programs)
        };
        load().map_err(|e| Error::io("loading the programs that make frames", e))
    }

    /// `setting` is one of `enum setting`.
    pub(super) fn set(&self, setting: u32, value: u32) -> io::Result<()> {
        self.settings.set(&setting, &value)
    }

    /// The sum over all CPUs; `count` is one of `enum count`.
    pub(super) fn read(&self, count: u32) -> Result<u64> {
        self.counts.sum(&count).map_err(|e| Error::io("reading the counts of frames", e))
    }
}

/// Runs a program so many times on a frame. A signal may cut that short.
pub(super) fn repeat(program: &Program, frame: &[u8], times: u32, flags: u32) -> Result<()> {
    match program.repeat(frame, times, flags) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => {
            Err(Error::io("making frames", error))
        }
        _ => Ok(()),
    }
}

/// The index of a host's device.
pub(crate) fn index(host: &Host, device: &str) -> Result<u32> {
    let find = || {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        name_to_index(socket, device)
    };
    host.run(find)?.map_err(|error| match error {
        rustix::io::Errno::NODEV => Error::invalid(format!("{host}: no device {device}")),
        error => Error::io(format!("{host}: {device}"), error),
    })
}

/// Ethernet, IPv4, UDP and zeros up to the size, of 42 bytes or more; from the first address to the
/// second.
pub(super) fn udp_frame(size: usize, macs: [Mac; 2], addresses: [Ipv4Addr; 2]) -> Vec<u8> {
    /// Ports on which what comes is discarded.
    const DISCARD: u16 = 9;
    let ([Mac(source), Mac(destination)], ether_type) = (macs, EtherType::IPV4);
    let ethernet = Ethernet2Header { source, destination, ether_type };
    let packet = size - Ethernet2Header::LEN - Ipv4Header::MIN_LEN;
    let [from, to] = addresses.map(|address| address.octets());
    let ip = Ipv4Header::new(packet as u16, 64, IpNumber::UDP, from, to);
    let mut ip = ip.expect("shorter than a packet may be");
    ip.header_checksum = ip.calc_header_checksum();
    // As IPv4 allows, so that ports can be changed and nothing else.
    let udp = UdpHeader::without_ipv4_checksum(DISCARD, DISCARD, packet - UdpHeader::LEN);
    let udp = udp.expect("shorter than a datagram may be");
    let mut frame = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes()].concat();
    frame.resize(size, 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_size_the_addresses_and_a_checksum() {
        let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        let addresses = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
        let frame = udp_frame(60, macs, addresses);
        let ip = [69, 0, 0, 46, 0, 0, 64, 0, 64, 17, 182, 187, 192, 0, 2, 1, 192, 0, 2, 2];
        let expected = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip].concat();
        assert_eq!((&frame[..34], &frame[34..42]), (&expected[..], &[0, 9, 0, 9, 0, 26, 0, 0][..]));
        assert_eq!(&frame[42..], [0; 18]);
    }
}
