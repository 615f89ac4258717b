//! What all commands with sockets of AF_XDP build before they start: devices, memory, sockets, the
//! XDP program.

use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use frames::{AreaOptions, FrameArea, FramePool, LaneCache, PoolOptions};
use xsk::{Attach, Device, ErrorKind, Program, Socket, Umem};

use super::options::{CommonArgs, FilterArgs, MemoryArgs, Place, SocketArgs};
use crate::exit::usage;
use crate::holder;
use crate::privileges::{self, DEVICES, PROGRAMS, SOCKETS};

/// The program on a device, for those who put sockets into it and take them out.
pub(crate) type SharedProgram = Arc<Mutex<Program>>;

/// A device, and what is done on it.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) receives: bool,
    pub(crate) sends: bool,
}

/// What is to be built: checked as far as that goes without building it.
pub(crate) struct Plan<'a> {
    pub(crate) args: &'a CommonArgs,
    /// What goes to the sockets that receive.
    pub(crate) filter: Option<&'a FilterArgs>,
    pub(crate) sides: Vec<Side>,
    pub(crate) queues: Vec<u32>,
    /// Where the threads run.
    pub(crate) places: Vec<Place>,
    /// Each queue has a thread for each side.
    pub(crate) split: bool,
    /// Frames for each socket, where other processes are to map them.
    pub(crate) lent: Option<u32>,
}

/// All that was built.
pub(crate) struct Built {
    pub(crate) pool: FramePool,
    /// One for each thread.
    pub(crate) caches: Vec<LaneCache>,
    /// Those of each side, one for each queue.
    pub(crate) sockets: Vec<Vec<Socket>>,
    pub(crate) programs: Vec<SharedProgram>,
    /// How each socket was set up, in words.
    pub(crate) in_force: Vec<String>,
}

impl<'a> Plan<'a> {
    /// The queues that were asked for, or else all that the first side has, of those that send one;
    /// and at most so many threads.
    pub(crate) fn new(
        args: &'a CommonArgs,
        filter: Option<&'a FilterArgs>,
        sides: Vec<Side>,
        (threads, split): (Option<u16>, bool),
    ) -> anyhow::Result<Plan<'a>> {
        // Before anything is made: a queue too many would only be found after its memory.
        let there = sides.iter().map(|side| side.device.queues());
        let there = there.collect::<Result<Vec<_>, _>>()?;
        let default = || (0..if filter.is_some() { there[0] } else { 1 }).collect();
        let queues = args.places.queues.as_ref().map_or_else(default, |given| given.0.clone());
        for (Side { device, .. }, there) in sides.iter().zip(there) {
            if let Some(queue) = queues.iter().find(|&&queue| queue >= there) {
                return Err(usage(format!(
                    "{device} has no queue {queue} (it has {there}: see ethtool -l {device})"
                )));
            }
        }
        let threads = match split {
            true => 2 * queues.len(),
            false => usize::from(threads.unwrap_or(u16::MAX)).min(queues.len()),
        };
        let places = args.places.places(threads)?;
        Ok(Plan { args, filter, sides, queues, places, split, lent: None })
    }

    fn sockets(&self) -> usize {
        self.queues.len() * self.sides.len()
    }

    /// The frames and their size, for people and the pool.
    pub(crate) fn area(&self) -> AreaOptions {
        let nodes = self.places.iter().map(|place| place.node).collect();
        AreaOptions { nodes, ..self.args.memory.area(self.sockets(), self.lent) }
    }

    /// The thread that has the socket of a side's `number`th queue.
    fn thread(&self, number: usize, side: usize) -> usize {
        if self.split { 2 * number + side } else { number % self.places.len() }
    }

    /// The first side's queues, as people read them: `queue 0`, `queues 0, 1`.
    pub(crate) fn queues_text(&self) -> String {
        let numbers: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        format!("queue{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
    }

    /// What a dry run says of it.
    pub(crate) fn would(&self) -> Vec<String> {
        let AreaOptions { frames, frame_size, .. } = self.area();
        let bytes = u64::from(frames) * u64::from(frame_size);
        let mut lines = vec![format!(
            "would map {bytes} bytes of memory: {frames} frames of {frame_size} bytes"
        )];
        let SocketArgs { ring, .. } = &self.args.sockets;
        for (side, Side { device, .. }) in self.sides.iter().enumerate() {
            for (number, queue) in self.queues.iter().enumerate() {
                let thread = match self.places[self.thread(number, side)].cpu {
                    Some(cpu) => format!("its thread pinned to CPU {cpu}"),
                    None => "its thread not pinned".into(),
                };
                lines.push(format!(
                    "would open a socket on queue {queue} of {device} ({}; rings of {ring}), {thread}",
                    self.args.sockets.mode()
                ));
            }
        }
        let receiving = self.sides.iter().filter(|side| side.receives);
        lines.extend(receiving.zip(self.filter.iter().cycle()).map(|(side, filter)| {
            format!(
                "would attach an XDP program to {} ({}) that takes {} from the kernel on these queues",
                side.device,
                filter.attach(),
                filter.what()
            )
        }));
        lines
    }

    /// Builds it. Sockets receive from the first packet on, but for those whose frames are lent:
    /// they are not in the program's map yet.
    pub(crate) fn build(&self, what: &str) -> anyhow::Result<Built> {
        let needs = [SOCKETS, PROGRAMS, DEVICES];
        privileges::require(what, &needs[..if self.filter.is_some() { 3 } else { 1 }])?;
        for Side { device, .. } in &self.sides {
            if !device.is_up()? {
                tracing::warn!("{device} is down: no packets until `ip link set {device} up`");
            }
        }
        let (pool, umem) = memory(self.area(), &self.args.memory, &self.places)?;
        let homes = 0..self.places.len();
        let caches = homes.map(|home| pool.cache(home as u16)).collect::<Result<_, _>>()?;
        let (sockets, programs, in_force) = (Vec::new(), Vec::new(), Vec::new());
        let mut built = Built { pool, caches, sockets, programs, in_force };
        for (number, side) in self.sides.iter().enumerate() {
            let mut sockets = Vec::new();
            for (index, &queue) in self.queues.iter().enumerate() {
                let mut socket = bind(&umem, side, queue, &self.args.sockets)?;
                if side.receives {
                    let cache = &mut built.caches[self.thread(index, number)];
                    socket.fill(cache, self.args.sockets.ring as usize);
                }
                let text = format!("queue {queue} of {}: {}", side.device, socket.in_force());
                built.in_force.push(text);
                sockets.push(socket);
            }
            if let (Some(filter), true) = (self.filter, side.receives) {
                let receive = if self.lent.is_some() { &[] } else { &sockets[..] };
                let program = program(&side.device, filter, &self.args.sockets, receive)?;
                built.programs.push(Arc::new(Mutex::new(program)));
            }
            built.sockets.push(sockets);
        }
        Ok(built)
    }
}

/// A socket on a queue.
fn bind(umem: &Umem, side: &Side, queue: u32, args: &SocketArgs) -> anyhow::Result<Socket> {
    let options = args.options(side.receives, side.sends);
    let bound = Socket::bind(umem, &side.device, queue, &options);
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

/// The frames, for threads in these places.
fn memory(
    area: AreaOptions,
    args: &MemoryArgs,
    places: &[Place],
) -> anyhow::Result<(FramePool, Umem)> {
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

/// The program on a device, with these sockets in place.
fn program(
    device: &Device,
    filter: &FilterArgs,
    args: &SocketArgs,
    sockets: &[Socket],
) -> anyhow::Result<Program> {
    let attached = Program::attach(device, &filter.program(args.multi_buffer));
    let mut program = attached.map_err(|error| match error.kind() {
        ErrorKind::NoXdp => anyhow::Error::from(error).context(filter.option(args.multi_buffer)),
        ErrorKind::ProgramPresent => match holder::of(device) {
            Some(holder) => anyhow::Error::from(error).context(holder),
            None => error.into(),
        },
        _ => error.into(),
    })?;
    for socket in sockets {
        program.insert(socket)?;
    }
    let place = match program.attached() {
        Attach::Generic => "generic",
        _ => "in the driver",
    };
    tracing::debug!("XDP program on {device}: {place}");
    Ok(program)
}
