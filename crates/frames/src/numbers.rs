//! The numbers of frames: each area of the process has a range of its own, so that a frame of one
//! pool that is given to another is seen, and finds its way home.
//!
//! A range is a power of two, and a multiple of itself: whether many numbers are all of one range is
//! then seen from their bits, at the cost of two instructions for each few of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::magazine::MagazineId;
use crate::shared::Shared;
use crate::{Error, Result};

/// By their first number, how many frames there are, and whose they are.
static AREAS: RwLock<BTreeMap<u32, Area>> = RwLock::new(BTreeMap::new());

struct Area {
    frames: u32,
    pool: Option<Weak<Shared>>,
}

/// Allots numbers for so many frames; the first of them. Numbers start at 1.
pub(crate) fn allot(frames: u32) -> Result<u32> {
    let mut areas = AREAS.write();
    let first = gap(&areas, frames).ok_or_else(|| {
        Error::invalid(format!(
            "{frames} frames are more than this process has numbers left for (2^32 in all)"
        ))
    })?;
    areas.insert(first, Area { frames, pool: None });
    Ok(first)
}

/// How many numbers so many frames take.
fn range(frames: u32) -> u64 {
    u64::from(frames).next_power_of_two()
}

/// In which bits the numbers of so many frames differ.
pub(crate) fn within(frames: u32) -> u32 {
    (range(frames) - 1) as u32
}

/// After the last area, so that numbers come back as late as can be; else wherever there is room.
fn gap(areas: &BTreeMap<u32, Area>, frames: u32) -> Option<u32> {
    const END: u64 = 1 << 32;
    let range_of = range(frames);
    let ends = || areas.iter().map(|(first, area)| u64::from(*first) + range(area.frames));
    let free_from = std::iter::once(1).chain(ends());
    let used_from = areas.keys().map(|first| u64::from(*first)).chain([END]);
    let gaps = free_from.zip(used_from).map(|(free, used)| (free.next_multiple_of(range_of), used));
    let mut fitting = gaps.filter(|(first, end)| first + range_of <= *end);
    let after_last = ends().next_back().unwrap_or(1).next_multiple_of(range_of);
    let first = match after_last + range_of <= END {
        true => after_last,
        false => fitting.next()?.0,
    };
    u32::try_from(first).ok()
}

/// Says which pool has the numbers from `first` on.
pub(crate) fn adopt(first: u32, pool: Weak<Shared>) {
    let mut areas = AREAS.write();
    if let Some(area) = areas.get_mut(&first) {
        area.pool = Some(pool);
    }
}

/// Frees the numbers from `first` on. Not to be called while handles of such frames are about.
pub(crate) fn free(first: u32) {
    AREAS.write().remove(&first);
}

/// A frame's handle was dropped: it goes home, if its pool is still there.
pub(crate) fn dropped(number: u32) {
    if let Some(pool) = pool_of(number) {
        pool.take_dropped(number);
    }
}

/// The same for a batch of the pool whose numbers begin with `first`.
pub(crate) fn dropped_batch(first: u32, id: MagazineId) {
    if let Some(pool) = pool_of(first) {
        pool.take_dropped_batch(id);
    }
}

/// The pool that a frame is of. It may end with what is returned here.
fn pool_of(number: u32) -> Option<Arc<Shared>> {
    let areas = AREAS.read();
    let area = areas.range(..=number).next_back();
    let area = area.filter(|(first, area)| number - **first < area.frames);
    area.and_then(|(_, area)| area.pool.as_ref()?.upgrade())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_allotted_after_the_last_area_and_then_where_there_is_room() {
        let area = |frames| Area { frames, pool: None };
        let mut areas = BTreeMap::new();
        assert_eq!(gap(&areas, 10), Some(16));
        areas.insert(16, area(10));
        assert_eq!(gap(&areas, 16), Some(32), "a range of 16");
        assert_eq!(gap(&areas, 17), Some(32));
        assert_eq!(gap(&areas, 33), Some(64));
        areas.insert(1 << 31, area(1 << 30));
        assert_eq!(gap(&areas, 1 << 30), Some(3 << 30));
        assert_eq!(gap(&areas, (1 << 30) + 1), None);
        areas.insert(3 << 30, area(1 << 30));
        assert_eq!(gap(&areas, 1), Some(1), "before the first area");
        assert_eq!(gap(&areas, 16), Some(32), "the gap between the areas");
        assert_eq!(gap(&areas, 1 << 30), Some(1 << 30));
        assert_eq!(gap(&areas, (1 << 30) + 1), None);
        assert_eq!(gap(&BTreeMap::new(), u32::MAX), None);
        assert_eq!(gap(&BTreeMap::new(), 1 << 31), Some(1 << 31));
    }
}
