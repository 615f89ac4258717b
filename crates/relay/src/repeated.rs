//! Log lines that a peer or a full resource can repeat: only so many of a kind in a while, of each relay
//! in the process, and the next one says how many were left out. As the kernel's `printk_ratelimit`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;

/// Milliseconds in which a kind has its lines.
const WHILE: u64 = 5_000;

/// Milliseconds after which a relay that says nothing more is forgotten.
const FORGOTTEN: u64 = 3_600_000;

thread_local! {
    /// Whose thread it is; 0: no relay's.
    static SPEAKER: Cell<u64> = const { Cell::new(0) };
}

/// A relay, as one whose lines are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker(u64);

impl Speaker {
    /// One more in this process.
    pub(crate) fn new() -> Speaker {
        // Relaxed: a number that nobody else has, and nothing more.
        static LAST: AtomicU64 = AtomicU64::new(0);
        Speaker(LAST.fetch_add(1, Relaxed) + 1)
    }

    /// What this thread says from now on is this relay's.
    pub(crate) fn speaks(self) {
        SPEAKER.set(self.0);
    }
}

/// What was said of one kind of line, by each relay.
#[derive(Debug)]
pub(crate) struct Repeated {
    burst: u64,
    by: Mutex<BTreeMap<u64, Said>>,
}

#[derive(Debug)]
struct Said {
    /// When the present while began, in milliseconds since the process's first line.
    began: u64,
    lines: u64,
    left_out: u64,
}

impl Repeated {
    /// At most `burst` lines in a while.
    pub(crate) const fn new(burst: u64) -> Repeated {
        Repeated { burst, by: Mutex::new(BTreeMap::new()) }
    }

    /// How many lines of this thread's relay were left out before this one, if this one may be said.
    pub(crate) fn due(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.due_at(SPEAKER.get(), START.elapsed().as_millis() as u64)
    }

    fn due_at(&self, speaker: u64, now: u64) -> Option<u64> {
        let mut by = self.by.lock();
        if !by.contains_key(&speaker) {
            by.retain(|_, said| now < said.began + FORGOTTEN);
        }
        let new = Said { began: now, lines: 0, left_out: 0 };
        let said = by.entry(speaker).or_insert(new);
        // Threads read the clock before they come here.
        if now >= said.began + WHILE {
            (said.began, said.lines) = (now, 0);
        }
        said.lines += 1;
        if said.lines <= self.burst {
            return Some(std::mem::take(&mut said.left_out));
        }
        said.left_out += 1;
        None
    }
}

/// Logs a line at `LEVEL` (such as `WARN`), unless there were as many of its kind in the last few
/// seconds as there may be: `burst`, or one. A kind is a place in the code, for each
/// relay.
macro_rules! say {
    ($LEVEL:ident, burst $burst:literal, $($message:tt)+) => {
        if ::tracing::enabled!(::tracing::Level::$LEVEL) {
            static KIND: $crate::repeated::Repeated = $crate::repeated::Repeated::new($burst);
            match KIND.due() {
                None => {}
                Some(0) => ::tracing::event!(::tracing::Level::$LEVEL, $($message)+),
                Some(left_out) => ::tracing::event!(
                    ::tracing::Level::$LEVEL,
                    "{} (and {left_out} like this before it)",
                    format_args!($($message)+)
                ),
            }
        }
    };
    ($LEVEL:ident, $($message:tt)+) => { $crate::repeated::say!($LEVEL, burst 1, $($message)+) };
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_burst_in_a_while_and_the_next_says_how_many_were_left_out() {
        let kind = Repeated::new(2);
        for (now, due) in [
            (0, Some(0)),
            (1, Some(0)),
            (2, None),
            (WHILE - 1, None),
            (WHILE, Some(2)),
            (WHILE + 1, Some(0)),
            (WHILE + 2, None),
            (10 * WHILE, Some(1)),
        ] {
            assert_eq!(kind.due_at(7, now), due, "at {now}");
        }
    }

    #[test]
    fn each_relay_has_its_own_and_those_long_silent_are_forgotten() {
        let kind = Repeated::new(1);
        assert_eq!([1, 2, 1, 2].map(|by| kind.due_at(by, 5)), [Some(0), Some(0), None, None]);
        assert_eq!(kind.due_at(1, WHILE + 5), Some(1));
        assert_eq!(kind.due_at(3, FORGOTTEN + 5), Some(0));
        assert!(kind.by.lock().keys().eq(&[1, 3]));
    }
}
