//! What all three commands build before they start: devices, memory, sockets, the XDP program.

use anyhow::Context as _;
use frames::{AreaOptions, FrameArea, FramePool, PoolOptions};
use xsk::{Attach, Device, ErrorKind, Program, Socket, Umem};

use super::options::{FilterArgs, MemoryArgs, Place, PlaceArgs, SocketArgs};
use crate::cmd::holder;
use crate::exit::usage;
use crate::privileges::{self, Need};

/// The queues of a device that are meant: those that were asked for, or else `default` of all
/// that it has. Before anything is made: a queue too many would only be found after its memory.
pub(in crate::cmd) fn queues(
    places: &PlaceArgs,
    device: &Device,
    default: impl Fn(u32) -> Vec<u32>,
) -> anyhow::Result<Vec<u32>> {
    let there = device.queues()?;
    let queues = places.queues.as_ref().map_or_else(|| default(there), |given| given.0.clone());
    check_queues(device, there, &queues)?;
    Ok(queues)
}

/// Refuses queues that a device does not have.
pub(in crate::cmd) fn check_queues(
    device: &Device,
    there: u32,
    queues: &[u32],
) -> anyhow::Result<()> {
    match queues.iter().find(|&&queue| queue >= there) {
        Some(queue) => Err(usage(format!(
            "{device} has no queue {queue} (it has {there}: see ethtool -l {device})"
        ))),
        None => Ok(()),
    }
}

/// Says what is missing before anything is made, and warns of a device that is down.
pub(in crate::cmd) fn look_first<'a>(
    what: &str,
    needs: &[Need],
    devices: impl IntoIterator<Item = &'a Device>,
) -> anyhow::Result<()> {
    privileges::require(what, needs)?;
    for device in devices {
        if !device.is_up()? {
            tracing::warn!("{device} is down: no packets until `ip link set {device} up`");
        }
    }
    Ok(())
}

/// A socket on a queue.
pub(in crate::cmd) fn bind(
    umem: &Umem,
    device: &Device,
    queue: u32,
    args: &SocketArgs,
    (receives, sends): (bool, bool),
) -> anyhow::Result<Socket> {
    let bound = Socket::bind(umem, device, queue, &args.options(receives, sends));
    bound.map_err(|error| {
        let size = umem.pool().area().frame_size();
        let option = match error.kind() {
            ErrorKind::FrameTooSmall if size < 4096 => {
                format!("--frame-size {size} (4096 or --multi-buffer may help)")
            }
            ErrorKind::FrameTooSmall => format!("--frame-size {size} (--multi-buffer helps)"),
            ErrorKind::Unsupported if args.multi_buffer => "--multi-buffer".into(),
            ErrorKind::Unsupported => format!("--mode {}", args.mode_name()),
            _ => return error.into(),
        };
        anyhow::Error::from(error).context(option)
    })
}

/// The frames, for threads in these places, registered for so many sockets; `lent` if other
/// processes are to map them, with so many for each socket.
pub(in crate::cmd) fn memory(
    args: &MemoryArgs,
    places: &[Place],
    sockets: usize,
    lent: Option<u32>,
) -> anyhow::Result<(FramePool, Umem)> {
    let nodes = places.iter().map(|place| place.node).collect();
    let area = AreaOptions { nodes, ..args.area(sockets, lent) };
    let option = format!("--frames {}, --frame-size {}", area.frames, area.frame_size);
    let area = FrameArea::new(&area).context(option.clone())?;
    if let Some(error) = area.misplaced() {
        tracing::warn!("{error}; packets may be on a node farther from the thread's CPU");
    }
    let options = PoolOptions {
        homes: places.iter().map(|place| place.lane).collect(),
        caches: u16::try_from(places.len() + 1).unwrap_or(u16::MAX),
        alien_free: args.alien_free,
        ..PoolOptions::default()
    };
    let pool = FramePool::new(area, &options)?;
    let umem = Umem::new(pool.clone()).map_err(|error| match error.kind() {
        ErrorKind::MemlockLimit | ErrorKind::Invalid => anyhow::Error::from(error).context(option),
        _ => error.into(),
    })?;
    Ok((pool, umem))
}

/// The program on a device, with all its sockets in place.
pub(in crate::cmd) fn program<'a>(
    device: &Device,
    filter: &FilterArgs,
    sockets: &SocketArgs,
    receivers: impl IntoIterator<Item = &'a Socket>,
) -> anyhow::Result<Program> {
    let attached = Program::attach(device, &filter.program(sockets.multi_buffer));
    let mut program = attached.map_err(|error| match error.kind() {
        ErrorKind::NoXdp => anyhow::Error::from(error).context(filter.option(sockets.multi_buffer)),
        ErrorKind::ProgramPresent => match holder::of(device) {
            Some(holder) => anyhow::Error::from(error).context(holder),
            None => error.into(),
        },
        _ => error.into(),
    })?;
    for socket in receivers {
        program.insert(socket)?;
    }
    let place = match program.attached() {
        Attach::Generic => "generic",
        _ => "in the driver",
    };
    tracing::debug!("XDP program on {device}: {place}");
    Ok(program)
}

/// What a dry run says of the memory.
pub(in crate::cmd) fn would_map(args: &MemoryArgs, sockets: usize, lent: Option<u32>) -> String {
    let AreaOptions { frames, frame_size, .. } = args.area(sockets, lent);
    let bytes = u64::from(frames) * u64::from(frame_size);
    format!("would map {bytes} bytes of memory: {frames} frames of {frame_size} bytes")
}

/// What a dry run says of a socket.
pub(in crate::cmd) fn would_open(
    device: &Device,
    queue: u32,
    args: &SocketArgs,
    place: Place,
) -> String {
    let thread = match place.cpu {
        Some(cpu) => format!("its thread pinned to CPU {cpu}"),
        None => "its thread not pinned".into(),
    };
    format!(
        "would open a socket on queue {queue} of {device} ({}; rings of {}), {thread}",
        args.mode(),
        args.ring
    )
}

/// What a dry run says of the program.
pub(in crate::cmd) fn would_attach(device: &Device, filter: &FilterArgs) -> String {
    format!(
        "would attach an XDP program to {device} ({}) that takes {} from the kernel on these queues",
        filter.attach(),
        filter.what()
    )
}
