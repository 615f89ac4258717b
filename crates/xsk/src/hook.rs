//! A device's XDP hook: what is on it, and putting a program there.
//!
//! libbpf-rs has neither with the choice of driver or generic: these are the calls of libbpf
//! itself.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use libbpf_rs::ProgramHandle;
use rustix::io::Errno;

use crate::{Device, Error, ErrorKind, Result};

/// Where in the device's path the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// In the driver where it can, else generic.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a buffer, or an error.
    Native,
    /// On the kernel's buffers; any device.
    Generic,
}

/// A BPF program on a device's XDP hook, for as long as this is there: it goes with the process,
/// however that ends.
#[derive(Debug)]
pub struct Hook {
    device: Device,
    attached: Attach,
    link: OwnedFd,
}

impl Hook {
    /// Puts a loaded program on a device of the network namespace that the caller is in.
    /// `multi_buffer` says whether it takes packets in several buffers.
    ///
    /// # Errors
    /// `ProgramPresent` if another program is on the device, `NoXdp` if the device takes none of
    /// this kind, and `NotPermitted` of [`ErrorKind`].
    pub fn attach(
        device: &Device,
        program: BorrowedFd<'_>,
        attach: Attach,
        multi_buffer: bool,
    ) -> Result<Self> {
        Self::refuse_if_taken(device)?;
        let link = |attach| create_link(program, device, attach);
        let (created, attached) = match attach {
            Attach::Auto => match link(Attach::Native) {
                // What the driver said tells more than that generic is not there either.
                Err(native) if worth_generic(&native) => {
                    (link(Attach::Generic).map_err(|_| native), Attach::Generic)
                }
                created => (created, Attach::Native),
            },
            given => (link(given), given),
        };
        let link = created.map_err(|error| explain(device, attach, multi_buffer, error))?;
        Ok(Self { device: device.clone(), attached, link })
    }

    /// Nothing, if no program is on the device.
    ///
    /// # Errors
    /// `ProgramPresent` of [`ErrorKind`], with its name; `NoDevice` if the device is gone.
    pub fn refuse_if_taken(device: &Device) -> Result<()> {
        refuse_if_present(device)
    }

    /// The numbers of the programs that are on the device.
    ///
    /// # Errors
    /// `NoDevice` of [`ErrorKind`] if it is gone, and what the system reports.
    pub fn programs(device: &Device) -> Result<Vec<u32>> {
        programs_on(device)
    }

    /// Where it runs: [`Attach::Native`] or [`Attach::Generic`].
    pub fn attached(&self) -> Attach {
        self.attached
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        detach(self.link.as_fd());
    }
}

/// Whether what the driver said may be different for a generic program.
fn worth_generic(error: &io::Error) -> bool {
    let never = [Errno::BUSY, Errno::EXIST, Errno::PERM, Errno::ACCESS, Errno::NODEV];
    !never.iter().any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

fn programs_on(device: &Device) -> Result<Vec<u32>> {
    programs(device).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NODEV) => gone(device),
        _ => Error::io(format!("{device}: cannot ask for its XDP program"), error),
    })
}

fn refuse_if_present(device: &Device) -> Result<()> {
    let ids = programs_on(device)?;
    if ids.is_empty() {
        return Ok(());
    }
    let name = |id: &u32| match ProgramHandle::from_prog_id(*id) {
        Ok(program) => format!("'{}' (id {id})", program.name().to_string_lossy()),
        Err(_) => format!("id {id}"),
    };
    let names = ids.iter().map(name).collect::<Vec<_>>().join(", ");
    Err(Error::new(
        ErrorKind::ProgramPresent,
        format!(
            "{device} has an XDP program already: {names}; expected none (`ip link set {device} \
             xdp off` removes it, unless a process holds it: `bpftool net` and `bpftool link`)"
        ),
    ))
}

fn explain(device: &Device, attach: Attach, multi_buffer: bool, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        // One that came between looking and attaching.
        Some(Errno::BUSY | Errno::EXIST) => refuse_if_present(device).err().unwrap_or_else(|| {
            let message = format!("{device} has another XDP program");
            Error::caused(ErrorKind::ProgramPresent, message, error)
        }),
        Some(Errno::PERM | Errno::ACCESS) => {
            let message = format!("{device}: attaching an XDP program needs CAP_NET_ADMIN");
            Error::caused(ErrorKind::NotPermitted, message, error)
        }
        Some(Errno::NODEV) => gone(device),
        Some(Errno::RANGE | Errno::INVAL) if !multi_buffer => {
            let mtu = device.mtu().map_or_else(|_| "unknown".into(), |mtu| mtu.to_string());
            let message = format!(
                "{device}: its driver refuses the XDP program, maybe for its MTU of {mtu}; expected \
                 a smaller one, multi-buffer, or generic"
            );
            Error::caused(ErrorKind::NoXdp, message, error)
        }
        _ => {
            let kind = match attach {
                Attach::Native => "its driver takes no XDP program; expected generic or auto",
                Attach::Auto | Attach::Generic => "it takes no XDP program",
            };
            Error::caused(ErrorKind::NoXdp, format!("{device}: {kind}"), error)
        }
    }
}

fn gone(device: &Device) -> Error {
    Error::new(ErrorKind::NoDevice, format!("{device}: the device is gone"))
}

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// The ids of the XDP programs on a device.
///
/// # Errors
/// `ENODEV` if the device is gone.
fn programs(device: &Device) -> io::Result<Vec<u32>> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` says its own size, and outlives the call, which fills it in.
    match unsafe { libbpf_sys::bpf_xdp_query(index(device)?, 0, &raw mut options) } {
        0 => (),
        error => return Err(io::Error::from_raw_os_error(-error)),
    }
    let mut ids =
        vec![options.prog_id, options.drv_prog_id, options.skb_prog_id, options.hw_prog_id];
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|id| *id != 0);
    Ok(ids)
}

/// Puts a program on a device, in the driver or generic, for as long as the link that is returned
/// is open.
///
/// # Errors
/// `EBUSY` or `EEXIST` if there is another, `EOPNOTSUPP` if the driver cannot, `ENODEV`, `EPERM`,
/// and what drivers say otherwise.
fn create_link(program: BorrowedFd<'_>, device: &Device, attach: Attach) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: if attach == Attach::Generic { GENERIC } else { NATIVE },
        ..Default::default()
    };
    // SAFETY: the descriptor is open for as long as it is borrowed; `options` says its own size,
    // and outlives the call.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            index(device)?,
            libbpf_sys::BPF_XDP,
            &raw const options,
        )
    };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Takes a link's program off its device at once, also where another process holds the link: a
/// child between its fork and its exec does, for all that this process has open.
fn detach(link: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open for as long as it is borrowed.
    let _gone_with_the_device = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
}

fn index(device: &Device) -> io::Result<i32> {
    i32::try_from(device.index())
        .map_err(|_| io::Error::from_raw_os_error(rustix::io::Errno::NODEV.raw_os_error()))
}
