//! The other end: asking a process about its knobs.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::protocol::{parse_answer, parse_listing, parse_reply, too_large};
use crate::{
    Answer, Current, Error, ErrorKind, KnobInfo, MAX_FILES, MAX_LINE, Peer, Reading, Request,
    Result, endpoint, wire,
};

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// What people call it, such as `relay :8080`; what it is, such as `relay`, of an earlier version.
    pub name: String,
    /// All its knobs, by name.
    pub knobs: Vec<KnobInfo>,
}

/// How long a [`Client`] waits for a process unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer that is read, in bytes.
const MAX_REPLY: usize = 16 * 1024 * 1024;

/// The longest answer of another user's process that is read. That user may try to fill the memory of
/// whoever asks, who may be asking many processes at a time.
const MAX_REPLY_OF_OTHERS: usize = 256 * 1024;

/// A connection to the control socket of a process.
///
/// A process closes a connection that has been silent when it needs the place. The next call then
/// connects again and asks once more; asking twice does no harm, as setting a knob to the same
/// value again does none.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    /// Whose process is to answer, now and after each connecting.
    owner: u32,
    stream: UnixStream,
    timeout: Duration,
}

impl Client {
    /// Connects to a control socket, such as that of a [`Process`](crate::Process), with the
    /// [`DEFAULT_TIMEOUT`].
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if the process is gone (its socket is then removed),
    /// [`ErrorKind::NotPermitted`] if it is another user's, [`ErrorKind::Timeout`],
    /// [`ErrorKind::Io`].
    pub fn connect(path: &Path) -> Result<Self> {
        Self::connect_timeout(path, DEFAULT_TIMEOUT)
    }

    /// As [`connect`](Self::connect); connecting and each call later take at most `timeout`, which
    /// is not zero.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_timeout(path: &Path, timeout: Duration) -> Result<Self> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let owner = dir.metadata().map_err(|error| failure(path, error))?.uid();
        Self::connect_to(path, owner, timeout)
    }

    /// Connects to a process of this user's, whatever has become of the path meanwhile.
    pub(crate) fn connect_to(path: &Path, owner: u32, timeout: Duration) -> Result<Self> {
        let stream = connect(path, owner, timeout)?;
        Ok(Self { path: path.to_owned(), owner, stream, timeout })
    }

    /// Has each call take at most `timeout`, which is not zero, from now on: what is left of a time that
    /// several calls share.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// All knobs of the process, by name.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`], [`ErrorKind::Timeout`], [`ErrorKind::NotPermitted`],
    /// [`ErrorKind::Io`], [`ErrorKind::Schema`] and [`ErrorKind::Malformed`] where the process
    /// answers in words that this version does not know; and what the process itself reports.
    pub fn list(&mut self) -> Result<Vec<KnobInfo>> {
        self.listing().map(|listing| listing.knobs)
    }

    /// What the process is called, and all its knobs.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub fn listing(&mut self) -> Result<Listing> {
        parse_listing(&self.answer(&Request::List {})?)
    }

    /// The present value of a knob.
    ///
    /// # Errors
    /// As for [`list`](Self::list); [`ErrorKind::UnknownKnob`].
    pub fn get(&mut self, knob: &str) -> Result<String> {
        self.call(&Request::Get { knob: knob.to_owned() }, "value")
    }

    /// Sets a knob and returns the value that is then in force, as the process writes it.
    ///
    /// # Errors
    /// As for [`get`](Self::get); [`ErrorKind::BadValue`], with what was expected;
    /// [`ErrorKind::Held`], with who holds it.
    pub fn set(&mut self, knob: &str, value: &str) -> Result<String> {
        self.set_by(knob, value, None, None)
    }

    /// As [`set`](Self::set), but only if the knob is `old`, as the process writes it; the process
    /// looks and sets in one step.
    ///
    /// # Errors
    /// As for [`set`](Self::set); [`ErrorKind::Changed`] if it is something else;
    /// [`ErrorKind::Malformed`] by a process of an earlier version.
    pub fn set_if(&mut self, knob: &str, old: &str, value: &str) -> Result<String> {
        self.set_by(knob, value, None, Some(old.to_owned()))
    }

    /// As [`set`](Self::set), also if somebody holds the knob: that ends the hold, and the knob
    /// stays as it is set here.
    ///
    /// # Errors
    /// As for [`get`](Self::get); [`ErrorKind::BadValue`], with what was expected.
    pub fn set_by_force(&mut self, knob: &str, value: &str) -> Result<String> {
        let (knob, value) = (knob.to_owned(), value.to_owned());
        let set = Request::Set { knob, value, hold: None, force: true, only_if: None };
        self.call(&set, "value")
    }

    /// Sets a knob that one holds.
    pub(crate) fn set_held(&mut self, knob: &str, value: &str, hold: &str) -> Result<String> {
        self.set_by(knob, value, Some(hold.to_owned()), None)
    }

    /// Holds a knob for a while; its value at that moment.
    pub(crate) fn hold(
        &mut self,
        knob: &str,
        hold: &str,
        holder: &str,
        lasts: Duration,
    ) -> Result<String> {
        let (knob, hold, holder) = (knob.to_owned(), hold.to_owned(), holder.to_owned());
        self.call(&Request::Hold { knob, hold, holder, ms: milliseconds(lasts) }, "value")
    }

    /// Lets a hold last longer; the knob's value.
    pub(crate) fn renew(&mut self, knob: &str, hold: &str, lasts: Duration) -> Result<String> {
        let (knob, hold) = (knob.to_owned(), hold.to_owned());
        self.call(&Request::Renew { knob, hold, ms: milliseconds(lasts) }, "value")
    }

    /// Ends a hold; the knob's value.
    pub(crate) fn release(&mut self, knob: &str, hold: &str, keep: bool) -> Result<String> {
        let (knob, hold) = (knob.to_owned(), hold.to_owned());
        self.call(&Request::Release { knob, hold, keep }, "value")
    }

    fn set_by(
        &mut self,
        knob: &str,
        value: &str,
        hold: Option<String>,
        only_if: Option<String>,
    ) -> Result<String> {
        let (knob, value) = (knob.to_owned(), value.to_owned());
        self.call(&Request::Set { knob, value, hold, force: false, only_if }, "value")
    }

    /// All counters and gauges of the process, by name.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub fn counters(&mut self) -> Result<Vec<Reading>> {
        self.call(&Request::Counters {}, "counters")
    }

    /// The value of one counter or gauge.
    ///
    /// # Errors
    /// As for [`list`](Self::list); [`ErrorKind::Unreadable`] if the process has none of this name, or
    /// cannot read it.
    pub fn counter(&mut self, name: &str) -> Result<u64> {
        let found = self.counters()?.into_iter().find(|reading| reading.name == name);
        let value = found.map(|reading| reading.value);
        if let Some(Current::Value(value)) = value {
            return Ok(value);
        }
        let trouble = value.map_or_else(|| "there is none".into(), |value| value.to_string());
        Err(Error::new(ErrorKind::Unreadable, format!("counter {name}: {trouble}")))
    }

    /// Ends the hold that somebody has on a knob, which stays as it is; its value.
    ///
    /// # Errors
    /// As for [`set_by_force`](Self::set_by_force); [`ErrorKind::Changed`] if it was set in the same
    /// moment; [`ErrorKind::Malformed`] by a process of an earlier version.
    pub fn end_hold(&mut self, knob: &str) -> Result<String> {
        let value = self.get(knob)?;
        let (knob, only_if) = (knob.to_owned(), Some(value.clone()));
        let set = Request::Set { knob, value, hold: None, force: true, only_if };
        self.call(&set, "value")
    }

    /// Asks what the process has a [handler](crate::Registry::on_request) for: `with` says what it is
    /// about. The handler is called once at most: this connects anew, and does not try again.
    ///
    /// # Errors
    /// As for [`list`](Self::list); [`ErrorKind::UnknownRequest`], also as
    /// [`ErrorKind::Malformed`] by a process of an earlier version, and [`ErrorKind::Refused`];
    /// [`ErrorKind::Io`] where not all files came, because this process may not open so many.
    pub fn ask(&mut self, request: &str, with: Value) -> Result<Answer> {
        let line = line(&Request::Ask { request: request.to_owned(), with })?;
        self.stream = connect(&self.path, self.owner, self.timeout)?;
        let mut files = Vec::new();
        let answer = self.exchange(line.as_bytes(), &mut files);
        self.abandon_after(&answer);
        parse_answer(&answer?, files)
    }

    /// Asks, and takes the field of this name out of the answer.
    fn call<T: DeserializeOwned>(&mut self, request: &Request, field: &str) -> Result<T> {
        parse_reply(&self.answer(request)?, field)
    }

    /// Asks, again if the connection was lost.
    fn answer(&mut self, request: &Request) -> Result<Vec<u8>> {
        let line = line(request)?;
        let mut answer = self.exchange(line.as_bytes(), &mut Vec::new());
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Gone) {
            self.stream = connect(&self.path, self.owner, self.timeout)?;
            answer = self.exchange(line.as_bytes(), &mut Vec::new());
        }
        self.abandon_after(&answer);
        answer
    }

    fn abandon_after(&self, answer: &Result<Vec<u8>>) {
        if answer.as_ref().is_err_and(|error| error.kind() != ErrorKind::Gone) {
            // An answer that comes after all would be taken for the next one's.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Sends one line and returns the line that answers it, and the files that came beside it.
    fn exchange(&mut self, line: &[u8], files: &mut Vec<OwnedFd>) -> Result<Vec<u8>> {
        let failed = |error| failure(&self.path, error);
        let deadline = Instant::now() + self.timeout;
        self.stream.set_write_timeout(Some(self.timeout)).map_err(failed)?;
        // A process that refuses us closes at once, with its reason waiting to be read.
        let sent = (&self.stream).write_all(line);
        let mut answer = Vec::new();
        let mut chunk = [0; 8 * 1024];
        while answer.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left)).map_err(failed)?;
            match wire::receive(&self.stream, &mut chunk, files) {
                Ok(0) => {
                    sent.map_err(failed)?;
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(got) => answer.extend_from_slice(&chunk[..got]),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if answer.len() > self.max_reply() || files.len() > MAX_FILES {
                return Err(self.too_long());
            }
        }
        Ok(answer)
    }

    fn is_ours(&self) -> bool {
        self.owner == geteuid().as_raw()
    }

    fn max_reply(&self) -> usize {
        if self.is_ours() { MAX_REPLY } else { MAX_REPLY_OF_OTHERS }
    }

    fn too_long(&self) -> Error {
        let (path, bytes) = (self.path.display(), self.max_reply());
        let mend = match self.is_ours() {
            true => String::new(),
            false => format!("; as uid {}, whose process it is, you can read more", self.owner),
        };
        let message = format!("{path} sent more than {bytes} bytes or {MAX_FILES} files{mend}");
        Error::new(ErrorKind::TooLarge, message)
    }
}

fn line(request: &Request) -> Result<String> {
    let line = request.to_line();
    if line.len() > MAX_LINE + 1 { Err(too_large()) } else { Ok(line) }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn connect(path: &Path, owner: u32, timeout: Duration) -> Result<UnixStream> {
    let opened = endpoint::connect(path, Some(timeout)).inspect_err(|errno| {
        if *errno == Errno::CONNREFUSED {
            endpoint::remove_stale(path);
        }
    });
    let stream = opened.map(UnixStream::from).map_err(|errno| failure(path, errno.into()))?;
    check_peer(path, owner, &stream)?;
    Ok(stream)
}

/// Refuses who is not the user whose directory the socket is in: that user may have linked it, or the
/// whole directory, to a socket of somebody else.
fn check_peer(path: &Path, owner: u32, stream: &UnixStream) -> Result<()> {
    let uid = Peer::of(stream)?.uid;
    if uid == owner {
        return Ok(());
    }
    let message =
        format!("uid {uid} answers at {} (expected uid {owner}, whose it is)", path.display());
    Err(Error::new(ErrorKind::NotPermitted, message))
}

/// The error for trouble with the socket at `path`.
fn failure(path: &Path, error: io::Error) -> Error {
    use io::ErrorKind::{
        BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, PermissionDenied, TimedOut,
        UnexpectedEof, WouldBlock,
    };
    let path = path.display();
    match error.kind() {
        ConnectionRefused | NotFound => {
            Error::caused(ErrorKind::Gone, format!("no process answers at {path}"), error)
        }
        BrokenPipe | ConnectionReset | UnexpectedEof => {
            Error::new(ErrorKind::Gone, format!("the process at {path} closed the connection"))
        }
        PermissionDenied => {
            Error::caused(ErrorKind::NotPermitted, format!("connect to {path}"), error)
        }
        // A timeout set on a socket shows as WouldBlock.
        TimedOut | WouldBlock => {
            Error::new(ErrorKind::Timeout, format!("the process at {path} did not answer in time"))
        }
        _ => Error::io(format!("talk to {path}"), error),
    }
}
