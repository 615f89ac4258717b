//! What only `/proc` tells. Its files under `net` are those of the calling thread's namespace.

use std::{fs, io};

use crate::state::Calls;

/// Where `br_netfilter` says whether it hands frames to the tables of IPv4, of IPv6 and of ARP, for
/// all bridges.
pub(crate) const CALLS: [&str; 3] = [
    "/proc/sys/net/bridge/bridge-nf-call-iptables",
    "/proc/sys/net/bridge/bridge-nf-call-ip6tables",
    "/proc/sys/net/bridge/bridge-nf-call-arptables",
];

/// What `br_netfilter` does for all bridges; none where it is not there.
pub(super) fn calls() -> io::Result<Option<Calls>> {
    let [iptables, ip6tables, arptables] = CALLS.map(switch);
    let (iptables, ip6tables, arptables) = (iptables?, ip6tables?, arptables?);
    Ok(iptables.map(|iptables| Calls {
        iptables,
        ip6tables: ip6tables == Some(true),
        arptables: arptables == Some(true),
    }))
}

fn switch(path: &str) -> io::Result<Option<bool>> {
    let text = read(path)?;
    Ok(text.map(|text| text.trim() != "0"))
}

/// The devices of the packet sockets that see packets of every protocol; 0: all devices. Those of
/// one protocol get what is left after the bridge, which is nothing.
pub(super) fn taps() -> io::Result<Vec<u32>> {
    let text = read("/proc/thread-self/net/packet")?.unwrap_or_default();
    Ok(text.lines().skip(1).filter_map(tap).collect())
}

/// One line: address, reference count, type, protocol, device, running …
fn tap(line: &str) -> Option<u32> {
    const ETH_P_ALL: u32 = 3;
    let mut fields = line.split_whitespace().skip(3);
    let protocol = u32::from_str_radix(fields.next()?, 16).ok()?;
    let index = fields.next()?.parse().ok()?;
    let running = fields.next()? != "0";
    (protocol == ETH_P_ALL && running).then_some(index)
}

/// The kernel modules that are loaded.
pub(super) fn modules() -> io::Result<Vec<String>> {
    let text = read("/proc/modules")?.unwrap_or_default();
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// None if there is no such file.
fn read(path: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sockets_of_one_protocol_or_at_rest_are_no_taps() {
        let all = "00000000b0a1 3      3    0003   7     1 0      0      12345";
        let arp = "00000000b0a1 3      3    0806   7     1 0      0      12345";
        let at_rest = "00000000b0a1 3      3    0003   7     0 0      0      12345";
        assert_eq!(tap(all), Some(7));
        assert_eq!((tap(arp), tap(at_rest), tap("")), (None, None, None));
    }
}
