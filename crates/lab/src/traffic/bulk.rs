//! TCP streams that carry as much as they can.

use std::{
    net::{SocketAddr, TcpStream},
    ops::RangeInclusive,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::{
    StreamTotals, check_cpus, listen, local_addr, reserve_fds,
    stream::{Streams, Work},
};
use crate::{Error, Host, Result};

const SIZES: RangeInclusive<usize> = 64..=1 << 20;
/// How long connecting one stream may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long the first byte may take.
const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(10);

/// What a bulk transfer is. Both sides are given the same.
#[derive(Clone, Debug)]
pub struct BulkOptions {
    /// Bytes a write, 64 to 1 MiB.
    pub write_size: usize,
    /// Most bytes a read, 64 to 1 MiB.
    pub read_size: usize,
    /// Connections, each with threads of its own at both sides.
    pub streams: usize,
    /// Who sends.
    pub direction: Direction,
    /// Bytes a second that a receiver reads from one stream; none: as fast as it can.
    pub receive_rate: Option<u64>,
    /// Size of a receiver's socket buffer in bytes as `SO_RCVBUF` takes it; none: the kernel's
    /// automatic sizing.
    pub receive_buffer: Option<usize>,
    /// Compare each byte that arrives with the one sent.
    pub verify: bool,
    /// CPUs that the client's streams are pinned to in turn; empty: not pinned.
    pub client_cpus: Vec<usize>,
    /// The same for the server's.
    pub server_cpus: Vec<usize>,
}

/// Who sends in a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client, which connects.
    Upload,
    /// The server, which listens.
    Download,
    /// Both at once.
    Both,
}

impl Default for BulkOptions {
    fn default() -> Self {
        Self {
            write_size: 64 << 10,
            read_size: 256 << 10,
            streams: 1,
            direction: Direction::Upload,
            receive_rate: None,
            receive_buffer: None,
            verify: false,
            client_cpus: Vec::new(),
            server_cpus: Vec::new(),
        }
    }
}

/// What went through in a measured time.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// The measured time.
    pub elapsed: Duration,
    /// Bytes written by all senders.
    pub sent: u64,
    /// Bytes read by all receivers.
    pub received: u64,
}

impl Bulk {
    /// Bytes a second that arrived.
    pub fn rate(&self) -> f64 {
        self.received as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// The side that listens. Dropping it ends its streams.
#[derive(Debug)]
pub struct BulkServer {
    address: SocketAddr,
    listener: Arc<OwnedFd>,
    acceptor: Option<thread::JoinHandle<()>>,
    streams: Arc<Streams>,
    /// Streams of sessions that have been finished.
    finished: AtomicUsize,
}

impl BulkServer {
    /// Listens on `address` of `host`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be listened on.
    pub fn start(host: &Host, address: SocketAddr, options: &BulkOptions) -> Result<Self> {
        options.check()?;
        let listener = host.run(|| listen(address))??;
        let address = local_addr(&listener)?;
        let work = options.work(Direction::Download, &options.server_cpus);
        let streams = Arc::new(Streams::default());
        let handle = listener.try_clone().map_err(|error| Error::io("the listener", error))?;
        let (shared, buffer) = (streams.clone(), options.receive_buffer);
        if let (Some(bytes), true) = (buffer, work.receives) {
            // Accepted sockets inherit it, early enough for the window that they announce.
            set_buffer(&listener, bytes)?;
        }
        let acceptor = host.spawn_thread("bulk-accept", move || {
            while let Ok((stream, _)) = listener.accept() {
                // Without threads or descriptors the stream is closed, which the client sees.
                let _ = shared.add(stream, &work);
            }
        })?;
        let listener = Arc::new(handle.into());
        Ok(Self {
            address,
            listener,
            acceptor: Some(acceptor),
            streams,
            finished: AtomicUsize::new(0),
        })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What all streams accepted so far have carried.
    pub fn totals(&self) -> StreamTotals {
        self.streams.totals()
    }

    /// Ends what this side sends; what was written still arrives.
    pub fn end_sending(&self) {
        self.streams.end_sending();
    }

    /// Waits until all streams accepted so far have ended.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if one goes on after `limit`.
    pub fn wait(&self, limit: Duration) -> Result<StreamTotals> {
        self.streams.wait(0, limit)
    }
}

impl Drop for BulkServer {
    fn drop(&mut self) {
        // Wakes the thread that waits in accept; fails only where it has been woken.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            // A panic has been printed, and a drop could not say more.
            let _ = acceptor.join();
        }
        self.streams.stop();
    }
}

/// The side that connects; it runs until it is dropped.
#[derive(Debug)]
pub struct BulkSession {
    streams: Arc<Streams>,
    count: usize,
    upload: bool,
    download: bool,
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
        let work = options.work(Direction::Upload, &options.client_cpus);
        let session = Self {
            streams: Arc::new(Streams::default()),
            count: options.streams,
            upload: work.sends,
            download: work.receives,
        };
        host.run(|| {
            (0..options.streams).try_for_each(|_| {
                let stream = TcpStream::connect_timeout(&target, CONNECT_LIMIT)
                    .map_err(|error| Error::io(format!("connecting to {target}"), error))?;
                if let (Some(bytes), true) = (options.receive_buffer, work.receives) {
                    set_buffer(&stream, bytes)?;
                }
                session.streams.add(stream, &work)
            })
        })??;
        Ok(session)
    }

    /// What all streams have carried.
    pub fn totals(&self) -> StreamTotals {
        self.streams.totals()
    }

    /// What goes through in the next `time`, counted from when the first byte has arrived.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if nothing arrives.
    pub fn measure(&self, server: &BulkServer, time: Duration) -> Result<Bulk> {
        let from = Instant::now();
        while self.arrived(server) == 0 {
            if from.elapsed() > FIRST_BYTE_LIMIT {
                let message = format!("no byte arrived in {FIRST_BYTE_LIMIT:?}");
                return Err(Error::timed_out(message));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let (start, sent, received) = (Instant::now(), self.written(server), self.arrived(server));
        thread::sleep(time);
        Ok(Bulk {
            elapsed: start.elapsed(),
            sent: self.written(server) - sent,
            received: self.arrived(server) - received,
        })
    }

    /// Ends what this side sends; what was written still arrives.
    pub fn end_sending(&self) {
        self.streams.end_sending();
    }

    /// Waits until all streams have ended.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if one goes on after `limit`.
    pub fn wait(&self, limit: Duration) -> Result<StreamTotals> {
        self.streams.wait(0, limit)
    }

    /// Ends the transfer in order on both sides, so that everything sent is received, and
    /// returns the totals of this side and of the server.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if that takes longer than `limit`.
    pub fn finish(
        self,
        server: &BulkServer,
        limit: Duration,
    ) -> Result<(StreamTotals, StreamTotals)> {
        let until = Instant::now() + limit;
        if self.upload {
            self.end_sending();
        }
        if self.download {
            server.end_sending();
        }
        let client = self.wait(until.saturating_duration_since(Instant::now()))?;
        // Relaxed: a counter on its own. Behind a relay, the server may see a stream only now.
        let count = server.finished.fetch_add(self.count, Ordering::Relaxed) + self.count;
        let server = server.streams.wait(count, until.saturating_duration_since(Instant::now()))?;
        Ok((client, server))
    }

    fn written(&self, server: &BulkServer) -> u64 {
        self.totals().sent + server.totals().sent
    }

    fn arrived(&self, server: &BulkServer) -> u64 {
        self.totals().received + server.totals().received
    }
}

impl Drop for BulkSession {
    fn drop(&mut self) {
        self.streams.stop();
    }
}

impl BulkOptions {
    fn check(&self) -> Result<()> {
        for (name, size) in [("write", self.write_size), ("read", self.read_size)] {
            if !SIZES.contains(&size) {
                return Err(Error::invalid(format!("{name} size {size}: expected 64 to 1 MiB")));
            }
        }
        if self.streams == 0 || self.receive_rate == Some(0) {
            return Err(Error::invalid("a bulk transfer of no stream or at no rate"));
        }
        for cpus in [&self.client_cpus, &self.server_cpus] {
            check_cpus(cpus)?;
        }
        Ok(())
    }

    /// What the side that sends in `direction` does.
    fn work(&self, direction: Direction, cpus: &[usize]) -> Work {
        Work {
            sends: self.direction == direction || self.direction == Direction::Both,
            receives: self.direction != direction,
            write_size: self.write_size,
            read_size: self.read_size,
            receive_rate: self.receive_rate,
            verify: self.verify,
            cpus: cpus.to_vec(),
        }
    }
}

fn set_buffer(socket: impl AsFd, bytes: usize) -> Result<()> {
    set_socket_recv_buffer_size(socket, bytes)
        .map_err(|error| Error::io(format!("a receive buffer of {bytes} bytes"), error))
}
