//! A server that answers many connections from few threads.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use rustix::{io::Errno, net::sockopt::socket_incoming_cpu, thread::sched_getcpu};

use super::{
    Moves, check_cpus, listen, local_addr,
    moves::Mover,
    pin,
    poller::{EventFlags, Poller, Ready},
};
use crate::{Error, Host, Result};

/// The token of the listener; connections have their slot's number.
const LISTENER: u64 = u64::MAX - 1;
const BUFFER: usize = 64 << 10;
/// Connections that one thread accepts before it looks after those that it has.
const ACCEPT_BATCH: usize = 64;

/// How an [`EchoServer`] answers.
#[derive(Clone, Debug)]
pub struct EchoOptions {
    /// Threads; each accepts connections and keeps those it accepted.
    pub threads: usize,
    /// CPUs that the threads are pinned to in turn; empty: not pinned.
    pub cpus: Vec<usize>,
    /// Bytes a request, 1 or more.
    pub request: usize,
    /// Bytes an answer; none: the request itself.
    pub response: Option<usize>,
    /// Close a connection after this many answers, so that the server is the side with the
    /// sockets in TIME_WAIT; none: leave it to the client.
    pub close_after: Option<u64>,
    /// Most connections that one thread has at a time; once it has them, it leaves others to the
    /// other threads. None: it takes all that come.
    pub per_thread: Option<usize>,
    /// How the threads move from CPU to CPU, instead of being pinned to `cpus`; none: they do not.
    pub moves: Option<Moves>,
    /// Look at each receive where its last packet was processed: [`EchoCounters::same_cpu`].
    pub look: bool,
}

impl Default for EchoOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            cpus: Vec::new(),
            request: 1,
            response: None,
            close_after: None,
            per_thread: None,
            moves: None,
            look: false,
        }
    }
}

/// What an [`EchoServer`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoCounters {
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Requests answered.
    pub answered: u64,
    /// Connections that could not be accepted, for lack of file descriptors for instance.
    pub refused: u64,
    /// Moves of threads.
    pub moves: u64,
    /// Receives that were looked at.
    pub looked_at: u64,
    /// Of them, those of a thread on the CPU that had processed the connection's last packet
    /// (`SO_INCOMING_CPU`).
    pub same_cpu: u64,
}

/// A running echo server; dropping it closes its connections.
#[derive(Debug)]
pub struct EchoServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    workers: Vec<(Arc<Poller>, thread::JoinHandle<()>)>,
}

/// Counters are Relaxed: each stands on its own.
#[derive(Debug)]
struct Shared {
    listener: TcpListener,
    options: EchoOptions,
    stop: AtomicBool,
    accepted: AtomicU64,
    open: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    moves: AtomicU64,
    looked_at: AtomicU64,
    same_cpu: AtomicU64,
}

impl EchoServer {
    /// Listens on `address` of `host`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be listened on.
    pub fn start(host: &Host, address: SocketAddr, options: EchoOptions) -> Result<Self> {
        if options.threads == 0 || options.request == 0 {
            return Err(Error::invalid("an echo server without threads or with empty requests"));
        }
        if options.per_thread == Some(0) || options.moves.as_ref().is_some_and(|m| m.every == 0) {
            return Err(Error::invalid("an echo server without connections, or that always moves"));
        }
        check_cpus(&options.cpus)?;
        check_cpus(options.moves.as_ref().map_or(&[], |moves| &moves.cpus))?;
        let listener = host.run(|| listen(address))??;
        listener.set_nonblocking(true).map_err(|error| Error::io("the listener", error))?;
        let address = local_addr(&listener)?;
        let shared = Arc::new(Shared {
            listener,
            options,
            stop: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            same_cpu: AtomicU64::new(0),
        });
        let mut server = Self { address, shared, workers: Vec::new() };
        for index in 0..server.shared.options.threads {
            let poller = Arc::new(Poller::new()?);
            (server.shared.listen(&poller))
                .map_err(|error| Error::io("waiting for connections", error))?;
            let (shared, waker) = (server.shared.clone(), poller.clone());
            let thread = host.spawn_thread("echo", move || {
                // A CPU that is not there has been refused.
                if let Ok(mover) = shared.options.place(index) {
                    Worker::new(&shared, &poller, mover).run();
                }
            })?;
            server.workers.push((waker, thread));
        }
        Ok(server)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn counters(&self) -> EchoCounters {
        EchoCounters {
            accepted: self.shared.accepted.load(Relaxed),
            open: self.shared.open.load(Relaxed),
            answered: self.shared.answered.load(Relaxed),
            refused: self.shared.refused.load(Relaxed),
            moves: self.shared.moves.load(Relaxed),
            looked_at: self.shared.looked_at.load(Relaxed),
            same_cpu: self.shared.same_cpu.load(Relaxed),
        }
    }
}

impl EchoOptions {
    /// Puts the calling thread, the `index`th, where it belongs.
    fn place(&self, index: usize) -> Result<Option<Mover<'_>>> {
        match &self.moves {
            Some(moves) => Mover::start(moves, index, self.threads).map(Some),
            None => pin(&self.cpus, index).map(|()| None),
        }
    }
}

impl Shared {
    /// Has a thread be told of new connections.
    fn listen(&self, poller: &Poller) -> Result<(), Errno> {
        // Exclusive: a new connection wakes one thread. Where that may have enough of them, all
        // are to know, or one is left to nobody.
        let flags = match self.options.per_thread {
            None => EventFlags::IN | EventFlags::EXCLUSIVE,
            Some(_) => EventFlags::IN,
        };
        poller.add(&self.listener, LISTENER, flags)
    }

    /// Looks where the packets of what was just received were processed.
    fn look(&self, stream: &TcpStream) {
        let same = socket_incoming_cpu(stream).is_ok_and(|cpu| cpu as usize == sched_getcpu());
        self.looked_at.fetch_add(1, Relaxed);
        self.same_cpu.fetch_add(u64::from(same), Relaxed);
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Relaxed: the wake-up after it goes through the kernel.
        self.shared.stop.store(true, Relaxed);
        for (poller, thread) in self.workers.drain(..) {
            poller.wake();
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }
}

/// One thread's connections.
struct Worker<'a> {
    shared: &'a Shared,
    poller: &'a Poller,
    mover: Option<Mover<'a>>,
    /// Whether it is told of new connections.
    listens: bool,
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

/// A connection either reads, or has an answer that it could not write yet.
struct Connection {
    stream: TcpStream,
    /// Bytes of the request that has begun.
    begun: usize,
    answered: u64,
    unsent: Vec<u8>,
}

/// Whether a connection goes on.
#[derive(PartialEq)]
enum Next {
    Read,
    Write,
    Close,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared, poller: &'a Poller, mover: Option<Mover<'a>>) -> Self {
        let (slots, free) = (Vec::new(), Vec::new());
        Self { shared, poller, mover, listens: true, slots, free, buffer: vec![0; BUFFER] }
    }

    fn is_full(&self) -> bool {
        let open = self.slots.len() - self.free.len();
        self.shared.options.per_thread.is_some_and(|most| open >= most)
    }

    /// Asks for new connections as long as it takes some.
    fn listen(&mut self) {
        let wants = !self.is_full();
        if wants == self.listens {
            return;
        }
        let done = match wants {
            true => self.shared.listen(self.poller),
            false => self.poller.remove(&self.shared.listener),
        };
        // Otherwise it is tried again with the next connection.
        self.listens = if done.is_ok() { wants } else { self.listens };
    }

    fn run(mut self) {
        let mut events = Vec::new();
        while !self.shared.stop.load(Relaxed) {
            // An epoll that fails ends the server, which its clients see.
            let Ok(ready) = self.poller.wait(&mut events, None) else { break };
            for Ready { token, .. } in ready {
                match token {
                    LISTENER => self.accept(),
                    token => self.serve(token as usize),
                }
            }
        }
        self.shared.open.fetch_sub(self.slots.iter().flatten().count() as u64, Relaxed);
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            if self.is_full() {
                break;
            }
            let stream = match self.shared.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.shared.refused.fetch_add(1, Relaxed);
                    break;
                }
            };
            self.shared.accepted.fetch_add(1, Relaxed);
            let slot = self.free.pop().unwrap_or(self.slots.len());
            let ready = stream.set_nonblocking(true).is_ok()
                && stream.set_nodelay(true).is_ok()
                && self.poller.add(&stream, slot as u64, EventFlags::IN).is_ok();
            if !ready {
                self.free.extend((slot < self.slots.len()).then_some(slot));
                self.shared.refused.fetch_add(1, Relaxed);
                continue;
            }
            if slot == self.slots.len() {
                self.slots.push(None);
            }
            self.slots[slot] = Some(Connection::new(stream));
            self.shared.open.fetch_add(1, Relaxed);
        }
        self.listen();
    }

    fn serve(&mut self, slot: usize) {
        // None if an earlier event of the same batch closed it.
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        let (wrote, answered) = (!connection.unsent.is_empty(), connection.answered);
        let mut next = connection.step(self.shared, &mut self.buffer);
        if let Some(mover) = &mut self.mover {
            mover.answered(connection.answered - answered, &self.shared.moves);
        }
        if next != Next::Close && wrote != (next == Next::Write) {
            let flags = if next == Next::Write { EventFlags::OUT } else { EventFlags::IN };
            if self.poller.modify(&connection.stream, slot as u64, flags).is_err() {
                next = Next::Close;
            }
        }
        if next == Next::Close {
            // Closing it takes it out of the epoll.
            self.slots[slot] = None;
            self.free.push(slot);
            self.shared.open.fetch_sub(1, Relaxed);
            self.listen();
        }
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, begun: 0, answered: 0, unsent: Vec::new() }
    }

    /// Writes what waits, then reads and answers once.
    fn step(&mut self, shared: &Shared, buffer: &mut [u8]) -> Next {
        if !self.unsent.is_empty() {
            return self.flush(shared);
        }
        match (&self.stream).read(buffer) {
            Ok(0) => Next::Close,
            Ok(received) => {
                let options = &shared.options;
                if options.look {
                    shared.look(&self.stream);
                }
                let whole = (self.begun + received) / options.request;
                self.begun = (self.begun + received) % options.request;
                match options.response {
                    None => self.unsent.extend_from_slice(&buffer[..received]),
                    Some(bytes) => self.unsent.resize(bytes * whole, b'r'),
                }
                self.answered += whole as u64;
                shared.answered.fetch_add(whole as u64, Relaxed);
                self.flush(shared)
            }
            Err(error) if is_temporary(&error) => Next::Read,
            Err(_) => Next::Close,
        }
    }

    fn flush(&mut self, shared: &Shared) -> Next {
        while !self.unsent.is_empty() {
            match (&self.stream).write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Write,
                Err(_) => return Next::Close,
            }
        }
        let enough = shared.options.close_after.is_some_and(|answers| self.answered >= answers);
        if enough { Next::Close } else { Next::Read }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
