//! The area, registered with the kernel.
//!
//! The kernel ties a registration to a socket, and has its further users name a socket that is
//! bound already (`XDP_SHARED_UMEM`); they inherit that socket's terms ([`Terms`]). So the first
//! socket of each set of terms registers the area, the others join it, and which sockets there are
//! to join is kept here. Once all of them are closed, the next one registers anew.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use frames::FramePool;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};

use crate::sys::namespace;
use crate::{Error, ErrorKind, Result};

/// A pool's area, registered with the kernel. Clones are handles of the same.
#[derive(Clone, Debug)]
pub struct Umem {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: FramePool,
    registrations: Mutex<Registrations>,
}

/// The sockets that the area is registered by.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    /// Registered, not bound, and not yet anybody's.
    spare: Option<OwnedFd>,
    bound: Vec<Bound>,
    /// Devices that have no zero-copy, by namespace and index.
    copy_only: Vec<(u64, u32)>,
}

#[derive(Debug)]
struct Bound {
    fd: Weak<OwnedFd>,
    terms: Terms,
    place: Place,
}

/// A queue: a device's index and the queue's number. The same pair may be another queue in another
/// network namespace.
pub(crate) type Place = (u32, u32);

/// What all sockets of one registration have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) zero_copy: bool,
    pub(crate) need_wakeup: bool,
    pub(crate) multi_buffer: bool,
}

impl Umem {
    /// Registers the pool's area.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] without `CAP_NET_RAW`, [`ErrorKind::MemlockLimit`] if the area
    /// is larger than what the caller may lock, [`ErrorKind::Invalid`] for a frame size that the
    /// kernel does not take (it takes 2048 and, with pages of 4096 bytes, 4096),
    /// [`ErrorKind::NoXdp`] from kernels without AF_XDP, [`ErrorKind::Unsupported`] from those that are
    /// too old ([`check_kernel`]).
    pub fn new(pool: FramePool) -> Result<Self> {
        check_kernel()?;
        let size = pool.area().frame_size();
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX);
        if !size.is_power_of_two() || !(2048..=page).contains(&size) {
            return Err(Error::invalid(format!(
                "frames of {size} bytes: AF_XDP takes a power of two from 2048 to {page}"
            )));
        }
        let spare = Some(register(&pool)?);
        let registrations = Mutex::new(Registrations { spare, ..Registrations::default() });
        Ok(Self { shared: Arc::new(Shared { pool, registrations }) })
    }

    /// The pool whose area it is.
    pub fn pool(&self) -> &FramePool {
        &self.shared.pool
    }

    /// Held while a socket is bound, so that the one it joins is there.
    pub(crate) fn registrations(&self) -> MutexGuard<'_, Registrations> {
        // A panic leaves no half-made entry.
        self.shared.registrations.lock()
    }
}

/// Whether the kernel is new enough; [`Umem::new`] looks by itself. The rings of a socket are mapped once it
/// is bound, which kernels allow since 6.4.
///
/// # Errors
/// [`ErrorKind::Unsupported`], with the version that is needed.
pub fn check_kernel() -> Result<()> {
    Ok(bpf::kernel::expect("AF_XDP rings that can be mapped of a bound socket")?)
}

impl Registrations {
    /// A bound socket on terms that are acceptable.
    pub(crate) fn join(&mut self, acceptable: impl Fn(Terms) -> bool) -> Option<Arc<OwnedFd>> {
        self.bound.retain(|bound| bound.fd.strong_count() > 0);
        let mut sockets = self.bound.iter().filter(|bound| acceptable(bound.terms));
        sockets.find_map(|bound| bound.fd.upgrade())
    }

    /// Whether a socket is on what looks like this queue.
    pub(crate) fn on(&self, place: Place) -> bool {
        self.bound.iter().any(|bound| bound.place == place && bound.fd.strong_count() > 0)
    }

    /// An unbound socket of the caller's network namespace by which the area is registered.
    pub(crate) fn own(&mut self, pool: &FramePool) -> Result<OwnedFd> {
        let Some(spare) = self.spare.take() else { return register(pool) };
        // A socket belongs to the namespace that it was opened in.
        let here = open()?;
        match (namespace(spare.as_fd()), namespace(here.as_fd())) {
            (Some(theirs), Some(ours)) if theirs == ours => Ok(spare),
            _ => {
                drop(spare);
                register(pool)
            }
        }
    }

    /// Whether a device was found to have no zero-copy.
    pub(crate) fn is_copy_only(&self, namespace: Option<u64>, device: u32) -> bool {
        namespace.is_some_and(|namespace| self.copy_only.contains(&(namespace, device)))
    }

    pub(crate) fn note_copy_only(&mut self, namespace: Option<u64>, device: u32) {
        if let Some(namespace) = namespace
            && !self.is_copy_only(Some(namespace), device)
        {
            self.copy_only.push((namespace, device));
        }
    }

    /// Notes that a socket is bound, for others to join.
    pub(crate) fn bound(&mut self, fd: &Arc<OwnedFd>, terms: Terms, place: Place) {
        self.bound.push(Bound { fd: Arc::downgrade(fd), terms, place });
    }
}

/// An AF_XDP socket in the caller's network namespace.
pub(crate) fn open() -> Result<OwnedFd> {
    let opened = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    opened.map_err(|error| match error {
        Errno::PERM => {
            let message = "AF_XDP sockets need CAP_NET_RAW (run as root, or with `setpriv`)";
            Error::caused(ErrorKind::NotPermitted, message, error)
        }
        Errno::AFNOSUPPORT | Errno::INVAL => {
            let message = "this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)";
            Error::caused(ErrorKind::NoXdp, message, error)
        }
        error => Error::io("cannot open an AF_XDP socket", error),
    })
}

fn register(pool: &FramePool) -> Result<OwnedFd> {
    let fd = open()?;
    let area = pool.area();
    let request = XdpUmemReg {
        addr: area.as_ptr().as_ptr() as u64,
        len: area.len() as u64,
        chunk_size: area.frame_size(),
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    // The kernel pins the pages: they stay its own until the last socket is closed, whatever
    // happens to this process's mapping of them.
    match set_xdp_umem_reg(&fd, request) {
        Ok(()) => Ok(fd),
        Err(error) => Err(explain(area.len(), error)),
    }
}

fn explain(bytes: usize, error: Errno) -> Error {
    let kib = bytes.div_ceil(1024);
    match error {
        Errno::NOBUFS => {
            let limit = getrlimit(Resource::Memlock).current;
            let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes / 1024));
            Error::caused(
                ErrorKind::MemlockLimit,
                format!(
                    "cannot lock {kib} KiB for the frames: the user's limit is {limit} \
                     (`ulimit -l`), this and other processes together; raise it with \
                     `ulimit -l {kib}` or more, run with CAP_IPC_LOCK, or use fewer frames"
                ),
                error,
            )
        }
        Errno::NOMEM => {
            Error::caused(ErrorKind::Io, format!("no memory to pin {kib} KiB of frames"), error)
        }
        error => Error::io(format!("cannot register {kib} KiB of frames with the kernel"), error),
    }
}

/// For messages: what the kernel said, and on which socket.
pub(crate) fn failed(what: &str, fd: BorrowedFd<'_>, error: impl Into<io::Error>) -> Error {
    Error::io(format!("AF_XDP socket {}: {what}", fd.as_raw_fd()), error)
}
