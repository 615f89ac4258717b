//! What all commands with sockets of AF_XDP build before they start: devices, memory, sockets, the
//! XDP program.

use std::sync::Arc;

use anyhow::Context as _;
use bpf::Expression;
use frames::{AreaOptions, FrameArea, FramePool, LaneCache, PoolOptions};
use parking_lot::Mutex;
use xsk::{Attach, Device, ErrorKind, Mode, Program, ProgramOptions, Socket, Umem};

use super::carrier::Carrier;
use super::expression;
use super::options::{CommonArgs, FilterArgs, MemoryArgs, Place, SocketArgs};
use crate::exit::usage;
use crate::privileges;
use crate::{holder, out};

/// The program on a device, for those who put sockets into it and take them out.
pub(crate) type SharedProgram = Arc<Mutex<Program>>;

/// A device, and what is done on it.
#[derive(Debug)]
pub(crate) struct Interface<'a> {
    pub(crate) device: Device,
    /// What it receives, if it does.
    pub(crate) receives: Option<&'a FilterArgs>,
    pub(crate) sends: bool,
    /// Its queues, if they have other numbers than the first device's.
    pub(crate) queues: Option<&'a [u32]>,
}

impl<'a> Interface<'a> {
    /// A device on which packets are received, or sent, or both.
    pub(crate) fn new(device: Device, receives: Option<&'a FilterArgs>, sends: bool) -> Self {
        Interface { device, receives, sends, queues: None }
    }
}

/// What is to be built: checked as far as that goes without building it.
pub(crate) struct Plan<'a> {
    pub(crate) args: &'a CommonArgs,
    pub(crate) interfaces: Vec<Interface<'a>>,
    pub(crate) queues: Vec<u32>,
    /// Where the threads run.
    pub(crate) places: Vec<Place>,
    /// Each queue has a thread for each interface.
    split: bool,
    /// Frames for each socket, where other processes are to map them.
    pub(crate) lent: Option<u32>,
    /// What packets have to match.
    expression: Option<Arc<Expression>>,
    /// Packets that come get stamps.
    pub(crate) stamps: bool,
    /// Sockets send frames of their own beside those that they receive into.
    pub(crate) shares: bool,
}

/// All that was built.
pub(crate) struct Built {
    pub(crate) pool: FramePool,
    /// One for each thread.
    pub(crate) caches: Vec<LaneCache>,
    /// Those of each interface, one for each queue.
    pub(crate) sockets: Vec<Vec<Socket>>,
    pub(crate) programs: Vec<SharedProgram>,
    /// On devices that only send, where zero-copy needs a program there. They take nothing.
    pub(crate) idle_programs: Vec<Program>,
    /// How each socket was set up, in words.
    pub(crate) in_force: Vec<String>,
}

impl<'a> Plan<'a> {
    /// A socket on each interface for each queue that was asked for, or else for all queues where
    /// something is received, and for the first where not; and at most so many threads.
    pub(crate) fn new(
        args: &'a CommonArgs,
        interfaces: Vec<Interface<'a>>,
        threads: Option<u16>,
        split: bool,
    ) -> anyhow::Result<Plan<'a>> {
        let is_generic = |one: &Interface<'_>| one.receives.is_some_and(FilterArgs::is_generic);
        if interfaces.iter().any(is_generic) && args.sockets.mode_is(Mode::ZeroCopy) {
            return Err(usage(
                "--mode zero-copy, --xdp generic: a generic program copies (expected --xdp native, \
                 or --mode copy)"
                    .into(),
            ));
        }
        let default =
            |there| (0..if interfaces[0].receives.is_some() { there } else { 1 }).collect();
        let mut queues = args.places.queues.as_ref().map(|given| given.0.clone());
        for Interface { device, queues: own, .. } in &interfaces {
            // Before anything is made: a queue too many would only be found after its memory.
            let there = device.queues()?;
            let queues: &[u32] = queues.get_or_insert_with(|| default(there));
            let queues = own.unwrap_or(queues);
            if let Some(queue) = queues.iter().find(|&&queue| queue >= there) {
                return Err(usage(format!(
                    "{device} has no queue {queue} (it has {there}: see ethtool -l {device})"
                )));
            }
        }
        let queues = queues.unwrap_or_default();
        let threads = match split {
            true => 2 * queues.len(),
            false => usize::from(threads.unwrap_or(u16::MAX)).min(queues.len()),
        };
        let places = args.places.places(threads)?;
        // Where there are several devices, they receive the same.
        let filter = interfaces[0].receives.and_then(|filter| filter.filter.as_deref());
        let expression = expression::compile(filter)?;
        Ok(Plan {
            args,
            interfaces,
            queues,
            places,
            split,
            lent: None,
            expression,
            stamps: false,
            shares: false,
        })
    }

    /// The frames and their size.
    pub(crate) fn area(&self) -> AreaOptions {
        let nodes = self.places.iter().map(|place| place.node).collect();
        let sockets = self.queues.len() * self.interfaces.len();
        self.args.memory.area(sockets, self.lent).nodes(nodes)
    }

    /// How many frames each socket has to receive into: where it sends others, half of its part at most.
    pub(crate) fn fill(&self) -> u32 {
        let ring = self.args.sockets.ring;
        let part = self.area().frames / (self.queues.len() as u32).max(1);
        if self.shares { ring.min(part / 2) } else { ring }
    }

    /// The threads of an interface's sockets, by their queues.
    fn threads(&self, interface: usize) -> impl Iterator<Item = (u32, usize)> {
        let thread = move |(number, &queue): (usize, &u32)| match self.split {
            true => (queue, 2 * number + interface),
            false => (queue, number % self.places.len()),
        };
        let queues = self.interfaces[interface].queues.unwrap_or(&self.queues);
        queues.iter().take(self.queues.len()).enumerate().map(thread)
    }

    /// The queues, as people read them: `queue 0`, `queues 0, 1`.
    pub(crate) fn queues_text(&self) -> String {
        let numbers: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        format!("queue{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
    }

    /// What a dry run says of it.
    fn would(&self) -> Vec<String> {
        let AreaOptions { frames, frame_size, .. } = self.area();
        let bytes = u64::from(frames) * u64::from(frame_size);
        let mut lines = vec![format!(
            "would map {bytes} bytes of memory: {frames} frames of {frame_size} bytes"
        )];
        let args = &self.args.sockets;
        for (number, Interface { device, .. }) in self.interfaces.iter().enumerate() {
            for (queue, thread) in self.threads(number) {
                let thread = match self.places[thread].cpu {
                    Some(cpu) => format!("its thread pinned to CPU {cpu}"),
                    None => "its thread not pinned".into(),
                };
                lines.push(format!(
                    "would open a socket on queue {queue} of {device} ({}; rings of {}), {thread}",
                    args.mode(),
                    args.ring
                ));
            }
        }
        for Interface { device, receives, .. } in &self.interfaces {
            lines.extend(receives.map(|filter| filter.would_attach(device)));
        }
        lines
    }

    /// Builds it, or in a dry run says what would be built, and what would be done `then`. Sockets
    /// receive from the first packet on, but for those whose frames are lent: they are not in the
    /// program's map yet.
    pub(crate) fn build(&self, what: &str, then: Vec<String>) -> anyhow::Result<Option<Built>> {
        xsk::check_kernel()?;
        if self.args.dry_run {
            return out::dry_run([self.would(), then].concat()).map(|_| None);
        }
        let receives = self.interfaces[0].receives.is_some();
        let needs = if receives { privileges::needs_of("lend") } else { &[privileges::SOCKETS] };
        privileges::require(what, needs)?;
        for Interface { device, .. } in &self.interfaces {
            if !device.is_up()? {
                tracing::warn!("{device} is down: no packets until `ip link set {device} up`");
            }
        }
        let carriers = Carrier::of(self.interfaces.iter().map(|one| &one.device))?;
        let (pool, umem) = memory(self.area(), &self.args.memory, &self.places)?;
        let homes = 0..self.places.len();
        let caches = homes.map(|home| pool.cache(home as u16)).collect::<Result<_, _>>()?;
        let (sockets, programs, in_force) = (Vec::new(), Vec::new(), Vec::new());
        let idle_programs = Vec::new();
        let mut built = Built { pool, caches, sockets, programs, idle_programs, in_force };
        let args = &self.args.sockets;
        for (number, interface) in self.interfaces.iter().enumerate() {
            let device = &interface.device;
            let mut sockets = Vec::new();
            for (queue, thread) in self.threads(number) {
                let mut socket = bind(&umem, interface, queue, args)?;
                if interface.receives.is_some() {
                    socket.fill(&mut built.caches[thread], self.fill() as usize);
                }
                built.in_force.push(format!("queue {queue} of {device}: {}", socket.in_force()));
                sockets.push(socket);
            }
            if let Some(filter) = interface.receives {
                let receive = if self.lent.is_some() { &[] } else { &sockets[..] };
                let options = filter.program(self.expression.clone(), args.multi_buffer);
                let program = program(device, filter, &options.stamps(self.stamps), receive)?;
                built.programs.push(Arc::new(Mutex::new(program)));
            } else if sockets.iter().any(|socket| socket.in_force().zero_copy) {
                built.idle_programs.extend(idle_program(device)?);
            }
            built.sockets.push(sockets);
        }
        carriers.iter().try_for_each(Carrier::wait)?;
        Ok(Some(built))
    }
}

/// A socket on a queue.
fn bind(
    umem: &Umem,
    interface: &Interface<'_>,
    queue: u32,
    args: &SocketArgs,
) -> anyhow::Result<Socket> {
    let mut options = args.options(interface.receives.is_some(), interface.sends);
    if interface.receives.is_some_and(FilterArgs::is_generic) {
        // It copies, also where a socket may be bound for zero-copy beside it.
        options = options.mode(Mode::Copy);
    }
    let bound = Socket::bind(umem, &interface.device, queue, &options);
    if let Ok(socket) = &bound
        && let Some(size) = socket.in_force().needs_for_zero_copy
    {
        tracing::warn!(
            "queue {queue} of {}: packets are copied, since in zero-copy mode its driver would cut \
             those that come; --frame-size {size} lets it be zero-copy",
            interface.device
        );
    }
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

/// Cards send without copying only while an XDP program is on them (`ndo_xsk_wakeup` of igb, for
/// one, refuses otherwise). This one leaves all packets to the kernel. None if there is a program.
pub(crate) fn idle_program(device: &Device) -> anyhow::Result<Option<Program>> {
    match Program::attach(device, &ProgramOptions::default().attach(Attach::Native)) {
        Ok(program) => {
            tracing::debug!("XDP program on {device}: to send without copying");
            Ok(Some(program))
        }
        Err(error) if error.kind() == ErrorKind::ProgramPresent => Ok(None),
        Err(error) => Err(anyhow::Error::from(error).context("--mode copy needs no program")),
    }
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
    let options = PoolOptions::default()
        .homes(places.iter().map(|place| place.lane).collect())
        .caches(u16::try_from(places.len() + 1).unwrap_or(u16::MAX))
        .alien_free(args.alien_free);
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
    options: &ProgramOptions,
    sockets: &[Socket],
) -> anyhow::Result<Program> {
    let attached = Program::attach(device, options);
    let mut program = attached.map_err(|error| match error.kind() {
        ErrorKind::NoXdp => anyhow::Error::from(error).context(filter.option(options.multi_buffer)),
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
