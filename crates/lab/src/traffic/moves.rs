//! Threads that move from CPU to CPU.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::pin;
use crate::Result;

/// How a server's threads move from CPU to CPU, so that what follows them has something to follow.
///
/// A thread is pinned to one CPU of the list, and after so many answers to the next one, in a ring.
/// The scheduler has no say in it: moves are as many, and the threads as evenly spread, whatever
/// wakes them. The threads start at every CPU in turn, and each at another point of its stay, so
/// that they do not move all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The CPUs.
    pub cpus: Vec<usize>,
    /// Answers of a thread between two of its moves, 1 or more.
    pub every: u64,
}

/// One thread's moves.
pub(super) struct Mover<'a> {
    moves: &'a Moves,
    /// Where it is, an index that counts on past the end of the list.
    at: usize,
    /// Answers until it moves.
    left: u64,
}

impl<'a> Mover<'a> {
    /// Puts the calling thread, the `index`th of so many, where it starts.
    pub(super) fn start(moves: &'a Moves, index: usize, threads: usize) -> Result<Self> {
        pin(&moves.cpus, index)?;
        Ok(Self { moves, at: index, left: first_stay(moves.every, index, threads) })
    }

    /// The thread has given so many answers more; moves it if it is time, and counts that.
    pub(super) fn answered(&mut self, answers: u64, moved: &AtomicU64) {
        if answers < self.left {
            self.left -= answers;
            return;
        }
        (self.at, self.left) = (self.at + 1, self.moves.every);
        // A CPU that has gone meanwhile is passed over: the thread stays where it is.
        if pin(&self.moves.cpus, self.at).is_ok() {
            // Relaxed: a counter on its own.
            moved.fetch_add(1, Relaxed);
        }
    }
}

/// Answers until the `index`th of so many threads moves for the first time.
fn first_stay(every: u64, index: usize, threads: usize) -> u64 {
    1 + (every - 1) * index as u64 / threads as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_do_not_move_all_at_once() {
        let stays: Vec<u64> = (0..4).map(|index| first_stay(100, index, 4)).collect();
        assert_eq!(stays, [1, 25, 50, 75]);
        assert!((0..64).all(|index| (1..=3).contains(&first_stay(3, index, 64))));
    }

    #[test]
    fn a_thread_moves_after_so_many_answers() {
        let moves = Moves { cpus: vec![0], every: 10 };
        let moved = AtomicU64::new(0);
        std::thread::spawn(move || {
            let mut mover = Mover::start(&moves, 1, 2).expect("CPU 0 is there");
            let counts = [1, 3, 1, 9, 1, 25].map(|answers| {
                mover.answered(answers, &moved);
                moved.load(Relaxed)
            });
            assert_eq!(counts, [0, 0, 1, 1, 2, 3]);
        })
        .join()
        .expect("as expected");
    }
}
