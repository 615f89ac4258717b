//! A lock-free stack of magazines, by their numbers.
//!
//! # Protocol
//!
//! The head is one word: the number of the top magazine, how many there are, and a tag. Whoever
//! pushes or pops replaces it whole, by compare-and-swap. Each magazine has a link to the one below
//! it, which only its owner writes; a magazine in a stack belongs to the stack.
//!
//! - **S0**, the swap of a push, releases: what the pusher wrote into the magazine and into its
//!   link is there for whoever sees it on top.
//! - **S1**, a load of the head by a pop, acquires: it pairs with S0 of the push of what is on top.
//!   Later pushes and pops are swaps, so they continue that push's release sequence, and what S1
//!   reads is in it however many there were.
//! - The link that a pop reads may be out of date: another thread may have popped the magazine,
//!   used it and pushed it elsewhere. Then the head was swapped since, its tag is another, and the
//!   pop's swap fails. The tag has 28 bits and changes with every push; it would take a multiple of
//!   2^28 pushes to one stack between the load and the swap of one pop for a wrong one to succeed.
//!
//! This is Treiber's stack (IBM RJ 5118, 1986) with the counter that its report describes.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bits of a magazine's number, and of a count of them.
const BITS: u32 = 18;
/// No magazine.
const NONE: u32 = (1 << BITS) - 1;
/// The most magazines that there can be.
pub(crate) const MOST: u32 = NONE;

/// The link of a magazine to the one below it. Meaningless outside of a stack.
#[derive(Debug)]
pub(crate) struct Link(AtomicU32);

impl Link {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(NONE))
    }
}

#[derive(Debug)]
pub(crate) struct Stack(AtomicU64);

impl Stack {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(Head { tag: 0, count: 0, top: NONE }.pack()))
    }

    /// How many magazines are in it. Out of date when it is known.
    pub(crate) fn len(&self) -> u32 {
        // Relaxed: no memory is touched because of the answer.
        Head::unpack(self.0.load(Ordering::Relaxed)).count
    }

    /// Puts a magazine on top, unless there are `most` already. The caller owns it, and no more
    /// after this; if it did not fit, still.
    #[must_use]
    pub(crate) fn push<'a>(
        &self,
        number: u32,
        most: u32,
        link_of: impl Fn(u32) -> &'a Link,
    ) -> bool {
        let link = link_of(number);
        // Relaxed: what is read here is only ever compared (S0) and passed on.
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let Head { tag, count, top } = Head::unpack(old);
            if count >= most {
                return false;
            }
            // Relaxed: S0 releases it.
            link.0.store(top, Ordering::Relaxed);
            let new = Head { tag: tag + 1, count: count + 1, top: number }.pack();
            // S0: pairs with S1.
            match self.0.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Takes the top magazine off. The caller owns it from here on.
    pub(crate) fn pop<'a>(&self, link_of: impl Fn(u32) -> &'a Link) -> Option<u32> {
        // S1: pairs with S0.
        let mut old = self.0.load(Ordering::Acquire);
        loop {
            let Head { tag, count, top } = Head::unpack(old);
            if top == NONE {
                return None;
            }
            // Relaxed: S1 has acquired it, and if it is newer than that, the swap fails.
            let below = link_of(top).0.load(Ordering::Relaxed);
            // A link that is out of date can come with any count, and fails.
            let new = Head { tag, count: count.wrapping_sub(1), top: below }.pack();
            // Acquire in success for nothing new, in failure because it is the next turn's S1.
            match self.0.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => old = now,
            }
        }
    }
}

/// What the word says.
struct Head {
    /// Its lower 28 bits count.
    tag: u32,
    count: u32,
    top: u32,
}

impl Head {
    fn pack(self) -> u64 {
        u64::from(self.tag) << (2 * BITS) | u64::from(self.count) << BITS | u64::from(self.top)
    }

    fn unpack(word: u64) -> Head {
        let field = |shift: u32| (word >> shift) as u32 & NONE;
        Head { tag: (word >> (2 * BITS)) as u32, count: field(BITS), top: field(0) }
    }
}

/// Every interleaving of a few steps, with the memory model's weaker orders.
/// `RUSTFLAGS="--cfg loom" cargo test -p cachelane-frames --release --lib`
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A stack, links, and what stands in the magazines: loom sees unordered access to it.
    struct World {
        stack: Stack,
        other: Stack,
        links: [Link; 3],
        contents: [UnsafeCell<u32>; 3],
    }

    impl World {
        fn new() -> Arc<World> {
            Arc::new(World {
                stack: Stack::new(),
                other: Stack::new(),
                links: [Link::new(), Link::new(), Link::new()],
                contents: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
            })
        }

        fn push(&self, stack: &Stack, number: u32) {
            assert!(stack.push(number, MOST, |n| &self.links[n as usize]));
        }

        fn pop(&self, stack: &Stack) -> Option<u32> {
            stack.pop(|n| &self.links[n as usize])
        }

        /// What an owner does to a magazine; its value before.
        #[allow(unsafe_code)]
        fn add(&self, number: u32) -> u32 {
            self.contents[number as usize].with_mut(|value| {
                // SAFETY: loom fails the test if anybody else is here.
                unsafe {
                    *value += 1;
                    *value - 1
                }
            })
        }
    }

    #[test]
    fn a_magazine_that_comes_back_does_not_fool_a_pop() {
        loom::model(|| {
            let world = World::new();
            [2, 1, 0].into_iter().for_each(|number| world.push(&world.stack, number));
            // One thread pops two and puts the first back: the head looks as before but for its
            // tag, and the link of it is another.
            let juggler = thread::spawn({
                let world = world.clone();
                move || {
                    let first = world.pop(&world.stack)?;
                    world.add(first);
                    let second = world.pop(&world.stack)?;
                    world.add(second);
                    world.push(&world.stack, first);
                    Some(second)
                }
            });
            let mine = world.pop(&world.stack);
            if let Some(number) = mine {
                world.add(number);
            }
            let kept = juggler.join().unwrap();
            let mut all: Vec<u32> = mine.into_iter().chain(kept).collect();
            all.extend(std::iter::from_fn(|| world.pop(&world.stack)));
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        });
    }

    #[test]
    fn magazines_go_round_between_two_stacks() {
        loom::model(|| {
            let world = World::new();
            [0, 1].into_iter().for_each(|number| world.push(&world.stack, number));
            let turn = |world: &World, from: &Stack, to: &Stack| {
                if let Some(number) = world.pop(from) {
                    world.add(number);
                    world.push(to, number);
                }
            };
            let other = thread::spawn({
                let world = world.clone();
                move || turn(&world, &world.stack, &world.other)
            });
            turn(&world, &world.stack, &world.other);
            turn(&world, &world.other, &world.stack);
            other.join().unwrap();
            let mut all: Vec<u32> = std::iter::from_fn(|| world.pop(&world.stack)).collect();
            all.extend(std::iter::from_fn(|| world.pop(&world.other)));
            all.sort_unstable();
            assert_eq!(all, [0, 1]);
        });
    }
}
