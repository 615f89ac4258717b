//! Links: programs attached for as long as somebody has the link.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use libbpf_sys::{bpf_attach_type, bpf_link_create_opts};
use rustix::io::Errno;

use crate::checked;

/// A program's place. It is the process's: closing it takes the program off, and so does the end of
/// the process, however that comes.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// What libbpf returned.
    pub(crate) fn of(result: i32) -> io::Result<Link> {
        let fd = checked(result)?;
        // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Attaches a program to a hook of the device with this index.
    pub(crate) fn create(
        program: BorrowedFd<'_>,
        index: u32,
        hook: bpf_attach_type,
        flags: u32,
    ) -> io::Result<Link> {
        let options = bpf_link_create_opts {
            sz: size_of::<bpf_link_create_opts>() as libbpf_sys::size_t,
            flags,
            ..Default::default()
        };
        let (program, device) = (program.as_raw_fd(), device(index)?);
        // SAFETY: the descriptor is open for as long as it is borrowed; `options` says its own size,
        // and outlives the call.
        Link::of(unsafe { libbpf_sys::bpf_link_create(program, device, hook, &raw const options) })
    }

    /// Takes the program off its device at once, also where another process holds the link: a child
    /// between its fork and its exec does, for all that this process has open.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it is not a link of a hook, `ENOLINK` or such if the device is gone.
    pub fn detach(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open for as long as it is borrowed.
        checked(unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) }).map(drop)
    }

    /// Puts another program in the place of the link's.
    pub fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both descriptors are open while they are borrowed, and no options are passed.
        checked(unsafe {
            libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        })
        .map(drop)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An interface index as the system takes it.
pub(crate) fn device(index: u32) -> io::Result<i32> {
    i32::try_from(index).map_err(|_| Errno::NODEV.into())
}
