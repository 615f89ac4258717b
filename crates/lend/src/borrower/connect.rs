//! The borrower's side of the handshake, and what it checks before it maps anything.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::channel::{Area, Channel};
use super::{Borrower, BorrowerOptions, Wait, wait_at};
use crate::layout::{
    GROUP_SHIFT, HELLO_MIRROR, Hello, Layout, MAGIC, Mapped, Status, VERSION_GROUPS, VERSIONS,
    Welcome,
};
use crate::lender::admission::printable;
use crate::memory::Memory;
use crate::wake::Sleeper;
use crate::wire::{self, DESCRIPTORS, Received};
use crate::{Error, ErrorKind, Result};

/// More channels than a lender has.
const CHANNELS: u32 = 1 << 12;

/// More slots than a ring has.
const SLOTS: u32 = 1 << 24;

pub(super) fn connect(path: &Path, options: &BorrowerOptions) -> Result<Borrower> {
    let at = Peer { path, until: Instant::now() + options.timeout, timeout: options.timeout };
    let hello = hello(options)?;
    let socket = at.socket()?;
    match wire::send(&socket, &hello, &[]) {
        // It closed already; perhaps it said why.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(e) => return Err(Error::io(at.says("cannot say hello"), e)),
    }
    let (welcome, descriptors) = at.answer(&socket)?;
    at.check(&welcome)?;
    let descriptors: [OwnedFd; DESCRIPTORS] = descriptors
        .try_into()
        .map_err(|those: Vec<OwnedFd>| at.odd(format!("{} descriptors", those.len())))?;
    at.borrower(socket, &welcome, descriptors)
}

fn hello(options: &BorrowerOptions) -> Result<Hello> {
    let own;
    let name = match options.name.as_str() {
        "" => {
            own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
            own.trim_end()
        }
        name => name,
    };
    let mut bytes = [0; 48];
    if name.len() > bytes.len() || name.contains('\0') {
        let most = bytes.len();
        let what = format!("the name {name:?}: expected at most {most} bytes, none of them zero");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let (mut version_min, version_max) = VERSIONS;
    let &BorrowerOptions { mirror, group, .. } = options;
    if mirror && group != 0 {
        let what =
            format!("a mirror in group {group}: a mirror gets everything, and is in no group");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    if group != 0 {
        version_min = VERSION_GROUPS;
    }
    let flags = (HELLO_MIRROR * u32::from(mirror)) | u32::from(group) << GROUP_SHIFT;
    Ok(Hello { magic: MAGIC, version_min, version_max, flags, quota: options.quota, name: bytes })
}

/// What we connect to, and how long that may take.
struct Peer<'a> {
    path: &'a Path,
    until: Instant,
    timeout: Duration,
}

impl Peer<'_> {
    fn socket(&self) -> Result<OwnedFd> {
        let address = SocketAddrUnix::new(self.path)
            .map_err(|_| Error::new(ErrorKind::Invalid, self.says("no path of a socket")))?;
        let failed = |e: Errno| self.no_connection(e);
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(failed)?;
        // A connect waits where the lender has too many to accept. Zero would be for ever.
        let timeout = self.timeout.max(Duration::from_micros(1));
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout)).map_err(failed)?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Ok(socket),
                Err(Errno::INTR) if Instant::now() < self.until => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }

    fn no_connection(&self, e: Errno) -> Error {
        let (kind, what) = match e {
            Errno::NOENT => {
                (ErrorKind::NoLender, "there is no such socket: is the lender running?")
            }
            Errno::CONNREFUSED => {
                (ErrorKind::NoLender, "nobody listens there: is the lender running?")
            }
            Errno::PROTOTYPE => (ErrorKind::Protocol, "that is another kind of socket"),
            Errno::AGAIN => return self.timed_out("did not accept"),
            e => return Error::io(self.says("cannot connect"), e),
        };
        Error::new(kind, self.says(what))
    }

    fn answer(&self, socket: &OwnedFd) -> Result<(Welcome, Vec<OwnedFd>)> {
        // A lender that closes before it has read our hello resets the connection; what it said
        // comes after that.
        let mut resets = 0;
        loop {
            match wire::receive::<Welcome>(socket) {
                Ok(Received::Message(welcome, descriptors)) => return Ok((welcome, descriptors)),
                Ok(Received::Garbage) => return Err(self.odd("an answer of another size")),
                Ok(Received::Closed) => return Err(self.hung_up()),
                Err(Errno::CONNRESET) if resets == 0 => resets += 1,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(socket)?,
                Err(e) => return Err(Error::io(self.says("no answer"), e)),
            }
        }
    }

    fn wait(&self, socket: &OwnedFd) -> Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        // A time that is too long for the system is for ever.
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Err(self.timed_out("did not answer")),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::io(self.says("cannot wait"), e)),
        }
    }

    /// Whether the answer is a welcome, and all numbers in it go together.
    fn check(&self, welcome: &Welcome) -> Result<()> {
        if welcome.magic != MAGIC {
            return Err(self.odd("an answer that does not start as a lender's"));
        }
        if welcome.status != Status::Welcome as u16 {
            let what = match text(&welcome.reason) {
                None => format!("the lender refuses, status {}", welcome.status),
                Some(reason) => format!("the lender refuses: {reason}"),
            };
            let for_now = [Status::Full, Status::Quota, Status::Busy, Status::Closing];
            let kind = match for_now.iter().any(|status| *status as u16 == welcome.status) {
                true => ErrorKind::NoRoom,
                false => ErrorKind::Refused,
            };
            return Err(Error::new(kind, self.says(what)));
        }
        let &Welcome { version, frame_size, frames, channels, slots, quota, .. } = welcome;
        if !(VERSIONS.0..=VERSIONS.1).contains(&version) {
            return Err(self.odd(format!("version {version}")));
        }
        if !frame_size.is_power_of_two() || frames == 0 {
            return Err(self.odd(format!("{frames} frames of {frame_size} bytes")));
        }
        let are_slots = slots.is_power_of_two() && (Layout::SLOTS_MIN..=SLOTS).contains(&slots);
        if !are_slots || !(1..=CHANNELS).contains(&channels) || !(1..=slots).contains(&quota) {
            let what = format!("{channels} channels of {slots} slots for {quota} loans");
            return Err(self.odd(what));
        }
        let layout = Layout { channels, slots };
        let lens = [
            (welcome.area_len, u64::from(frames) * u64::from(frame_size)),
            (welcome.out_len, layout.out_len() as u64),
            (welcome.back_len, layout.back_len() as u64),
        ];
        match lens.iter().find(|(said, needed)| said < needed || usize::try_from(*said).is_err()) {
            Some((said, needed)) => {
                Err(self.odd(format!("{said} bytes of memory where {needed} are needed")))
            }
            None => Ok(()),
        }
    }

    fn borrower(
        &self,
        socket: OwnedFd,
        welcome: &Welcome,
        [area, out, back]: [OwnedFd; DESCRIPTORS],
    ) -> Result<Borrower> {
        let &Welcome { frame_size, frames, channels, slots, quota, .. } = welcome;
        let layout = Layout { channels, slots };
        let map = |name, fd: &OwnedFd, len: u64, writable| {
            Memory::of_other(fd, len as usize, writable).map_err(|e| match e {
                Errno::PERM => self.odd(format!("the memory '{name}', which is not sealed")),
                Errno::INVAL => {
                    self.odd(format!("the memory '{name}' with fewer than {len} bytes"))
                }
                e => Error::io(self.says(format!("cannot map the memory '{name}'")), e),
            })
        };
        let memory = map("area", &area, welcome.area_len, false)?;
        let out = Arc::new(map("out", &out, welcome.out_len, false)?);
        let back = Arc::new(map("back", &back, welcome.back_len, true)?);
        // `check` has seen that there are no more than 2^12.
        let channels =
            (0..channels as u16).map(|number| Channel::new(&out, &back, layout, number)).collect();
        self.join(&socket)?;
        Ok(Borrower {
            socket,
            memory,
            area: Area { frame_size, frames, borrower: number() },
            out,
            back,
            channels,
            first: 0,
            quota,
            mirror: welcome.flags & HELLO_MIRROR != 0,
            group: (welcome.flags >> GROUP_SHIFT) as u16,
            device: text(&welcome.reason),
            sleeper: Sleeper::default(),
            gone: false,
        })
    }

    /// Says that all is mapped, and waits until the lender lends to us.
    fn join(&self, socket: &OwnedFd) -> Result<()> {
        match wire::send(socket, &Mapped { magic: MAGIC }, &[]) {
            // It closed already; perhaps it is about to end.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(e) => return Err(Error::io(self.says("cannot say that all is mapped"), e)),
        }
        // To map takes as long as the area is large: the time begins anew.
        let waited = wait_at(socket, Some(self.timeout));
        match waited.map_err(|e| Error::io(self.says("cannot wait"), e))? {
            Wait::Ready => Ok(()),
            Wait::TimedOut => Err(self.timed_out("did not take us in")),
            Wait::Closed => Err(self.hung_up()),
        }
    }

    fn hung_up(&self) -> Error {
        let what = "the lender closed the connection and did not say why";
        Error::new(ErrorKind::Died, self.says(what))
    }

    fn timed_out(&self, what: &str) -> Error {
        let what = self.says(format!("the lender {what} within {:?}", self.timeout));
        Error::new(ErrorKind::TimedOut, what)
    }

    fn odd(&self, what: impl AsRef<str>) -> Error {
        let what =
            format!("that is no lender, or one that is out of step: it sent {}", what.as_ref());
        Error::new(ErrorKind::Protocol, self.says(what))
    }

    fn says(&self, what: impl AsRef<str>) -> String {
        format!("{}: {}", self.path.display(), what.as_ref())
    }
}

/// What a welcome says. It is somebody else's text, on its way to a terminal or into a file.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text: String = String::from_utf8_lossy(&bytes[..end]).chars().map(printable).collect();
    Some(text).filter(|text| !text.is_empty())
}

/// A number that no other borrower of this process has.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: it only has to be another one each time.
    NEXT.fetch_add(1, Ordering::Relaxed)
}
