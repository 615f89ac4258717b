//! `net/snmp`, `net/snmp6` and `net/netstat`: what the protocols of this network namespace counted.

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::spec::Named;
use crate::value::{Nature, Part};
use crate::{Error, ErrorKind, Result, Value};

const IPV4: &str = "/proc/thread-self/net/snmp";
const IPV6: &str = "/proc/thread-self/net/snmp6";
const MORE: &str = "/proc/thread-self/net/netstat";

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let lacking = "the kernel has no IPv4";
    let mut files = vec![Kept::open(IPV4, lacking)?, Kept::open(MORE, lacking)?];
    match Kept::open(IPV6, "the kernel has no IPv6") {
        Err(error) if error.kind() == ErrorKind::Absent => {}
        ipv6 => files.push(ipv6?),
    }
    Text::new(files, names, |name| {
        let wanted: &[(usize, &str, &str)] = match name.known.name {
            "tcp.segments" => &[(0, "Tcp", "InSegs"), (0, "Tcp", "OutSegs")],
            "tcp.retransmits" => &[(0, "Tcp", "RetransSegs")],
            "tcp.resets" => &[(0, "Tcp", "EstabResets")],
            "tcp.timeouts" => &[(1, "TcpExt", "TCPTimeouts")],
            "tcp.listen_drops" => &[(1, "TcpExt", "ListenDrops")],
            _ => &[(0, "Udp", "RcvbufErrors"), (2, "", "Udp6RcvbufErrors")],
        };
        Ok(Box::new(move |files| {
            let parts = wanted.iter().filter_map(|&(file, protocol, field)| {
                let file = files.get(file)?;
                Some(file.text().and_then(|text| part(&file.path, text, protocol, field)))
            });
            parts.collect::<Result<_>>().map(Value::Total)
        }))
    })
}

fn part(path: &str, text: &str, protocol: &str, field: &str) -> Result<Part> {
    let value = match protocol {
        "" => lone(text, field),
        _ => paired(text, protocol, field),
    };
    let value = value.ok_or_else(|| -> Error { unexpected(path, field) })?;
    Ok(Part { of: field.into(), value, nature: Nature::Fixed })
}

/// A field of a line with names, which a line with their values follows.
fn paired(text: &str, protocol: &str, field: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    let column = lines.next()?.split_ascii_whitespace().position(|name| name == field)?;
    lines.next()?.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// A field with a line of its own.
fn lone(text: &str, field: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(field)?.trim_start().parse().ok())
}

#[test]
fn fields_are_found_by_their_names() {
    // Of Linux 6.1 and 6.12: later kernels have more fields between.
    for (more, value) in [("", ""), (" MemErrors", " 0")] {
        let text = format!(
            "Tcp: RtoAlgorithm MaxConn EstabResets InSegs OutSegs RetransSegs InErrs\n\
             Tcp: 1 -1 7 3509 2035 12 0\n\
             Udp: InDatagrams NoPorts InErrors{more} RcvbufErrors\nUdp: 53 0 0{value} 9\n\
             UdpLite: InDatagrams NoPorts InErrors RcvbufErrors\nUdpLite: 0 0 0 77\n"
        );
        assert_eq!(paired(&text, "Tcp", "RetransSegs"), Some(12.0));
        assert_eq!(paired(&text, "Udp", "RcvbufErrors"), Some(9.0));
        assert_eq!(paired(&text, "Tcp", "Nothing"), None);
    }
    let text = "Udp6InErrors                    \t4\nUdp6RcvbufErrors                \t5\n";
    assert_eq!(lone(text, "Udp6RcvbufErrors"), Some(5.0));
    let error = part("/a/file", text, "", "Udp6Other").unwrap_err().to_string();
    assert!(error.contains("/a/file") && error.contains("Udp6Other"), "{error}");
}
