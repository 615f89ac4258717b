//! What findings look at: plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use lanes::{CpuSet, LaneMap, Source};
use serde::{Serialize, Serializer};

use crate::{Answers, DeviceAnswer, Said, Watch};

/// A host, as far as it could be read.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Facts {
    /// Its processors.
    pub cpus: Cpus,
    /// The network devices of this network namespace, by name.
    pub devices: Vec<Device>,
    /// The daemon that spreads interrupts, if it runs.
    pub irqbalance: Option<Irqbalance>,
    /// The kernel's threads that poll devices with threaded NAPI.
    pub napi_threads: Vec<NapiThread>,
    /// Settings of the kernel by their names for sysctl.
    pub sysctls: BTreeMap<String, String>,
    /// What each CPU's packet processing has counted since the start.
    pub softnet: Vec<Softnet>,
    /// The kernel.
    pub kernel: Kernel,
    /// What the process may do that was looked at: doctor itself, unless another was named.
    pub process: Process,
    /// What no file says.
    #[serde(flatten)]
    pub answers: Answers,
}

/// The processors.
#[derive(Clone, Debug, Serialize)]
pub struct Cpus {
    /// Which share a last-level cache.
    #[serde(serialize_with = "shown")]
    pub lanes: LaneMap,
    /// What the lanes follow from.
    #[serde(serialize_with = "shown")]
    pub source: Source,
    /// Whether some lane has several L2 caches.
    pub several_l2: bool,
    /// Whether a hypervisor runs this machine.
    pub hypervisor: bool,
    /// The model, as the CPU names itself.
    pub model: Option<String>,
}

/// A network device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The driver of the hardware below it; none for a device of software.
    pub driver: Option<String>,
    /// What kind it is, if software makes it.
    pub kind: Option<String>,
    /// Whether it is up, as an administrator sets it.
    pub up: bool,
    /// The largest packet in bytes, without the Ethernet header.
    pub mtu: Option<u32>,
    /// The NUMA node of the hardware, if the machine says one.
    pub node: Option<u32>,
    /// The CPUs near the hardware.
    #[serde(serialize_with = "shown_option")]
    pub near: Option<CpuSet>,
    /// Its receive queues in use.
    pub rx: Vec<RxQueue>,
    /// Its transmit queues in use.
    pub tx: Vec<TxQueue>,
    /// For how long packets stay in GRO after a poll, in nanoseconds.
    pub gro_flush_timeout: u64,
    /// How many empty polls it takes until interrupts are on again.
    pub napi_defer_hard_irqs: u64,
    /// Whether threads poll it (threaded NAPI).
    pub threaded: bool,
    /// The device that it is a port or a member of.
    pub master: Option<String>,
    /// The devices right above it.
    pub above: Vec<String>,
    /// The devices right below it.
    pub below: Vec<String>,
    /// For a bridge, which of `iptables`, `ip6tables` and `arptables` it has its packets pass.
    pub bridge_calls: Option<Vec<String>>,
    /// The interrupts of its queues.
    pub interrupts: Vec<Interrupt>,
}

/// A receive queue.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RxQueue {
    /// Its number.
    pub number: u32,
    /// The CPUs that the kernel spreads its packets over (RPS); empty: it does not.
    #[serde(serialize_with = "shown")]
    pub rps_cpus: CpuSet,
    /// Flows that the kernel follows to their consumers (RFS); 0: it does not.
    pub rps_flow_cnt: u64,
}

/// A transmit queue.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TxQueue {
    /// Its number.
    pub number: u32,
    /// The CPUs that send by it (XPS); empty: packets' hashes choose the queue.
    #[serde(serialize_with = "shown")]
    pub xps_cpus: CpuSet,
    /// Whether receive queues choose it (XPS by receive queue).
    pub by_rx_queue: bool,
}

/// An interrupt of a device's queue.
#[derive(Clone, Debug, Serialize)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// What the driver calls it.
    pub name: String,
    /// The CPUs that it may go to.
    #[serde(serialize_with = "shown")]
    pub cpus: CpuSet,
    /// The CPUs that it goes to now, if the kernel says so.
    #[serde(serialize_with = "shown_option")]
    pub effective: Option<CpuSet>,
}

/// The daemon irqbalance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Irqbalance {
    /// The options that its service starts it with, as far as its configuration says.
    pub options: String,
}

/// A thread of threaded NAPI.
#[derive(Clone, Debug, Serialize)]
pub struct NapiThread {
    /// Its name, `napi/DEVICE-NUMBER`, cut off after 15 characters.
    pub name: String,
    /// Where it may run.
    #[serde(serialize_with = "shown")]
    pub cpus: CpuSet,
}

/// Counters of one CPU's packet processing (`/proc/net/softnet_stat`), since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    /// The CPU.
    pub cpu: usize,
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped as the CPU's backlog was full.
    pub dropped: u64,
    /// Times that processing stopped at its budget with packets left.
    pub squeezed: u64,
}

/// The kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Kernel {
    /// Its version, if that has the usual form.
    pub release: Option<Release>,
    /// Those of its options that matter here, as its configuration has them; empty if that is not
    /// to be found.
    pub options: BTreeMap<String, String>,
    /// The mode of lockdown in force, where securityfs is mounted.
    pub lockdown: Option<String>,
    /// Whether it describes its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
}

impl Kernel {
    /// The oldest with which all mechanisms work.
    pub const OLDEST: Release = Release(bpf::kernel::OLDEST.0, bpf::kernel::OLDEST.1);
}

/// A kernel's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

/// What limits a process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Process {
    /// The CPUs that it may use.
    #[serde(serialize_with = "shown_option")]
    pub allowed: Option<CpuSet>,
    /// Bytes of memory that it may lock; none: any.
    pub memlock: Option<u64>,
    /// Files that it may have open, at most.
    pub files: Option<u64>,
    /// Whether it may lock any memory (CAP_IPC_LOCK).
    pub locks_any: bool,
}

impl Facts {
    /// Whether the machine has several lanes. Where it has one, nothing crosses lanes.
    pub fn has_lanes(&self) -> bool {
        self.cpus.lanes.lanes().len() > 1
    }

    /// The number of CPUs that are online.
    pub fn online(&self) -> usize {
        self.cpus.lanes.online().len()
    }

    /// How many lanes have some of these CPUs.
    pub fn lanes_of(&self, cpus: &CpuSet) -> usize {
        let lanes = &self.cpus.lanes;
        lanes.lanes().filter(|lane| !lanes.cpus(*lane).intersection(cpus).is_empty()).count()
    }

    /// The CPUs of the lane that has most of these; of the first lane if none has any.
    pub fn lane_near(&self, cpus: &CpuSet) -> CpuSet {
        let lanes = &self.cpus.lanes;
        let shared = |lane: &_| lanes.cpus(*lane).intersection(cpus).len();
        // The first of equals: `max_by_key` takes the last.
        let nearest = lanes.lanes().rev().max_by_key(shared);
        nearest.map(|lane| lanes.cpus(lane).clone()).unwrap_or_default()
    }

    /// The devices of hardware that are up.
    pub fn cards(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.driver.is_some() && device.up)
    }

    /// A setting's value, if it was read and is a number.
    pub fn sysctl(&self, name: &str) -> Option<u64> {
        self.sysctls.get(name)?.parse().ok()
    }

    /// What was asked about a device.
    pub fn answer(&self, device: &Device) -> Option<&DeviceAnswer> {
        self.answers.devices.get(&device.name)
    }

    /// What steering says against a device, or of it, under this id.
    pub fn steer_says(&self, device: &Device, id: &str) -> Option<&Said> {
        let answer = self.answer(device)?;
        answer.against_steering.iter().chain(&answer.steering_notes).find(|said| said.id == id)
    }

    /// What the watching of traffic has counted, if that was done.
    pub fn watch(&self) -> Option<&Watch> {
        self.answers.watch.as_ref()
    }
}

impl FromStr for Release {
    type Err = ();

    /// Reads what `uname -r` prints: `6.18.44-something`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = text.split(['.', '-', '+', '_']).map(|part| part.parse().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self(major, minor)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Serialize for Release {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn shown<T: fmt::Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn shown_option<T: fmt::Display, S: Serializer>(
    value: &Option<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_by_number() {
        let release = |text: &str| text.parse::<Release>().expect(text);
        assert!(release("6.6.0") < release("6.18.44-fc-v445"));
        assert!(release("5.19.0-41-generic") < release("6.6"));
        assert_eq!(release("6.12.0+deb13-amd64").to_string(), "6.12");
        assert_eq!(release("7.0-rc1"), Release(7, 0));
        for wrong in ["", "6", "six.one", ".6.1"] {
            assert!(wrong.parse::<Release>().is_err(), "{wrong}");
        }
    }
}
