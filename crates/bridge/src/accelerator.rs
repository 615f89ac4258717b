//! The process side of the fast path: a handle, and a thread that follows the bridge.
//!
//! # Who writes what
//!
//! The worker thread alone reads netlink, attaches, and writes the packet path's stations and
//! ports. What turns the whole packet path on and off ([`Control`]) is under a lock, because knobs
//! change it too; whoever changes it writes it to the packet path before letting go of the lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_getres};
use strum::{Display, EnumString, IntoStaticStr};

use crate::decide::{Plan, Protocol};
use crate::program::{self, Program, Settings};
use crate::worker::Worker;
use crate::{Error, ErrorKind, Reason, Result};

/// How often the kernel is shown that a station is there, where a copy of a packet does it: how old
/// its entries are is true to that.
const COPY_EVERY: Duration = Duration::from_secs(1);

/// The most copies that a CPU makes in a second before they are urgent.
const COPIES_A_SECOND: u32 = 8000;

/// How to accelerate a bridge.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most stations that the packet path knows, 1 to 2^20; more take the kernel path. None: a
    /// quarter more than the bridge knows at the start, and at least 8192.
    pub max_stations: Option<u32>,
    /// Whether the fast path is on at first.
    pub fastpath: bool,
    /// Where the last-seen stamps live at first.
    pub table: Table,
}

/// Where the stamps of when a station was last seen live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_table)]
pub enum Table {
    /// With each CPU: no line of the table is written by the packet path.
    Split,
    /// One for all CPUs, as in the kernel's own table: there to measure against.
    Shared,
}

/// What the fast path has done since it started, and what it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent straight into the peer's namespace.
    pub straight: u64,
    /// Packets sent through the port's own queue.
    pub redirected: u64,
    /// Bytes of both, with Ethernet headers; a GSO packet counts once.
    pub bytes: u64,
    /// Copies of packets that were made to keep the kernel's entries fresh.
    pub copies: u64,
    /// Stations that the packet path knows.
    pub stations: u64,
    /// Stations that it could use and has no room for.
    pub left_out: u64,
    /// Times that notifications were lost, and the mirror rebuilt.
    pub overruns: u64,
    kernel: Vec<u64>,
}

/// A bridge's fast path. It works in the network namespace of whoever started it; dropping it
/// takes it off the ports, and the bridge goes on by itself with the next packet.
#[derive(Debug)]
pub struct Accelerator {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// What the handle and the worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The interface index of the bridge.
    bridge: u32,
    pub(crate) program: Program,
    /// Wakes the worker: there is a command.
    pub(crate) wake: OwnedFd,
    control: Mutex<Control>,
    failure: OnceLock<Error>,
    pub(crate) gauges: Gauges,
}

/// Numbers for [`Stats`], by the worker. Relaxed: each stands for itself.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) stations: AtomicU64,
    pub(crate) left_out: AtomicU64,
    pub(crate) overruns: AtomicU64,
    pub(crate) mirror_nanos: AtomicU64,
}

/// What decides whether the packet path forwards at all.
#[derive(Clone, Debug)]
pub(crate) struct Control {
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
    /// Attach to the ports, or detach, as the control says.
    Attach(Sender<Result<()>>),
    Stop,
}

impl Default for Config {
    fn default() -> Config {
        Config { max_stations: None, fastpath: true, table: Table::Split }
    }
}

impl Accelerator {
    /// Attaches to the ports of the bridge with this name and follows it from then on.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`], [`ErrorKind::NotABridge`]; [`ErrorKind::Busy`] if somebody
    /// accelerates it already; [`ErrorKind::NotPermitted`] without `CAP_NET_ADMIN` and `CAP_BPF`;
    /// [`ErrorKind::Unsupported`] on kernels without tcx.
    pub fn start(bridge: &str, config: Config) -> Result<Accelerator> {
        let (commands, receiver) = channel();
        let (worker, shared) = Worker::new(bridge, config)?;
        let thread = std::thread::Builder::new()
            .name("bridge".into())
            .spawn(move || run(worker, &receiver))
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Accelerator { shared, commands, thread: Some(thread) })
    }

    /// Turns the fast path on or off. Off, nothing of it is attached.
    ///
    /// # Errors
    /// As [`start`](Accelerator::start), for attaching.
    pub fn set_fastpath(&self, on: bool) -> Result<()> {
        self.shared.change(|control| control.fastpath = on)?;
        self.ask(Command::Attach)
    }

    /// Whether the fast path is on.
    pub fn fastpath(&self) -> bool {
        self.shared.control().fastpath
    }

    /// Says where the last-seen stamps live. After a change each station is refreshed by its next
    /// packet.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the packet path's map cannot be written.
    pub fn set_table(&self, table: Table) -> Result<()> {
        self.shared.change(|control| control.table = table)
    }

    /// Where the last-seen stamps live.
    pub fn table(&self) -> Table {
        self.shared.control().table
    }

    /// Returns once all that the kernel had to say at the call is in force.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] if the bridge is gone.
    pub fn sync(&self) -> Result<()> {
        self.ask(Command::Sync)
    }

    /// What may be taken from and sent to each port, as of the last look.
    pub fn plan(&self) -> Plan {
        self.shared.control().plan.clone()
    }

    /// Counts since the start.
    pub fn stats(&self) -> Stats {
        let counts = self.shared.program.counts().unwrap_or_default();
        let gauges = &self.shared.gauges;
        Stats {
            straight: counts.straight,
            redirected: counts.redirected,
            bytes: counts.bytes,
            copies: counts.copies,
            kernel: counts.kernel,
            stations: gauges.stations.load(Relaxed),
            left_out: gauges.left_out.load(Relaxed),
            overruns: gauges.overruns.load(Relaxed),
        }
    }

    /// Bytes of kernel memory that the packet path's maps take.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if `/proc` does not say.
    pub fn table_memory(&self) -> Result<u64> {
        self.shared.program.memory().map_err(|e| bpf("the maps' memory", &e))
    }

    /// How long it took to read the kernel's whole table and mirror it, the last time.
    pub fn mirror_time(&self) -> Duration {
        Duration::from_nanos(self.shared.gauges.mirror_nanos.load(Relaxed))
    }

    /// The interface index of the bridge.
    pub fn bridge(&self) -> u32 {
        self.shared.bridge
    }

    /// Why the fast path has ended by itself, if it has: the bridge is gone, for one.
    pub fn failure(&self) -> Option<Error> {
        let ended = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        ended.then(|| match self.shared.failure.get() {
            Some(error) => Error::new(error.kind(), error.to_string()),
            None => Error::new(ErrorKind::Io, "the thread that follows the bridge has panicked"),
        })
    }

    /// Has the worker end, and does not wait for that.
    pub(crate) fn stop(&self) {
        // A worker that has ended by itself has nobody to receive it.
        let _ = self.commands.send(Command::Stop);
        self.shared.wake();
    }

    fn ask(&self, command: fn(Sender<Result<()>>) -> Command) -> Result<()> {
        let (sender, receiver) = channel();
        let ended = || Error::new(ErrorKind::NoDevice, "the fast path has ended");
        self.commands.send(command(sender)).map_err(|_| ended())?;
        self.shared.wake();
        receiver.recv().map_err(|_| ended())?
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and its links are closed.
            let _ = thread.join();
        }
    }
}

/// The worker's thread.
fn run(worker: Worker, commands: &Receiver<Command>) {
    let shared = worker.shared();
    if let Err(error) = worker.run(commands) {
        // The only one who says so.
        let _ = shared.failure.set(error);
    }
}

impl Shared {
    pub(crate) fn new(bridge: u32, program: Program, control: Control) -> Result<Shared> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("cannot make an eventfd", e))?;
        Ok(Shared {
            bridge,
            program,
            wake,
            control: Mutex::new(control),
            failure: OnceLock::new(),
            gauges: Gauges::default(),
        })
    }

    /// A copy of the control as it is.
    pub(crate) fn control(&self) -> Control {
        self.locked().clone()
    }

    /// Something of the control as it is.
    pub(crate) fn control_is<T>(&self, read: impl FnOnce(&Control) -> T) -> T {
        read(&self.locked())
    }

    /// Changes the control, and tells the packet path.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Control)) -> Result<()> {
        let mut control = self.locked();
        change(&mut control);
        self.program.configure(&control.settings()).map_err(|e| bpf("the settings", &e))
    }

    fn locked(&self) -> MutexGuard<'_, Control> {
        // Every change leaves it whole, so one that panicked has not begun.
        self.control.lock()
    }

    fn wake(&self) {
        // Only a counter at its limit refuses, and then the worker is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// An error of a call into BPF.
pub(crate) fn bpf(what: &str, error: &libbpf_rs::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {error:#}"))
}

impl Control {
    fn settings(&self) -> Settings {
        let known = self.trusted && !self.alarmed;
        let active = self.fastpath && known && self.plan.obstacles.is_empty();
        let claims = self.plan.left.iter().map(|protocol| match protocol {
            Protocol::Ipv4 => program::KERNEL_IPV4,
            Protocol::Ipv6 => program::KERNEL_IPV6,
            Protocol::Arp => program::KERNEL_ARP,
            Protocol::Pppoe => program::KERNEL_PPPOE,
            Protocol::Nd => program::KERNEL_ND,
        });
        let answers = if self.unread { program::KERNEL_ARP | program::KERNEL_ND } else { 0 };
        Settings {
            active: active.into(),
            shared: (self.table == Table::Shared).into(),
            refresh_every: jiffies(self.plan.refresh),
            copy_every: jiffies(self.plan.refresh.min(COPY_EVERY)),
            copies: COPIES_A_SECOND.div_ceil(jiffies(Duration::from_secs(1)).max(1)),
            kernel_ethertypes: claims.fold(answers, |all, one| all | one),
            arrivals: self.plan.ports.iter().any(|port| !port.before.is_empty()).into(),
        }
    }
}

/// A time in jiffies, rounded down. The coarse clock's resolution is one of them.
pub(crate) fn jiffies(time: Duration) -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let tick = Duration::try_from(tick).unwrap_or_default().as_nanos().max(1);
    // Stamps are compared modulo 2^32: half of that is a month at the highest rate.
    u32::try_from(time.as_nanos() / tick).unwrap_or(u32::MAX).min(1 << 31)
}

impl Stats {
    /// Adds what another has done and knows.
    pub(crate) fn add(&mut self, other: &Stats) {
        let pairs = [
            (&mut self.straight, other.straight),
            (&mut self.redirected, other.redirected),
            (&mut self.bytes, other.bytes),
            (&mut self.copies, other.copies),
            (&mut self.stations, other.stations),
            (&mut self.left_out, other.left_out),
            (&mut self.overruns, other.overruns),
        ];
        for (sum, count) in pairs {
            *sum = sum.wrapping_add(count);
        }
        self.kernel.resize(Reason::ALL.len(), 0);
        for (sum, count) in self.kernel.iter_mut().zip(&other.kernel) {
            *sum = sum.wrapping_add(*count);
        }
    }

    /// What has been counted, without what is known at the moment.
    pub(crate) fn counted(self) -> Stats {
        Stats { stations: 0, left_out: 0, ..self }
    }

    /// Packets forwarded by the fast path.
    pub fn forwarded(&self) -> u64 {
        self.straight.wrapping_add(self.redirected)
    }

    /// Packets left to the kernel path for this reason.
    pub fn kernel(&self, reason: Reason) -> u64 {
        self.kernel.get(reason as usize).copied().unwrap_or(0)
    }

    /// Packets left to the kernel path.
    pub fn left_to_kernel(&self) -> u64 {
        self.kernel.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

impl Table {
    /// Every value.
    pub const ALL: [Table; 2] = [Table::Split, Table::Shared];

    /// Its name as the knob's value.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn unknown_table(name: &str) -> Error {
    let expected = kit::or(Table::ALL.map(Table::name));
    Error::new(ErrorKind::Invalid, format!("'{name}' is no table (expected {expected})"))
}
