//! A device's XDP hook: what is on it, and putting a program there.

use std::io;
use std::os::fd::BorrowedFd;

use bpf::{Link, program_name, xdp};
use kit::netlink::Xdp;
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

/// The program by which libxdp has several on a device. It runs them in turn, each with the verdicts that
/// it goes on after; ours takes packets from all that would follow, so it does not join them.
const DISPATCHER: &str = "xdp_dispatcher";

/// A BPF program on a device's XDP hook, for as long as this is there: it goes with the process,
/// however that ends.
#[derive(Debug)]
pub struct Hook {
    device: Device,
    attached: Attach,
    link: Link,
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
        let link = |attach| {
            let place = match attach {
                Attach::Generic => xdp::Place::Generic,
                Attach::Auto | Attach::Native => xdp::Place::Native,
            };
            xdp::attach(program, device.index(), place)
        };
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
        let ids = Self::programs(device)?;
        if ids.is_empty() {
            return Ok(());
        }
        let name = |id: &u32| match program_name(*id) {
            Some(name) => format!("'{name}' (id {id})"),
            None => format!("id {id}"),
        };
        let names = ids.iter().map(name).collect::<Vec<_>>().join(", ");
        let remedy = if ids.iter().any(|id| program_name(*id).as_deref() == Some(DISPATCHER)) {
            format!(
                "libxdp's dispatcher, which runs the programs that `xdp-loader status {device}` \
                 lists: `xdp-loader unload {device} --all` removes them"
            )
        } else {
            format!(
                "`ip link set {device} xdp off` removes it, unless a process holds it: `bpftool net` \
                 and `bpftool link`"
            )
        };
        Err(Error::new(
            ErrorKind::ProgramPresent,
            format!("{device} has an XDP program already: {names}; expected none ({remedy})"),
        ))
    }

    /// The numbers of the programs that are on the device.
    ///
    /// # Errors
    /// `NoDevice` of [`ErrorKind`] if it is gone, and what the system reports.
    pub fn programs(device: &Device) -> Result<Vec<u32>> {
        let xdp = Xdp::of(device.index());
        xdp.map(|xdp| xdp.programs).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) => device.gone(),
            _ => Error::io(format!("{device}: cannot ask for its XDP program"), error),
        })
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
        let _gone_with_the_device = self.link.detach();
    }
}

/// Whether what the driver said may be different for a generic program.
fn worth_generic(error: &io::Error) -> bool {
    let never = [Errno::BUSY, Errno::EXIST, Errno::PERM, Errno::ACCESS, Errno::NODEV];
    !never.iter().any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

fn explain(device: &Device, attach: Attach, multi_buffer: bool, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        // One that came between looking and attaching.
        Some(Errno::BUSY | Errno::EXIST) => {
            Hook::refuse_if_taken(device).err().unwrap_or_else(|| {
                let message = format!("{device} has another XDP program");
                Error::caused(ErrorKind::ProgramPresent, message, error)
            })
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            let message = format!("{device}: attaching an XDP program needs CAP_NET_ADMIN");
            Error::caused(ErrorKind::NotPermitted, message, error)
        }
        Some(Errno::NODEV) => device.gone(),
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
