//! One client: what it has sent, and what it is to get. Reads and writes don't block.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::families::{Form, Text};
use super::http::{self, Asked, Refusal, What};
use super::server::ServedCounts;

/// How long a client may take to send its request, from its first byte on, or to send the first byte.
const HEAD: Duration = Duration::from_secs(5);

/// How long a connection may be idle between two requests: longer than the usual scrape interval.
const IDLE: Duration = Duration::from_secs(150);

/// How long a client may take to read an answer: Prometheus' own patience is 10 s.
const ANSWER: Duration = Duration::from_secs(15);

/// How long the rest of what a client sends is thrown away before the connection is closed, so that the
/// answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(1);

/// So much is read at a time, and so often in a turn.
const CHUNK: usize = 4096;
const READS: u32 = 4;

/// One client.
pub(super) struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    state: State,
    /// When the state began, or for a request its first byte came.
    since: Instant,
    has_asked: bool,
}

enum State {
    Reading,
    /// For metrics in this form, which are being gathered if it is `begun`.
    Waiting {
        form: Form,
        head: bool,
        keep: bool,
        begun: bool,
    },
    Writing {
        head: Vec<u8>,
        body: Arc<[u8]>,
        sent: usize,
        keep: bool,
    },
    Lingering,
}

/// What comes of a step.
enum Step {
    On,
    Blocked,
    Over,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, now: Instant) -> Connection {
        let (input, state) = (Vec::new(), State::Reading);
        Connection { socket, input, state, since: now, has_asked: false }
    }

    /// What to wait for.
    pub(super) fn events(&self) -> PollFlags {
        match self.state {
            State::Reading | State::Lingering => PollFlags::IN,
            State::Writing { .. } => PollFlags::OUT,
            State::Waiting { .. } => PollFlags::empty(),
        }
    }

    /// When it is given up; never while it waits for us.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = match &self.state {
            State::Reading if self.input.is_empty() && self.has_asked => IDLE,
            State::Reading => HEAD,
            State::Writing { .. } => ANSWER,
            State::Lingering => LINGER,
            State::Waiting { .. } => return None,
        };
        Some(self.since + patience)
    }

    /// How soon it gives way to a newcomer, and since when it is as it is; none while it waits for us.
    pub(super) fn rank(&self) -> Option<(u8, Instant)> {
        let class = match &self.state {
            State::Lingering => 0,
            State::Reading => 1,
            State::Writing { .. } => 2,
            State::Waiting { .. } => return None,
        };
        Some((class, self.since))
    }

    /// Whether it has got all that it asked for, and is about to be closed.
    pub(super) fn is_served(&self) -> bool {
        matches!(self.state, State::Lingering)
    }

    /// Begins to gather: the form in which it wants metrics, if it waits for some and nothing was begun.
    pub(super) fn begin(&mut self) -> Option<Form> {
        match &mut self.state {
            State::Waiting { form, begun, .. } if !*begun => {
                *begun = true;
                Some(*form)
            }
            _ => None,
        }
    }

    /// Gives it the metrics that it waits for, or none if there are none to give.
    pub(super) fn give(&mut self, texts: Option<&[Text]>, now: Instant) {
        let State::Waiting { form, head, keep, begun: true } = self.state else { return };
        let found = texts.and_then(|all| all.iter().find(|(of, _)| *of == form));
        match found {
            Some((_, body)) => {
                let lines = http::metrics_head(form, body.len(), keep);
                self.write(lines, Arc::clone(body), head, keep, now);
            }
            None => {
                let why = "the log of cachelane metrics says why";
                let (lines, body) = http::refusal(Refusal::Failed, why, keep);
                self.write(lines, body.into(), head, keep, now);
            }
        }
    }

    /// Whether it is getting this.
    pub(super) fn is_writing(&self, one: &Arc<[u8]>) -> bool {
        matches!(&self.state, State::Writing { body, .. } if Arc::ptr_eq(body, one))
    }

    /// Goes on as far as that is possible now; whether there is more to come.
    pub(super) fn turn(&mut self, counts: &ServedCounts, now: Instant) -> bool {
        let mut reads = READS;
        loop {
            let step = match self.state {
                State::Reading => self.read(&mut reads, counts, now),
                State::Writing { .. } => self.send(now),
                State::Lingering => self.discard(&mut reads),
                State::Waiting { .. } => Ok(Step::Blocked),
            };
            match step {
                Ok(Step::On) => {}
                Ok(Step::Blocked) => return true,
                // Whoever is gone wants nothing.
                Ok(Step::Over) | Err(_) => return false,
            }
        }
    }

    fn read(&mut self, reads: &mut u32, counts: &ServedCounts, now: Instant) -> io::Result<Step> {
        if !self.input.is_empty() {
            match http::parse(&self.input) {
                Asked::Part => {}
                Asked::Bad(refusal) => {
                    counts.requests.add(1);
                    counts.refused.add(1);
                    let (lines, body) = http::refusal(refusal, "", false);
                    self.write(lines, body.into(), false, false, now);
                    return Ok(Step::On);
                }
                Asked::Whole(request, length) => {
                    counts.requests.add(1);
                    self.input.drain(..length);
                    self.has_asked = true;
                    self.answer(request, counts, now);
                    return Ok(Step::On);
                }
            }
        }
        let mut chunk = [0; CHUNK];
        match receive(&self.socket, reads, &mut chunk)? {
            None => Ok(Step::Blocked),
            Some(0) => Ok(Step::Over),
            Some(length) => {
                if self.input.is_empty() {
                    self.since = now;
                }
                self.input.extend_from_slice(&chunk[..length]);
                Ok(Step::On)
            }
        }
    }

    fn answer(&mut self, request: http::Request, counts: &ServedCounts, now: Instant) {
        let http::Request { what, head, keep } = request;
        match what {
            What::Metrics(form) => {
                self.state = State::Waiting { form, head, keep, begun: false };
                self.since = now;
            }
            What::Page { content_type, body } => {
                let lines = http::page_head(content_type, body.len(), keep);
                self.write(lines, body.as_bytes().into(), head, keep, now);
            }
            What::Refused(refusal) => {
                counts.refused.add(1);
                let (lines, body) = http::refusal(refusal, "", keep);
                self.write(lines, body.into(), head, keep, now);
            }
        }
    }

    fn write(&mut self, head: Vec<u8>, body: Arc<[u8]>, no_body: bool, keep: bool, now: Instant) {
        let body = if no_body { Arc::default() } else { body };
        self.state = State::Writing { head, body, sent: 0, keep };
        self.since = now;
    }

    fn send(&mut self, now: Instant) -> io::Result<Step> {
        let State::Writing { head, body, sent, keep } = &mut self.state else {
            return Ok(Step::On);
        };
        if *sent < head.len() + body.len() {
            let (rest, flags) = match sent.checked_sub(head.len()) {
                None if body.is_empty() => (&head[*sent..], SendFlags::NOSIGNAL),
                None => (&head[*sent..], SendFlags::NOSIGNAL | SendFlags::MORE),
                Some(sent) => (&body[sent..], SendFlags::NOSIGNAL),
            };
            return match retry_on_intr(|| send(&self.socket, rest, flags)) {
                Ok(length) => {
                    *sent += length;
                    Ok(Step::On)
                }
                Err(Errno::AGAIN) => Ok(Step::Blocked),
                Err(error) => Err(error.into()),
            };
        }
        self.state = match *keep {
            true => State::Reading,
            false => {
                shutdown(&self.socket, Shutdown::Write)?;
                State::Lingering
            }
        };
        self.since = now;
        Ok(Step::On)
    }

    fn discard(&mut self, reads: &mut u32) -> io::Result<Step> {
        match receive(&self.socket, reads, &mut [0; CHUNK])? {
            None => Ok(Step::Blocked),
            Some(0) => Ok(Step::Over),
            Some(_) => Ok(Step::On),
        }
    }
}

/// Reads what is there; none where nothing is, or enough was read in this turn. What is there still wakes
/// the next one.
fn receive(socket: &OwnedFd, reads: &mut u32, chunk: &mut [u8]) -> io::Result<Option<usize>> {
    if *reads == 0 {
        return Ok(None);
    }
    *reads -= 1;
    match retry_on_intr(|| recv(socket, &mut *chunk, RecvFlags::empty())) {
        Ok((length, _)) => Ok(Some(length)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
