//! The numbers of frames: each area of the process has a range of its own, so that a frame of one
//! pool that is given to another is seen, and finds its way home.

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

/// After the last area, so that numbers come back as late as can be; else wherever there is room.
fn gap(areas: &BTreeMap<u32, Area>, frames: u32) -> Option<u32> {
    let fits = |first: u32, end: u32| end.checked_sub(first).is_some_and(|room| room >= frames);
    let after_last = areas.last_key_value().map_or(1, |(first, area)| first + area.frames);
    if fits(after_last, u32::MAX) {
        return Some(after_last);
    }
    let mut free = 1;
    for (&first, area) in areas {
        if fits(free, first) {
            return Some(free);
        }
        free = first + area.frames;
    }
    None
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
        assert_eq!(gap(&areas, 10), Some(1));
        areas.insert(1, area(10));
        assert_eq!(gap(&areas, 10), Some(11));
        areas.insert(100, area(u32::MAX - 110));
        assert_eq!(gap(&areas, 10), Some(u32::MAX - 10));
        assert_eq!(gap(&areas, 11), Some(11), "the gap between the areas");
        assert_eq!(gap(&areas, 89), Some(11));
        assert_eq!(gap(&areas, 90), None);
    }
}
