//! Which processes there are, and asking all of them.
//!
//! A user finds his own processes, root those of all users. A directory of another user's is that
//! user's to fill: root believes of a socket there only that a process of this user answers, removes
//! nothing there, takes at most [`MAX_OF_OTHERS`] of them, and looks at a [bounded](MAX_FILES_OF_OTHERS)
//! number of files.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::geteuid;

use crate::endpoint::{Found, is_new, probe};
use crate::runtime_dir::{Place, check_of, is_kind, places};
use crate::{Client, DEFAULT_TIMEOUT, Error, ErrorKind, Result};

/// The most processes of each other user.
const MAX_OF_OTHERS: usize = 32;

/// The most files in the directories of each other user: what dead processes left, which is the user's
/// to remove, hides none that lives.
const MAX_FILES_OF_OTHERS: usize = 1024;

/// The most processes that are asked at a time.
const SIDE_BY_SIDE: usize = 64;

/// A process with a control socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Process {
    /// What sort of process it is, such as `relay`.
    pub kind: String,
    /// Its process id, as it is seen here; as it is seen in its own PID namespace if that cannot be
    /// seen from here.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// Its socket.
    pub path: PathBuf,
    /// Whether the process id is as it is seen here: what `/proc` says of it is of this process.
    pub is_visible: bool,
}

impl Process {
    /// Connects to it, as [`Client::connect`] does. One that is stopped now, as by SIGSTOP, is not
    /// waited for as long.
    ///
    /// # Errors
    /// As for [`Client::connect`].
    pub fn connect(&self) -> Result<Client> {
        let patience = if self.is_stopped() { DEFAULT_TIMEOUT / 10 } else { DEFAULT_TIMEOUT };
        self.connect_timeout(patience)
    }

    /// Connects to it, as [`Client::connect_timeout`] does.
    ///
    /// # Errors
    /// As for [`Client::connect`]; [`ErrorKind::NotPermitted`] also if another user's process answers
    /// in its place.
    pub fn connect_timeout(&self, timeout: Duration) -> Result<Client> {
        Client::connect_to(&self.path, self.uid, timeout)
    }

    /// Whether it is stopped, as by SIGSTOP or a debugger, and so answers nobody.
    pub fn is_stopped(&self) -> bool {
        if !self.is_visible {
            return false;
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name before it may have anything in it.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        matches!(state, Some('T' | 't'))
    }

    /// Its kind and process id, such as `relay-42`: what is known of it without asking.
    pub fn label(&self) -> String {
        format!("{}-{}", self.kind, self.pid)
    }
}

/// What a search has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Search {
    /// By kind and process id.
    pub processes: Vec<Process>,
    /// The directories that were searched, as people write them, such as `/run/user/*/cachelane`.
    pub searched: Vec<String>,
}

impl Search {
    /// The error where no process runs, or none that was meant: it names the directories.
    pub fn none(&self, select: &Select) -> Error {
        let which = if select.is_any() { String::new() } else { format!(" {select}") };
        let searched = self.searched.join(", ");
        let message = format!("no cachelane process{which} runs (searched: {searched})");
        Error::new(ErrorKind::Gone, message)
    }
}

/// Searches for the processes of this user, or for root, of all users: where
/// [`runtime_dir`](crate::runtime_dir) may be, whatever the environment says. With
/// `$CACHELANE_RUNTIME_DIR`, only there.
///
/// # Errors
/// [`ErrorKind::NotPermitted`] where others could have put sockets into this user's
/// [`runtime_dir`](crate::runtime_dir); [`ErrorKind::Io`] where that cannot be read. Directories of
/// others that cannot be believed or read are passed over.
pub fn search() -> Result<Search> {
    search_places(places())
}

/// As [`search`], in one directory of this user's.
///
/// # Errors
/// As for [`search`].
pub fn search_in(dir: &Path) -> Result<Search> {
    search_places(vec![Place::own(dir.to_owned())])
}

/// The processes that [`search`] finds.
///
/// # Errors
/// As for [`search`].
pub fn discover() -> Result<Vec<Process>> {
    search().map(|search| search.processes)
}

/// As [`discover`], in one directory of this user's.
///
/// # Errors
/// As for [`discover`].
pub fn discover_in(dir: &Path) -> Result<Vec<Process>> {
    search_in(dir).map(|search| search.processes)
}

/// Asks processes side by side, so that one that does not answer delays no other. The answers are in
/// their order.
pub fn ask_each<T: Send>(
    processes: &[Process],
    ask: impl Fn(&Process) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    side_by_side(processes.iter().collect(), ask)
}

/// Works on all items at a time, or on as many as is sensible; what came of each, in their order.
pub fn side_by_side<I: Send, T: Send>(items: Vec<I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    let threads = items.len().min(SIDE_BY_SIDE);
    let queue = Mutex::new(items.into_iter().enumerate());
    let one = || {
        let mut done = Vec::new();
        loop {
            let next = queue.lock().next();
            let Some((place, item)) = next else { return done };
            done.push((place, work(item)));
        }
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, done)| done).collect()
}

fn search_places(places: Vec<Place>) -> Result<Search> {
    let mut found = Search::default();
    let mut bounds = HashMap::new();
    for Place { pattern, dirs, must } in places {
        found.searched.push(pattern);
        for (dir, uid) in dirs {
            let bound = bounds.entry(uid).or_insert_with(|| Bound::of(uid));
            match list(&dir, uid, bound) {
                Ok(processes) => found.processes.extend(processes),
                Err(error) if must => return Err(error),
                Err(error) => tracing::debug!("passed over: {error}"),
            }
        }
    }
    found.processes.sort();
    found.processes.dedup();
    Ok(found)
}

/// How much more of a user's is looked at, in all directories together.
struct Bound {
    files: usize,
    processes: usize,
}

impl Bound {
    fn of(uid: u32) -> Self {
        match uid == geteuid().as_raw() {
            true => Self { files: usize::MAX, processes: usize::MAX },
            false => Self { files: MAX_FILES_OF_OTHERS, processes: MAX_OF_OTHERS },
        }
    }
}

/// The processes whose control sockets are in a directory of this user's.
fn list(dir: &Path, uid: u32, bound: &mut Bound) -> Result<Vec<Process>> {
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        _ => check_of(dir, uid)?,
    }
    let failed = |error| Error::io(format!("list {}", dir.display()), error);
    let mut processes = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if bound.files == 0 || bound.processes == 0 {
            tracing::warn!(
                "{}: of another user, {MAX_OF_OTHERS} processes and {MAX_FILES_OF_OTHERS} files are \
                 looked at, and no more",
                dir.display()
            );
            break;
        }
        bound.files -= 1;
        if is_new(&path) {
            continue;
        }
        let Some((kind, pid)) = parse_file_name(&path) else { continue };
        let Found::Live(peer) = probe(&path) else { continue };
        if peer.is_some_and(|peer| peer.uid != uid) {
            tracing::debug!("passed over: another user answers at {}", path.display());
            continue;
        }
        bound.processes -= 1;
        let seen = peer.map(|peer| peer.pid).filter(|pid| *pid != 0);
        let (pid, is_visible) = (seen.unwrap_or(pid), seen.is_some());
        processes.push(Process { kind, pid, uid, path, is_visible });
    }
    Ok(processes)
}

/// The kind and the process id that a socket's name says, such as `relay-42.sock` or, the second of
/// two with one id, `relay-1.2.sock`.
fn parse_file_name(path: &Path) -> Option<(String, u32)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    let (kind, id) = stem.rsplit_once('-')?;
    let (pid, number) = id.split_once('.').unwrap_or((id, "2"));
    number.parse::<u32>().ok().filter(|number| *number > 1)?;
    let pid = pid.parse().ok().filter(|_| is_kind(kind))?;
    Some((kind.to_owned(), pid))
}

/// Which process of several is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// The one with this process id.
    pub pid: Option<u32>,
    /// The one of this name, such as `relay :8080`.
    pub name: Option<String>,
}

impl Select {
    /// Whether it may be this one, as far as its process id says.
    pub fn may_be(&self, process: &Process) -> bool {
        self.pid.is_none_or(|pid| pid == process.pid)
    }

    /// Whether it is one of this name, as far as that says.
    pub fn is_name(&self, name: &str) -> bool {
        self.name.as_ref().is_none_or(|wanted| wanted == name)
    }

    /// Whether it says anything.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

impl From<Option<u32>> for Select {
    /// By process id.
    fn from(pid: Option<u32>) -> Self {
        Self { pid, name: None }
    }
}

impl std::fmt::Display for Select {
    /// Such as `with process id 7`, `named 'relay :8080'`; nothing where any is meant.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pid = self.pid.map(|pid| format!("with process id {pid}"));
        let name = self.name.as_ref().map(|name| format!("named '{name}'"));
        f.write_str(&Vec::from_iter(name.into_iter().chain(pid)).join(" and "))
    }
}

#[cfg(test)]
mod others;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_are_read_as_they_are_written() {
        for (file, kind, pid) in [
            ("relay-1.sock", "relay", 1),
            ("lend-rx_0-4000000.sock", "lend-rx_0", 4_000_000),
            ("relay-1.2.sock", "relay", 1),
        ] {
            assert_eq!(parse_file_name(Path::new(file)), Some((kind.to_owned(), pid)));
        }
        for file in [
            "relay.sock",
            "relay-x.sock",
            "relay-1",
            "-1.sock",
            "Relay-1.sock",
            "relay-1.1.sock",
            "relay-1..sock",
            ".relay-1.0.new",
        ] {
            assert_eq!(parse_file_name(Path::new(file)), None, "{file}");
        }
    }

    #[test]
    fn answers_come_in_the_processes_order_however_many_there_are() {
        let process = |pid| Process {
            kind: "x".into(),
            pid,
            uid: 0,
            path: PathBuf::new(),
            is_visible: false,
        };
        let processes: Vec<_> = (0..1000).map(process).collect();
        let answers = ask_each(&processes, |process| Ok(process.pid));
        let pids: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(pids, Vec::from_iter(0..1000));
        assert!(ask_each(&[], |_| Ok(())).is_empty());
    }
}
