//! tcx: which programs a device has, in which order, and attaching ours after all others.
//!
//! libbpf-rs has neither: these are the two calls of libbpf itself.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;

use crate::{Error, ErrorKind, Result};

/// A device's tcx hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Before the kernel's own handling of what the device received.
    Ingress,
    /// Before the device's queue discipline.
    Egress,
}

impl Hook {
    fn attach_type(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Hook::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Hook::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }
}

/// The ids of the programs on a hook of the device with this index, in the order in which they
/// run.
///
/// # Errors
/// `ENODEV` if there is no such device, `EINVAL` from kernels without tcx, `EPERM` without
/// `CAP_NET_ADMIN`.
pub(crate) fn programs(index: u32, hook: Hook) -> io::Result<Vec<u32>> {
    // The kernel's own limit (BPF_MPROG_MAX).
    let mut ids = [0_u32; 64];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = ids.len() as u32;
    // SAFETY: `options` says its own size, and its array holds as many ids as it says; both
    // outlive the call.
    let failed = unsafe {
        libbpf_sys::bpf_prog_query_opts(device(index)?, hook.attach_type(), &raw mut options)
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(-failed));
    }
    // SAFETY: the call has filled in the count, and either field of the union is a plain number.
    let count = unsafe { options.__bindgen_anon_1.count };
    Ok(ids[..ids.len().min(count as usize)].to_vec())
}

/// Asks the kernel something harmless that needs tcx.
///
/// # Errors
/// [`ErrorKind::Unsupported`] on kernels without tcx; [`ErrorKind::Io`].
pub(crate) fn needed(index: u32) -> Result<()> {
    match programs(index, Hook::Ingress) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            let message = "this kernel has no tcx (Linux 6.6 or later is needed)";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        Err(error) => Err(Error::io("cannot ask for tcx programs", error)),
    }
}

/// Attaches a program behind those that are on the hook already. It stays for as long as the link
/// that is returned is open.
///
/// # Errors
/// As [`programs`]; `ERANGE` if the hook is full.
pub(crate) fn attach(program: BorrowedFd<'_>, index: u32, hook: Hook) -> io::Result<OwnedFd> {
    let device = device(index)?;
    // SAFETY: the descriptor is open for as long as it is borrowed, and no options are passed.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            device,
            hook.attach_type(),
            std::ptr::null(),
        )
    };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// The name of a loaded program; none if it is gone, or the caller may not ask.
pub fn program_name(id: u32) -> Option<String> {
    let program = libbpf_rs::ProgramHandle::from_prog_id(id).ok()?;
    Some(program.name().to_string_lossy().into_owned())
}

/// Takes a link's program off its device at once, also where another process holds the link: a
/// child between its fork and its exec does, for all that this process has open.
///
/// # Errors
/// `EOPNOTSUPP` if it is not a link of a hook.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as it is borrowed.
    match unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn device(index: u32) -> io::Result<i32> {
    i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(Errno::NODEV.raw_os_error()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::program::{Owner, Program};

    /// A program that does nothing but return this.
    pub(crate) fn returning(verdict: i32) -> OwnedFd {
        use libbpf_sys::{BPF_ALU64, BPF_EXIT, BPF_JMP, BPF_K, BPF_MOV, bpf_insn};
        let (mut load, mut exit) = (bpf_insn::default(), bpf_insn::default());
        (load.code, load.imm) = ((BPF_ALU64 | BPF_MOV | BPF_K) as u8, verdict);
        exit.code = (BPF_JMP | BPF_EXIT) as u8;
        let code = [load, exit];
        // SAFETY: the strings end with a zero, the program has two instructions, all outlive the
        // call, and no options are passed.
        let program = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
                c"another".as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr(),
                code.len() as libbpf_sys::size_t,
                std::ptr::null_mut(),
            )
        };
        assert!(program >= 0, "it loads: {}", io::Error::from_raw_os_error(-program));
        // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
        unsafe { OwnedFd::from_raw_fd(program) }
    }

    /// Puts another program in the place of a link's.
    pub(crate) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) {
        // SAFETY: both descriptors are open while they are borrowed, and no options are passed.
        let failed = unsafe {
            libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        };
        assert_eq!(failed, 0, "{}", io::Error::from_raw_os_error(-failed));
    }

    /// Fills a device's ingress with programs, until they are dropped.
    pub(crate) fn fill(index: u32) -> Vec<(Program, OwnedFd)> {
        let mut there = Vec::new();
        loop {
            let program = Program::load(8, Owner::default()).expect("it loads");
            match program.attach(index) {
                Ok(link) => there.push((program, link)),
                Err(error) => {
                    let full = rustix::io::Errno::RANGE.raw_os_error();
                    assert_eq!(error.raw_os_error(), Some(full));
                    return there;
                }
            }
        }
    }
}
