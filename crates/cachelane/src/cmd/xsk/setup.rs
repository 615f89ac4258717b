//! What all three commands build before they start: devices, memory, sockets, the XDP program.

use frames::{AreaOptions, FrameArea, FramePool, PoolOptions};
use xsk::{Attach, Device, Program, Socket, Umem};

use super::options::{FilterArgs, MemoryArgs, Place, PlaceArgs, SocketArgs};
use crate::exit::usage;

/// The queues of a device that are meant: those that were asked for, or else `default` of all
/// that it has. Queues that it does not have are refused by the socket that wants one.
pub(in crate::cmd) fn queues(
    places: &PlaceArgs,
    device: &Device,
    default: impl Fn(u32) -> Vec<u32>,
) -> anyhow::Result<Vec<u32>> {
    match &places.queues {
        Some(queues) => Ok(queues.0.clone()),
        None => Ok(default(device.queues()?)),
    }
}

/// Refuses what a socket would refuse, for a dry run, which makes none.
pub(in crate::cmd) fn check_queues(device: &Device, queues: &[u32]) -> anyhow::Result<()> {
    let there = device.queues()?;
    match queues.iter().find(|&&queue| queue >= there) {
        Some(queue) => Err(usage(format!(
            "{device} has no queue {queue} (it has {there}: see ethtool -l {device})"
        ))),
        None => Ok(()),
    }
}

/// The frames, for threads in these places, registered for so many sockets; `shared` if other
/// processes are to map them.
pub(in crate::cmd) fn memory(
    args: &MemoryArgs,
    places: &[Place],
    sockets: usize,
    shared: bool,
) -> anyhow::Result<(FramePool, Umem)> {
    let area = FrameArea::new(&args.area(sockets, shared))?;
    let options = PoolOptions {
        homes: places.iter().map(|place| place.lane).collect(),
        caches: u16::try_from(places.len() + 1).unwrap_or(u16::MAX),
        alien_free: args.alien_free,
        ..PoolOptions::default()
    };
    let pool = FramePool::new(area, &options)?;
    let umem = Umem::new(pool.clone())?;
    Ok((pool, umem))
}

/// The program on a device, with all its sockets in place.
pub(in crate::cmd) fn program<'a>(
    device: &Device,
    filter: &FilterArgs,
    sockets: &SocketArgs,
    receivers: impl IntoIterator<Item = &'a Socket>,
) -> anyhow::Result<Program> {
    let mut program = Program::attach(device, &filter.program(sockets.multi_buffer))?;
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
pub(in crate::cmd) fn would_map(args: &MemoryArgs, sockets: usize, shared: bool) -> String {
    let AreaOptions { frames, frame_size, .. } = args.area(sockets, shared);
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
