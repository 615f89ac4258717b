//! Closing a socket, so that no frame stays behind.
//!
//! First what is posted is sent and taken back, and what was received is given up. Then the rings
//! are unmapped and the socket is closed, by the order of its fields; and once the last socket of
//! a queue is gone, [`Held`](super::buffers::Held) takes back all else that the kernel had.

use std::time::{Duration, Instant};

use super::Socket;
use super::buffers::{Buffers, Shareable};
use crate::Packet;
use crate::ring::Producer;

/// How long closing waits for packets that the kernel still has to send.
const LAST_PACKETS: Duration = Duration::from_secs(1);

impl Socket {
    /// Has the kernel send what is posted, and takes back what it sent.
    fn finish_sending(&mut self) {
        let until = Instant::now() + LAST_PACKETS;
        loop {
            let pool = &self.held.pool;
            let home = |frame| pool.send_home([frame]);
            let done = self.buffers.with(|buffers| buffers.complete(u32::MAX, home));
            let unsent = self.tx.as_ref().map_or(0, Producer::pending);
            // What sockets beside this one have sent is theirs to wait for.
            let sending = match self.buffers {
                Shareable::Own(_) => self.buffers.read(Buffers::sending),
                _ => unsent,
            };
            if sending == 0 || self.kick().is_err() || Instant::now() > until {
                return;
            }
            if done == 0 {
                // Nothing tells when a device has sent.
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.finish_sending();
        let mut received = Vec::new();
        while self.receive(&mut received, usize::MAX) > 0 {
            let frames = received.drain(..).map(|Packet { frame, .. }| frame);
            self.held.pool.send_home(frames);
        }
        self.buffers.leave(&self.fd);
    }
}
