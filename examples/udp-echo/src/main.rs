//! A UDP echo on AF_XDP with two threads: one receives a packet and turns it round, the other
//! sends it. Run it as root:
//!
//! ```text
//! udp-echo eth1 7
//! ```
//!
//! UDP to that port on the device's queue 0 comes here, past the kernel's network stack. All the
//! rest, ARP too, goes on to the kernel; so does everything once this has ended, however it ended:
//! press Ctrl-C.
//!
//! The frames of memory in which packets lie go round between the two threads and the kernel:
//!
//! ```text
//!   receiver: cache --fill--> kernel --receive--> packet in hand --channel--> sender
//!   sender:   packet --send--> kernel --complete--> cache (frees what the receiver took)
//! ```
//!
//! Each thread has a cache of free frames of its own. A frame that the sender frees is alien there:
//! the pool sees to it that it gets back to where it is needed (`AlienFree`).

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use frames::{AreaOptions, FrameArea, FramePool, LaneCache, PoolOptions};
use xsk::{Device, Filter, Packet, Program, ProgramOptions, Socket, SocketOptions, Umem};

/// The most packets that are handled in one go.
const BATCH: usize = 64;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [interface, port] = args.as_slice() else { bail!("usage: udp-echo INTERFACE PORT") };
    let port: u16 = port.parse().with_context(|| format!("port '{port}'"))?;
    let device = Device::find(interface)?;

    // The memory, 4096 frames of 2048 bytes, and the pool that shares them out. Home 0 is the
    // receiver, home 1 the sender, both in lane 0: for all we know they share a cache.
    let area = FrameArea::new(&AreaOptions::default())?;
    let pool = FramePool::new(area, &PoolOptions::default().homes(vec![0, 0]))?;
    let (mut receiver_cache, sender_cache) = (pool.cache(0)?, pool.cache(1)?);

    // The same memory, known to the kernel, and two sockets on it: one that only receives, and
    // beside it, on the same queue, one that only sends.
    let umem = Umem::new(pool.clone())?;
    let receiving = SocketOptions::default().tx_size(0);
    let sending = SocketOptions::default().rx_size(0);
    let mut receiver = Socket::bind(&umem, &device, 0, &receiving)?;
    let sender = Socket::bind_beside(&mut receiver, &sending)?;

    // Free frames for the kernel to receive into; then, from here on, packets to the port come to
    // the receiver.
    receiver.fill(&mut receiver_cache, 1024);
    let filter = Filter::UdpPorts(vec![port]);
    let mut program = Program::attach(&device, &ProgramOptions::default().filters(vec![filter]))?;
    program.insert(&receiver)?;
    eprintln!("echoing UDP port {port} on {device}, queue 0");

    let (to_sender, from_receiver) = sync_channel(1024);
    let receive = move || receive(receiver, receiver_cache, &to_sender);
    let send = move || send(sender, sender_cache, &from_receiver);
    let receiver = thread::spawn(receive);
    let sender = thread::spawn(send);
    // They only end if something fails; the one hears of the other's end by the channel.
    receiver.join().expect("it does not panic").and(sender.join().expect("it does not panic"))
}

/// The first thread: packets from the kernel, turned round, to the second.
fn receive(
    mut socket: Socket,
    mut cache: LaneCache,
    to_sender: &SyncSender<Packet>,
) -> anyhow::Result<()> {
    let pool = cache.pool().clone();
    let mut packets = Vec::new();
    loop {
        // Free frames for the kernel to receive into.
        socket.fill(&mut cache, 1024);
        if socket.receive(&mut packets, BATCH) == 0 {
            // Nothing is here. What the cache has may be needed elsewhere meanwhile.
            cache.park();
            socket.wait(None)?;
        }
        for mut packet in packets.drain(..) {
            if turn_round(packet.bytes_mut(pool.area())).is_none() {
                // Not what the filter promised: throw it away.
                cache.put(packet.frame);
            } else if to_sender.send(packet).is_err() {
                // The sender has ended, and says why.
                return Ok(());
            }
        }
        cache.maintain();
    }
}

/// The second thread: packets from the first, to the kernel.
fn send(
    mut socket: Socket,
    mut cache: LaneCache,
    from_receiver: &Receiver<Packet>,
) -> anyhow::Result<()> {
    let mut packets = Vec::new();
    loop {
        // Waits for a packet, and takes what else is there. Sent frames come back without a sign,
        // so it looks for them now and then.
        match from_receiver.recv_timeout(Duration::from_millis(10)) {
            Ok(packet) => packets.push(packet),
            Err(RecvTimeoutError::Timeout) => cache.park(),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        packets.extend(from_receiver.try_iter().take(BATCH));
        // Posts what there is room for; the rest stays for the next turn.
        socket.send(&mut packets);
        socket.kick()?;
        // Frames that are sent are free again.
        socket.complete(&mut cache, BATCH * 4);
        cache.maintain();
    }
}

/// Makes an answer of a UDP packet over IPv4 or IPv6, in place: source and destination change
/// places in every header. None if it is no such packet.
fn turn_round(packet: &mut [u8]) -> Option<()> {
    let (ethernet, ip) = packet.split_at_mut_checked(14)?;
    let (addresses, udp_at) = match (&ethernet[12..], ip.first()?) {
        ([0x08, 0x00], first) => (12..20, usize::from(first & 15) * 4),
        ([0x86, 0xdd], _) => (8..40, 40),
        _ => return None,
    };
    swap_halves(&mut ethernet[..12]);
    let (ip, udp) = ip.split_at_mut_checked(udp_at)?;
    let addresses = ip.get_mut(addresses)?;
    swap_halves(addresses);
    let length = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    let udp = udp.get_mut(..length).filter(|udp| udp.len() >= 8)?;
    swap_halves(&mut udp[..4]);
    // The sender's kernel may have left the checksum to its device: it is made anew.
    udp[6..8].fill(0);
    let sum = sum(addresses) + sum(udp) + 17 + length as u32;
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = match !(((folded & 0xffff) + (folded >> 16)) as u16) {
        // 0 would say that there is none.
        0 => 0xffff,
        other => other,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

fn swap_halves(bytes: &mut [u8]) {
    let (a, b) = bytes.split_at_mut(bytes.len() / 2);
    a.swap_with_slice(b);
}

/// The sum of 16-bit words, as the Internet checksum adds them up.
fn sum(bytes: &[u8]) -> u32 {
    let word = |two: &[u8]| u32::from(two[0]) << 8 | two.get(1).map_or(0, |&low| u32::from(low));
    bytes.chunks(2).map(word).sum()
}
