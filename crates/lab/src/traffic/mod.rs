//! Traffic drivers: load on threads of this process, inside a host, with typed results.
//!
//! Each driver has a side that listens and a side that connects (or sends), started
//! separately: between them can be a link, a relay, a proxy or nothing, as addresses are plain
//! [`SocketAddr`]s. Drivers run until they are stopped or dropped, and what they count can be
//! read meanwhile, so that a bench compares windows of one uninterrupted run.
//!
//! | driver | is |
//! |---|---|
//! | [`BulkServer`], [`BulkSession`] | TCP streams as fast as they go, or as fast as the receiver reads |
//! | [`EchoServer`] | answers requests on many connections; its threads can move |
//! | [`RrSession`] | requests and responses on open connections, closed loop, latency |
//! | [`ConnectSession`] | connections with one exchange each, closed loop, latency |
//! | [`IdleSession`] | many connections that do nothing |
//! | [`UdpReceiver`], [`UdpSender`] | datagrams at a rate, with loss and reordering |
//! | [`FrameSender`], [`FrameCapture`] | raw Ethernet frames, and what a device receives |
//! | [`FrameGenerator`], [`FrameSink`] | 60-byte frames made and dropped inside the kernel |
//! | [`PacedFrames`] | numbered frames at a steady pace: until when they got through |
//! | [`Rule`], [`Spinners`] | rules that stop frames, and programs that keep the CPUs busy |
//! | [`LiveSender`] | UDP frames as a network card's driver hands them on |

mod bulk;
mod connect;
mod echo;
mod exchange;
mod frames;
mod generator;
mod idle;
mod latency;
mod live;
mod moves;
mod paced;
mod poller;
mod rr;
mod rule;
mod slot;
mod stream;
mod udp;

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    thread,
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketFlags, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

pub use bulk::{Bulk, BulkOptions, BulkServer, BulkSession, Direction};
pub use connect::{ConnectOptions, ConnectSession};
pub use echo::{EchoCounters, EchoOptions, EchoServer};
pub use exchange::ExchangeWindow;
pub use frames::{Frame, FrameCapture, FrameSender, FrameTarget};
pub use generator::{FRAME_LEN, FrameCounters, FrameGenerator, FrameSink, Injection, Stations};
pub use idle::IdleSession;
pub use latency::Latency;
pub use live::{LiveOptions, LiveSender};
pub use moves::Moves;
pub use paced::PacedFrames;
pub use rr::{RrOptions, RrSession};
pub use rule::{Rule, Spinners};
pub use slot::Close;
pub use stream::StreamTotals;
pub use udp::{FlowCounters, UdpCounters, UdpOptions, UdpReceiver, UdpSender};

use crate::{Error, Result};

/// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A period of the bytes that drivers send. A prime, so that it is in step with no buffer size.
const PATTERN_PERIOD: usize = 251;

/// Bytes of which those at `offset % PATTERN_PERIOD` and on are the ones that belong at
/// `offset` of a stream, for any run of up to `len`.
fn pattern(len: usize) -> Vec<u8> {
    (0..len + PATTERN_PERIOD).map(|at| (at % PATTERN_PERIOD) as u8).collect()
}

/// Pins the calling thread, the `index`th of its kind, to its CPU of the list; an empty list
/// leaves it to the scheduler.
fn pin(cpus: &[usize], index: usize) -> Result<()> {
    let Some(cpu) = cpus.get(index % cpus.len().max(1)).copied() else { return Ok(()) };
    lanes::pin(cpu).map_err(|error| Error::invalid(error.to_string()))
}

/// Finds out on a thread of its own whether all of these CPUs can be pinned to.
fn check_cpus(cpus: &[usize]) -> Result<()> {
    thread::scope(|scope| {
        let check = scope.spawn(|| (0..cpus.len()).try_for_each(|index| pin(cpus, index)));
        check.join().expect("pinning does not panic")
    })
}

/// A listener with a long backlog.
fn listen(address: SocketAddr) -> Result<TcpListener> {
    let context = |error: Errno| Error::io(format!("listening on {address}"), error);
    let socket = tcp_socket(address, SocketFlags::CLOEXEC).map_err(context)?;
    net::sockopt::set_socket_reuseaddr(&socket, true).map_err(context)?;
    net::bind(&socket, &address).map_err(context)?;
    net::listen(&socket, BACKLOG).map_err(context)?;
    Ok(socket.into())
}

fn local_addr(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|error| Error::io("the address of a listener", error))
}

/// Starts a connection without waiting for it.
fn begin_connect(target: SocketAddr) -> rustix::io::Result<TcpStream> {
    let socket = tcp_socket(target, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match net::connect(&socket, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error),
    }
    net::sockopt::set_tcp_nodelay(&socket, true)?;
    Ok(socket.into())
}

fn tcp_socket(address: SocketAddr, flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Makes sure that `more` file descriptors can be opened, raising this process's soft limit up
/// to the hard one where needed.
fn reserve_fds(more: usize) -> Result<()> {
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    // Some to spare for what other threads open meanwhile.
    let need = (open + more + 64) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|soft| soft >= need) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|hard| hard < need) {
        let hard = limit.maximum.unwrap_or_default();
        return Err(Error::invalid(format!(
            "{more} connections need {need} open files, and the hard limit is {hard}"
        )));
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|error| Error::io("raising the file limit", error))
}
