//! The control socket of this process.
//!
//! One thread serves all clients, none of which can make it wait: reads and writes don't block,
//! lines are bounded, and a client is answered in turns. When all places are taken, newcomers wait
//! in the kernel's queue until a client leaves or has been silent for [`GRACE`], and then the one
//! that has been silent longest gives way. So nobody is locked out by clients that sit idle, and
//! [`Client`](crate::Client) connects again when that happens to it.
//!
//! The thread also ends holds whose time is over, all of them when it ends itself. It answers before
//! that what had been asked until then: a setter that takes long must not cost the holder of another
//! knob its hold.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;

use crate::connection::{Connection, Next};
use crate::protocol::error_line;
use crate::{Error, ErrorKind, Peer, Registry, Result, discover_in, endpoint, runtime_dir};

/// The most clients at a time.
const CLIENTS: usize = 128;

/// How long a client may be silent before it may have to give way to a newcomer.
const GRACE: Duration = Duration::from_millis(250);

/// How long to leave new clients alone after one could not be accepted, for want of descriptors
/// say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The control socket of this process, open as long as this lives.
///
/// Only this user and root can connect: the directory belongs to the user, the socket has mode
/// 0600, and each client's credentials are checked.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Its end tells the thread to stop.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens the registry to clients, in this user's [`runtime_dir`](crate::runtime_dir).
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] for the process's name, [`ErrorKind::NotPermitted`] where others can
    /// write to the directory, [`ErrorKind::Duplicate`] if this process already has a server of
    /// that name, [`ErrorKind::Io`].
    pub fn bind(registry: Registry) -> Result<Self> {
        Self::bind_in(registry, &runtime_dir::runtime_dir())
    }

    /// As [`bind`](Self::bind), in a directory of the caller's choice.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_in(registry: Registry, dir: &Path) -> Result<Self> {
        let stem = runtime_dir::socket_stem(registry.process(), std::process::id())?;
        runtime_dir::prepare(dir)?;
        // This clears the directory of the sockets of dead processes.
        discover_in(dir)?;
        let failed = |error| {
            let path = dir.join(format!("{stem}.sock"));
            Error::io(format!("open the control socket {}", path.display()), error)
        };
        let listening = endpoint::listen(dir, &stem).map_err(|error| failed(error.into()))?;
        let (listener, path) = listening.ok_or_else(|| {
            let message = format!("{} is already served by this process", registry.process());
            Error::new(ErrorKind::Duplicate, message)
        })?;
        // From here on, dropping the server removes the socket.
        let mut server = Self { path, stop: None, thread: None };
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        server.stop = Some(stop);
        let work = move || serve(&registry, &listener, &stopped);
        let thread = thread::Builder::new().name("knobs".to_owned()).spawn(work).map_err(failed)?;
        server.thread = Some(thread);
        Ok(server)
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    /// Removes the socket and ends its thread, which finishes the request that it is answering.
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "control socket not removed");
        }
        drop(self.stop.take());
        // A knob's setter may hold the last handle: the thread cannot wait for itself.
        match self.thread.take() {
            Some(thread) if thread.thread().id() != thread::current().id() => {
                let _ = thread.join();
            }
            _ => {}
        }
    }
}

/// The thread: until the other end of `stopped` closes.
fn serve(registry: &Registry, listener: &UnixListener, stopped: &UnixStream) {
    let mut clients: Vec<Connection> = Vec::with_capacity(CLIENTS);
    let mut accept_from = Instant::now();
    loop {
        let now = Instant::now();
        let mut turn_due = false;
        let mut stays = |client: &mut Connection| {
            let next = client.advance(registry, now);
            turn_due |= next == Next::Turn;
            next != Next::Close
        };
        clients.retain_mut(&mut stays);
        // Bounded, so that holds end however many come.
        for _ in 0..CLIENTS {
            if accept_from.max(room_at(&clients).unwrap_or(now)) > now {
                break;
            }
            match accept(listener, now) {
                Ok(Some(mut newcomer)) => {
                    if stays(&mut newcomer) {
                        seat(&mut clients, newcomer);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "control socket: a client was not accepted");
                    accept_from = Instant::now() + ACCEPT_PAUSE;
                }
            }
        }
        let hold_due = registry.tend(now);
        let room_at = room_at(&clients).map_or(accept_from, |room_at| room_at.max(accept_from));
        let accepting = room_at <= now;
        let deadlines = clients.iter().filter_map(Connection::deadline).chain(hold_due);
        let wake_at = match turn_due {
            true => Some(now),
            false => deadlines.chain((!accepting).then_some(room_at)).min(),
        };
        match wait(&clients, listener, stopped, accepting, wake_at) {
            Ok(Event::Stopped) => return registry.abandon_holds(),
            Ok(Event::Other) => {}
            Err(error) => {
                tracing::error!(%error, "control socket: closed, for poll fails");
                return registry.abandon_holds();
            }
        }
    }
}

/// When there is room for a newcomer; `None` for always.
fn room_at(clients: &[Connection]) -> Option<Instant> {
    if clients.len() < CLIENTS {
        return None;
    }
    clients.iter().map(Connection::heard).min().map(|heard| heard + GRACE)
}

enum Event {
    Stopped,
    Other,
}

fn wait(
    clients: &[Connection],
    listener: &UnixListener,
    stopped: &UnixStream,
    accepting: bool,
    wake_at: Option<Instant>,
) -> io::Result<Event> {
    let listen_for = if accepting { PollFlags::IN } else { PollFlags::empty() };
    let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(listener, listen_for)];
    fds.extend(clients.iter().map(|client| PollFd::new(client, client.interest())));
    let left = wake_at.map(|at| at.saturating_duration_since(Instant::now()));
    // Deadlines are seconds away, which a timeout can hold.
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) if !fds[0].revents().is_empty() => Ok(Event::Stopped),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(Event::Other),
        Err(error) => Err(error.into()),
    }
}

/// Takes one newcomer, if one waits who may come in.
fn accept(listener: &UnixListener, now: Instant) -> io::Result<Option<Connection>> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    let (stream, _) = match listener.accept() {
        Err(e) if [ConnectionAborted, Interrupted, WouldBlock].contains(&e.kind()) => {
            return Ok(None);
        }
        accepted => accepted?,
    };
    stream.set_nonblocking(true)?;
    match Peer::of(&stream).and_then(check_peer) {
        Ok(peer) => Ok(Some(Connection::new(stream, peer, now))),
        Err(error) => {
            tracing::warn!(%error, "control socket: a client was refused");
            // It fits the socket's empty buffer; a client that does not read it misses nothing else.
            let _ = io::Write::write(&mut &stream, &error_line(&error));
            Ok(None)
        }
    }
}

/// Gives a newcomer a place, that of the client that has been silent longest if need be.
fn seat(clients: &mut Vec<Connection>, newcomer: Connection) {
    if clients.len() >= CLIENTS {
        let silent = clients.iter().enumerate().min_by_key(|(_, client)| client.heard());
        if let Some((index, _)) = silent {
            clients.swap_remove(index);
        }
    }
    clients.push(newcomer);
}

/// Refuses a client that is neither this user nor root.
fn check_peer(peer: Peer) -> Result<Peer> {
    let (uid, ours) = (peer.uid, geteuid().as_raw());
    if uid == 0 || uid == ours {
        return Ok(peer);
    }
    let message = format!("uid {uid} may not control this process (expected uid {ours} or 0)");
    Err(Error::new(ErrorKind::NotPermitted, message))
}
