//! How one daemon takes the place of another (`--replace`), over the control socket.
//!
//! The new one asks the old one to give way. That ends all members but the relays, whose work the kernel
//! does until the new ones have started, and says when they are gone. Then the new one starts its own
//! members, and its relays take over from the old one's by themselves. At last it says which ones they
//! have taken over from, and the old daemon ends: so do its relays, once their connections have ended. Until
//! then it asks again and again, by which the old one knows that it is well. If it dies before, the old one
//! starts its members again; if it says nothing for too long, the old one kills it first.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use knobs::{Process, ProcessName};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::member::pid as pid_of;
use crate::run::is_asked_to_end;

/// The requests.
pub(super) const GIVE_WAY: &str = "up.give_way";
pub(super) const TAKEN: &str = "up.taken";

/// The daemon that is to take the place of this one.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) pid: u32,
    file: OwnedFd,
    /// When it last asked.
    pub(super) heard: Instant,
}

impl Successor {
    pub(super) fn of(pid: u32) -> Option<Successor> {
        let file = pidfd_open(pid_of(pid)?, PidfdFlags::empty()).ok()?;
        Some(Successor { pid, file, heard: Instant::now() })
    }

    pub(super) fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
        poll(&mut polled, Some(&Default::default())).is_ok_and(|ready| ready > 0)
    }

    /// Kills it if it has said nothing for so long: it is stuck, or somebody has stopped it.
    pub(super) fn end_silent(&mut self, after: Duration, now: Instant) {
        if self.heard + after <= now {
            let (pid, after) = (self.pid, humantime::format_duration(after));
            tracing::error!(
                "process {pid}, which was to take the place of this one, has said \
                nothing for {after}, and is killed"
            );
            let _ = pidfd_send_signal(&self.file, Signal::KILL);
            self.heard = now;
        }
    }
}

/// How a daemon has given way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gave {
    /// To this process.
    Way,
    /// It has ended, for whatever reason.
    Ended,
}

/// The daemon whose place this one is to take.
#[derive(Debug)]
pub(super) struct Predecessor {
    process: Process,
}

impl Predecessor {
    /// The daemon of this name and user, if one runs.
    pub(super) fn find(name: &ProcessName) -> anyhow::Result<Option<Predecessor>> {
        let mut all = knobs::discover()?;
        let user = geteuid().as_raw();
        all.retain(|one| one.kind == "up" && one.uid == user && one.pid != std::process::id());
        let names = knobs::ask_each(&all, |one| one.connect()?.listing());
        for (process, listing) in all.into_iter().zip(names) {
            let label = process.label();
            match listing {
                Ok(listing) if listing.name == name.as_str() => {
                    return Ok(Some(Predecessor { process }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == knobs::ErrorKind::Gone => {}
                Err(error) => bail!("{label} does not say whether it is '{name}': {error}"),
            }
        }
        Ok(None)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Has it give way; when this returns, it has.
    pub(super) fn give_way(&self) -> anyhow::Result<Gave> {
        /// A bridge with a thousand ports takes a while.
        const PATIENCE: Duration = Duration::from_secs(120);
        const PAUSE: Duration = Duration::from_millis(20);
        let start = Instant::now();
        loop {
            match self.ask(GIVE_WAY, json!({})) {
                Ok(answer) if answer["has_given_way"] == true => return Ok(Gave::Way),
                Ok(_) => {}
                Err(error) if is_gone(&error) => return Ok(Gave::Ended),
                Err(error) => return Err(error),
            }
            if is_asked_to_end() {
                bail!("told to end while process {} gave way", self.pid());
            }
            if start.elapsed() > PATIENCE {
                bail!("process {} did not give way within {PATIENCE:?}", self.pid());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Has it know that this process is well. One that is stopped is not waited for: it does not count the
    /// time.
    pub(super) fn keep_waiting(&self) {
        const PATIENCE: Duration = Duration::from_millis(200);
        let client = self.process.connect_timeout(PATIENCE);
        if let Err(error) = client.and_then(|mut client| client.ask(GIVE_WAY, json!({}))) {
            tracing::debug!("process {} does not hear that this one is well: {error}", self.pid());
        }
    }

    /// Tells it that its place is taken, and which of its relays were taken over from.
    pub(super) fn taken(&self, replaced: &[u32]) -> anyhow::Result<()> {
        match self.ask(TAKEN, json!({"replaced": replaced})) {
            // It has heard it, or has died.
            Err(error) if is_gone(&error) => Ok(()),
            answer => answer.map(drop),
        }
    }

    fn ask(&self, request: &str, with: Value) -> anyhow::Result<Value> {
        let pid = self.pid();
        let answer = self.process.connect().and_then(|mut client| client.ask(request, with));
        Ok(answer.with_context(|| format!("cannot take the place of process {pid}"))?.value)
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    let of = |error: &knobs::Error| error.kind() == knobs::ErrorKind::Gone;
    error.downcast_ref::<knobs::Error>().is_some_and(of)
}
