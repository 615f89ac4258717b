//! What no file says: answers of the kernel to questions, and of the mechanisms to theirs. In a
//! recorded host they are one JSON file.

mod ask;
mod cgroup;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use ask::ask;

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Answers {
    /// What was asked of devices, by name.
    #[serde(rename = "device_answers")]
    pub devices: BTreeMap<String, DeviceAnswer>,
    /// What `bridge` says of each bridge.
    pub bridges: Vec<BridgeAnswer>,
    /// Whether AF_XDP sockets over the usual memory can be made; none if it was not tried.
    pub xsk: Option<XskAnswer>,
    /// The limit on CPU time of the process that was looked at: the tightest above it.
    pub cpu_limit: Option<Limit>,
    /// What traffic was seen to do; none if it was not watched.
    pub watch: Option<Watch>,
}

/// What a mechanism says: its stable name for it, and its words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The stable name.
    pub id: String,
    /// The words.
    pub text: String,
    /// What helps, where the mechanism knows it.
    #[serde(default)]
    pub remedy: Option<String>,
}

/// What was asked of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceAnswer {
    /// What kind it is, if software makes it (`ip -d link`).
    pub kind: Option<String>,
    /// How many queues it has and could have, if its driver says so.
    pub channels: Option<Channels>,
    /// What its driver can do with XDP: `NETDEV_XDP_ACT_*` of linux/netdev.h.
    pub xdp_features: Option<u64>,
    /// How many XDP programs are on it.
    pub xdp_programs: usize,
    /// What stands against steering its flows (`cachelane steer IFACE --check`); empty also where
    /// that was not asked.
    pub against_steering: Vec<Said>,
    /// What steering says besides.
    pub steering_notes: Vec<Said>,
}

/// A device's channels, as `ethtool -l` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Channels that receive, in use.
    pub receive: u32,
    /// Channels that receive, at most.
    pub most: u32,
}

/// What `bridge` says of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeAnswer {
    /// Its name.
    pub name: String,
    /// Whether some packet may take the fast path.
    pub can_forward: bool,
    /// Whether a process accelerates it now.
    pub accelerated: bool,
    /// Why none may.
    pub obstacles: Vec<Said>,
    /// What is left to the kernel path on all ports, and why, in sentences.
    pub remarks: Vec<String>,
    /// Its ports.
    pub ports: Vec<PortAnswer>,
}

/// What `bridge` says of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAnswer {
    /// Its name.
    pub name: String,
    /// How packets may be sent to it: kernel, queue, straight.
    pub to: String,
    /// Why nothing is taken from it.
    pub against_from: Vec<Said>,
    /// Why it is not sent to in a better way.
    pub against_better_to: Vec<Said>,
}

/// Whether an AF_XDP socket could be made with the memory that cachelane uses unless told
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum XskAnswer {
    /// It could.
    Yes,
    /// The kernel has no such sockets; in the words of `xsk`.
    None(String),
    /// The process may not lock so much memory; in the words of `xsk`.
    Memlock(String),
}

/// A limit on CPU time (cgroup `cpu.max`, or the CFS quota of cgroup v1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Microseconds of CPU time in a period.
    pub quota_us: u64,
    /// The period in microseconds, more than 0.
    pub period_us: u64,
    /// Periods since the group was made.
    pub periods: u64,
    /// Those in which it had to wait for the next one.
    pub throttled: u64,
}

/// What traffic was seen to do for a while, on the whole machine. One of
/// [`EVERY`](Watch::EVERY) events was looked at: the counts are estimates of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// How long, in seconds.
    pub seconds: f64,
    /// Receives of TCP sockets and connected UDP sockets.
    pub receives: u64,
    /// Those by a consumer in another lane than the softirq that last delivered to the socket.
    pub receives_other_lane: u64,
    /// Of these, those of what was sent on this host, by loopback.
    #[serde(default)]
    pub receives_other_lane_local: u64,
    /// Buffers of IP packets that were freed, as far as the kernel says so: not those of which
    /// there were clones, nor those that a TCP socket's consumer frees as it reads.
    pub frees: u64,
    /// Those freed in another lane than the one they were allotted in.
    pub frees_other_lane: u64,
}
