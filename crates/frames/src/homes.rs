//! Which frames are at home where, and which homes are in one lane.

/// The homes of a pool. Each has a range of frames, one after the other; the last one also has
/// what is left over.
#[derive(Debug)]
pub(crate) struct Homes {
    first: u32,
    frames: u32,
    per_home: u32,
    /// The home of each block of `1 << shift` frames.
    by_block: Box<[u16]>,
    shift: u32,
    /// The lane of each home, counted from 0 without gaps.
    lanes: Box<[u16]>,
    lane_count: u16,
}

impl Homes {
    /// `lanes` are those of the homes, in any numbering. At least as many frames as homes.
    pub(crate) fn new(first: u32, frames: u32, lanes: &[u16]) -> Self {
        /// Finer than that, the table of blocks would leave the first-level cache.
        const MOST_SHIFT: u32 = 6;
        let even = frames / lanes.len() as u32;
        let shift = even.ilog2().min(MOST_SHIFT);
        let per_home = even >> shift << shift;
        let last = lanes.len() as u32 - 1;
        let by_block = (0..=frames >> shift)
            .map(|block| ((block << shift) / per_home).min(last) as u16)
            .collect();
        let mut known: Vec<u16> = Vec::new();
        let lanes = lanes.iter().map(|lane| {
            known.iter().position(|k| k == lane).unwrap_or_else(|| {
                known.push(*lane);
                known.len() - 1
            }) as u16
        });
        let lanes = lanes.collect();
        let lane_count = known.len() as u16;
        Self { first, frames, per_home, by_block, shift, lanes, lane_count }
    }

    pub(crate) fn count(&self) -> u16 {
        self.lanes.len() as u16
    }

    pub(crate) fn lane_count(&self) -> u16 {
        self.lane_count
    }

    /// The home of a frame of this pool.
    #[inline]
    pub(crate) fn of(&self, number: u32) -> u16 {
        self.by_block[((number - self.first) >> self.shift) as usize]
    }

    /// Whether all these frames are at home there.
    #[inline]
    pub(crate) fn are_all_of(&self, home: u16, numbers: &[u32]) -> bool {
        let (start, count) = self.range(home);
        // Without an early end: done on several at once.
        numbers.iter().fold(true, |all, number| all & (number.wrapping_sub(start) < count))
    }

    #[inline]
    pub(crate) fn lane_of(&self, home: u16) -> u16 {
        self.lanes[usize::from(home)]
    }

    /// The frames that are at home there: the first one's number, and how many.
    pub(crate) fn range(&self, home: u16) -> (u32, u32) {
        let start = u32::from(home) * self.per_home;
        let end = if home + 1 == self.count() { self.frames } else { start + self.per_home };
        (self.first + start, end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_has_one_home_and_ranges_agree_with_the_table() {
        for (frames, homes) in [(1, 1), (7, 3), (64, 2), (100, 3), (4096, 2), (5000, 7), (130, 128)]
        {
            let homes = Homes::new(11, frames, &vec![0; homes]);
            let mut covered = 0;
            for home in 0..homes.count() {
                let (start, count) = homes.range(home);
                assert_eq!(start, 11 + covered, "{frames} frames, home {home}");
                assert!(count > 0);
                for number in start..start + count {
                    assert_eq!(homes.of(number), home, "{frames} frames, number {number}");
                }
                let all: Vec<u32> = (start..start + count).collect();
                assert!(homes.are_all_of(home, &all));
                assert!(!homes.are_all_of(home, &[start, start.wrapping_sub(1)]));
                assert!(!homes.are_all_of(home, &[start + count]));
                covered += count;
            }
            assert_eq!(covered, frames);
        }
    }

    #[test]
    fn lanes_are_counted_without_gaps() {
        let homes = Homes::new(1, 8, &[7, 3, 7, 9]);
        assert_eq!(homes.lane_count(), 3);
        let lanes: Vec<u16> = (0..4).map(|home| homes.lane_of(home)).collect();
        assert_eq!(lanes, [0, 1, 0, 2]);
    }
}
