//! Threads that move from CPU to CPU.

use kit::Count;

use super::threads::pin;

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
pub(super) struct Mover {
    moves: Moves,
    /// Where it is, an index that counts on past the end of the list.
    at: usize,
    /// Answers until it moves.
    left: u64,
}

impl Mover {
    /// Those of the `index`th of so many threads, which is on its first CPU.
    pub(super) fn new(moves: Moves, index: usize, threads: usize) -> Self {
        Self { left: first_stay(moves.every, index, threads), moves, at: index }
    }

    /// The thread has given so many answers more; moves it if it is time, and counts that.
    pub(super) fn answered(&mut self, answers: u64, moved: &Count) {
        if answers < self.left {
            self.left -= answers;
            return;
        }
        (self.at, self.left) = (self.at + 1, self.moves.every);
        // A CPU that has gone meanwhile is passed over: the thread stays where it is.
        if cpu_of(&self.moves.cpus, self.at).is_none_or(|cpu| pin(cpu).is_ok()) {
            moved.add(1);
        }
    }
}

/// The CPU of the `index`th thread, where those of the list are given out in turn; none of an empty
/// one.
pub(super) fn cpu_of(cpus: &[usize], index: usize) -> Option<usize> {
    cpus.get(index % cpus.len().max(1)).copied()
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
        let moved = Count::default();
        std::thread::spawn(move || {
            let mut mover = Mover::new(moves, 1, 2);
            let counts = [1, 3, 1, 9, 1, 25].map(|answers| {
                mover.answered(answers, &moved);
                moved.get()
            });
            assert_eq!(counts, [0, 0, 1, 1, 2, 3]);
        })
        .join()
        .expect("as expected");
    }
}
