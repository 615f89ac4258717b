//! Events of one kind, one after another, as cheap as they come, over loopback.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use lanes::LaneMap;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A TCP socket receives a byte.
    Receives,
    /// A datagram is dropped, as its socket has no room.
    Frees,
}

pub(super) const KINDS: [(Kind, &str); 2] = [(Kind::Receives, "receives"), (Kind::Frees, "frees")];

/// Events between two looks at the clock: some hundred microseconds, so that most stretches see no
/// interruption.
const BLOCK: usize = 512;
/// Bytes that are sent at once, to be received one by one: less than any window.
const FILL: usize = 32 * BLOCK;
/// Datagrams that fill a socket. What is beyond is dropped.
const FULL: usize = 4096;
const DATAGRAM: [u8; 64] = [7; 64];

/// The sockets.
#[derive(Debug)]
pub(super) struct Events {
    stream: [TcpStream; 2],
    sender: UdpSocket,
    /// Nobody reads it.
    _full: UdpSocket,
    cpu: usize,
}

impl Events {
    pub(super) fn new() -> anyhow::Result<Events> {
        let any = (Ipv4Addr::LOCALHOST, 0);
        let listener = TcpListener::bind(any)?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let stream = [near, listener.accept()?.0];
        let (sender, full) = (UdpSocket::bind(any)?, UdpSocket::bind(any)?);
        sender.connect(full.local_addr()?)?;
        for _ in 0..FULL {
            sender.send(&DATAGRAM)?;
        }
        let cpu = LaneMap::detect()?.allowed().first().context("no CPU is open to this process")?;
        Ok(Events { stream, sender, _full: full, cpu })
    }

    /// The CPU that all is done on.
    pub(super) fn cpu(&self) -> usize {
        self.cpu
    }

    /// Has events happen for this long. Adds to `blocks` the seconds that an event took, for each
    /// stretch of them.
    pub(super) fn go(
        &mut self,
        kind: Kind,
        window: Duration,
        blocks: &mut Vec<f64>,
    ) -> anyhow::Result<()> {
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                lanes::pin(self.cpu)?;
                let until = Instant::now() + window;
                while Instant::now() < until {
                    match kind {
                        Kind::Receives => self.receive(blocks)?,
                        Kind::Frees => self.drop_datagrams(blocks)?,
                    }
                }
                Ok(())
            });
            done.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        })
    }

    fn receive(&mut self, blocks: &mut Vec<f64>) -> anyhow::Result<()> {
        let [from, to] = &mut self.stream;
        from.write_all(&[7; FILL])?;
        for _ in 0..FILL / BLOCK {
            let begun = Instant::now();
            for _ in 0..BLOCK {
                to.read_exact(&mut [0])?;
            }
            blocks.push(begun.elapsed().as_secs_f64() / BLOCK as f64);
        }
        Ok(())
    }

    fn drop_datagrams(&self, blocks: &mut Vec<f64>) -> anyhow::Result<()> {
        let begun = Instant::now();
        for _ in 0..BLOCK {
            self.sender.send(&DATAGRAM)?;
        }
        blocks.push(begun.elapsed().as_secs_f64() / BLOCK as f64);
        Ok(())
    }
}
