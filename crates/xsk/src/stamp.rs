//! When packets came: the XDP program writes it in front of each packet, and the thread that has the
//! packets takes it from there.
//!
//! In front of a packet is its metadata (`bpf_xdp_adjust_meta`), which goes with it into the frame, but
//! nothing that a socket hands out says whether there is any. So the program seals what it writes with a
//! number that is another one for each program, and a stamp is taken once: neither what a frame had before
//! nor what a sender puts into its packets is taken for one.
//!
//! The program reads `CLOCK_TAI`, which differs from `CLOCK_REALTIME` by whole seconds only. Their
//! difference is known for certain however long a thread is kept from its CPU between two readings.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::num::NonZeroU64;

use frames::{FrameArea, Packet, prefetch};
use rustix::time::{ClockId, clock_gettime};

/// The bytes of `struct stamp`: when the packet came, and that sealed.
const LEN: usize = 16;

/// Takes the stamps of a program's packets: [`Program::stamps`](crate::Program::stamps).
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    seal: u64,
}

impl Stamps {
    /// Those of a new program.
    pub(crate) fn new() -> Self {
        // With 0, the program writes none.
        Self { seal: RandomState::new().build_hasher().finish() | 1 }
    }

    pub(crate) fn seal(self) -> u64 {
        self.seal
    }

    /// Appends when each of the packets came, in nanoseconds since 1970; none for one without stamp,
    /// and for the second and each later part of a packet.
    pub fn take(
        self,
        packets: &mut [Packet],
        area: &FrameArea,
        into: &mut Vec<Option<NonZeroU64>>,
    ) {
        // Another CPU wrote them, and they are not in the lines that the packets begin in.
        for packet in packets.iter() {
            if let Some(start) = start(packet) {
                prefetch(&area.bytes(&packet.frame)[start..]);
            }
        }
        let ahead = tai_ahead();
        let time = |packet: &mut Packet| {
            let start = start(packet)?;
            let stamp = area.bytes_mut(&mut packet.frame)[start..].first_chunk_mut::<LEN>()?;
            let (time, sealed) = stamp.split_first_chunk_mut::<8>()?;
            let time = u64::from_ne_bytes(*time);
            if sealed != (time ^ self.seal).to_ne_bytes() {
                return None;
            }
            sealed.fill(0);
            NonZeroU64::new(time.wrapping_sub(ahead))
        };
        into.extend(packets.iter_mut().map(time));
    }
}

/// Where in its frame the stamp of a packet is, if there is room for one.
fn start(packet: &Packet) -> Option<usize> {
    (packet.offset as usize).checked_sub(LEN)
}

/// By how many nanoseconds `CLOCK_TAI` is ahead of `CLOCK_REALTIME`: whole seconds.
fn tai_ahead() -> u64 {
    let [tai, real] = [ClockId::Tai, ClockId::Realtime].map(clock_gettime);
    let nanoseconds = (tai.tv_sec - real.tv_sec) * 1_000_000_000 + tai.tv_nsec - real.tv_nsec;
    // Between the two readings some time has passed.
    let seconds = (nanoseconds + 500_000_000).div_euclid(1_000_000_000);
    (seconds * 1_000_000_000) as u64
}

#[cfg(test)]
mod tests {
    use frames::{AreaOptions, FramePool, PoolOptions};

    use super::*;

    #[test]
    fn a_stamp_is_taken_once_and_nothing_else_is_taken_for_one() {
        let area = FrameArea::new(&AreaOptions::default().frames(64)).unwrap();
        let pool = FramePool::new(area, &PoolOptions::default()).unwrap();
        let mut cache = pool.cache(0).unwrap();
        let stamps = Stamps::new();
        let (time, ahead) = (1_800_000_000_123_456_789_u64, tai_ahead());
        let mut packets = Vec::new();
        for (offset, seal) in [(256, stamps.seal), (256, stamps.seal ^ 2), (15, 0), (0, 0), (16, 0)]
        {
            let mut frame = cache.get().unwrap();
            if offset == 256 {
                let bytes = pool.area().bytes_mut(&mut frame);
                bytes[240..248].copy_from_slice(&(time + ahead).to_ne_bytes());
                bytes[248..256].copy_from_slice(&((time + ahead) ^ seal).to_ne_bytes());
            }
            packets.push(Packet { offset, ..Packet::new(frame, 60) });
        }
        let mut times = Vec::new();
        stamps.take(&mut packets, pool.area(), &mut times);
        stamps.take(&mut packets[..1], pool.area(), &mut times);
        assert_eq!(times, [NonZeroU64::new(time), None, None, None, None, None]);
        cache.put_bulk(&mut packets.into_iter().map(|packet| packet.frame).collect());
    }
}
