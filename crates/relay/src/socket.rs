//! Sockets as the relay wants them: listeners, connections to backends, buffer limits, resets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::addr::Addr;
use crate::config::Listen;
use crate::congestion::Congestion;
use crate::session::Client;
use crate::sockopt::{awaits_last_ack, keep_timeouts_linear};
use crate::source::Sources;
use crate::{Config, Error};

/// How much memory the parts of one connection may hold. The parts of both directions together
/// stay within the budget that they were cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Kernel receive memory of each leg, bytes.
    pub(crate) receive: usize,
    /// Kernel send memory of each leg, bytes; also what the sockmap engine may have on its way.
    pub(crate) send: usize,
    /// User memory of each direction, bytes: what a read takes at most.
    pub(crate) chunk: usize,
    /// In its place, a pipe, bytes.
    pub(crate) pipe: usize,
    /// Bytes that wake the worker for a bulk flow; see `flow/bulk.rs`.
    pub(crate) low_water: usize,
    /// More user memory of each direction, for when both stand still: see `flow/relief.rs`.
    pub(crate) reserve: usize,
}

impl Shares {
    /// The most that a flow reads at a time while it is no bulk, bytes.
    pub(crate) const READ: usize = 64 * 1024;

    /// The largest pipe: what an unprivileged one may hold (`fs.pipe-max-size`).
    const MAX_PIPE: usize = 1 << 20;

    /// The chunk where the host does not show its caches: a quarter of the usual 1 MiB.
    const USUAL_CHUNK: usize = 256 << 10;

    /// Kernel memory of both legs' socket buffers together, bytes.
    pub(crate) fn pool(self) -> usize {
        2 * (self.receive + self.send)
    }

    /// Whether a buffer may lend to another, see `grants.rs`. A connection that begins with a larger
    /// window than its receive buffer has room for later is sent too large segments for that: up to 32 KiB,
    /// half of the first window, which wait for a timer each.
    pub(crate) fn may_be_lent(self) -> bool {
        self.receive >= 256 << 10
    }

    /// The most that a receive buffer may ever have, bytes.
    fn most_received(self) -> usize {
        if self.may_be_lent() { self.pool() } else { self.receive }
    }

    /// What a flow in the kernel's hands may have on its way, bytes, if its source may receive
    /// only [`Shares::passed`]: it needs no chunk, and less of a receive buffer.
    pub(crate) fn redirected(self) -> usize {
        self.receive + self.send + self.pipe - self.passed() - Shares::READ
    }

    /// Kernel receive memory of the source of such a flow, bytes.
    pub(crate) fn passed(self) -> usize {
        self.receive / 2
    }

    /// The window that the source of a flow offers that reads into its reserve: small, so that the
    /// reserve is good for several.
    pub(crate) fn relief(self) -> usize {
        (self.receive / 8).min(32 * 1024)
    }

    /// Cut from `budget`, for CPUs with caches of level 2 of `l2` bytes. A chunk is read, and then
    /// written from: a quarter of that cache leaves room for what the kernel touches meanwhile. What
    /// is spliced passes no cache of the worker's, so a pipe is as large as it may be. A worker that
    /// is woken for less than a pipe holds finds the sender's bytes warmer
    /// (`cachelane bench relay --only sweep`).
    pub(crate) fn of(budget: usize, l2: Option<usize>) -> Shares {
        let direction = budget / 2;
        let of_cache = l2.map_or(Shares::USUAL_CHUNK, |bytes| bytes / 4);
        let pipe = (direction / 4).min(Shares::MAX_PIPE);
        let chunk = pipe.min(of_cache.max(Shares::READ));
        let reserve = direction / 8;
        let kernel = (direction - pipe - reserve) / 2;
        Shares { receive: kernel, send: kernel, chunk, pipe, low_water: chunk, reserve }
    }
}

/// How the sockets of both legs are set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    shares: Shares,
    congestion: Congestion,
    keepalive: Option<Duration>,
    user_timeout: Option<Duration>,
}

impl Setup {
    pub(crate) fn new(config: &Config, shares: Shares, congestion: Congestion) -> Setup {
        let Config { keepalive, user_timeout, .. } = *config;
        Setup { shares, congestion, keepalive, user_timeout }
    }

    /// Gives a listener on `addr` the options that accepted sockets inherit.
    pub(crate) fn set_up_listener(
        &self,
        listener: &OwnedFd,
        addr: &Addr,
    ) -> rustix::io::Result<()> {
        match addr {
            Addr::Ip(_) => self.set_up_front(listener, self.congestion.of_listener(addr)),
            // It passes nothing on.
            Addr::Unix(_) => Ok(()),
        }
    }

    /// Gives a client's leg the options that it has not inherited.
    pub(crate) fn set_up_accepted(
        &self,
        client: &OwnedFd,
        is_unix: bool,
    ) -> rustix::io::Result<()> {
        if is_unix { set_up_unix(client, self) } else { self.set_up_front(client, None) }
    }

    /// Sets up a listener of TCP, whose clients inherit all of it, or a client.
    fn set_up_front(&self, socket: &OwnedFd, congestion: Option<&str>) -> rustix::io::Result<()> {
        // A service manager's may reset whom it closes, with what is under way to them; or have a close
        // wait, and the worker with it.
        sockopt::set_socket_linger(socket, None)?;
        set_up(socket, self, congestion)?;
        self.watch_peer(socket)
    }

    /// Has the kernel find out that a peer of TCP is gone which never said so.
    pub(crate) fn watch_peer(&self, socket: &OwnedFd) -> rustix::io::Result<()> {
        /// Questions without an answer after which a quiet peer is gone.
        const PROBES: u32 = 4;
        if let Some(idle) = self.keepalive {
            sockopt::set_socket_keepalive(socket, true)?;
            sockopt::set_tcp_keepidle(socket, whole_seconds(idle))?;
            sockopt::set_tcp_keepintvl(socket, whole_seconds(idle / PROBES))?;
            sockopt::set_tcp_keepcnt(socket, PROBES)?;
        }
        if let Some(timeout) = self.user_timeout {
            let millis = timeout.as_millis().min(i32::MAX as u128) as u32;
            sockopt::set_tcp_user_timeout(socket, millis)?;
        }
        Ok(())
    }
}

/// What an address to listen on comes to on this host: `[::]:PORT` is `0.0.0.0:PORT` where there is no
/// IPv6.
pub fn on_this_host(listen: Listen) -> Listen {
    let addr = match listen.addr {
        Addr::Ip(addr) => Addr::Ip(on_host(stream_socket, addr)),
        addr => addr,
    };
    Listen { addr, ..listen }
}

fn on_host(
    new: impl Fn(SocketAddr) -> rustix::io::Result<OwnedFd>,
    mut addr: SocketAddr,
) -> SocketAddr {
    if addr.ip().is_unspecified()
        && let Ok(bound) = bind_new(new, SocketAddr::new(addr.ip(), 0), false)
        && let Ok(bound) = local_addr(&bound)
    {
        addr.set_ip(bound.ip());
    }
    addr
}

/// A socket bound to `addr`, alone or as one of a `SO_REUSEPORT` group. Every address of a host
/// without IPv6 is every IPv4 address.
pub(crate) fn bind(addr: SocketAddr, shared: bool) -> Result<OwnedFd, Error> {
    bind_new(stream_socket, addr, shared)
        .map_err(|e| Error::io(format!("cannot listen on {addr}"), e))
}

fn bind_new(
    new: impl Fn(SocketAddr) -> rustix::io::Result<OwnedFd>,
    addr: SocketAddr,
    shared: bool,
) -> rustix::io::Result<OwnedFd> {
    let bind = |addr: SocketAddr| {
        let socket = new(addr)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, shared)?;
        if addr.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, !addr.ip().is_unspecified())?;
        }
        rustix::net::bind(&socket, &addr)?;
        Ok(socket)
    };
    match bind(addr) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)
            if addr.is_ipv6() && addr.ip().is_unspecified() =>
        {
            bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port())))
        }
        bound => bound,
    }
}

/// An attempt to connect.
#[derive(Debug)]
pub(crate) enum Started {
    /// The socket turns writable when that has come to something.
    Socket(OwnedFd),
    /// The queue of a Unix socket is full, and the kernel tells nobody when there is room.
    Full,
}

/// Starts to connect to `addr`, by IP from one of the `sources`.
pub(crate) fn start_connect(
    addr: &Addr,
    setup: &Setup,
    sources: &Sources,
    client: Option<IpAddr>,
) -> rustix::io::Result<Started> {
    let (socket, started) = match addr {
        Addr::Ip(ip) => {
            let socket = stream_socket(*ip)?;
            set_up(&socket, setup, setup.congestion.of_backend(addr))?;
            let started = sources.connect(&socket, *ip, client);
            (socket, started)
        }
        Addr::Unix(unix) => {
            let socket = unix_socket()?;
            set_up_unix(&socket, setup)?;
            let started = rustix::net::connect(&socket, &unix.to_kernel()?);
            (socket, started)
        }
    };
    match started {
        Ok(()) | Err(Errno::INPROGRESS) if is_own_peer(&socket, addr) => {
            reset(socket);
            Err(Errno::CONNREFUSED)
        }
        Ok(()) | Err(Errno::INPROGRESS) => Ok(Started::Socket(socket)),
        Err(Errno::AGAIN) if addr.is_unix() => Ok(Started::Full),
        Err(e) => Err(e),
    }
}

/// Whether a socket that connects to `addr` does so from there: where nobody listens on a port of this
/// host that the kernel gives out, it may give out that one, and the socket is then connected to itself.
fn is_own_peer(socket: &OwnedFd, addr: &Addr) -> bool {
    let Addr::Ip(addr) = addr else { return false };
    local_addr(socket).is_ok_and(|own| own.port() == addr.port() && own.ip() == addr.ip())
}

/// Whether there is nothing left to make a socket of, for whatever backend.
pub(crate) fn is_exhausted(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// Whether an error that connect(2) to `addr` returns at once is this host's: no port, no route, no
/// such family, a rule of its own. Nobody has asked the backend. A Unix socket that is not there, or
/// is not for us, is the backend's.
pub(crate) fn is_local(e: Errno, addr: &Addr) -> bool {
    !addr.is_unix() && !matches!(e, Errno::CONNREFUSED | Errno::CONNRESET | Errno::TIMEDOUT)
}

/// Closes a socket such that its peer sees a reset, whatever is still queued; or, if both ends have
/// ended their streams, such that the kernel goes on sending what the peer has yet to acknowledge.
///
/// The peer of a Unix socket sees a reset, behind what it has yet to read, if something that it has sent
/// was not read here. That is the only one that the kernel knows (`unix_release_sock`): with nothing
/// unread it sees an end, and its writes fail.
pub(crate) fn reset(socket: OwnedFd) {
    if awaits_last_ack(&socket) {
        // Unread bytes would make a reset of it, which loses what the peer is owed.
        discard(&socket);
    } else {
        // A socket that cannot be told to linger is closed all the same.
        let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    }
}

/// Throws away what the socket has received. Returns how many bytes that were.
pub(crate) fn discard(socket: &OwnedFd) -> usize {
    // The kernel does not write to it: tcp(7), MSG_TRUNC.
    let mut unused = [0; 64 * 1024];
    let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    let mut all = 0;
    loop {
        match rustix::net::recv(socket, &mut unused[..], flags) {
            Ok((_, n @ 1..)) => all += n,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return all,
        }
    }
}

pub(crate) fn local_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(socket)?)?)
}

pub(crate) fn peer_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let addr = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::try_from(addr)?)
}

/// Who is at the other end of a Unix socket: who connected it, as the kernel noted.
pub(crate) fn unix_peer(socket: &OwnedFd) -> Client {
    let peer = getsockopt(socket, PeerCredentials);
    let (pid, uid) = peer.map_or((0, None), |peer| (peer.pid() as u32, Some(peer.uid())));
    Client::Unix { pid, uid }
}

fn stream_socket(addr: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// A Unix socket that does not block.
pub(crate) fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// What waits at the other end counts as the sender's, so a send buffer is all there is to bound: what
/// waits here is bounded by the peer's.
fn set_up_unix(socket: &OwnedFd, setup: &Setup) -> rustix::io::Result<()> {
    sockopt::set_socket_oobinline(socket, true)?;
    limit_send(socket, setup.shares.send)
}

fn set_up(socket: &OwnedFd, setup: &Setup, congestion: Option<&str>) -> rustix::io::Result<()> {
    if let Some(name) = congestion {
        // It was tried at the start; without it the socket works all the same.
        let _ = sockopt::set_tcp_congestion(socket, name);
    }
    sockopt::set_tcp_nodelay(socket, true)?;
    // Urgent bytes stay where they are in the stream. Without this they are taken out of it.
    sockopt::set_socket_oobinline(socket, true)?;
    // Without it the socket works all the same.
    let _ = keep_timeouts_linear(socket);
    limit_buffers(socket, setup.shares)
}

/// Of at least one second, and at most what the kernel takes (`MAX_TCP_KEEPIDLE`).
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs().clamp(1, 32_767))
}

/// Bounds what the kernel queues on a socket that is yet to be connected: without this, buffers grow by
/// themselves up to the third values of `net.ipv4.tcp_rmem` and `tcp_wmem`, 32 MiB on recent kernels. Its
/// receive buffer has its share once it is connected ([`limit_receive`]). The kernel fixes the window's
/// scale when it connects, and so needs to know then how large the buffer may become.
fn limit_buffers(socket: &OwnedFd, shares: Shares) -> rustix::io::Result<()> {
    limit_receive(socket, shares.most_received())?;
    limit_send(socket, shares.send)
}

/// Bounds the socket's receive memory to `bytes`, now and later. The kernel doubles what it is told, to account
/// for its own overhead (socket(7)). With CAP_NET_ADMIN, `net.core.rmem_max` does not apply.
pub(crate) fn limit_receive(socket: &OwnedFd, bytes: usize) -> rustix::io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, bytes / 2)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes / 2))
}

/// Bounds the socket's send memory to `bytes`, likewise.
pub(crate) fn limit_send(socket: &OwnedFd, bytes: usize) -> rustix::io::Result<()> {
    sockopt::set_socket_send_buffer_size_force(socket, bytes / 2)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_within_the_budget() {
        for budget in [Config::MIN_BUDGET, 1 << 20, Config::DEFAULT_BUDGET, 1 << 30] {
            for l2 in [None, Some(4 << 10), Some(1 << 20), Some(64 << 20)] {
                let s = Shares::of(budget, l2);
                assert!(
                    2 * (s.receive + s.send + s.chunk.max(s.pipe) + s.reserve) <= budget,
                    "{budget}: {s:?}"
                );
                assert!(s.chunk >= 16 * 1024 && s.receive >= 16 * 1024, "{budget}: {s:?}");
            }
        }
    }

    #[test]
    fn without_ipv6_every_address_is_every_ipv4_address() {
        for e in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            let new = |addr: SocketAddr| if addr.is_ipv6() { Err(e) } else { stream_socket(addr) };
            let any = bind_new(new, "[::]:0".parse().unwrap(), false).unwrap();
            assert_eq!(local_addr(&any).unwrap().ip(), Ipv4Addr::UNSPECIFIED);
            for (given, expected) in
                [("[::]:80", "0.0.0.0:80"), ("0.0.0.0:80", "0.0.0.0:80"), ("[::1]:80", "[::1]:80")]
            {
                assert_eq!(on_host(new, given.parse().unwrap()).to_string(), expected);
            }
            let one = bind_new(new, "[::1]:0".parse().unwrap(), false);
            assert_eq!(one.unwrap_err(), e);
        }
    }

    /// The kernel gives out the ports of one parity to those that connect, one after the other.
    #[test]
    fn a_socket_that_would_be_connected_to_itself_is_refused() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let ports: Vec<u16> = range.split_whitespace().map(|p| p.parse().unwrap()).collect();
        let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (ports[0]..=ports[1]).step_by(2).skip(100).find(is_free).unwrap();
        let dead = SocketAddr::from(([127, 0, 0, 1], port));
        let config = Config::new(vec![dead], vec![dead], [0].into_iter().collect());
        let setup = Setup::new(&config, Shares::of(1 << 20, None), Congestion::default());
        let to = Addr::Ip(dead);
        // One that is refused by its peer is not refused at once: the answer comes later.
        let mut attempts =
            (0..200_000).map(|_| start_connect(&to, &setup, &Sources::new(&[], &[]), None));
        let is_other =
            |attempt: &_| matches!(attempt, Ok(Started::Socket(s)) if !is_own_peer(s, &to));
        let own = attempts.find(|attempt| !is_other(attempt));
        assert_eq!(
            own.expect("the port is given out at some time").unwrap_err(),
            Errno::CONNREFUSED
        );
    }

    #[test]
    fn a_listener_is_limited_to_what_a_connection_may_have() {
        let addr: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let config = Config::new(vec![addr], vec![addr], [0].into_iter().collect());
        for budget in [1 << 20, Config::DEFAULT_BUDGET] {
            let shares = Shares::of(budget, None);
            let setup = Setup::new(&config, shares, Congestion::default());
            let socket = bind(addr, false).unwrap();
            setup.set_up_listener(&socket, &addr.into()).unwrap();
            let most = if budget == 1 << 20 { shares.receive } else { shares.pool() };
            assert!(sockopt::socket_recv_buffer_size(&socket).unwrap() <= most);
            assert!(sockopt::socket_send_buffer_size(&socket).unwrap() <= shares.send);
        }
    }
}
