//! Traffic drivers: load on threads of this process, inside a host, with typed results.
//!
//! Each driver has a side that listens and a side that connects (or sends), started
//! separately: between them can be a link, a relay, a proxy or nothing, as addresses are plain
//! [`SocketAddr`]s. Drivers run until they are stopped or dropped, and what they count can be
//! read meanwhile, so that a bench compares windows of one uninterrupted run.
//!
//! | driver | is |
//! |---|---|
//! | [`BulkServer`], [`BulkSession`] | TCP streams as fast as they go |
//! | [`EchoServer`] | answers requests on many connections; its threads can move |
//! | [`RrSession`] | requests and responses, closed loop, latency; or connections that then do nothing |
//! | [`UdpSender`] | numbered datagrams at a rate |
//! | [`FrameSender`], [`FrameCapture`] | raw Ethernet frames, and what a device receives |
//! | [`FrameGenerator`], [`FrameSink`] | 60-byte frames made and dropped inside the kernel |
//! | [`PacedFrames`] | numbered frames at a steady pace: until when they got through |
//! | [`Rule`], [`Spinners`] | rules that stop frames, and programs that keep the CPUs busy |
//! | [`LiveSender`] | UDP frames as a network card's driver hands them on |

mod bulk;
mod echo;
mod exchange;
mod frames;
mod generator;
mod latency;
mod live;
mod moves;
mod paced;
mod programs;
mod rule;
mod slot;
pub(crate) mod threads;
mod udp;

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketFlags, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

pub use bulk::{Bulk, BulkOptions, BulkServer, BulkSession, StreamTotals};
pub use echo::{EchoCounters, EchoOptions, EchoServer};
pub use exchange::{ExchangeWindow, RrOptions, RrSession, Then};
pub(crate) use frames::packet_socket;
pub use frames::{Frame, FrameCapture, FrameSender, FrameTarget};
pub use generator::{FRAME_LEN, FrameGenerator, FrameSink, Injection, Stations};
pub use latency::Latency;
pub use live::{LiveOptions, LiveSender};
pub use moves::Moves;
pub use paced::PacedFrames;
pub(crate) use programs::index;
pub use rule::{Rule, Spinners};
pub use udp::UdpSender;

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

/// A listener with a long backlog.
fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listen = || {
        let socket = bound(address)?;
        net::listen(&socket, BACKLOG).map(|()| socket)
    };
    let socket = listen().map_err(|error| Error::io(format!("listening on {address}"), error))?;
    Ok(socket.into())
}

/// A socket with this address, which others may have that do not listen.
pub(crate) fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = tcp_socket(address, SocketFlags::CLOEXEC)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address).map(|()| socket)
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

/// Makes sure that `more` file descriptors can be opened, raising this process's soft limit to the
/// hard one.
fn reserve_fds(more: usize) -> Result<()> {
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    // Some to spare for what other threads open meanwhile.
    let need = (open + more + 64) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|hard| hard < need) {
        let hard = limit.maximum.unwrap_or_default();
        return Err(Error::invalid(format!(
            "{more} connections need {need} open files, and the hard limit is {hard}"
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .map_err(|error| Error::io("raising the file limit", error))
}
