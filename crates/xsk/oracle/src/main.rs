//! Sends or receives numbered packets with xsk-rs:
//!
//!     cachelane-xsk-oracle send|receive DEVICE COUNT
//!
//! A receiver says `ready` once it is; both say `done` when every packet was as expected.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use xsk_rs::config::{LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

#[path = "../../tests/common/numbered.rs"]
mod numbered;

use numbered::{EXPERIMENT, length, number, numbered};

/// As many as a test sends, so that a receiver never runs out.
const FRAMES: u32 = 2048;

const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, count] = &arguments[..] else {
        panic!("expected send|receive DEVICE COUNT");
    };
    let count = count.parse().expect("a count");
    assert!(count <= u64::from(FRAMES));
    match role.as_str() {
        "send" => Side::bind(device, false).send(count),
        "receive" => Side::bind(device, true).receive(count),
        role => panic!("{role}: expected send or receive"),
    }
    println!("done");
}

struct Side {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: Umem,
    frames: Vec<FrameDesc>,
}

impl Side {
    /// On queue 0; with libxdp's own XDP program if it receives.
    fn bind(device: &str, receives: bool) -> Self {
        let size = QueueSize::new(FRAMES).expect("a power of two");
        let area = UmemConfig::builder().fill_queue_size(size).comp_queue_size(size).build();
        let frames = NonZeroU32::new(FRAMES).expect("some");
        let (umem, frames) = Umem::new(area.expect("a layout"), frames, false).expect("an area");
        let mut config = SocketConfig::builder();
        config.rx_queue_size(size).tx_queue_size(size);
        if !receives {
            config.libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD);
        }
        let device = device.parse().expect("a name");
        // SAFETY: nothing else uses the area.
        let (tx, rx, rings) =
            unsafe { Socket::new(config.build(), &umem, &device, 0) }.expect("a socket");
        let (fill, completion) = rings.expect("the area's first socket");
        Self { tx, rx, fill, completion, umem, frames }
    }

    fn send(mut self, count: u64) {
        for (n, frame) in (0..count).zip(&mut self.frames) {
            // The receiver looks at all but the addresses.
            let bytes = numbered([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], n, length(n));
            // SAFETY: the frame was never handed out.
            let mut data = unsafe { self.umem.data_mut(frame) };
            data.cursor().write_all(&bytes).expect("it fits");
            // SAFETY: the frame is of this area, and is not touched again.
            assert_eq!(unsafe { self.tx.produce_one(frame) }, 1);
        }
        let (mut sent, until) = (0, Instant::now() + PATIENCE);
        while sent < count {
            assert!(Instant::now() < until, "{sent} of {count} sent");
            self.tx.wakeup().expect("sent");
            // SAFETY: the kernel gives frames of this area.
            sent += unsafe { self.completion.consume(&mut self.frames) } as u64;
        }
    }

    fn receive(mut self, count: u64) {
        // SAFETY: the frames are of this area, and are not touched before they come back.
        assert_eq!(unsafe { self.fill.produce(&self.frames) }, self.frames.len());
        println!("ready");
        let (mut seen, until) = (0, Instant::now() + PATIENCE);
        while seen < count {
            assert!(Instant::now() < until, "{seen} of {count} arrived");
            // SAFETY: the kernel gives frames of this area.
            let received = unsafe { self.rx.poll_and_consume(&mut self.frames, 100) };
            for frame in &self.frames[..received.expect("polled")] {
                // SAFETY: the frame is ours now.
                let data = unsafe { self.umem.data(frame) };
                let packet = data.contents();
                // The program takes all, also what the kernel sends on a new link.
                if packet[12..14] == EXPERIMENT.to_be_bytes() {
                    assert_eq!((number(packet), packet.len()), (seen, length(seen)));
                    seen += 1;
                }
            }
        }
    }
}
