//! tcx: which programs a device has, in which order, and attaching ours after all others. libbpf-rs
//! has neither.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use libbpf_sys::{bpf_attach_type, bpf_prog_query_opts};

use crate::link::device;
use crate::{Link, checked};

/// A device's tcx hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before the kernel's own handling of what the device received.
    Ingress,
    /// Before the device's queue discipline.
    Egress,
}

impl Hook {
    fn attach_type(self) -> bpf_attach_type {
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
pub fn programs(index: u32, hook: Hook) -> io::Result<Vec<u32>> {
    // The kernel's own limit (BPF_MPROG_MAX).
    let mut ids = [0_u32; 64];
    let mut options = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = ids.len() as u32;
    // SAFETY: `options` says its own size, and its array holds as many ids as it says; both
    // outlive the call.
    checked(unsafe {
        libbpf_sys::bpf_prog_query_opts(device(index)?, hook.attach_type(), &raw mut options)
    })?;
    // SAFETY: the call has filled in the count, and either field of the union is a plain number.
    let count = unsafe { options.__bindgen_anon_1.count };
    Ok(ids[..ids.len().min(count as usize)].to_vec())
}

/// Attaches a program behind those that are on the hook already.
///
/// # Errors
/// As [`programs`]; `ERANGE` if the hook is full.
pub fn attach(program: BorrowedFd<'_>, index: u32, hook: Hook) -> io::Result<Link> {
    Link::create(program, index, hook.attach_type(), 0)
}
