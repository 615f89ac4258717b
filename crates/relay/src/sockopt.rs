//! Socket options that rustix lacks: `TCP_INFO`, for a connection's state, how much the peer has
//! acknowledged and how many clients wait; `SO_RCVLOWAT`, for how much makes a socket readable;
//! `SO_MEMINFO` and `TCP_WINDOW_CLAMP`, for its buffers; `TCP_THIN_LINEAR_TIMEOUTS`, for
//! when it sends again; and `SO_DETACH_FILTER`.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

/// The first bytes of the kernel's `struct tcp_info` (linux/tcp.h; fixed ABI), up to and with
/// `tcpi_bytes_acked` at offset 120.
type Info = [u8; 128];

/// The same up to and with `tcpi_min_rtt` at offset 148.
type LongInfo = [u8; 152];

sockopt_impl!(TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Info);
sockopt_impl!(TcpLongInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, LongInfo);
sockopt_impl!(DetachFilter, SetOnly, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, libc::c_int);
sockopt_impl!(MemInfo, GetOnly, libc::SOL_SOCKET, libc::SO_MEMINFO, [u32; 9]);
sockopt_impl!(WindowClamp, SetOnly, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, libc::c_int);
sockopt_impl!(
    LinearTimeouts,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_THIN_LINEAR_TIMEOUTS,
    libc::c_int
);
sockopt_impl!(ReceiveLowWater, SetOnly, libc::SOL_SOCKET, libc::SO_RCVLOWAT, libc::c_int);

/// Bytes that the peer has acknowledged over the connection's life (RFC 4898
/// `tcpEStatsAppHCThruOctetsAcked`). The kernel counts the SYN of an active open, and a FIN.
pub(crate) fn bytes_acked(socket: &impl AsFd) -> nix::Result<u64> {
    let info = getsockopt(socket, TcpInfo)?;
    Ok(info.last_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

/// Whether both ends have ended their streams and the peer has yet to acknowledge ours. A socket that
/// is closed with linger 0 then sends no reset, and forgets what is under way (`tcp_need_reset`).
pub(crate) fn awaits_last_ack(socket: &impl AsFd) -> bool {
    // include/net/tcp_states.h; `tcpi_state` is the first byte.
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    getsockopt(socket, TcpInfo).is_ok_and(|info| matches!(info[0], LAST_ACK | CLOSING))
}

/// Clients that wait in the accept queue of a socket that listens, which is what `tcpi_unacked`, at
/// offset 24, says of one.
pub(crate) fn accept_queue(socket: &impl AsFd) -> nix::Result<usize> {
    let info = getsockopt(socket, TcpInfo)?;
    Ok(info[24..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize))
}

/// Takes a filter off, if there is one.
pub(crate) fn detach_filter(socket: &impl AsFd) -> nix::Result<()> {
    setsockopt(socket, DetachFilter, &0)
}

/// Whether the socket has asked something of its peer again, and no acknowledgement has come since:
/// the peer is gone, or what it says is dropped here.
pub(crate) fn hears_nothing(socket: &impl AsFd) -> bool {
    // struct tcp_info: tcpi_ca_state; tcpi_probes, which an acknowledgement resets; tcpi_rto, us;
    // tcpi_last_data_sent and tcpi_last_ack_recv, ms; tcpi_rtt, us.
    const LOSS: u8 = 4;
    let Ok(info) = getsockopt(socket, TcpInfo) else { return false };
    let word = |at: usize| info[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let (rto, sent, heard, rtt) = (word(8) / 1000, word(44), word(56), word(68) / 1000);
    // With timeouts that do not grow it asks too often for the last question to be old.
    let asked = sent.max(heard.saturating_sub(rto));
    let unanswered = heard > sent && asked > 2 * rtt + ANSWER;
    info[3] > 0 || info[1] == LOSS && unanswered
}

/// Milliseconds that a peer may wait for a CPU, or hold an acknowledgement back (`TCP_DELACK_MAX`).
const ANSWER: u32 = 50;

/// The shortest round trip of the last minutes (`tcp_min_rtt_wlen`); zero if none is known.
pub(crate) fn least_round_trip(socket: &impl AsFd) -> Duration {
    let info = getsockopt(socket, TcpLongInfo);
    let micros = info.ok().and_then(|info| info.last_chunk().map(|b| u32::from_ne_bytes(*b)));
    Duration::from_micros(micros.filter(|&micros| micros != u32::MAX).unwrap_or(0).into())
}

/// A socket's buffers: their sizes, and what they hold, in bytes as the kernel accounts for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) receive: usize,
    pub(crate) received: usize,
    pub(crate) send: usize,
    pub(crate) queued: usize,
}

/// The socket's buffers at this moment.
pub(crate) fn buffers(socket: &impl AsFd) -> nix::Result<Buffers> {
    // linux/sock_diag.h: SK_MEMINFO_RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED.
    let info = getsockopt(socket, MemInfo)?;
    let [received, receive, _, send, _, queued, ..] = info.map(|bytes| bytes as usize);
    Ok(Buffers { receive, received, send, queued })
}

/// Memory that the socket's receive buffer has left, as the kernel accounts for it.
pub(crate) fn free_to_receive(socket: &impl AsFd) -> nix::Result<usize> {
    let Buffers { receive, received, .. } = buffers(socket)?;
    Ok(receive.saturating_sub(received))
}

/// The largest window that the socket offers from now on; one that is larger runs out first.
pub(crate) fn clamp_window(socket: &impl AsFd, bytes: usize) -> nix::Result<()> {
    setsockopt(socket, WindowClamp, &bytes.try_into().unwrap_or(libc::c_int::MAX))
}

/// From now on the kernel sends again after the same time each time, and not after twice the time, while
/// less than four packets are under way. A peer that shut its window and dropped what it had promised one
/// for gets that soon after it reads again. A peer that is silent is asked six times that way, and then
/// ever more seldom; when it is given up does not change.
///
/// `TCP_RTO_MAX_MS` (Linux 6.15) would bound the time for any number of packets. But the kernel gives up a
/// silent peer with a shut window after two of these times, or 15 probes, whatever the user timeout.
pub(crate) fn keep_timeouts_linear(socket: &impl AsFd) -> nix::Result<()> {
    setsockopt(socket, LinearTimeouts, &1)
}

/// From now on the socket turns readable when `bytes` are there, or its end, or when its receive
/// buffer is about to be full. The kernel lowers values above half the receive buffer.
pub(crate) fn set_receive_low_water(socket: &impl AsFd, bytes: usize) -> nix::Result<()> {
    setsockopt(socket, ReceiveLowWater, &bytes.try_into().unwrap_or(libc::c_int::MAX))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    /// The sockmap governor relies on these offsets of the count: see `sockmap::ACTIVE_OPEN`.
    #[test]
    fn acknowledged_bytes_are_counted_with_the_syn_of_an_active_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (passive, _) = listener.accept().unwrap();
        for (name, mut from, mut to, syn) in
            [("active", &active, &passive, 1), ("passive", &passive, &active, 0)]
        {
            from.write_all(&[7; 1000]).unwrap();
            to.read_exact(&mut [0; 1000]).unwrap();
            let deadline = Instant::now() + Duration::from_secs(5);
            while bytes_acked(from).unwrap() < 1000 + syn && Instant::now() < deadline {
                std::thread::yield_now();
            }
            assert_eq!(bytes_acked(from).unwrap(), 1000 + syn, "{name} open");
        }
    }
}
