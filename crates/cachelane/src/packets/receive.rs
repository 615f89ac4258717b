//! A socket's turn in a thread's loop: what every command does to receive and to send.

use std::time::Instant;

use frames::LaneCache;
use xsk::{Packet, Socket};

use super::options::SocketArgs;
use super::session::Context;

/// How a thread handles its sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handling {
    /// The most packets in one go.
    pub(crate) batch: usize,
    /// How many frames are with the kernel to receive into.
    pub(crate) fill: usize,
    /// Whether the device has to be polled by our calls.
    pub(crate) polls: bool,
}

impl Handling {
    pub(crate) fn new(args: &SocketArgs) -> Handling {
        let (batch, fill) = (args.batch as usize, args.ring as usize);
        Handling { batch, fill, polls: args.busy_poll.is_some() }
    }

    /// Gives the kernel frames to receive into, and makes it go on where it waits for that.
    pub(crate) fn supply(&self, socket: &mut Socket, cache: &mut LaneCache) -> anyhow::Result<()> {
        socket.fill(cache, self.fill);
        if self.polls || socket.rx_needs_wakeup() {
            socket.wake_rx()?;
        }
        Ok(())
    }

    /// Takes a batch; how many packets it is. They are claimed of the run's count, and settled by
    /// whoever has dealt with them.
    pub(crate) fn receive(
        &self,
        socket: &mut Socket,
        context: &mut Context,
        now: Instant,
        into: &mut Vec<Packet>,
    ) -> usize {
        let claimed = context.control.claim(self.batch);
        socket.receive(into, claimed);
        let (packets, bytes) = measure(into);
        if packets > 0 {
            context.received(packets, bytes, now);
        }
        context.control.settle(0, claimed.saturating_sub(packets));
        packets
    }
}

/// Packets and bytes in a list of parts.
fn measure(packets: &[Packet]) -> (usize, u64) {
    let bytes = packets.iter().map(|packet| u64::from(packet.len)).sum();
    (packets.iter().filter(|packet| !packet.more).count(), bytes)
}

/// Posts packets and makes the kernel send them; how many were posted.
pub(crate) fn post(
    socket: &mut Socket,
    packets: &mut Vec<Packet>,
    context: &mut Context,
) -> anyhow::Result<usize> {
    if packets.is_empty() {
        if socket.outstanding().tx > 0 {
            socket.kick()?;
        }
        return Ok(0);
    }
    let (before, before_bytes) = measure(packets);
    socket.send(packets);
    socket.kick()?;
    let (left, left_bytes) = measure(packets);
    let posted = before - left;
    context.meter().tx_packets.add(posted as u64);
    context.meter().tx_bytes.add(before_bytes - left_bytes);
    context.control.settle(posted, 0);
    Ok(posted)
}
