//! One connection of the exchange loop: where it is in its exchange, and the next step.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    begin_connect,
    exchange::{RrOptions, Then},
    threads::{EventFlags, Poller},
};

/// One connection of the loop, over and over where it is closed after each exchange.
#[derive(Default)]
pub(super) struct Slot {
    index: usize,
    stream: Option<TcpStream>,
    state: State,
    /// When the exchange, or the connect before it, began; none while there is none.
    began: Option<Instant>,
    exchanges: u64,
    was_ready: bool,
    /// Whether the socket is watched for room to write instead of data to read.
    writing: bool,
}

/// Where a connection is; the numbers are bytes done.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Opening,
    Sending(usize),
    Receiving(usize),
    /// Nothing more is to be sent; whatever comes, its end included, is an error.
    Resting,
}

/// What a connection needs after a step.
pub(super) enum Next {
    Wait,
    Close,
}

impl Slot {
    /// A connection that is not open yet, and its number among all of the loop.
    pub(super) fn new(index: usize) -> Self {
        Self { index, ..Self::default() }
    }

    pub(super) fn is_opening(&self) -> bool {
        self.state == State::Opening
    }

    /// When what is pending began, if something is.
    pub(super) fn began(&self) -> Option<Instant> {
        self.began
    }

    pub(super) fn close(&mut self) {
        self.stream = None;
        self.began = None;
    }

    /// Starts connecting.
    pub(super) fn open(&mut self, target: SocketAddr, poller: &Poller) -> io::Result<()> {
        self.state = State::Opening;
        self.began = Some(Instant::now());
        self.writing = true;
        let stream = self.stream.insert(begin_connect(target)?);
        Ok(poller.add(stream, self.index as u64, EventFlags::OUT)?)
    }

    /// Watches the socket for what the state waits for.
    pub(super) fn watch(&mut self, poller: &Poller) -> io::Result<()> {
        let writing = matches!(self.state, State::Opening | State::Sending(_));
        let Some(stream) = self.stream.as_ref().filter(|_| writing != self.writing) else {
            return Ok(());
        };
        self.writing = writing;
        let flags = if writing { EventFlags::OUT } else { EventFlags::IN };
        Ok(poller.modify(stream, self.index as u64, flags)?)
    }

    /// Goes on until it would have to wait, at most to the end of an exchange.
    pub(super) fn step(
        &mut self,
        options: &RrOptions,
        scratch: &mut Scratch,
        done: &mut Batch,
    ) -> io::Result<Next> {
        let Some(stream) = self.stream.take() else { return Ok(Next::Wait) };
        let result = loop {
            match self.step_once(&stream, options, scratch, done) {
                Ok(None) => {}
                Ok(Some(next)) => break Ok(next),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(Next::Wait),
                Err(error) => break Err(error),
            }
        };
        self.stream = Some(stream);
        result
    }

    /// One system call's worth; none: go on.
    fn step_once(
        &mut self,
        mut stream: &TcpStream,
        options: &RrOptions,
        scratch: &mut Scratch,
        done: &mut Batch,
    ) -> io::Result<Option<Next>> {
        match self.state {
            State::Opening => {
                stream.take_error()?.map_or(Ok(()), Err)?;
                if options.then != Then::Rest {
                    self.count_ready(done);
                }
                self.state = State::Sending(0);
            }
            State::Sending(at) => {
                self.tag(&mut scratch.request);
                let at = at + stream.write(&scratch.request[at..])?;
                if at == options.request {
                    self.state = State::Receiving(0);
                    return Ok(Some(Next::Wait));
                }
                self.state = State::Sending(at);
            }
            State::Receiving(at) => {
                let room = scratch.response.len().min(options.request - at);
                let received = stream.read(&mut scratch.response[..room])?;
                if received == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let end = at + received;
                if options.verify {
                    self.tag(&mut scratch.request);
                    let same = scratch.response[..received] == scratch.request[at..end];
                    done.corrupt += u64::from(!same);
                }
                self.state = State::Receiving(end);
                if end == options.request {
                    return Ok(self.complete(options.then, done));
                }
            }
            State::Resting => {
                return match stream.read(&mut scratch.response)? {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => Err(io::Error::other("more bytes than the response has")),
                };
            }
        }
        Ok(None)
    }

    /// An exchange is complete; none: go on.
    fn complete(&mut self, then: Then, done: &mut Batch) -> Option<Next> {
        let now = Instant::now();
        done.latencies.extend(self.began.map(|began| now - began));
        self.exchanges += 1;
        match then {
            Then::Again => {
                (self.began, self.state) = (Some(now), State::Sending(0));
                None
            }
            Then::Reopen => Some(Next::Close),
            Then::Rest => {
                self.count_ready(done);
                (self.began, self.state) = (None, State::Resting);
                Some(Next::Wait)
            }
        }
    }

    fn count_ready(&mut self, done: &mut Batch) {
        done.ready += usize::from(!self.was_ready);
        self.was_ready = true;
    }

    /// Starts a request with bytes that no other exchange in flight has.
    fn tag(&self, request: &mut [u8]) {
        let tag = (((self.index as u64) << 40) | (self.exchanges & 0xff_ffff_ffff)).to_be_bytes();
        let len = request.len().min(tag.len());
        // A short request has the bytes that change fastest.
        request[..len].copy_from_slice(&tag[tag.len() - len..]);
    }
}

/// What a batch of events did.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) latencies: Vec<Duration>,
    pub(super) errors: Vec<io::Error>,
    pub(super) corrupt: u64,
    /// Connections that came to be ready for the first time.
    pub(super) ready: usize,
}

/// Buffers that all connections share in turn.
pub(super) struct Scratch {
    pub(super) request: Vec<u8>,
    pub(super) response: Vec<u8>,
}
