//! Which frames are at home where, and which homes are in one lane.

/// How frames are cut into homes: each home has a range, one after the other. All borders are at
/// multiples of a unit, and homes differ by at most a unit.
///
/// A pure function of its arguments: the area and its pool both cut, and get the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    frames: u32,
    homes: u32,
    /// A power of two.
    unit: u32,
}

impl Cut {
    /// At least as many frames as homes. Where a home's share is a page of `page` frames or more,
    /// the unit is a page or several; else less than a page. `page` is a power of two.
    pub(crate) fn new(frames: u32, homes: u32, page: u32) -> Self {
        /// With a finer unit, the table of blocks would leave the first-level cache.
        const TABLE: u32 = 64;
        /// So many units for each home keep homes about equal.
        const EVEN: u32 = 8;
        let even = frames / homes;
        let unit = (even / EVEN).min(TABLE).max(page).min(even);
        Self { frames, homes, unit: 1 << unit.ilog2() }
    }

    /// The frames of a home, from 0: the first one, and how many. The first homes have the units
    /// that are left over, the last one what is less than a unit.
    pub(crate) fn range(&self, home: u32) -> (u32, u32) {
        let (start, end) = (self.start(home), self.start(home + 1));
        (start, end - start)
    }

    fn start(&self, home: u32) -> u32 {
        if home == self.homes {
            return self.frames;
        }
        let units = self.frames / self.unit;
        (home * (units / self.homes) + home.min(units % self.homes)) * self.unit
    }
}

#[derive(Debug)]
pub(crate) struct Homes {
    first: u32,
    /// Of each home, the number of its first frame, and how many there are.
    ranges: Box<[(u32, u32)]>,
    /// The home of each block of `1 << shift` frames.
    by_block: Box<[u16]>,
    shift: u32,
    /// The lane of each home, counted from 0 without gaps.
    lanes: Box<[u16]>,
    lane_count: u16,
}

impl Homes {
    /// `lanes` are those of the homes, in any numbering. At least as many frames as homes; `page`
    /// as for [`Cut::new`].
    pub(crate) fn new(first: u32, frames: u32, lanes: &[u16], page: u32) -> Self {
        let homes = lanes.len() as u32;
        let cut = Cut::new(frames, homes, page);
        let shift = cut.unit.ilog2();
        // The last home also has the block that is not full.
        let blocks = |home| (cut.range(home).1 >> shift) as usize + usize::from(home + 1 == homes);
        let by_block =
            (0..homes).flat_map(|home| std::iter::repeat_n(home as u16, blocks(home))).collect();
        let range = |home| {
            let (start, count) = cut.range(home);
            (first + start, count)
        };
        let ranges = (0..homes).map(range).collect();
        let mut known: Vec<u16> = Vec::new();
        let lanes = lanes.iter().map(|lane| {
            known.iter().position(|k| k == lane).unwrap_or_else(|| {
                known.push(*lane);
                known.len() - 1
            }) as u16
        });
        let lanes = lanes.collect();
        let lane_count = known.len() as u16;
        Self { first, ranges, by_block, shift, lanes, lane_count }
    }

    pub(crate) fn count(&self) -> u16 {
        self.lanes.len() as u16
    }

    pub(crate) fn lane_count(&self) -> u16 {
        self.lane_count
    }

    #[inline]
    pub(crate) fn of(&self, number: u32) -> u16 {
        self.by_block[((number - self.first) >> self.shift) as usize]
    }

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
    #[inline]
    pub(crate) fn range(&self, home: u16) -> (u32, u32) {
        self.ranges[usize::from(home)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn every_frame_has_one_home_and_borders_are_at_pages(
            (homes, frames) in (1..300u32).prop_flat_map(|homes| (Just(homes), homes..40_000)),
            page in (0..11u32).prop_map(|shift| 1 << shift),
        ) {
            check(frames, homes, page)?;
        }
    }

    #[test]
    fn homes_of_one_frame_and_of_the_largest_area() {
        for (frames, homes) in [(1, 1), (7, 3), (130, 128), (65_535, 65_535), (1 << 24, 1000)] {
            for page in [1, 2, 512, 32_768] {
                check(frames, homes, page).unwrap();
            }
        }
    }

    /// Table and ranges say the same; frames are cut where they may be, and evenly.
    fn check(frames: u32, count: u32, page: u32) -> Result<(), TestCaseError> {
        let homes = Homes::new(11, frames, &vec![0; count as usize], page);
        let even = frames / count;
        let (mut covered, mut fewest, mut most) = (0, u32::MAX, 0);
        for home in 0..homes.count() {
            let (start, count) = homes.range(home);
            prop_assert_eq!(start, 11 + covered);
            prop_assert!(count > 0);
            prop_assert!(even < page || covered % page == 0, "home {} begins in a page", home);
            prop_assert!((start..start + count).all(|number| homes.of(number) == home));
            prop_assert!(homes.are_all_of(home, &[start, start + count - 1]));
            prop_assert!(!homes.are_all_of(home, &[start, start.wrapping_sub(1)]));
            prop_assert!(!homes.are_all_of(home, &[start + count]));
            (fewest, most) = (fewest.min(count), most.max(count));
            covered += count;
        }
        prop_assert_eq!(covered, frames);
        prop_assert!(
            most - fewest <= page.max((even / 8).min(64)).max(1),
            "{} to {}",
            fewest,
            most
        );
        Ok(())
    }

    #[test]
    fn lanes_are_counted_without_gaps() {
        let homes = Homes::new(1, 8, &[7, 3, 7, 9], 1);
        assert_eq!(homes.lane_count(), 3);
        let lanes: Vec<u16> = (0..4).map(|home| homes.lane_of(home)).collect();
        assert_eq!(lanes, [0, 1, 0, 2]);
    }
}
