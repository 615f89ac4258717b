//! Two socket options that no library we use wraps safely, hence `unsafe`: `TCP_INFO`, for how
//! much the peer has acknowledged, and `SO_RCVLOWAT`, for how much makes a socket readable.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that the peer has acknowledged over the connection's life (RFC 4898
/// `tcpEStatsAppHCThruOctetsAcked`). The kernel counts the SYN of an active open, and a FIN.
pub(crate) fn bytes_acked(socket: impl AsFd) -> io::Result<u64> {
    /// Offset of `tcpi_bytes_acked` in the kernel's `struct tcp_info` (linux/tcp.h; fixed ABI).
    const BYTES_ACKED: usize = 120;
    let mut info = [0u8; BYTES_ACKED + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: `info` is writable for `length` bytes for the whole call, and the descriptor is
    // open for as long as `socket` is borrowed. The kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    match info.last_chunk::<8>() {
        Some(bytes) if length as usize == info.len() => Ok(u64::from_ne_bytes(*bytes)),
        _ => Err(io::Error::other("the kernel's tcp_info has no tcpi_bytes_acked")),
    }
}

/// From now on the socket turns readable when `bytes` are there, or its end, or when its receive
/// buffer is about to be full. The kernel lowers values above half the receive buffer.
pub(crate) fn set_receive_low_water(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: `value` is a c_int that lives through the call, and its size is given with it; the
    // descriptor is open for as long as `socket` is borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
