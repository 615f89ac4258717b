//! An area of a borrower's own, into which its packets are copied, and the account of it.
//!
//! For borrowers that must not see each other's packets. Each channel of the borrower has frames of
//! its own in it, as many as the quota: a packet is copied into one of them, and the frame that it
//! came in is free at once. A token is the number of the copy's frame in the area.
#![allow(unsafe_code)]

use std::sync::Arc;

use frames::TokenRefused;
use rustix::io::Errno;

use crate::memory::Memory;

/// The frames of one channel in a borrower's own area.
#[derive(Debug)]
pub(crate) struct Copies {
    area: Arc<Memory>,
    frame_size: u32,
    /// The number of the channel's first frame.
    first: u32,
    /// Those that the borrower does not have; the one that came back last is used first.
    free: Vec<u32>,
    /// By place in the channel, whether the borrower has it.
    out: Box<[bool]>,
}

impl Copies {
    /// How many bytes an area has for so many channels, in whole pages.
    pub(crate) fn area_len(
        frame_size: u32,
        quota: u32,
        channels: u32,
    ) -> rustix::io::Result<usize> {
        let frames = u64::from(quota) * u64::from(channels);
        let bytes =
            frames.checked_mul(frame_size.into()).and_then(|bytes| usize::try_from(bytes).ok());
        bytes
            .and_then(|bytes| bytes.checked_next_multiple_of(rustix::param::page_size()))
            .ok_or(Errno::NOMEM)
    }

    /// A channel's part of an area.
    ///
    /// # Panics
    /// If it is not inside the area, or that is not ours to write.
    pub(crate) fn new(area: Arc<Memory>, frame_size: u32, quota: u32, channel: u32) -> Self {
        assert!(area.is_writable());
        let first = quota * channel;
        let size = frame_size as usize;
        let _ = area.part::<u8>(first as usize * size, quota as usize * size);
        let (free, out) = ((0..quota).rev().collect(), vec![false; quota as usize].into());
        Self { area, frame_size, first, free, out }
    }

    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.free.len() as u32
    }

    #[inline]
    pub(crate) fn out(&self) -> u32 {
        (self.out.len() - self.free.len()) as u32
    }

    /// Copies a part of a packet for the borrower: where it lies now, and its token. None if there
    /// is no room, or it is more than a frame.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<(u64, u32)> {
        if bytes.len() > self.frame_size as usize {
            return None;
        }
        let at = self.free.pop()?;
        self.out[at as usize] = true;
        let token = self.first + at;
        let addr = u64::from(token) * u64::from(self.frame_size);
        let to = self.area.part::<u8>(addr as usize, bytes.len());
        // SAFETY: `part` has checked that it is inside the mapping, which only we write, and of it
        // only this channel these frames. It is not what is copied from: that is the pool's. A
        // borrower that reads a frame that it has given back may read a torn one.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Some((addr, token))
    }

    #[inline]
    pub(crate) fn give_back(&mut self, token: u32) -> Result<(), TokenRefused> {
        let at = token.wrapping_sub(self.first);
        let out = self.out.get_mut(at as usize).ok_or(TokenRefused::OutOfRange)?;
        if !std::mem::take(out) {
            return Err(TokenRefused::NotOut);
        }
        self.free.push(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_lies_in_its_channels_part_and_comes_back_once() {
        let len = Copies::area_len(64, 3, 2).unwrap();
        assert_eq!(len % rustix::param::page_size(), 0);
        let (area, fd) = Memory::ours(c"test", len).unwrap();
        let theirs = Memory::of_other(&fd, len, false).unwrap();
        let area = Arc::new(area);
        let mut copies = Copies::new(Arc::clone(&area), 64, 3, 1);
        let other = Copies::new(area, 64, 3, 0);
        assert_eq!((copies.room(), copies.out(), other.room()), (3, 0, 3));
        assert_eq!(copies.copy(&[0; 65]), None);
        let given: Vec<_> = (1..=3_u8).map(|n| copies.copy(&[n; 64]).unwrap()).collect();
        assert_eq!((copies.room(), copies.out(), copies.copy(&[9])), (0, 3, None));
        for (n, (addr, token)) in (1_u8..).zip(&given) {
            assert_eq!((*addr, (3..6).contains(token)), (u64::from(*token) * 64, true));
            let word = theirs.word(*addr as usize).load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(word, u32::from_ne_bytes([n; 4]));
        }
        let token = given[1].1;
        assert_eq!(copies.give_back(token), Ok(()));
        assert_eq!(copies.give_back(token), Err(TokenRefused::NotOut));
        for other in [0, 2, 6, u32::MAX] {
            assert_eq!(copies.give_back(other), Err(TokenRefused::OutOfRange));
        }
        assert_eq!(copies.copy(&[7]).map(|(_, again)| again), Some(token));
        assert_eq!((copies.room(), copies.out()), (0, 3));
    }
}
