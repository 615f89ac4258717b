//! A sender that offers all it can and a receiver, with a cap on what may be under way between
//! them: where the kernel does not bound its queues, this does, so that the host is not harmed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a receiver with a rate reads without one.
const FAST: Duration = Duration::from_millis(500);

/// Traffic that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Flood {
    shared: Arc<Counts>,
    sockets: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

/// Relaxed throughout: each is a count that others read from time to time.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    over: AtomicBool,
}

impl Flood {
    /// Writes of `write` bytes into `sender`, never more than `cap` bytes ahead of what comes out
    /// of `receiver`. With a `rate`, the receiver reads as fast as it can for [`FAST`], so that a
    /// relay takes the stream for bulk, and from then on so many bytes a second.
    pub(super) fn start(
        sender: TcpStream,
        receiver: TcpStream,
        write: usize,
        cap: u64,
        rate: Option<u64>,
    ) -> std::io::Result<Flood> {
        let shared = Arc::new(Counts::default());
        let sockets = vec![sender.try_clone()?, receiver.try_clone()?];
        let (out, back) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || send(sender, &out, write, cap)),
            std::thread::spawn(move || receive(receiver, &back, rate)),
        ];
        Ok(Flood { shared, sockets, threads })
    }

    pub(super) fn sent(&self) -> u64 {
        self.shared.sent.load(Relaxed)
    }

    pub(super) fn received(&self) -> u64 {
        self.shared.received.load(Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        for socket in &self.sockets {
            // Wakes a thread that waits in it; a socket that is closed already has none.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn send(mut socket: TcpStream, counts: &Counts, write: usize, cap: u64) {
    let block = vec![0x5a; write];
    while !counts.over.load(Relaxed) {
        let ahead = counts.sent.load(Relaxed).saturating_sub(counts.received.load(Relaxed));
        if ahead + write as u64 > cap {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        match socket.write(&block) {
            Ok(n) => counts.sent.fetch_add(n as u64, Relaxed),
            Err(_) => return,
        };
    }
}

fn receive(mut socket: TcpStream, counts: &Counts, rate: Option<u64>) {
    let start = Instant::now();
    let mut block = vec![0; 256 << 10];
    let mut slow: Option<(Instant, u64)> = None;
    while !counts.over.load(Relaxed) {
        let most = match (rate, slow) {
            (Some(rate), Some(_)) => (rate / 50) as usize,
            _ => block.len(),
        };
        let n = match socket.read(&mut block[..most]) {
            // A blocking read of a socket in a sockmap ends so now and then, with data waiting.
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Ok(0) | Err(_) => return,
            Ok(n) => n as u64,
        };
        counts.received.fetch_add(n, Relaxed);
        match (rate, &mut slow) {
            (Some(rate), Some((since, read))) => {
                *read += n;
                let due = Duration::from_secs_f64(*read as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(since.elapsed()));
            }
            (Some(_), none) if start.elapsed() > FAST => *none = Some((Instant::now(), 0)),
            _ => {}
        }
    }
}
