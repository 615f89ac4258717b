//! A lender within the bench, its borrowers, and frames with packets in them.

use std::path::Path;

use anyhow::{Context as _, ensure};
use frames::{
    Accounting, AreaOptions, Frame, FrameArea, FramePool, HugePages, LaneCache, PoolOptions,
};
use lend::{Borrower, BorrowerOptions, Distributor, Lender, LenderOptions};
use xsk::Packet;

/// Frames of a pool: more than all borrowers' quotas and all rings.
pub(super) const FRAMES: u32 = 32_768;
/// The most loans of a borrower: so that one that is kept from its CPU for a millisecond, as on
/// shared machines, loses nothing.
pub(super) const QUOTA: u32 = 4096;
/// Bytes of a packet, without the check sequence: 64 with it.
pub(super) const SIZE: usize = 60;

/// A pool of frames that other processes can map.
pub(super) fn shared_pool() -> anyhow::Result<FramePool> {
    let area = FrameArea::new(
        &AreaOptions::default()
            .frames(FRAMES)
            .frame_size(2048)
            .huge_pages(HugePages::Never)
            .shared(true),
    )?;
    Ok(FramePool::new(area, &PoolOptions::default())?)
}

/// A lender with one distributor, and so many borrowers, who have joined.
pub(super) fn lend(
    pool: &FramePool,
    accounting: Accounting,
    borrowers: usize,
    dir: &Path,
    cache: &mut LaneCache,
) -> anyhow::Result<(Lender, Distributor, Vec<Borrower>)> {
    let socket = dir.join("lend.sock");
    let options = LenderOptions::new(&socket)
        .quota(QUOTA)
        .reserve(FRAMES - QUOTA * borrowers as u32)
        .accounting(accounting);
    let (lender, distributors) = Lender::open(pool, 1, &options)?;
    let borrow = |number| {
        let options = BorrowerOptions::default().name(format!("worker {number}"));
        Borrower::connect(&socket, &options)
    };
    let borrowers = (0..borrowers).map(borrow).collect::<Result<Vec<_>, _>>()?;
    let mut distributor = distributors.into_iter().next().context("no distributor")?;
    distributor.collect(cache);
    Ok((lender, distributor, borrowers))
}

/// Of so many ports that follow one another, for each borrower one whose packets it gets.
///
/// The ports are those of the first run of as many that suits, so that a range can name them.
pub(super) fn ports(
    distributor: &mut Distributor,
    borrowers: &mut [Borrower],
    cache: &mut LaneCache,
) -> anyhow::Result<u16> {
    const FIRST: u16 = 1024;
    const TRIED: u16 = 1024;
    let mut whose = vec![usize::MAX; usize::from(TRIED)];
    let (mut packets, mut loans) = (Vec::new(), Vec::new());
    for port in 0..TRIED {
        let mut frame = cache.get().context("no frame")?;
        fill(cache.pool().area(), &mut frame, FIRST + port);
        packets.push(Packet::new(frame, SIZE as u32));
        distributor.lend(&mut packets, cache);
        for (number, borrower) in borrowers.iter_mut().enumerate() {
            if borrower.receive(&mut loans, 1)? > 0 {
                whose[usize::from(port)] = number;
            }
            borrower.give_back(loans.drain(..));
        }
        distributor.collect(cache);
    }
    let all_different = |run: &[usize]| {
        let mut seen = vec![false; borrowers.len()];
        run.iter().all(|&who| who < seen.len() && !std::mem::replace(&mut seen[who], true))
    };
    let at = whose.windows(borrowers.len()).position(all_different);
    ensure!(distributor.on_loan() == 0, "loans that do not come back");
    Ok(FIRST + at.context("no run of ports that are all with different borrowers")? as u16)
}

/// Writes a UDP packet from this port into a frame: as `cachelane xsk send` does.
pub(super) fn fill(area: &FrameArea, frame: &mut Frame, port: u16) {
    let bytes = &mut area.bytes_mut(frame)[..SIZE];
    bytes.fill(0);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14..18].copy_from_slice(&[0x45, 0, 0, (SIZE - 14) as u8]);
    bytes[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
    bytes[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
    bytes[34..36].copy_from_slice(&port.to_be_bytes());
    bytes[36..38].copy_from_slice(&9_u16.to_be_bytes());
    bytes[38..40].copy_from_slice(&((SIZE - 34) as u16).to_be_bytes());
}

/// What a worker does with a packet: reads its headers.
#[inline]
pub(super) fn look_at(bytes: &[u8]) -> u64 {
    let (words, _) = bytes[..bytes.len().min(64)].as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}
