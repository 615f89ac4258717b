//! Magazines: arrays of frame numbers that change hands as a whole.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use crate::stack::{Link, MOST, Stack};

/// The most frames in a magazine: with its link it fills sixteen cache lines.
pub(crate) const CAPACITY: usize = 254;

/// The number of a magazine: who has it owns the magazine's slots. Moved, never copied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MagazineId(u32);

impl MagazineId {
    /// In the place of one that was given away; not to be used.
    pub(crate) fn gone() -> Self {
        Self(u32::MAX)
    }

    /// Moves it out of where it is, and leaves one that is not to be used.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::gone())
    }
}

/// `align(128)`: the prefetcher of x86-64 pulls cache lines in pairs.
#[repr(C, align(128))]
struct Magazine {
    slots: UnsafeCell<[u32; CAPACITY]>,
    link: Link,
}

/// All magazines of a pool, and a stack of those that are empty.
pub(crate) struct Magazines {
    magazines: Box<[Magazine]>,
    empties: Stack,
}

// SAFETY: the slots of a magazine are touched only through its `MagazineId`, of which there is one,
// or through a pointer that its owner took of it; stacks hand ids over with release and acquire.
unsafe impl Sync for Magazines {}

impl Magazines {
    pub(crate) fn new(count: u32) -> Self {
        let new = |_| Magazine { slots: UnsafeCell::new([0; CAPACITY]), link: Link::new() };
        let this = Self { magazines: (0..count).map(new).collect(), empties: Stack::new() };
        (0..count).rev().for_each(|number| this.push_empty(MagazineId(number)));
        this
    }

    pub(crate) fn pop_empty(&self) -> Option<MagazineId> {
        self.pop(&self.empties)
    }

    /// Gives a magazine back that has nothing in it.
    pub(crate) fn push_empty(&self, id: MagazineId) {
        self.push(&self.empties, id);
    }

    pub(crate) fn push(&self, stack: &Stack, id: MagazineId) {
        let pushed = self.try_push(stack, id, MOST);
        debug_assert!(pushed.is_ok(), "there are no more than MOST");
    }

    /// Gives it back if there are `most` in the stack.
    pub(crate) fn try_push(
        &self,
        stack: &Stack,
        id: MagazineId,
        most: u32,
    ) -> Result<(), MagazineId> {
        let pushed = stack.push(id.0, most, |number| self.link(number));
        if pushed { Ok(()) } else { Err(id) }
    }

    pub(crate) fn pop(&self, stack: &Stack) -> Option<MagazineId> {
        stack.pop(|number| self.link(number)).map(MagazineId)
    }

    fn link(&self, number: u32) -> &Link {
        &self.magazines[number as usize].link
    }

    /// Where the slots of a magazine are. Only who has its id may use them.
    pub(crate) fn slots(&self, id: &MagazineId) -> NonNull<u32> {
        NonNull::from(&self.magazines[id.0 as usize].slots).cast()
    }

    pub(crate) fn contents<'a>(&'a self, id: &'a MagazineId, count: usize) -> &'a [u32] {
        // SAFETY: the id is borrowed for as long as the slice, so nobody else has it.
        unsafe { &(&*self.magazines[id.0 as usize].slots.get())[..count] }
    }

    /// All slots of a magazine, to be written.
    pub(crate) fn contents_mut<'a>(&'a self, id: &'a mut MagazineId) -> &'a mut [u32; CAPACITY] {
        // SAFETY: the id is borrowed exclusively for as long as the array, and there is one id.
        unsafe { &mut *self.magazines[id.0 as usize].slots.get() }
    }
}

impl std::fmt::Debug for Magazines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Magazines").field("count", &self.magazines.len()).finish_non_exhaustive()
    }
}
