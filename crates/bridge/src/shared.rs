//! What the handle and the worker share.
//!
//! # Who writes what
//!
//! The worker thread alone reads netlink, attaches, and writes the packet path's stations and
//! ports. What turns the whole packet path on and off ([`Gate`]) is under a lock, because knobs
//! change it too; whoever changes it writes it to the packet path before letting go of the lock.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fd::OwnedFd;

use crate::decide::{Plan, Protocol};
use crate::program::{Program, Settings, constants};
use crate::{Error, Result, Table};

/// How often the kernel is shown that a station is there, where a copy of a packet does it: how old
/// its entries are is true to that.
const COPY_EVERY: Duration = Duration::from_secs(1);

/// The most copies that a CPU makes in a second before they are urgent.
const COPIES_A_SECOND: u32 = 8000;

/// What the handle and the worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The interface index of the bridge.
    pub(crate) bridge: u32,
    pub(crate) program: Program,
    /// Wakes the worker: there is a command.
    pub(crate) wake: OwnedFd,
    /// To be read; it is [changed](Self::change) in one place.
    pub(crate) gate: Mutex<Gate>,
    pub(crate) failure: OnceLock<Error>,
    pub(crate) gauges: Gauges,
}

/// What the worker counts. Relaxed: each stands for itself.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) stations: AtomicU64,
    pub(crate) left_out: AtomicU64,
    pub(crate) overruns: AtomicU64,
    pub(crate) mirror_nanos: AtomicU64,
}

/// What decides whether the packet path forwards at all.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) fastpath: bool,
    pub(crate) table: Table,
    /// The mirror holds what the kernel has.
    pub(crate) trusted: bool,
    /// Something that concerns every port was announced to have changed, and is not read yet.
    pub(crate) alarmed: bool,
    /// Something of a port was announced to have changed, and is not read yet: it may answer for
    /// others from now on.
    pub(crate) unread: bool,
    pub(crate) plan: Plan,
}

/// What the worker is asked to do. It answers when that is done.
pub(crate) enum Command {
    /// Take what the kernel has said until now into account.
    Sync(Sender<Result<()>>),
    /// Attach to the ports, or detach, as the gate says.
    Attach(Sender<Result<()>>),
    Stop,
}

impl Shared {
    /// Changes the gate, and tells the packet path.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Gate)) -> Result<()> {
        let mut gate = self.gate.lock();
        let protocol = gate.settings().vlan_protocol;
        change(&mut gate);
        let settings = gate.settings();
        if settings.vlan_protocol != protocol {
            // Nobody may act on the new plan by the VLANs of the old one.
            self.program.configure(&Settings { active: 0, ..settings })?;
        }
        self.program.configure(&settings)
    }

    pub(crate) fn wake(&self) {
        // Only a counter at its limit refuses, and then the worker is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Gate {
    fn settings(&self) -> Settings {
        let known = self.trusted && !self.alarmed;
        let active = self.fastpath && known && self.plan.obstacles.is_empty();
        let claims = self.plan.left.iter().map(|protocol| match protocol {
            Protocol::Ipv4 => constants::KERNEL_IPV4,
            Protocol::Ipv6 => constants::KERNEL_IPV6,
            Protocol::Arp => constants::KERNEL_ARP,
            Protocol::Pppoe => constants::KERNEL_PPPOE,
            Protocol::Nd => constants::KERNEL_ND,
        });
        let answers = if self.unread { constants::KERNEL_ARP | constants::KERNEL_ND } else { 0 };
        Settings {
            active: active.into(),
            shared: (self.table == Table::Shared).into(),
            refresh_every: jiffies(self.plan.refresh),
            copy_every: jiffies(self.plan.refresh.min(COPY_EVERY)),
            copies: COPIES_A_SECOND.div_ceil(jiffies(Duration::from_secs(1)).max(1)),
            kernel_ethertypes: claims.fold(answers, |all, one| all | one),
            vlan_protocol: self.plan.vlans.map_or(0, |tags| u32::from((tags as u16).to_be())),
            arrivals: self.plan.ports.iter().any(|port| !port.before.is_empty()).into(),
        }
    }
}

/// A time in jiffies, rounded down.
pub(crate) fn jiffies(time: Duration) -> u32 {
    // Where their length is not known, as if they were the shortest: too many are harmless. Stamps
    // are compared modulo 2^32: half of that is a month at the highest rate.
    bpf::ticks(time, Duration::from_micros(100)).min(1 << 31)
}
