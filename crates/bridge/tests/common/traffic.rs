//! Traffic of the hosts' own stacks, and waiting until all traffic has passed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use lab::{End, Host, Lab};
use nix::sys::socket::{setsockopt, sockopt};

use super::frame::SEGMENT;
use super::net::PATIENCE;

/// Sends bytes over TCP and checks that they are the same at the other end.
pub fn transfer(from: &Host, to: &Host, address: impl Into<IpAddr>, bytes: usize) {
    let address = address.into();
    let listener = to.run(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    let pattern: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut received = Vec::with_capacity(bytes);
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let stream = from.run(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
        let mut stream = stream.unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&pattern).unwrap();
        drop(stream);
        let received = receiver.join().unwrap();
        assert!(received == pattern, "{} of {bytes} bytes, or others", received.len());
    });
}

/// Sends datagrams of [`SEGMENT`] bytes to the discard port, cut from these by the stack.
pub fn send_segments(from: &End, to: Ipv4Addr, bytes: &[u8]) {
    let socket = from.host.run(|| UdpSocket::bind((from.v4, 0))).unwrap().unwrap();
    setsockopt(&socket, sockopt::UdpGsoSegment, &(SEGMENT as i32)).unwrap();
    assert_eq!(socket.send_to(bytes, (to, 9)).unwrap(), bytes.len());
}

/// Waits until this CPU has handled every packet that was sent on it before: a datagram on a
/// loopback device takes its place in the same queue behind them. What forwarding puts into the
/// queue again needs another round.
pub struct Barrier {
    socket: UdpSocket,
    own: SocketAddr,
}

impl Barrier {
    const ROUNDS: usize = 8;

    pub fn new(lab: &Lab) -> Self {
        let host = lab.host("barrier").unwrap();
        let socket = host.run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let own = socket.local_addr().unwrap();
        Self { socket, own }
    }

    pub fn pass(&self) {
        for _ in 0..Self::ROUNDS {
            self.socket.send_to(&[0], self.own).unwrap();
            self.socket.recv(&mut [0]).unwrap();
        }
    }
}
