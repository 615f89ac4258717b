//! A server that answers many connections from few threads.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
};

use rustix::{io::Errno, net::sockopt::socket_incoming_cpu, thread::sched_getcpu};
use slab::Slab;

use super::{
    Moves, listen, local_addr,
    moves::{Mover, cpu_of},
    threads::{EventFlags, Poller, Stop, Threads},
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
    /// Bytes a request, 1 or more, which is its own answer.
    pub request: usize,
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
            per_thread: None,
            moves: None,
            look: false,
        }
    }
}

kit::counters! {
    /// What an [`EchoServer`] has counted.
    pub struct EchoCounters of #[repr(align(128))] EchoCounts {
        accepted: "connections", "Connections accepted since the start.";
        open: "connections", "Connections open now.";
        answered: "requests", "Requests answered.";
        moves: "moves", "Moves of threads.";
        looked_at: "receives", "Receives that were looked at.";
        same_cpu: "receives", "Of them, those of a thread on the CPU that had processed the \
            connection's last packet (`SO_INCOMING_CPU`).";
    }
}

/// A running echo server; dropping it closes its connections.
#[derive(Debug)]
pub struct EchoServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _threads: Threads,
}

#[derive(Debug)]
struct Shared {
    listener: TcpListener,
    options: EchoOptions,
    /// Of each thread.
    counts: Vec<EchoCounts>,
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
        let listener = host.run(|| listen(address))??;
        listener.set_nonblocking(true).map_err(|error| Error::io("the listener", error))?;
        let address = local_addr(&listener)?;
        let counts = (0..options.threads).map(|_| EchoCounts::default()).collect();
        let shared = Arc::new(Shared { listener, options, counts });
        let mut threads = Threads::new()?;
        let EchoOptions { cpus, moves, threads: count, .. } = &shared.options;
        for index in 0..*count {
            let (shared, poller) = (shared.clone(), Poller::new(threads.stop())?);
            shared.listen(&poller).map_err(|error| Error::io("waiting for connections", error))?;
            let mover = moves.clone().map(|moves| Mover::new(moves, index, *count));
            let cpu = cpu_of(moves.as_ref().map_or(cpus, |moves| &moves.cpus), index);
            threads.start(host, "echo", cpu, move |stop| {
                Worker::new(&shared, &shared.counts[index], &poller, mover).run(stop);
            })?;
        }
        Ok(Self { address, shared, _threads: threads })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn counters(&self) -> EchoCounters {
        let mut sum = EchoCounters::default();
        self.shared.counts.iter().for_each(|counts| sum.add(&counts.into()));
        sum
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
}

/// One thread's connections.
struct Worker<'a> {
    shared: &'a Shared,
    counts: &'a EchoCounts,
    poller: &'a Poller,
    mover: Option<Mover>,
    /// Whether it is told of new connections.
    listens: bool,
    connections: Slab<Connection>,
    buffer: Vec<u8>,
}

/// A connection either reads, or has an answer that it could not write yet.
struct Connection {
    stream: TcpStream,
    /// Bytes of the request that has begun.
    begun: usize,
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
    fn new(
        shared: &'a Shared,
        counts: &'a EchoCounts,
        poller: &'a Poller,
        mover: Option<Mover>,
    ) -> Self {
        let (connections, buffer) = (Slab::new(), vec![0; BUFFER]);
        Self { shared, counts, poller, mover, listens: true, connections, buffer }
    }

    fn is_full(&self) -> bool {
        self.shared.options.per_thread.is_some_and(|most| self.connections.len() >= most)
    }

    /// After a change of how many it has: asks for new connections as long as it takes some.
    fn listen(&mut self) {
        self.counts.open.set(self.connections.len() as u64);
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

    fn run(mut self, stop: &Stop) {
        let mut events = Vec::new();
        while !stop.is_set() {
            // An epoll that fails ends the server, which its clients see.
            let Ok(ready) = self.poller.wait(&mut events, None) else { break };
            for token in ready {
                match token {
                    LISTENER => self.accept(),
                    token => self.serve(token as usize),
                }
            }
        }
        self.counts.open.set(0);
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            if self.is_full() {
                break;
            }
            // Where there is none, or no file descriptor for it, the poller says when to try again.
            let Ok((stream, _)) = self.shared.listener.accept() else { break };
            self.counts.accepted.add(1);
            let slot = self.connections.vacant_entry();
            let ready = stream.set_nonblocking(true).is_ok()
                && stream.set_nodelay(true).is_ok()
                && self.poller.add(&stream, slot.key() as u64, EventFlags::IN).is_ok();
            if ready {
                slot.insert(Connection { stream, begun: 0, unsent: Vec::new() });
            }
        }
        self.listen();
    }

    fn serve(&mut self, slot: usize) {
        // None if an earlier event of the same batch closed it.
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let wrote = !connection.unsent.is_empty();
        let (mut next, answers) =
            connection.step(&self.shared.options, self.counts, &mut self.buffer);
        self.counts.answered.add(answers);
        if let Some(mover) = &mut self.mover {
            mover.answered(answers, &self.counts.moves);
        }
        if next != Next::Close && wrote != (next == Next::Write) {
            let flags = if next == Next::Write { EventFlags::OUT } else { EventFlags::IN };
            if self.poller.modify(&connection.stream, slot as u64, flags).is_err() {
                next = Next::Close;
            }
        }
        if next == Next::Close {
            // Closing it takes it out of the epoll.
            self.connections.remove(slot);
            self.listen();
        }
    }
}

impl Connection {
    /// Writes what waits, or reads and answers once; how many requests have been answered.
    fn step(
        &mut self,
        options: &EchoOptions,
        counts: &EchoCounts,
        buffer: &mut [u8],
    ) -> (Next, u64) {
        if !self.unsent.is_empty() {
            return (self.flush(), 0);
        }
        match (&self.stream).read(buffer) {
            Ok(0) => (Next::Close, 0),
            Ok(received) => {
                if options.look {
                    look(&self.stream, counts);
                }
                let whole = (self.begun + received) / options.request;
                self.begun = (self.begun + received) % options.request;
                self.unsent.extend_from_slice(&buffer[..received]);
                (self.flush(), whole as u64)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (Next::Read, 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (Next::Read, 0),
            Err(_) => (Next::Close, 0),
        }
    }

    fn flush(&mut self) -> Next {
        while !self.unsent.is_empty() {
            match (&self.stream).write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Write,
                Err(_) => return Next::Close,
            }
        }
        Next::Read
    }
}

/// Looks where the packets of what was just received were processed.
fn look(stream: &TcpStream, counts: &EchoCounts) {
    let same = socket_incoming_cpu(stream).is_ok_and(|cpu| cpu as usize == sched_getcpu());
    counts.looked_at.add(1);
    counts.same_cpu.add(u64::from(same));
}
