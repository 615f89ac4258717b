//! What stands against steering a device.

use std::fmt;

/// Why a device's flows are not steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It hands over what its peer sends as it is: packets of TCP put together, checksums not
    /// filled in. An XDP program gets neither right: bulk TCP falls to a thousandth.
    Whole {
        /// The kind of device: veth, tun.
        kind: String,
        /// The other end of a veth, if it is in this network namespace.
        peer: Option<String>,
    },
    /// Its driver runs no XDP program that redirects.
    NoNative,
    /// The kernel steers its packets too (RPS, RFS), so that they could overtake each other.
    Rps {
        /// The queues for which it does, and the file that says so.
        queues: Vec<(u32, &'static str)>,
    },
    /// Packets of several devices come as those of one: its queues' numbers are those of the
    /// devices below, each with its own, and a flow may come by any of them.
    Group {
        /// The device that receives for several: this one, or one above it.
        group: String,
        /// What it is: a bond, a team, a failover device.
        kind: String,
        /// The devices below it.
        members: Vec<String>,
    },
    /// VLAN tags are taken off before an XDP program sees the packet, by its driver or by a veth's
    /// peer, and they are lost when that redirects it.
    VlanOffload {
        /// The devices above it that tell packets apart by them.
        devices: Vec<String>,
        /// What ethtool is to turn off, after -K.
        off: String,
    },
    /// It keeps packets in GRO after a poll, so that it is not known when they are delivered.
    GroTimeout {
        /// Nanoseconds.
        timeout: u64,
    },
    /// One of its NAPI instances serves several receive queues, so that the end of a poll does not
    /// say which of them is done, nor a loss which of them it was of.
    SharedNapi {
        /// The queues of each such instance.
        queues: Vec<Vec<u32>>,
    },
    /// Another XDP program is there.
    Program {
        /// What is said of it.
        message: String,
    },
}

impl Obstacle {
    /// Its stable name.
    pub fn id(&self) -> &'static str {
        match self {
            Obstacle::Whole { .. } => "whole-packets",
            Obstacle::NoNative => "no-native-xdp",
            Obstacle::Rps { .. } => "rps",
            Obstacle::Group { .. } => "several-devices",
            Obstacle::VlanOffload { .. } => "vlan-offload",
            Obstacle::GroTimeout { .. } => "gro-timeout",
            Obstacle::SharedNapi { .. } => "shared-napi",
            Obstacle::Program { .. } => "xdp-program",
        }
    }

    /// Whether it can be steered all the same, for tests: at the price that the text says.
    pub fn can_be_forced(&self) -> bool {
        !matches!(self, Obstacle::Program { .. } | Obstacle::NoNative)
    }

    /// What takes it out of the way, for a device of this name; none where the text says it.
    pub fn remedy(&self, device: &str) -> Option<String> {
        match self {
            Obstacle::Whole { peer: Some(peer), .. } => {
                Some(format!("a network card, or: ethtool -K {peer} tso off gso off tx off"))
            }
            Obstacle::Whole { kind, .. } if kind == "veth" => Some(
                "a network card; or, as its peer is in another network namespace, where this \
                 cannot look: ethtool -K PEER tso off gso off tx off there, and --force"
                    .into(),
            ),
            Obstacle::Whole { .. } => Some("a network card".into()),
            Obstacle::NoNative => Some(format!(
                "a network card with native XDP (ethtool -i {device} names the driver); for a VLAN \
                 or macvlan device the one below it, as VLAN tags are looked through"
            )),
            Obstacle::Rps { queues } => {
                let write = |(queue, file): &(u32, &str)| {
                    format!("echo 0 > /sys/class/net/{device}/queues/rx-{queue}/{file}")
                };
                Some(queues.iter().map(write).collect::<Vec<_>>().join("; "))
            }
            Obstacle::VlanOffload { off, .. } => Some(format!("ethtool -K {off}")),
            Obstacle::GroTimeout { .. } => {
                Some(format!("echo 0 > /sys/class/net/{device}/gro_flush_timeout"))
            }
            Obstacle::SharedNapi { .. } => Some(format!(
                "as few receive queues as the driver has instances: ethtool -L {device}"
            )),
            Obstacle::Group { .. } | Obstacle::Program { .. } => None,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Whole { kind, .. } => write!(
                f,
                "a {kind} device hands over its peer's packets as they are, many in one (GSO) and \
                 with checksums not filled in, which an XDP program breaks: bulk TCP all but stops"
            ),
            Obstacle::NoNative => {
                f.write_str("its driver runs no XDP program that redirects (native XDP)")
            }
            Obstacle::Rps { queues } => write!(
                f,
                "the kernel steers packets of {} too (RPS, RFS), and what both steer can be overtaken",
                queues_of(queues)
            ),
            Obstacle::Group { group, kind, members } => write!(
                f,
                "{group} ({kind}) receives for several devices ({}), whose queues have the same \
                 numbers: it is not known when packets of one are delivered, and those of a flow \
                 that comes by another could overtake them",
                members.join(", ")
            ),
            Obstacle::VlanOffload { devices, .. } => write!(
                f,
                "VLAN tags come beside its packets, where they are lost when a packet is \
                 redirected, and {} above it {} them",
                devices.join(", "),
                if devices.len() == 1 { "needs" } else { "need" }
            ),
            Obstacle::GroTimeout { timeout } => write!(
                f,
                "it keeps packets in GRO for up to {timeout} ns after a poll (gro_flush_timeout), \
                 and they could be overtaken"
            ),
            Obstacle::SharedNapi { queues } => {
                let lists: Vec<String> =
                    queues.iter().map(|queues| joined(queues, " and ")).collect();
                write!(
                    f,
                    "its queues {} are polled together (one NAPI instance), so it is not known when \
                     packets of one are delivered, and they could be overtaken",
                    lists.join(", ")
                )
            }
            Obstacle::Program { message } => f.write_str(message),
        }
    }
}

fn queues_of(queues: &[(u32, &str)]) -> String {
    let mut numbers: Vec<u32> = queues.iter().map(|(queue, _)| *queue).collect();
    numbers.dedup();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    format!("queue{plural} {}", joined(&numbers, ", "))
}

fn joined(numbers: &[u32], with: &str) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(with)
}
