//! Connections that are open and do nothing.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    begin_connect,
    poller::{EventFlags, Poller, Ready},
    reserve_fds,
};
use crate::{Error, Host, Result};

/// Connections being opened at a time.
const OPENING: usize = 256;
const PING: u8 = b'p';

/// Idle connections, held until dropped. The server is an echo server of one-byte requests.
#[derive(Debug)]
pub struct IdleSession {
    poller: Poller,
    /// By token; none where the connection is gone.
    streams: Vec<Option<TcpStream>>,
}

impl IdleSession {
    /// Opens `count` connections from `host` to `target`, each proved to reach the server by a
    /// byte that comes back: one through a proxy holds a connection on both sides of it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if this process may not open as many
    /// files; [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if not all have answered
    /// after `limit`; [`ErrorKind::Io`](crate::ErrorKind::Io) if one fails.
    pub fn open(host: &Host, target: SocketAddr, count: usize, limit: Duration) -> Result<Self> {
        reserve_fds(count)?;
        let mut session = Self { poller: Poller::new()?, streams: Vec::with_capacity(count) };
        host.run(|| session.fill(target, count, limit))??;
        Ok(session)
    }

    /// How many connections it holds.
    pub fn held(&self) -> usize {
        self.streams.iter().flatten().count()
    }

    /// Sends a byte on each connection and returns on how many one came back within `limit`.
    /// Connections that turn out to be gone are no longer held.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if events cannot be waited for.
    pub fn ping(&mut self, limit: Duration) -> Result<usize> {
        for slot in &mut self.streams {
            slot.take_if(|stream| send(stream).is_err());
        }
        let mut answered = 0;
        let until = Instant::now() + limit;
        let mut events = Vec::new();
        while answered < self.held() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            for Ready { token, .. } in self.poller.wait(&mut events, Some(left))? {
                let slot = &mut self.streams[token as usize];
                match slot.as_ref().map(receive) {
                    Some(Ok(true)) => answered += 1,
                    Some(Ok(false)) | None => {}
                    // Closing it takes it out of the epoll.
                    Some(Err(_)) => *slot = None,
                }
            }
        }
        Ok(answered)
    }

    fn fill(&mut self, target: SocketAddr, count: usize, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        let context = |error: io::Error| Error::io(format!("connecting to {target}"), error);
        let mut events = Vec::new();
        let mut answered = 0;
        while answered < count {
            while self.streams.len() < count && self.streams.len() - answered < OPENING {
                let stream = begin_connect(target).map_err(|error| context(error.into()))?;
                let token = self.streams.len() as u64;
                let added = self.poller.add(&stream, token, EventFlags::OUT);
                added.map_err(|error| context(error.into()))?;
                self.streams.push(Some(stream));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("{answered} of {count} connections to {target} answered");
                return Err(Error::timed_out(format!("{message} in {limit:?}")));
            }
            for Ready { token, flags } in self.poller.wait(&mut events, Some(left))? {
                let Some(stream) = &self.streams[token as usize] else { continue };
                if flags.contains(EventFlags::OUT) {
                    send(stream).map_err(context)?;
                    let watched = self.poller.modify(stream, token, EventFlags::IN);
                    watched.map_err(|error| context(error.into()))?;
                } else {
                    answered += usize::from(receive(stream).map_err(context)?);
                }
            }
        }
        Ok(())
    }
}

fn send(mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(&[PING])
}

/// Whether the byte has come back.
fn receive(mut stream: &TcpStream) -> io::Result<bool> {
    match stream.read(&mut [0]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
