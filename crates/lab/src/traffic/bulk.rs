//! TCP streams that carry as much as they can, from the side that connects to the side that listens.
//!
//! A thread blocks in a read or a write; shutting its socket down from outside is what wakes it.
//! Shutting down only the sending direction ends a transfer in order: what was written still
//! arrives, followed by the end of the stream.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    ops::RangeInclusive,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    PATTERN_PERIOD, listen, local_addr,
    moves::cpu_of,
    pattern, reserve_fds,
    threads::{Stop, Threads},
};
use crate::{Error, Host, Result, testing::within};

const SIZES: RangeInclusive<usize> = 64..=1 << 20;
/// Most bytes a read.
const READ: usize = 256 << 10;
/// How long connecting one stream may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long the first byte may take.
const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(10);

/// What a bulk transfer is. Both sides are given the same.
#[derive(Clone, Debug)]
pub struct BulkOptions {
    /// Bytes a write, 64 to 1 MiB.
    pub write_size: usize,
    /// Connections, each with a thread of its own at both sides.
    pub streams: usize,
    /// Compare each byte that arrives with the one sent.
    pub verify: bool,
    /// CPUs that the client's streams are pinned to in turn; empty: not pinned.
    pub client_cpus: Vec<usize>,
}

impl Default for BulkOptions {
    fn default() -> Self {
        Self { write_size: 64 << 10, streams: 1, verify: false, client_cpus: Vec::new() }
    }
}

/// What arrived in a measured time.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// The measured time.
    pub elapsed: Duration,
    /// Bytes read by the receivers.
    pub received: u64,
}

impl Bulk {
    /// Bytes a second that arrived.
    pub fn rate(&self) -> f64 {
        self.received as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What one side of a transfer has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Bytes that the kernel took from this side.
    pub sent: u64,
    /// Bytes that this side read.
    pub received: u64,
    /// Streams on which this side read a byte that was not the one sent there. Looked for only
    /// with [`BulkOptions::verify`].
    pub corrupt: u64,
    /// Streams that ended by an error, such as a reset, instead of an end of the stream.
    pub failed: u64,
}

/// One side's streams, and what they have counted: Relaxed, as each number stands on its own.
#[derive(Debug, Default)]
struct Side {
    /// The threads own the sockets: one is closed when its thread ends.
    streams: Mutex<Vec<Weak<TcpStream>>>,
    ended: AtomicU64,
    carried: AtomicU64,
    corrupt: AtomicU64,
    failed: AtomicU64,
}

impl Side {
    /// Takes a stream; none once it is to stop.
    fn take(&self, stream: TcpStream, stop: &Stop) -> Option<Arc<TcpStream>> {
        let (stream, mut streams) = (Arc::new(stream), self.streams.lock());
        streams.push(Arc::downgrade(&stream));
        // Looked at under the lock, so that whoever shuts streams down finds this one.
        (!stop.is_set()).then_some(stream)
    }

    /// Does the work of a stream's thread.
    fn carry(
        &self,
        stream: Arc<TcpStream>,
        stop: &Stop,
        work: impl FnOnce(&TcpStream) -> io::Result<()>,
    ) {
        if work(&stream).is_err() && !stop.is_set() {
            self.failed.fetch_add(1, Relaxed);
        }
        // Closed before it counts as ended.
        drop(stream);
        self.ended.fetch_add(1, Relaxed);
    }

    fn shut(&self, how: Shutdown, stop: &Stop) {
        stop.set();
        for stream in self.streams.lock().iter().filter_map(Weak::upgrade) {
            // Fails only where the stream has ended already.
            let _ = stream.shutdown(how);
        }
    }
}

/// The side that listens, and receives. Dropping it ends its streams.
#[derive(Debug)]
pub struct BulkServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    side: Arc<Side>,
    threads: Threads,
    /// Streams of sessions that have been finished.
    finished: AtomicU64,
}

impl BulkServer {
    /// Listens on `address` of `host`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be listened on.
    pub fn start(host: &Host, address: SocketAddr, options: &BulkOptions) -> Result<Self> {
        options.check()?;
        let listener = Arc::new(host.run(|| listen(address))??);
        let (address, side) = (local_addr(&listener)?, Arc::new(Side::default()));
        let mut threads = Threads::new()?;
        let (accepting, shared, verify) = (listener.clone(), side.clone(), options.verify);
        threads.start(host, "bulk-accept", None, move |stop| {
            thread::scope(|scope| {
                while let Ok((stream, _)) = accepting.accept() {
                    let Some(stream) = shared.take(stream, stop) else { return };
                    let receiver = thread::Builder::new().name("bulk-receive".into());
                    let work =
                        || shared.carry(stream, stop, |stream| receive(&shared, stream, verify));
                    // Without a thread the stream is closed, which the client sees.
                    if receiver.spawn_scoped(scope, work).is_err() {
                        shared.ended.fetch_add(1, Relaxed);
                    }
                }
            });
        })?;
        Ok(Self { address, listener, side, threads, finished: AtomicU64::new(0) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What all streams accepted so far have carried.
    pub fn totals(&self) -> StreamTotals {
        let Side { carried, corrupt, failed, .. } = &*self.side;
        let [received, corrupt, failed] =
            [carried, corrupt, failed].map(|count| count.load(Relaxed));
        StreamTotals { sent: 0, received, corrupt, failed }
    }

    /// Whether so many streams have been accepted, and all of them have ended.
    fn has_ended(&self, streams: u64) -> bool {
        let accepted = self.side.streams.lock().len() as u64;
        accepted >= streams && self.side.ended.load(Relaxed) == accepted
    }
}

impl Drop for BulkServer {
    fn drop(&mut self) {
        self.side.shut(Shutdown::Both, self.threads.stop());
        // Wakes the thread that waits in accept; fails only where it has been woken.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// The side that connects, and sends until it is dropped.
#[derive(Debug)]
pub struct BulkSession {
    side: Arc<Side>,
    threads: Threads,
    count: u64,
}

impl BulkSession {
    /// Connects the streams from `host` to `target` and starts them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) or
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if it cannot connect.
    pub fn start(host: &Host, target: SocketAddr, options: &BulkOptions) -> Result<Self> {
        options.check()?;
        reserve_fds(options.streams)?;
        let side = Arc::new(Side::default());
        let mut session = Self { side, threads: Threads::new()?, count: options.streams as u64 };
        for index in 0..options.streams {
            let stream = host.run(|| TcpStream::connect_timeout(&target, CONNECT_LIMIT))?;
            let stream =
                stream.map_err(|error| Error::io(format!("connecting to {target}"), error))?;
            let (side, size) = (session.side.clone(), options.write_size);
            let Some(stream) = side.take(stream, session.threads.stop()) else { break };
            let cpu = cpu_of(&options.client_cpus, index);
            session.threads.start(host, "bulk-send", cpu, move |stop| {
                side.carry(stream, stop, |stream| send(&side, stream, size));
            })?;
        }
        Ok(session)
    }

    /// What goes through in the next `time`, counted from when the first byte has arrived.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if nothing arrives.
    pub fn measure(&self, server: &BulkServer, time: Duration) -> Result<Bulk> {
        let arrived = || server.totals().received;
        if !within(FIRST_BYTE_LIMIT, || arrived() > 0) {
            return Err(Error::timed_out(format!("no byte arrived in {FIRST_BYTE_LIMIT:?}")));
        }
        let (start, before) = (Instant::now(), arrived());
        thread::sleep(time);
        Ok(Bulk { elapsed: start.elapsed(), received: arrived() - before })
    }

    /// Ends the transfer in order on both sides, so that everything sent is received, and
    /// returns the totals of this side and of the server.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if that takes longer than `limit`.
    pub fn finish(
        mut self,
        server: &BulkServer,
        limit: Duration,
    ) -> Result<(StreamTotals, StreamTotals)> {
        self.side.shut(Shutdown::Write, self.threads.stop());
        self.threads.finish();
        // Behind a relay, the server may see a stream only now.
        let count = server.finished.fetch_add(self.count, Relaxed) + self.count;
        if !within(limit, || server.has_ended(count)) {
            let message = format!("not all of {count} streams have ended after {limit:?}");
            return Err(Error::timed_out(message));
        }
        let [sent, failed] = [&self.side.carried, &self.side.failed].map(|it| it.load(Relaxed));
        let own = StreamTotals { sent, failed, ..StreamTotals::default() };
        Ok((own, server.totals()))
    }
}

impl Drop for BulkSession {
    fn drop(&mut self) {
        self.side.shut(Shutdown::Both, self.threads.stop());
    }
}

impl BulkOptions {
    fn check(&self) -> Result<()> {
        if !SIZES.contains(&self.write_size) {
            let size = self.write_size;
            return Err(Error::invalid(format!("write size {size}: expected 64 to 1 MiB")));
        }
        if self.streams == 0 {
            return Err(Error::invalid("a bulk transfer of no stream"));
        }
        Ok(())
    }
}

/// Sends until the stream is shut down.
fn send(side: &Side, mut stream: &TcpStream, size: usize) -> io::Result<()> {
    let bytes = pattern(size);
    let mut offset = 0;
    loop {
        match stream.write(&bytes[offset..offset + size]) {
            Ok(sent) => {
                offset = (offset + sent) % PATTERN_PERIOD;
                side.carried.fetch_add(sent as u64, Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Receives until the stream has ended.
fn receive(side: &Side, mut stream: &TcpStream, verify: bool) -> io::Result<()> {
    let expected = if verify { pattern(READ) } else { Vec::new() };
    let mut buffer = vec![0; READ];
    let (mut offset, mut corrupt) = (0, false);
    loop {
        let received = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if verify && !corrupt {
            corrupt = buffer[..received] != expected[offset..offset + received];
            side.corrupt.fetch_add(u64::from(corrupt), Relaxed);
        }
        offset = (offset + received) % PATTERN_PERIOD;
        side.carried.fetch_add(received as u64, Relaxed);
    }
}
