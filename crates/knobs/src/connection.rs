//! One client of the control socket, as a state machine that never blocks.

use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::protocol::{Reply, error_line, respond, too_large};
use crate::{MAX_LINE, Peer, Registry, wire};

/// How long a client may take to finish a line that it began, or to take a reply.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The most requests answered before other clients get their turn.
const TURN: usize = 32;

const CHUNK: usize = 8 * 1024;

/// A client. What it can make this process hold is one request line and one reply: nothing more is
/// read while a reply waits to be taken.
pub(crate) struct Connection {
    stream: UnixStream,
    peer: Peer,
    /// What has come of the lines not answered yet.
    input: Vec<u8>,
    /// How many bytes of it have been searched for a line's end.
    searched: usize,
    /// The rest of an oversized line, already answered, is being thrown away.
    skipping: bool,
    /// The client has said all that it will.
    ended: bool,
    output: Vec<u8>,
    sent: usize,
    /// What goes beside the output.
    files: Vec<OwnedFd>,
    /// When the client last finished a request, or connected.
    heard: Instant,
    /// When it began the line, or was sent the reply, that it has not finished.
    waiting_since: Option<Instant>,
}

/// What a connection needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To be polled.
    Wait,
    /// Another turn: it has more requests.
    Turn,
    /// To be dropped.
    Close,
}

impl Connection {
    /// `stream` must be non-blocking.
    pub(crate) fn new(stream: UnixStream, peer: Peer, now: Instant) -> Self {
        Self {
            stream,
            peer,
            input: Vec::new(),
            searched: 0,
            skipping: false,
            ended: false,
            output: Vec::new(),
            sent: 0,
            files: Vec::new(),
            heard: now,
            waiting_since: None,
        }
    }

    /// Reads, answers and writes as far as that goes without waiting.
    pub(crate) fn advance(&mut self, registry: &Registry, now: Instant) -> Next {
        let next = match self.turn(registry, now) {
            Ok(next) => next,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Wait,
            Err(_) => Next::Close,
        };
        let waiting = self.skipping || !self.input.is_empty() || !self.output.is_empty();
        self.waiting_since = waiting.then(|| self.waiting_since.unwrap_or(now));
        match self.deadline() {
            Some(deadline) if next == Next::Wait && deadline <= now => Next::Close,
            _ => next,
        }
    }

    /// When the client has lost our patience; `None` while nothing of it is unfinished.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + PATIENCE)
    }

    /// When the client last finished a request, or connected.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    /// What to poll for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    fn turn(&mut self, registry: &Registry, now: Instant) -> io::Result<Next> {
        for _ in 0..TURN {
            self.flush()?;
            match self.take_line() {
                Some(line) => {
                    Reply { line: self.output, files: self.files } =
                        respond(registry, &line, self.peer);
                    (self.heard, self.waiting_since) = (now, None);
                }
                None if self.ended => return Ok(Next::Close),
                None => self.fill()?,
            }
        }
        Ok(Next::Turn)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match wire::send(&self.stream, &self.output[self.sent..], &mut self.files) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sent = 0;
        self.output.clear();
        Ok(())
    }

    /// The next line without its end. The last one counts even if its end is missing.
    fn take_line(&mut self) -> Option<Vec<u8>> {
        match self.input[self.searched..].iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let rest = self.input.split_off(self.searched + end + 1);
                self.input.pop();
                self.searched = 0;
                Some(mem::replace(&mut self.input, rest))
            }
            None if self.ended && !self.input.is_empty() => {
                self.searched = 0;
                Some(mem::take(&mut self.input))
            }
            None => {
                self.searched = self.input.len();
                None
            }
        }
    }

    /// Reads once. A line that is too long is answered as soon as that is clear.
    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        let got = match self.stream.read(&mut chunk) {
            Ok(0) => {
                self.ended = true;
                return Ok(());
            }
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut chunk = &chunk[..got];
        if self.skipping {
            let Some(end) = chunk.iter().position(|&byte| byte == b'\n') else { return Ok(()) };
            chunk = &chunk[end + 1..];
            self.skipping = false;
        }
        self.input.extend_from_slice(chunk);
        if self.input.len() > MAX_LINE && !chunk.contains(&b'\n') {
            self.input.clear();
            self.searched = 0;
            self.skipping = true;
            self.output = error_line(&too_large());
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pair(now: Instant) -> (UnixStream, Connection) {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, Connection::new(server, Peer::ours(), now))
    }

    #[test]
    fn an_unfinished_line_is_given_up_after_a_while_and_silence_is_not() {
        let (registry, start) = (Registry::new("test"), Instant::now());
        let (mut client, mut connection) = pair(start);
        assert_eq!(connection.advance(&registry, start + PATIENCE * 100), Next::Wait);
        client.write_all(b"{").unwrap();
        let begun = start + PATIENCE * 100;
        assert_eq!(connection.advance(&registry, begun), Next::Wait);
        client.write_all(b" ").unwrap();
        assert_eq!(connection.advance(&registry, begun + PATIENCE / 2), Next::Wait);
        assert_eq!(connection.deadline(), Some(begun + PATIENCE));
        assert_eq!(connection.advance(&registry, begun + PATIENCE), Next::Close);
    }

    #[test]
    fn a_reply_that_is_not_taken_stops_the_reading_and_is_given_up() {
        let (registry, now) = (Registry::new("test"), Instant::now());
        let (mut client, mut connection) = pair(now);
        client.set_nonblocking(true).unwrap();
        let mut blocked = false;
        while !blocked {
            while client.write(b"\n\n\n\n").is_ok() {}
            // Answers are larger than requests, so the client's side fills up for good.
            while connection.advance(&registry, now) == Next::Turn {}
            blocked = !connection.output.is_empty();
        }
        assert_eq!(connection.interest(), PollFlags::OUT);
        assert!(connection.input.len() <= CHUNK);
        assert_eq!(connection.advance(&registry, now + PATIENCE), Next::Close);
    }

    #[test]
    fn a_flood_of_requests_is_answered_in_turns() {
        let (registry, now) = (Registry::new("test"), Instant::now());
        let (mut client, mut connection) = pair(now);
        client.write_all(&b"\n".repeat(TURN * 2)).unwrap();
        assert_eq!(connection.advance(&registry, now), Next::Turn);
        let mut answers = vec![0; 1 << 20];
        let got = client.read(&mut answers).unwrap();
        let lines = answers[..got].iter().filter(|&&byte| byte == b'\n').count();
        assert!((1..=TURN).contains(&lines), "{lines} answers");
    }

    #[test]
    fn what_was_sent_before_the_end_is_answered() {
        let (registry, now) = (Registry::new("test"), Instant::now());
        let (mut client, mut connection) = pair(now);
        client.write_all(b"x\ny").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(connection.advance(&registry, now), Next::Close);
        drop(connection);
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        assert_eq!(answers.lines().count(), 2, "{answers}");
    }
}
