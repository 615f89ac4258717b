//! Both ends of a hand-over on the control socket: see `handover.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knobs::{Answer, Client, Peer, Process, Registry};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::addr::Addr;
use crate::baton::Baton;
use crate::config::Config;
use crate::handover::{Handover, Offer};
use crate::inherited::{Duplicate, Inherited, Owner};
use crate::{Error, ErrorKind, Relay};

/// How long a step may take the other process.
const STEP: Duration = Duration::from_secs(5);

/// Answers those who want to take over from `relay`.
pub(crate) fn answer(relay: &Arc<Relay>, registry: &Registry) -> knobs::Result<()> {
    let from = Arc::clone(relay);
    registry.on_request("relay.listeners", move |_: &Value, _: Peer| {
        let (addrs, draining) = (texts(from.listening_on()), from.is_draining());
        Ok::<_, Error>(Answer {
            value: json!({"addrs": addrs, "draining": draining, "network": network()}),
            files: vec![],
        })
    })?;
    let from = Arc::clone(relay);
    registry.on_request("relay.hand_over", move |with: &Value, peer: Peer| {
        let Offer { token, sockets, baton } = from.offer(&addrs(with)?, peer.pid)?;
        let is_manager = |one: &Duplicate| one.owner == Owner::Manager;
        let manager: Vec<bool> = sockets.iter().map(is_manager).collect();
        let at_paths: Vec<_> = sockets.iter().map(|one| one.file).collect();
        let mut files: Vec<_> = sockets.into_iter().map(|one| one.socket).collect();
        files.push(baton);
        let value = json!({"token": token, "manager": manager, "at_paths": at_paths});
        Ok::<_, Error>(Answer { value, files })
    })?;
    let from = Arc::clone(relay);
    registry.on_request("relay.release", move |with: &Value, _| {
        from.release(token(with)?).map(|()| Answer::default())
    })?;
    let from = Arc::clone(relay);
    registry.on_request("relay.taken", move |with: &Value, _| {
        from.taken(token(with)?).map(|()| Answer::default())
    })
}

/// This thread's network namespace: an address in another one is another.
fn network() -> u64 {
    rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.st_ino)
}

fn token(with: &Value) -> Result<u64, Error> {
    with["token"].as_u64().ok_or_else(|| Error::invalid("token: expected a number"))
}

fn texts(addrs: &[Addr]) -> Vec<String> {
    addrs.iter().map(Addr::to_string).collect()
}

/// The addresses that a request or an answer names.
fn addrs(of: &Value) -> Result<Vec<Addr>, Error> {
    let texts = of["addrs"].as_array().ok_or_else(|| Error::invalid("addrs: expected a list"))?;
    texts.iter().map(|text| text.as_str().unwrap_or_default().parse()).collect()
}

/// A relay that runs, and can be replaced.
#[derive(Debug)]
pub struct Predecessor {
    /// Its process.
    pub pid: u32,
    /// It accepts nobody any more and will end soon, so there is nothing to take over.
    pub is_draining: bool,
    path: PathBuf,
    addrs: Vec<Addr>,
}

impl Predecessor {
    /// The relay of this user's in this network namespace that listens on one of these addresses at least, if there
    /// is one.
    ///
    /// # Errors
    /// Several relays listen on them; the control sockets cannot be looked at.
    pub fn find(addrs: &[Addr]) -> Result<Option<Predecessor>, Error> {
        Predecessor::find_among(knobs::discover(), addrs)
    }

    /// As [`find`](Self::find), among the control sockets in a directory of the caller's choice.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn find_in(dir: &Path, addrs: &[Addr]) -> Result<Option<Predecessor>, Error> {
        Predecessor::find_among(knobs::discover_in(dir), addrs)
    }

    fn find_among(
        processes: knobs::Result<Vec<Process>>,
        wanted: &[Addr],
    ) -> Result<Option<Predecessor>, Error> {
        let cannot = |e| Error::control("cannot look for the relay to replace", e);
        let mut processes = processes.map_err(cannot)?;
        // Another user's could say anything, and pass any file.
        let user = geteuid().as_raw();
        processes.retain(|process| process.uid == user);
        let answers =
            knobs::ask_each(&processes, |one| one.connect()?.ask("relay.listeners", json!({})));
        let mut found: Option<Predecessor> = None;
        for (process, answer) in processes.into_iter().zip(answers) {
            let label = process.label();
            let value = match answer {
                Ok(answer) => answer.value,
                Err(error) if error.kind() == knobs::ErrorKind::Timeout => {
                    tracing::warn!("{label} does not answer, and is not replaced");
                    continue;
                }
                // No relay.
                Err(_) => continue,
            };
            let theirs = addrs(&value).unwrap_or_default();
            let addrs: Vec<_> = theirs.into_iter().filter(|a| wanted.contains(a)).collect();
            if addrs.is_empty() || value["network"].as_u64() != Some(network()) {
                continue;
            }
            let is_draining = value["draining"].as_bool().unwrap_or(false);
            let (pid, path) = (process.pid, process.path);
            match &found {
                Some(other) if !other.is_draining && !is_draining => {
                    let other = other.pid;
                    return Err(Error::invalid(format!(
                        "processes {other} and {pid} listen on these addresses (expected one relay \
                         on all of them)"
                    )));
                }
                Some(other) if !other.is_draining => {}
                _ => found = Some(Predecessor { pid, is_draining, path, addrs }),
            }
        }
        Ok(found)
    }

    /// Those of the addresses that it listens on.
    pub fn addrs(&self) -> &[Addr] {
        &self.addrs
    }

    /// Starts a relay on the predecessor's sockets, on those of `passed` where it has none, and on new
    /// ones where there are none, and takes over from it: when this returns, the new relay serves and
    /// the old one accepts nobody any more.
    ///
    /// # Errors
    /// As for [`Relay::start`]; [`ErrorKind::Busy`] if the predecessor keeps its sockets, or is about
    /// to end. The predecessor then goes on as if nothing had been.
    pub fn take_over(&self, config: Config, passed: Vec<Inherited>) -> Result<Relay, Error> {
        let failed = |e| Error::control(format!("cannot take over from process {}", self.pid), e);
        let mut control = Client::connect_timeout(&self.path, STEP).map_err(failed)?;
        let asked = control.ask("relay.hand_over", json!({"addrs": texts(&self.addrs)}));
        let Answer { value, mut files } = asked.map_err(failed)?;
        let baton = files.pop().ok_or_else(|| Error::busy("the predecessor gave no baton"))?;
        let is_manager = |index: usize| value["manager"][index].as_bool() == Some(true);
        let inherit = |(index, socket)| {
            let owner = if is_manager(index) { Owner::Manager } else { Owner::Relay };
            let at_path = &value["at_paths"][index];
            let file = at_path[0].as_u64().zip(at_path[1].as_u64()).map(|(dev, ino)| [dev, ino]);
            let inherited = Inherited::new(socket, owner).map(|one| one.with_file(file));
            inherited.map_err(|e| Error::busy(format!("process {} passed a socket: {e}", self.pid)))
        };
        let sockets = files.into_iter().enumerate().map(inherit);
        let mut sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        if let Some(other) = sockets.iter().find(|socket| !self.addrs.contains(&socket.addr)) {
            let (pid, addr, addrs) = (self.pid, &other.addr, texts(&self.addrs).join(", "));
            return Err(Error::invalid(format!(
                "process {pid} passed a socket on {addr} (expected one on {addrs})"
            )));
        }
        sockets.extend(passed.into_iter().filter(|one| !self.addrs.contains(&one.addr)));
        let handover = Handover::new(Baton::of(baton)?);
        let relay = Relay::begin(config, sockets, handover)?;
        let token = json!({"token": value["token"]});
        // What they answer does not matter: the baton is there for the taking, or not.
        let released = control.ask("relay.release", token.clone());
        if let Err(error) = relay.take_charge() {
            return Err(released.map_or_else(failed, |_| error));
        }
        if let Err(error) = control.ask("relay.taken", token) {
            tracing::debug!("process {} does not know yet that it is replaced: {error}", self.pid);
        }
        Ok(relay)
    }
}

impl Error {
    fn control(what: impl Into<String>, cause: knobs::Error) -> Error {
        let mut error = Error::busy(format!("{}: {cause}", what.into()));
        if cause.kind() == knobs::ErrorKind::NotPermitted {
            error = Error::new(ErrorKind::PermissionDenied, error.to_string());
        }
        error
    }
}
