//! What the host says about a device: whether its flows can be steered, and whether they should.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::{fmt, fs};

use rustix::fs::{Dir, DirEntry, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use xsk::{Device, Hook};

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

/// Why a device's flows are not steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It hands over what its peer sends as it is: packets of TCP put together, checksums not
    /// filled in. An XDP program gets neither right: bulk TCP falls to a thousandth.
    Whole {
        /// The kind of device: veth, tun.
        kind: String,
    },
    /// Its driver runs no XDP program that redirects.
    NoNative,
    /// The kernel steers its packets too (RPS, RFS), so that they could overtake each other.
    Rps {
        /// The queues for which it does, and the file that says so.
        queues: Vec<(u32, &'static str)>,
    },
    /// Its driver takes VLAN tags off before an XDP program sees the packet, and they are lost when
    /// that redirects it.
    VlanOffload {
        /// The VLAN devices on it.
        devices: Vec<String>,
    },
    /// It keeps packets in GRO after a poll, so that it is not known when they are delivered.
    GroTimeout {
        /// Nanoseconds.
        timeout: u64,
    },
    /// Another XDP program is there.
    Program {
        /// What is said of it.
        message: String,
    },
}

impl Plan {
    /// What stands against it where nothing is forced, or even so.
    pub fn refusals(&self, force: bool) -> impl Iterator<Item = &Obstacle> {
        self.obstacles.iter().filter(move |obstacle| !(force && obstacle.can_be_forced()))
    }
}

impl Obstacle {
    /// Its stable name.
    pub fn id(&self) -> &'static str {
        match self {
            Obstacle::Whole { .. } => "whole-packets",
            Obstacle::NoNative => "no-native-xdp",
            Obstacle::Rps { .. } => "rps",
            Obstacle::VlanOffload { .. } => "vlan-offload",
            Obstacle::GroTimeout { .. } => "gro-timeout",
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
            Obstacle::Whole { .. } => Some(
                "a network card, or offloads off at its peer and --force: ethtool -K PEER tso \
                      off gso off tx off"
                    .into(),
            ),
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
            Obstacle::VlanOffload { .. } => Some(format!("ethtool -K {device} rxvlan off")),
            Obstacle::GroTimeout { .. } => {
                Some(format!("echo 0 > /sys/class/net/{device}/gro_flush_timeout"))
            }
            Obstacle::Program { .. } => None,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Whole { kind } => write!(
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
            Obstacle::VlanOffload { devices } => write!(
                f,
                "its driver takes VLAN tags off and keeps them beside the packet, where they are \
                 lost when it is redirected, and {} needs them",
                devices.join(", ")
            ),
            Obstacle::GroTimeout { timeout } => write!(
                f,
                "it keeps packets in GRO for up to {timeout} ns after a poll (gro_flush_timeout), \
                 and they could be overtaken"
            ),
            Obstacle::Program { message } => f.write_str(message),
        }
    }
}

fn queues_of(queues: &[(u32, &str)]) -> String {
    let mut numbers: Vec<u32> = queues.iter().map(|(queue, _)| *queue).collect();
    numbers.dedup();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    format!("queue{plural} {}", numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
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
}

impl Note {
    /// Its stable name.
    pub fn id(&self) -> &'static str {
        match self {
            Note::QueuePerCpu { .. } => "queue-per-cpu",
            Note::OneLane => "one-lane",
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
                 /proc/interrupts), and let cachelane trial decide"
            ),
            Note::OneLane => f.write_str(
                "all CPUs share one cache: a consumer that moves stays in its lane, so flows stay \
                 where they were seen first",
            ),
        }
    }
}

/// Looks at a device of the network namespace that the caller is in.
///
/// # Errors
/// `NoDevice` of [`ErrorKind`] if it is gone, and what the system reports.
pub fn inspect(device: &Device, lanes: &lanes::LaneMap) -> Result<Plan> {
    let queues = device.queues()?;
    let sysfs = Sysfs::new()?;
    let mut obstacles = Vec::new();
    match Hook::refuse_if_taken(device) {
        Err(error) if error.kind() == xsk::ErrorKind::ProgramPresent => {
            obstacles.push(Obstacle::Program { message: error.to_string() });
        }
        other => other?,
    }
    if let Some(kind) = device.kind()?.filter(|kind| matches!(kind.as_str(), "veth" | "tun")) {
        obstacles.push(Obstacle::Whole { kind });
    }
    if !native::takes_programs(device)? {
        obstacles.push(Obstacle::NoNative);
    }
    let rps = kernel_steers(device, queues, &sysfs)?;
    if !rps.is_empty() {
        obstacles.push(Obstacle::Rps { queues: rps });
    }
    let devices = vlan_devices(device, &sysfs)?;
    if !devices.is_empty() && native::strips_vlan_tags(device)? {
        obstacles.push(Obstacle::VlanOffload { devices });
    }
    let timeout = sysfs.read(&format!("class/net/{device}/gro_flush_timeout"))?;
    match timeout.as_deref().map(str::trim).unwrap_or("0").parse() {
        Ok(0) | Err(_) => {}
        Ok(timeout) => obstacles.push(Obstacle::GroTimeout { timeout }),
    }
    let cpus = lanes.online().len();
    let mut notes = Vec::new();
    if queues as usize >= cpus && cpus > 1 {
        notes.push(Note::QueuePerCpu { queues, cpus });
    }
    if lanes.lanes().len() == 1 {
        notes.push(Note::OneLane);
    }
    Ok(Plan { device: device.name().into(), queues, sockets: size::sockets()?, obstacles, notes })
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

/// The VLAN devices on a device, of this network namespace.
fn vlan_devices(device: &Device, sysfs: &Sysfs) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in sysfs.list(&format!("class/net/{device}/"))? {
        let Some(upper) = name.strip_prefix("upper_") else { continue };
        // One that is gone by now needs nothing.
        let kind = Device::find(upper).and_then(|upper| upper.kind());
        if kind.ok().flatten().as_deref() == Some("vlan") {
            found.push(upper.to_owned());
        }
    }
    Ok(found)
}

/// sysfs as the caller's network namespace has it: what is mounted may be another one's.
#[derive(Debug)]
struct Sysfs(OwnedFd);

impl Sysfs {
    fn new() -> Result<Self> {
        let mount = || {
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&sysfs)?;
            fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        };
        match mount() {
            Ok(root) => Ok(Self(root)),
            Err(Errno::PERM) => Err(Error::new(
                ErrorKind::NotPermitted,
                "looking at a device's queues needs root (CAP_SYS_ADMIN)",
            )),
            Err(error) => Err(Error::io("cannot look into sysfs", error)),
        }
    }

    /// A file's text; none if it is not there.
    fn read(&self, path: &str) -> Result<Option<String>> {
        let read = || -> io::Result<String> {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let mut text = String::new();
            fs::File::from(openat(&self.0, path, flags, Mode::empty())?)
                .read_to_string(&mut text)?;
            Ok(text)
        };
        match read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("cannot read /sys/{path}"), error)),
        }
    }

    /// The names in a folder.
    fn list(&self, path: &str) -> Result<Vec<String>> {
        let list = || -> rustix::io::Result<Vec<String>> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let entries = Dir::read_from(openat(&self.0, path, flags, Mode::empty())?)?;
            let name = |entry: DirEntry| entry.file_name().to_string_lossy().into_owned();
            entries.map(|entry| entry.map(name)).collect()
        };
        list().map_err(|error| Error::io(format!("cannot list /sys/{path}"), error))
    }
}
