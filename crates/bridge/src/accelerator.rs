//! The process side of the fast path: a handle, and a thread that follows the bridge.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::decide::Plan;
use crate::error::Context as _;
use crate::shared::{Command, Shared};
use crate::worker::Worker;
use crate::{Config, Counters, Error, ErrorKind, Result, Table};

/// A bridge's fast path. It works in the network namespace of whoever started it; dropping it
/// takes it off the ports, and the bridge goes on by itself with the next packet.
#[derive(Debug)]
pub struct Accelerator {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
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
        let worker = Worker::new(bridge, config)?;
        let shared = Arc::clone(&worker.shared);
        let thread = std::thread::Builder::new()
            .name("bridge".into())
            .spawn(move || {
                let shared = Arc::clone(&worker.shared);
                if let Err(error) = worker.run(&receiver) {
                    // The only one who says so.
                    let _ = shared.failure.set(error);
                }
            })
            .context("cannot start a thread")?;
        Ok(Accelerator { shared, commands, thread: Some(thread) })
    }

    /// Turns the fast path on or off. Off, nothing of it is attached.
    ///
    /// # Errors
    /// As [`start`](Accelerator::start), for attaching.
    pub fn set_fastpath(&self, on: bool) -> Result<()> {
        self.shared.change(|gate| gate.fastpath = on)?;
        self.ask(Command::Attach)
    }

    /// Says where the last-seen stamps live. After a change each station is refreshed by its next
    /// packet.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the packet path's map cannot be written.
    pub fn set_table(&self, table: Table) -> Result<()> {
        self.shared.change(|gate| gate.table = table)
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
        self.shared.gate.lock().plan.clone()
    }

    /// What the packet path has counted since the start.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if its map cannot be read.
    pub fn counters(&self) -> Result<Counters> {
        self.shared.program.counts().map(|counts| Counters::from(&counts))
    }

    /// How many stations the packet path knows.
    pub fn stations(&self) -> u64 {
        self.shared.gauges.stations.load(Relaxed)
    }

    /// How many stations it could use and has no room for.
    pub fn left_out(&self) -> u64 {
        self.shared.gauges.left_out.load(Relaxed)
    }

    /// How often notifications were lost, and the mirror rebuilt.
    pub fn overruns(&self) -> u64 {
        self.shared.gauges.overruns.load(Relaxed)
    }

    /// Bytes of kernel memory that the packet path's maps take.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if `/proc` does not say.
    #[cfg(feature = "measure")]
    pub fn table_memory(&self) -> Result<u64> {
        self.shared.program.memory()
    }

    /// How long it took to read the kernel's whole table and mirror it, the last time.
    #[cfg(feature = "measure")]
    pub fn mirror_time(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.shared.gauges.mirror_nanos.load(Relaxed))
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
