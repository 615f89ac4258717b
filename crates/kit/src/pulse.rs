//! Whether threads get on. A thread that works in turns says when each begins, and when it waits for
//! something; somebody who looks now and then sees which thread has been in one turn all the time. Such a
//! thread is stuck: in a loop, in a deadlock, or in a call that does not return.
//!
//! It costs a thread one or two plain stores a turn, to a line of its own, and no look at a clock. Looks
//! are counted, not time: a process that was stopped for an hour was not looked at meanwhile.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All threads of this process that have one.
static ALL: Mutex<Vec<Weak<Beats>>> = Mutex::new(Vec::new());

/// A thread's own; once all clones of it are dropped, nobody watches the thread.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Beats>);

/// Alone on its cache lines: its thread writes it all the time.
#[derive(Debug)]
#[repr(align(128))]
struct Beats {
    /// Turns begun and ended: odd while the thread waits. Relaxed, for it orders nothing; written by its
    /// thread alone.
    turns: AtomicU64,
    thread: String,
}

impl Pulse {
    /// Of the thread that calls this, which is at work from now on.
    pub fn of_this_thread() -> Pulse {
        let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
        let beats = Arc::new(Beats { turns: AtomicU64::new(0), thread });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&beats));
        Pulse(beats)
    }

    /// Begins the next turn.
    #[inline]
    pub fn beat(&self) {
        self.add(2);
    }

    /// Waits for something that may take for ever, which is not to be stuck; then the next turn begins.
    #[inline]
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.add(1);
        let seen = wait();
        self.add(1);
        seen
    }

    #[inline]
    fn add(&self, turns: u64) {
        self.0.turns.store(self.0.turns.load(Relaxed).wrapping_add(turns), Relaxed);
    }
}

/// Somebody who looks at the threads of this process.
#[derive(Debug, Default)]
pub struct Watch {
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    beats: Weak<Beats>,
    turn: u64,
    /// How many looks ago it was first seen in this turn.
    looks: u32,
}

impl Watch {
    /// Looks once; the names of threads that have been in the same turn at the last `looks` looks before
    /// this one.
    pub fn look(&mut self, looks: u32) -> Vec<String> {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.seen.retain(|one| one.beats.strong_count() > 0);
        let mut stuck = Vec::new();
        for (weak, beats) in all.iter().filter_map(|one| Some((one, one.upgrade()?))) {
            let turn = beats.turns.load(Relaxed);
            let Some(seen) = self.seen.iter_mut().find(|one| one.beats.ptr_eq(weak)) else {
                self.seen.push(Seen { beats: weak.clone(), turn, looks: 0 });
                continue;
            };
            let is_waiting = turn % 2 == 1;
            seen.looks = if is_waiting || turn != seen.turn { 0 } else { seen.looks + 1 };
            seen.turn = turn;
            if seen.looks >= looks {
                stuck.push(beats.thread.clone());
            }
        }
        stuck
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Has a thread of this name do these things, one for each message, and looks at it after each.
    fn watched(name: &str, mut each: impl FnMut(&dyn Fn(fn(&Pulse)))) {
        let (order, orders) = channel::<fn(&Pulse)>();
        let (say, done) = channel();
        let body = move || {
            let pulse = Pulse::of_this_thread();
            say.send(()).unwrap();
            for order in orders {
                order(&pulse);
                say.send(()).unwrap();
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(body).unwrap();
        done.recv().unwrap();
        each(&|what| {
            order.send(what).unwrap();
            done.recv().unwrap();
        });
        drop(order);
        thread.join().unwrap();
    }

    /// Whether the thread of this name is stuck: other tests run beside this one.
    fn look(watch: &mut Watch, of: &str) -> bool {
        watch.look(3).iter().any(|name| name == of)
    }

    #[test]
    fn a_thread_that_stays_in_one_turn_is_stuck_until_it_goes_on() {
        watched("circle", |does| {
            let mut watch = Watch::default();
            for looks in 0..3 {
                assert!(!look(&mut watch, "circle"), "after {looks} looks");
            }
            assert!(look(&mut watch, "circle"));
            does(Pulse::beat);
            assert!(!look(&mut watch, "circle"));
        });
    }

    #[test]
    fn a_thread_that_beats_or_waits_is_not_stuck() {
        watched("busy", |does| {
            let mut watch = Watch::default();
            for _ in 0..10 {
                assert!(!look(&mut watch, "busy"));
                does(Pulse::beat);
            }
            does(|pulse| pulse.add(1));
            for _ in 0..10 {
                assert!(!look(&mut watch, "busy"), "while it waits");
            }
            does(|pulse| {
                pulse.add(1);
                pulse.wait(|| ());
            });
            assert!(!look(&mut watch, "busy"));
        });
        assert!(!look(&mut Watch::default(), "busy"), "once it is gone");
    }
}
