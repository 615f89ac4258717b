//! Frames that a cache has collected for other homes, until they are worth a way there.

/// As many homes have a whole magazine's room each: more would keep too many frames from others.
const FEW: usize = 5;

/// A part of a magazine: the room for each of many homes. A full magazine is at most a quarter of a
/// home's frames (`Shared::new`), so that all outboxes of a cache together have at most a sixteenth
/// of the pool's.
const PART: usize = 4;

#[derive(Debug)]
pub(super) struct Outboxes {
    homes: usize,
    /// Frames that one takes.
    room: usize,
    /// By home, `room` each. None of these three has memory before the first frame comes.
    slots: Box<[u32]>,
    lens: Box<[u16]>,
    /// A bit for each home that has some.
    some: Box<[u64]>,
    frames: usize,
}

const BITS: usize = u64::BITS as usize;

impl Outboxes {
    pub(super) fn new(homes: u16, full: usize) -> Self {
        let homes = usize::from(homes);
        let room = if homes <= FEW { full } else { (full / PART).max(1) };
        Self {
            homes,
            room,
            slots: Box::default(),
            lens: Box::default(),
            some: Box::default(),
            frames: 0,
        }
    }

    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Puts frames into a home's outbox: how many it took, and whether it is full now.
    #[inline]
    pub(super) fn put(&mut self, home: u16, frames: &[u32]) -> (usize, bool) {
        if self.slots.is_empty() {
            self.allocate();
        }
        let home = usize::from(home);
        let len = usize::from(self.lens[home]);
        let count = frames.len().min(self.room - len);
        self.slots[home * self.room + len..][..count].copy_from_slice(&frames[..count]);
        self.lens[home] = (len + count) as u16;
        self.some[home / BITS] |= 1 << (home % BITS);
        self.frames += count;
        (count, len + count == self.room)
    }

    /// Empties a home's outbox: what was in it.
    pub(super) fn take(&mut self, home: u16) -> &[u32] {
        let home = usize::from(home);
        let len = usize::from(std::mem::take(&mut self.lens[home]));
        self.some[home / BITS] &= !(1 << (home % BITS));
        self.frames -= len;
        &self.slots[home * self.room..][..len]
    }

    /// A home whose outbox has frames.
    pub(super) fn any(&self) -> Option<u16> {
        let word = self.some.iter().position(|&word| word != 0)?;
        Some((word * BITS) as u16 + self.some[word].trailing_zeros() as u16)
    }

    #[cold]
    fn allocate(&mut self) {
        self.slots = vec![0; self.homes * self.room].into();
        self.lens = vec![0; self.homes].into();
        self.some = vec![0; self.homes.div_ceil(BITS)].into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken_from_the_home_that_it_was_put_for() {
        let mut outboxes = Outboxes::new(130, 8);
        assert_eq!((outboxes.any(), outboxes.frames()), (None, 0));
        assert_eq!(outboxes.put(129, &[1]), (1, false));
        assert_eq!(outboxes.put(64, &[2, 3, 4]), (2, true), "a quarter of a magazine");
        assert_eq!(outboxes.put(129, &[5]), (1, true));
        assert_eq!((outboxes.any(), outboxes.frames()), (Some(64), 4));
        assert_eq!(outboxes.take(64), [2, 3]);
        assert_eq!((outboxes.any(), outboxes.frames()), (Some(129), 2));
        assert_eq!(outboxes.take(129), [1, 5]);
        assert_eq!((outboxes.any(), outboxes.frames()), (None, 0));
        assert_eq!(Outboxes::new(2, 8).put(1, &[0; 9]), (8, true), "a magazine");
    }
}
