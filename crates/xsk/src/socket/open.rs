//! Binding a socket: what is checked before, what the kernel is asked, and what its refusals mean.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags as Flags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags,
};

use super::fit;
use crate::umem::{self, Registrations, Terms, failed};
use crate::{BusyPoll, Device, Error, ErrorKind, InForce, Mode, Result, SocketOptions, Umem, sys};

/// What one call sends in copy mode unless told otherwise (`TX_BATCH_SIZE` of net/xdp/xsk.c).
const TX_BUDGET: u32 = 32;

/// How long a queue is tried again that seems taken: the kernel lets go of the queue of a socket
/// that was closed a moment after `close` returns, which is long where CPUs are short.
const SETTLES: Duration = Duration::from_secs(2);

pub(super) struct Opened {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) in_force: InForce,
}

/// Binds a socket to a queue that no other socket of this process is on.
pub(super) fn bind(
    umem: &Umem,
    device: &Device,
    queue: u32,
    options: &SocketOptions,
) -> Result<Opened> {
    check_options(options)?;
    check_queue(device, queue)?;
    fit::check_mtu(umem.pool(), device, options)?;
    let needs = fit::needs_for_zero_copy(umem.pool(), device, options)?;
    let instead = needs.map(|_| options.clone().mode(Mode::Copy));
    let options = instead.as_ref().unwrap_or(options);
    let frame_size = umem.pool().area().frame_size();
    let mut registrations = umem.registrations();
    let place = (device.index(), queue);
    let here = sys::namespace(umem::open()?.as_fd());
    let copy_only = registrations.is_copy_only(here, device.index());
    let like_ours = |zero_copy| {
        move |terms: Terms| {
            terms.need_wakeup == options.need_wakeup
                && terms.multi_buffer == options.multi_buffer
                && terms.zero_copy == zero_copy
        }
    };
    let partners =
        [true, false].map(|zero_copy| registrations.join(like_ours(zero_copy)).is_some());
    let ways = ways(options.mode, partners, copy_only || registrations.on(place));
    let mut refused = None;
    for way in &ways {
        let (fd, partner, flags) = match *way {
            Way::Join { zero_copy } => {
                let Some(partner) = registrations.join(like_ours(zero_copy)) else { continue };
                (umem::open(), Some(partner), Flags::XDP_SHARED_UMEM)
            }
            Way::Own(mode) => (registrations.own(umem.pool()), None, flags(options, mode)),
        };
        let bound = fd.and_then(|fd| {
            prepare(fd.as_fd(), options, true)?;
            let address = SocketAddrXdp::new(flags, device.index(), queue);
            let partner = partner.as_ref().map(|partner| partner.as_fd());
            Ok(bind_patiently(fd.as_fd(), &address, partner).map(|()| fd))
        });
        let error = match bound {
            Ok(Ok(fd)) => {
                let mut opened = finish(fd, device, queue, options, &mut registrations)?;
                opened.in_force.needs_for_zero_copy = needs;
                if options.mode == Mode::Auto && !opened.in_force.zero_copy {
                    registrations.note_copy_only(here, device.index());
                }
                return Ok(opened);
            }
            // The partner is on this very queue, whose rings there are already.
            Ok(Err(error @ Errno::INVAL)) if registrations.on(place) => {
                let message = format!(
                    "queue {queue} of {device} is taken by another socket of this process; \
                     expected another queue, or a socket bound beside that one"
                );
                return Err(Error::caused(ErrorKind::QueueTaken, message, error));
            }
            Ok(Err(error)) if !leaves_hope(*way, options.mode, error) => {
                return Err(explain(device, queue, options, frame_size, error));
            }
            Ok(Err(error)) => explain(device, queue, options, frame_size, error),
            // No memory may be locked twice.
            Err(error) => error,
        };
        refused = Some(error);
    }
    Err(refused.unwrap_or_else(|| Error::invalid("no way to bind")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the registration of a socket on these terms.
    Join { zero_copy: bool },
    /// By a registration of its own.
    Own(Mode),
}

/// The ways to bind, the best first. `partners` says whether there is a socket to join in zero-copy
/// and in copy mode. A device known to be `copy_only` is not asked again for what it has not.
fn ways(mode: Mode, [zero_copy, copy]: [bool; 2], copy_only: bool) -> Vec<Way> {
    let join = |zero_copy| Way::Join { zero_copy };
    let mut ways = Vec::new();
    if zero_copy && mode != Mode::Copy {
        ways.push(join(true));
    }
    // Whoever joins a socket in copy mode is in copy mode, whatever the device can.
    if mode == Mode::Auto && copy && !copy_only {
        ways.push(Way::Own(Mode::ZeroCopy));
    }
    if copy && mode != Mode::ZeroCopy {
        ways.push(join(false));
    }
    ways.push(Way::Own(mode));
    ways
}

/// Whether after this error another way may do.
fn leaves_hope(way: Way, mode: Mode, error: Errno) -> bool {
    match way {
        // The partner is zero-copy and this device cannot, or it went away meanwhile.
        Way::Join { .. } => {
            matches!(error, Errno::OPNOTSUPP | Errno::BADF) && mode != Mode::ZeroCopy
        }
        // Drivers refuse zero-copy in many words. These are not about zero-copy.
        Way::Own(Mode::ZeroCopy) if mode == Mode::Auto => {
            !matches!(error, Errno::BUSY | Errno::NODEV | Errno::PERM | Errno::ACCESS)
        }
        Way::Own(_) => false,
    }
}

/// Binds a further socket to the queue of one that is bound.
pub(super) fn bind_beside(
    other: BorrowedFd<'_>,
    umem: &Umem,
    device: &Device,
    queue: u32,
    options: &SocketOptions,
) -> Result<Opened> {
    check_options(options)?;
    fit::check_mtu(umem.pool(), device, options)?;
    let fd = umem::open()?;
    prepare(fd.as_fd(), options, false)?;
    let address = SocketAddrXdp::new(Flags::XDP_SHARED_UMEM, device.index(), queue);
    match bind_patiently(fd.as_fd(), &address, Some(other)) {
        Ok(()) => finish(fd, device, queue, options, &mut umem.registrations()),
        Err(error) => {
            let frame_size = umem.pool().area().frame_size();
            Err(explain(device, queue, options, frame_size, error))
        }
    }
}

/// Whether a device in copy mode sends from the frames themselves (`IFF_TX_SKB_NO_LINEAR`, which
/// only this driver sets). None: the driver is not known.
pub(super) fn sends_without_copying(driver: Option<&str>) -> bool {
    driver.is_none_or(|driver| driver == "virtio_net")
}

fn check_options(options: &SocketOptions) -> Result<()> {
    let sizes = [
        ("rx_size", options.rx_size, true),
        ("tx_size", options.tx_size, true),
        ("fill_size", options.fill_size, false),
        ("completion_size", options.completion_size, false),
    ];
    for (name, size, none_is_fine) in sizes {
        let fine = size.is_power_of_two() && size <= 1 << 30 || size == 0 && none_is_fine;
        if !fine {
            let or_none = if none_is_fine { ", or 0 for none" } else { "" };
            let message = format!("{name} {size}: expected a power of two up to 2^30{or_none}");
            return Err(Error::invalid(message));
        }
    }
    let &SocketOptions { rx_size, tx_size, tx_budget, busy_poll, .. } = options;
    let wrong = if rx_size == 0 && tx_size == 0 {
        "rx_size and tx_size are both 0: expected one of them or both".into()
    } else if let Some(budget) = tx_budget
        && !(TX_BUDGET..=tx_size).contains(&budget)
    {
        format!("tx_budget {budget}: expected {TX_BUDGET} to tx_size ({tx_size})")
    } else if let Some(BusyPoll { microseconds, budget }) = busy_poll
        && (microseconds == 0 || !(1..=0xffff).contains(&budget))
    {
        format!(
            "busy poll of {microseconds} us with budget {budget}: expected at least 1 us and a \
             budget of 1 to 65535"
        )
    } else {
        return Ok(());
    };
    Err(Error::invalid(wrong))
}

fn check_queue(device: &Device, queue: u32) -> Result<()> {
    let queues = device.queues()?;
    if queue < queues {
        return Ok(());
    }
    let message = match queues {
        1 => format!(
            "{device} has no queue {queue}: it has one, number 0 (`ethtool -l {device}` shows how \
             many it can have)"
        ),
        _ => format!(
            "{device} has no queue {queue}: it has {queues}, from 0 to {} (`ethtool -l {device}` \
             shows how many it can have)",
            queues - 1
        ),
    };
    Err(Error::new(ErrorKind::NoQueue, message))
}

/// Makes the rings and sets the options that have to be set before binding.
pub(super) fn prepare(fd: BorrowedFd<'_>, options: &SocketOptions, buffers: bool) -> Result<()> {
    let ring = |name: &str, size: u32, made: rustix::io::Result<()>| {
        made.map_err(|error| failed(&format!("cannot make a {name} ring of {size}"), fd, error))
    };
    if buffers {
        let SocketOptions { fill_size, completion_size, .. } = *options;
        ring("fill", fill_size, sockopt::set_xdp_umem_fill_ring_size(fd, fill_size))?;
        let made = sockopt::set_xdp_umem_completion_ring_size(fd, completion_size);
        ring("completion", completion_size, made)?;
    }
    if options.rx_size > 0 {
        ring("receive", options.rx_size, sockopt::set_xdp_rx_ring_size(fd, options.rx_size))?;
    }
    if options.tx_size > 0 {
        ring("transmit", options.tx_size, sockopt::set_xdp_tx_ring_size(fd, options.tx_size))?;
    }
    Ok(())
}

fn flags(options: &SocketOptions, mode: Mode) -> Flags {
    let mut flags = match mode {
        Mode::Auto => Flags::empty(),
        Mode::Copy => Flags::XDP_COPY,
        Mode::ZeroCopy => Flags::XDP_ZEROCOPY,
    };
    flags.set(Flags::XDP_USE_NEED_WAKEUP, options.need_wakeup);
    flags.set(Flags::XDP_USE_SG, options.multi_buffer);
    flags
}

fn bind_patiently(
    fd: BorrowedFd<'_>,
    address: &SocketAddrXdp,
    partner: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let until = Instant::now() + SETTLES;
    loop {
        let bound = match partner {
            Some(shared_umem_fd) => {
                let addr = address.clone();
                rustix::net::bind(fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
            }
            None => rustix::net::bind(fd, address),
        };
        match bound {
            Err(Errno::BUSY) if Instant::now() < until => thread::sleep(Duration::from_millis(2)),
            bound => return bound,
        }
    }
}

/// Sets what can be set on a bound socket and asks what is in force.
fn finish(
    fd: OwnedFd,
    device: &Device,
    queue: u32,
    options: &SocketOptions,
    registrations: &mut Registrations,
) -> Result<Opened> {
    let zero_copy = match sockopt::xdp_options(&fd) {
        Ok(options) => options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
        Err(error) => return Err(failed("cannot ask for its mode", fd.as_fd(), error)),
    };
    let in_force = InForce {
        zero_copy,
        need_wakeup: options.need_wakeup,
        busy_poll: options.busy_poll,
        multi_buffer: options.multi_buffer,
        tx_budget: tx_budget(fd.as_fd(), options)?,
        needs_for_zero_copy: None,
    };
    if let Some(busy_poll) = options.busy_poll {
        let prefers = !(zero_copy && sends_elsewhere(device.driver().as_deref()));
        set_busy_poll(fd.as_fd(), busy_poll, prefers).map_err(|error| {
            let message = format!(
                "{device}: cannot busy-poll (it needs Linux 5.11 and, for more \
                                   than the host's default, CAP_NET_ADMIN)"
            );
            match error {
                nix::Error::ENOPROTOOPT => Error::caused(ErrorKind::Unsupported, message, error),
                error => Error::io(message, error),
            }
        })?;
    }
    let fd = Arc::new(fd);
    let InForce { need_wakeup, multi_buffer, .. } = in_force;
    let terms = Terms { zero_copy, need_wakeup, multi_buffer };
    registrations.bound(&fd, terms, (device.index(), queue));
    Ok(Opened { fd, in_force })
}

fn tx_budget(fd: BorrowedFd<'_>, options: &SocketOptions) -> Result<u32> {
    let Some(budget) = options.tx_budget else { return Ok(TX_BUDGET) };
    match setsockopt(&fd, sys::TxBudget, &budget) {
        Ok(()) => Ok(budget),
        Err(nix::Error::ENOPROTOOPT) => Ok(TX_BUDGET),
        Err(error) => Err(failed(&format!("cannot set the send budget {budget}"), fd, error)),
    }
}

/// Whether a driver sends in another NAPI instance than the one that receives, which is the one that
/// a socket polls. A socket that prefers polling to interrupts never has the kernel wake the other
/// (`xsk_no_wakeup` of net/xdp/xsk.c), and sends nothing.
fn sends_elsewhere(driver: Option<&str>) -> bool {
    matches!(driver, Some("virtio_net" | "igb" | "igc"))
}

/// `prefers`: interrupts are put off for as long as the socket polls.
fn set_busy_poll(fd: BorrowedFd<'_>, busy_poll: BusyPoll, prefers: bool) -> nix::Result<()> {
    if prefers {
        setsockopt(&fd, sys::PreferBusyPoll, &true)?;
    }
    setsockopt(&fd, sys::BusyPoll, &busy_poll.microseconds)?;
    setsockopt(&fd, sys::BusyPollBudget, &busy_poll.budget)
}

fn explain(
    device: &Device,
    queue: u32,
    options: &SocketOptions,
    frame_size: u32,
    error: Errno,
) -> Error {
    // Drivers say in several words that a frame holds no packet of theirs.
    if options.mode == Mode::ZeroCopy
        && matches!(error, Errno::INVAL | Errno::RANGE | Errno::OPNOTSUPP)
        && let Some(message) = fit::mtu_past_frames(frame_size, device)
    {
        return Error::caused(ErrorKind::FrameTooSmall, message, error);
    }
    let (kind, message) = match error {
        Errno::BUSY => (
            ErrorKind::QueueTaken,
            format!(
                "queue {queue} of {device} is taken by another AF_XDP socket (`ss --xdp -p` shows \
                 whose)"
            ),
        ),
        Errno::OPNOTSUPP if options.mode == Mode::ZeroCopy => (
            ErrorKind::Unsupported,
            format!("{device}: its driver has no zero-copy AF_XDP; expected copy or auto"),
        ),
        Errno::OPNOTSUPP => {
            (ErrorKind::NoXdp, format!("{device}: no AF_XDP socket of this kind on this device"))
        }
        Errno::NODEV => return device.gone(),
        Errno::INVAL if options.multi_buffer => (
            ErrorKind::Unsupported,
            format!("{device}: cannot bind with multi-buffer (it needs Linux 6.6)"),
        ),
        Errno::PERM | Errno::ACCESS => (
            ErrorKind::NotPermitted,
            format!("{device}: binding to queue {queue} needs CAP_NET_RAW"),
        ),
        error => return Error::io(format!("{device}: cannot bind to queue {queue}"), error),
    };
    Error::caused(kind, message, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_copy_is_tried_before_a_partner_in_copy_mode_is_joined() {
        use Mode::{Auto, Copy, ZeroCopy};
        let (zero_copy, copy) = (Way::Join { zero_copy: true }, Way::Join { zero_copy: false });
        let own = Way::Own;
        for (mode, partners, copy_only, expected) in [
            (Auto, [false, false], false, vec![own(Auto)]),
            (Auto, [false, true], false, vec![own(ZeroCopy), copy, own(Auto)]),
            (Auto, [false, true], true, vec![copy, own(Auto)]),
            (Auto, [true, false], false, vec![zero_copy, own(Auto)]),
            (Auto, [true, true], false, vec![zero_copy, own(ZeroCopy), copy, own(Auto)]),
            (Copy, [true, true], false, vec![copy, own(Copy)]),
            (Copy, [true, false], false, vec![own(Copy)]),
            (ZeroCopy, [true, true], true, vec![zero_copy, own(ZeroCopy)]),
            (ZeroCopy, [false, true], false, vec![own(ZeroCopy)]),
        ] {
            assert_eq!(ways(mode, partners, copy_only), expected, "{mode:?} {partners:?}");
        }
    }

    #[test]
    fn only_what_is_about_the_way_leads_to_the_next() {
        let join = Way::Join { zero_copy: true };
        for (way, mode, error, hope) in [
            (join, Mode::Auto, Errno::OPNOTSUPP, true),
            (join, Mode::Auto, Errno::BADF, true),
            (join, Mode::ZeroCopy, Errno::OPNOTSUPP, false),
            (join, Mode::Auto, Errno::BUSY, false),
            (Way::Own(Mode::ZeroCopy), Mode::Auto, Errno::OPNOTSUPP, true),
            (Way::Own(Mode::ZeroCopy), Mode::Auto, Errno::INVAL, true),
            (Way::Own(Mode::ZeroCopy), Mode::Auto, Errno::BUSY, false),
            (Way::Own(Mode::ZeroCopy), Mode::ZeroCopy, Errno::OPNOTSUPP, false),
            (Way::Own(Mode::Auto), Mode::Auto, Errno::OPNOTSUPP, false),
        ] {
            assert_eq!(leaves_hope(way, mode, error), hope, "{way:?} {mode:?} {error}");
        }
    }

    #[test]
    fn drivers_that_send_without_copying_are_known() {
        assert!(sends_without_copying(Some("virtio_net")));
        assert!(!sends_without_copying(Some("veth")));
        assert!(!sends_without_copying(Some("")), "software");
        assert!(sends_without_copying(None), "not known");
    }
}
