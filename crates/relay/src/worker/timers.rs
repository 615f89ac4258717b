//! When a worker next looks at each of its connections: a wheel of lists, one for each tick.
//!
//! Setting, moving and taking off a timer costs a few writes and no memory besides 12 bytes a
//! connection. A connection that moves bytes does not touch its timer: when that comes due, the
//! worker finds out when it really is due, and sets it again. A timer further away than the wheel is
//! long comes due early, which costs a look each [`SLOTS`] ticks.

/// Ticks that the wheel holds. At ten ticks a second, 51 seconds.
const SLOTS: u32 = 512;
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Timers {
    /// The first key of each slot.
    heads: Box<[u32]>,
    /// A bit for each slot that is not empty.
    occupied: [u64; SLOTS as usize / 64],
    /// By key.
    links: Vec<Link>,
    /// The first tick that has not come due.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    slot: u32,
}

impl Link {
    const LOOSE: Link = Link { before: NONE, after: NONE, slot: NONE };
}

impl Timers {
    pub(super) fn new() -> Timers {
        Timers {
            heads: vec![NONE; SLOTS as usize].into_boxed_slice(),
            occupied: [0; SLOTS as usize / 64],
            links: Vec::new(),
            next: 0,
        }
    }

    /// Has `key` come due `wait` ticks after `now`, at least one, instead of any earlier setting.
    pub(super) fn set(&mut self, key: usize, now: u32, wait: u32) {
        self.clear(key);
        if self.links.len() <= key {
            self.links.resize(key + 1, Link::LOOSE);
        }
        if self.occupied == [0; SLOTS as usize / 64] {
            self.next = now;
        }
        // Not past the wheel's end as it stands: beyond that are the slots that `pop` is about to
        // visit, where a timer that is set meanwhile would come due again and again.
        let wait = wait.clamp(1, SLOTS - 1);
        let ahead = now.wrapping_add(wait).wrapping_sub(self.next) as i32;
        let slot = self.next.wrapping_add(ahead.min(SLOTS as i32 - 1) as u32) % SLOTS;
        let head = std::mem::replace(&mut self.heads[slot as usize], key as u32);
        self.links[key] = Link { before: NONE, after: head, slot };
        if head != NONE {
            self.links[head as usize].before = key as u32;
        }
        self.occupied[slot as usize / 64] |= 1 << (slot % 64);
    }

    pub(super) fn clear(&mut self, key: usize) {
        let Some(link) = self.links.get_mut(key) else { return };
        let Link { before, after, slot } = std::mem::replace(link, Link::LOOSE);
        if slot == NONE {
            return;
        }
        if after != NONE {
            self.links[after as usize].before = before;
        }
        if before != NONE {
            self.links[before as usize].after = after;
        } else {
            self.heads[slot as usize] = after;
            if after == NONE {
                self.occupied[slot as usize / 64] &= !(1 << (slot % 64));
            }
        }
    }

    /// Takes one key that has come due by `now`.
    pub(super) fn pop(&mut self, now: u32) -> Option<usize> {
        // After a long sleep one round finds all there are.
        if now.wrapping_sub(self.next) as i32 > SLOTS as i32 {
            self.next = now.wrapping_sub(SLOTS);
        }
        while now.wrapping_sub(self.next) as i32 >= 0 {
            let key = self.heads[(self.next % SLOTS) as usize];
            if key != NONE {
                self.clear(key as usize);
                return Some(key as usize);
            }
            self.next = self.next.wrapping_add(1);
        }
        None
    }

    /// Ticks from `now` until a key comes due.
    pub(super) fn wait(&self, now: u32) -> Option<u32> {
        if self.occupied == [0; SLOTS as usize / 64] {
            return None;
        }
        let is_occupied = |tick: u32| {
            let slot = tick % SLOTS;
            self.occupied[slot as usize / 64] & 1 << (slot % 64) != 0
        };
        (0..SLOTS).find(|ticks| is_occupied(self.next.wrapping_add(*ticks))).map(|ticks| {
            let at = self.next.wrapping_add(ticks);
            (at.wrapping_sub(now) as i32).max(0) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn due(timers: &mut Timers, now: u32) -> Vec<usize> {
        let mut keys: Vec<_> = std::iter::from_fn(|| timers.pop(now)).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_far_timer_comes_due_early_and_never_late() {
        let mut timers = Timers::new();
        timers.set(3, 0, 36_000);
        assert_eq!(timers.wait(0), Some(SLOTS - 1));
        assert!(due(&mut timers, SLOTS - 2).is_empty());
        assert_eq!(due(&mut timers, SLOTS - 1), [3]);
        assert_eq!(timers.wait(SLOTS), None);
    }

    #[test]
    fn after_a_long_sleep_all_that_is_due_is_found() {
        let mut timers = Timers::new();
        for key in 0..600 {
            timers.set(key, 0, key as u32);
        }
        assert_eq!(due(&mut timers, 1_000_000).len(), 600);
    }

    #[test]
    fn a_timer_that_is_set_again_by_a_late_worker_comes_due_once() {
        for late in [0, 1, 5, SLOTS - 1, SLOTS, 3 * SLOTS] {
            let mut timers = Timers::new();
            (0..3).for_each(|key| timers.set(key, 0, 1));
            let now = 1 + late;
            let looks = std::iter::from_fn(|| {
                let key = timers.pop(now)?;
                timers.set(key, now, 36_000);
                Some(key)
            });
            // A second look is for one that the wheel could not place further away.
            assert!(looks.take(100).count() <= 6, "{late} ticks late");
        }
    }

    proptest! {
        /// Against a list of what is due when, across the end of the ticks' numbers.
        #[test]
        fn timers_come_due_when_they_were_set_to(
            steps in proptest::collection::vec((0usize..40, 1u32..700, 0u32..9, any::<bool>()), 1..200),
            start in prop_oneof![Just(0u32), Just(u32::MAX - 300)],
        ) {
            let (mut timers, mut model, mut now) = (Timers::new(), BTreeMap::new(), 0u32);
            timers.next = start;
            for (key, wait, pass, clears) in steps {
                if clears {
                    timers.clear(key);
                    model.remove(&key);
                } else {
                    timers.set(key, start.wrapping_add(now), wait);
                    model.insert(key, now + wait.min(SLOTS - 1));
                }
                let first = model.values().min().copied();
                let waits = timers.wait(start.wrapping_add(now));
                prop_assert_eq!(waits.map(|ticks| now + ticks), first);
                now += pass;
                let expected: Vec<_> =
                    model.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
                model.retain(|_, at| *at > now);
                prop_assert_eq!(due(&mut timers, start.wrapping_add(now)), expected);
            }
        }
    }
}
