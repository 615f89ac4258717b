//! Clients that leave before a backend has accepted: while they wait in the queue, or for a backend.
//! They give their place back.
//!
//! A client that has ended its stream and never said anything is one of them, as with HAProxy. One
//! that has said something may wait for its answer.

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Worker;
use crate::cause::Cause;
use crate::connection::Phase;
use crate::flow::Leg;

/// Ticks that a backend has to accept a client that has ended its stream without a word: it may want
/// to hear what a server that speaks first says.
const GRACE: u32 = 2;

impl Worker {
    /// Something has happened to a client for whom there is no backend yet, or it is time to ask one
    /// again whose queue was full.
    pub(super) fn heed_leaving(&mut self, key: usize) {
        let connection = &self.connections[key];
        if !has_left(&connection.client) {
            if matches!(&connection.phase, Phase::Connecting(one) if one.socket.is_none()) {
                self.ask_again(key);
            }
            return;
        }
        match &connection.phase {
            Phase::Connecting(_) if !connection.client.reset => {
                self.timers.set(key, self.tick, GRACE);
            }
            _ => self.refuse(key, Cause::Client),
        }
    }
}

/// Whether a client to whom nobody has listened yet has gone.
pub(super) fn has_left(client: &Leg) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peek = || rustix::net::recv(&client.socket, &mut [0; 1], flags);
    let is_there = |result| matches!(result, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR));
    client.reset || client.hup && !is_there(peek())
}
