//! What the host says about a device: whether its flows can be steered, and whether they should.

mod netdev;
mod obstacle;
mod stack;
mod sysfs;

use std::{fmt, fs};

use xsk::{Device, Hook};

pub use obstacle::Obstacle;
use sysfs::Sysfs;

use crate::{Error, ErrorKind, Result, native, size};

/// What is known of a device before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub device: String,
    /// Its receive queues.
    pub queues: u32,
    /// Sockets of TCP and UDP in this network namespace: what can have flows.
    pub sockets: u64,
    /// What stands against steering it.
    pub obstacles: Vec<Obstacle>,
    /// What is worth a look before.
    pub notes: Vec<Note>,
}

impl Plan {
    /// What stands against it where nothing is forced, or even so.
    pub fn refusals(&self, force: bool) -> impl Iterator<Item = &Obstacle> {
        self.obstacles.iter().filter(move |obstacle| !(force && obstacle.can_be_forced()))
    }
}

/// What is worth a look before a device's flows are steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It has a queue for each CPU, so that its packets are spread as they are.
    QueuePerCpu {
        /// Receive queues.
        queues: u32,
        /// CPUs that are online.
        cpus: usize,
    },
    /// All CPUs share one cache: there is nothing to move a flow for.
    OneLane,
    /// It is down: nothing arrives.
    Down,
    /// The device stamps the packets that it receives, for somebody who asked it to.
    HardwareTimestamps,
}

impl Note {
    /// Its stable name.
    pub fn id(&self) -> &'static str {
        match self {
            Note::QueuePerCpu { .. } => "queue-per-cpu",
            Note::OneLane => "one-lane",
            Note::Down => "down",
            Note::HardwareTimestamps => "hardware-timestamps",
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::QueuePerCpu { queues, cpus } => write!(
                f,
                "{queues} receive queues for {cpus} CPUs: such a card mostly needs no steering. \
                 Look first whether interrupts and consumers are in the same lanes (ethtool -x, \
                 /proc/interrupts)"
            ),
            Note::OneLane => f.write_str(
                "all CPUs share one cache: a consumer that moves stays in its lane, so flows stay \
                 where they were seen first",
            ),
            Note::Down => f.write_str("it is down: nothing arrives until `ip link set ... up`"),
            Note::HardwareTimestamps => f.write_str(
                "the card stamps the packets that it receives, for PTP or chrony: steered ones \
                 lose that time, so such a service falls back to the kernel's, which is less exact",
            ),
        }
    }
}

/// What a packet loses when it is sent to another CPU: the kernel makes its buffer there, from the
/// packet's bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Its stable name.
    pub id: &'static str,
    /// What is lost, and what misses it.
    pub text: &'static str,
}

/// All that it loses.
pub const COSTS: [Cost; 6] = [
    Cost {
        id: "checksum",
        text: "the card's checksum: the kernel adds up every byte again, on the CPU that it goes to",
    },
    Cost {
        id: "timestamp",
        text: "the card's timestamp: PTP, and chrony with hwtimestamp, get the kernel's time or none",
    },
    Cost { id: "hash", text: "the card's receive hash: what needs one computes it" },
    Cost {
        id: "queue",
        text: "the number of its receive queue: XPS by receive queue (xps_rxqs) does not find it",
    },
    Cost {
        id: "napi-id",
        text: "its NAPI id: SO_INCOMING_NAPI_ID is 0, and busy polling by it polls nothing",
    },
    Cost {
        id: "vlan-tag",
        text: "a VLAN tag that the driver took off: refused where a device above needs it. Elsewhere \
               a packet of a VLAN that this host has no device for is taken for an untagged one, if \
               its addresses and ports are a steered flow's: `ethtool -K IFACE rxvlan off` where \
               such packets come",
    },
];

/// Looks at a device of the network namespace that the caller is in.
///
/// # Errors
/// `NoDevice` of [`ErrorKind`](crate::ErrorKind) if it is gone, `Unsupported` if the kernel is too old,
/// and what the system reports.
pub fn inspect(device: &Device, lanes: &lanes::LaneMap) -> Result<Plan> {
    needs_kernel()?;
    let device = &device.renamed()?;
    let plan = inspect_now(device, lanes)?;
    // What was looked for under a name that it had no more was not found.
    if device.renamed()? != *device {
        let message = format!("{device}: it was renamed while it was looked at");
        return Err(Error::new(ErrorKind::Io, message));
    }
    Ok(plan)
}

/// Refuses kernels that have not what steering records flows by, which came with 6.3.
///
/// # Errors
/// `Unsupported` of [`ErrorKind`].
pub(crate) fn needs_kernel() -> Result<()> {
    Ok(bpf::kernel::expect("tracepoints sock_recv_length and sock_send_length")?)
}

fn inspect_now(device: &Device, lanes: &lanes::LaneMap) -> Result<Plan> {
    let queues = device.queues()?;
    let sysfs = Sysfs::new(device)?;
    let mut obstacles = Vec::new();
    match Hook::refuse_if_taken(device) {
        Err(error) if error.kind() == xsk::ErrorKind::ProgramPresent => {
            obstacles.push(Obstacle::Program { message: error.to_string() });
        }
        other => other?,
    }
    let (kind, peer) = (device.kind()?, device.peer()?);
    if let Some(kind) = kind.filter(|kind| matches!(kind.as_str(), "veth" | "tun"))
        && peer.as_ref().is_none_or(native::sends_unfinished)
    {
        let peer = peer.as_ref().map(|peer| peer.name().to_owned());
        obstacles.push(Obstacle::Whole { kind, peer });
    }
    if !native::takes_programs(device)? {
        obstacles.push(Obstacle::NoNative);
    }
    let rps = kernel_steers(device, queues, &sysfs)?;
    if !rps.is_empty() {
        obstacles.push(Obstacle::Rps { queues: rps });
    }
    let layers = stack::read(device, &sysfs)?;
    obstacles.extend(stack::group_of(&layers));
    let devices = stack::need_tags(&layers);
    if !devices.is_empty()
        && let Some(off) = tags_beside(device)?
    {
        obstacles.push(Obstacle::VlanOffload { devices, off });
    }
    let timeout = sysfs.read(&format!("class/net/{device}/gro_flush_timeout"))?;
    let timeout = timeout.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let napis = netdev::napis(device)?;
    // What is set for the device is set for each instance, which may have one of its own.
    let timeout = napis.gro_flush_timeout.max(timeout);
    if timeout > 0 {
        obstacles.push(Obstacle::GroTimeout { timeout });
    }
    if !napis.shared.is_empty() {
        obstacles.push(Obstacle::SharedNapi { queues: napis.shared });
    }
    let cpus = lanes.online().len();
    let mut notes = Vec::new();
    if queues as usize >= cpus && cpus > 1 {
        notes.push(Note::QueuePerCpu { queues, cpus });
    }
    if lanes.lanes().len() == 1 {
        notes.push(Note::OneLane);
    }
    if !device.is_up()? {
        notes.push(Note::Down);
    }
    if native::stamps_packets(device) {
        notes.push(Note::HardwareTimestamps);
    }
    Ok(Plan { device: device.name().into(), queues, sockets: size::sockets()?, obstacles, notes })
}

/// What ethtool is to turn off so that VLAN tags are in the packets that the device receives; none
/// if they are. A veth hands over the tags as its peer has them.
fn tags_beside(device: &Device) -> Result<Option<String>> {
    let is_veth = device.kind()?.as_deref() == Some("veth");
    let peer = device.peer()?;
    let (sender, offloads) = match &peer {
        _ if !is_veth => (device.name(), native::vlan_offloads(device, native::RECEIVES)?),
        Some(peer) => (peer.name(), native::vlan_offloads(peer, native::SENDS)?),
        None => ("PEER", native::SENDS.map(|(_, name)| name).to_vec()),
    };
    let off: String = offloads.iter().map(|name| format!(" {name} off")).collect();
    Ok((!off.is_empty()).then(|| format!("{sender}{off}")))
}

/// The queues whose packets the kernel steers, and the file for each that makes it do so.
fn kernel_steers(device: &Device, queues: u32, sysfs: &Sysfs) -> Result<Vec<(u32, &'static str)>> {
    // Of the whole machine; not shown in every network namespace.
    let entries = fs::read_to_string("/proc/sys/net/core/rps_sock_flow_entries");
    let rfs = entries.map_or(true, |entries| entries.trim() != "0");
    let mut found = Vec::new();
    for queue in 0..queues {
        for (file, counts) in [("rps_cpus", true), ("rps_flow_cnt", rfs)] {
            let path = format!("class/net/{device}/queues/rx-{queue}/{file}");
            // A mask in hexadecimal digits, or a number: set if anything in it is not 0.
            let is_set = |text: String| text.chars().any(|c| matches!(c, '1'..='9' | 'a'..='f'));
            if counts && sysfs.read(&path)?.is_some_and(is_set) {
                found.push((queue, file));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use lab::Lab;

    use super::*;

    #[test]
    fn root_vlan_tags_of_a_veth_come_as_its_peer_sends_them() {
        let test = "root_vlan_tags_of_a_veth_come_as_its_peer_sends_them";
        if !lab::testing::root(test) {
            return;
        }
        let lab = Lab::new("stvlan").expect("a lab");
        let (host, other) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
        host.ip("link add near type veth peer name far".split(' ')).expect("root may");
        let set = |device: &str, what: &[&str]| {
            host.command("ethtool").args(["-K", device]).args(what).run().expect("ethtool");
        };
        let look = || tags_beside(&Device::find("near").expect("a device")).expect("it says");
        let found = || host.run(look).expect("the host");
        set("far", &["txvlan", "on", "tx-vlan-stag-hw-insert", "off"]);
        set("near", &["rxvlan", "off"]);
        assert_eq!(found().as_deref(), Some("far txvlan off"));
        set("far", &["txvlan", "off", "tx-vlan-stag-hw-insert", "on"]);
        assert_eq!(found().as_deref(), Some("far tx-vlan-stag-hw-insert off"));
        set("far", &["tx-vlan-stag-hw-insert", "off"]);
        set("near", &["rxvlan", "on"]);
        assert_eq!(found(), None, "what the device itself takes off is not there");
        // Where it is not seen.
        let link = lab.link(&host, &other, lab::LinkOptions::default()).expect("a link");
        let look = || tags_beside(&Device::find(&link.a.device).expect("a device"));
        let found = host.run(look).expect("the host").expect("it says");
        assert_eq!(found.as_deref(), Some("PEER txvlan off tx-vlan-stag-hw-insert off"));
    }
}
