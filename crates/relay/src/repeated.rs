//! Log lines that a peer or a full resource can repeat: only so many of a kind in a while, in the
//! whole process, and the next one says how many were left out. As the kernel's `printk_ratelimit`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Milliseconds in which a kind has its lines.
const WHILE: u64 = 5_000;

/// What was said of one kind of line. Relaxed throughout: it orders nothing, and threads that meet
/// here say one line more or less.
#[derive(Debug)]
pub(crate) struct Repeated {
    burst: u64,
    /// Milliseconds since the process's first line at which the present while began, plus one; 0:
    /// none has.
    began: AtomicU64,
    said: AtomicU64,
    left_out: AtomicU64,
}

impl Repeated {
    /// At most `burst` lines in a while.
    pub(crate) const fn new(burst: u64) -> Repeated {
        let zero = AtomicU64::new;
        Repeated { burst, began: zero(0), said: zero(0), left_out: zero(0) }
    }

    /// How many lines were left out before this one, if this one may be said.
    pub(crate) fn due(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.due_at(START.elapsed().as_millis() as u64)
    }

    fn due_at(&self, now: u64) -> Option<u64> {
        let began = self.began.load(Relaxed);
        let is_over = began == 0 || now + 1 >= began + WHILE;
        if is_over && self.began.compare_exchange(began, now + 1, Relaxed, Relaxed).is_ok() {
            self.said.store(0, Relaxed);
        }
        if self.said.fetch_add(1, Relaxed) < self.burst {
            return Some(self.left_out.swap(0, Relaxed));
        }
        self.left_out.fetch_add(1, Relaxed);
        None
    }
}

/// Logs a line at `LEVEL` (such as `WARN`), unless there were as many of its kind in the last few
/// seconds as there may be: `burst`, or one. A kind is a place in the code.
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
            assert_eq!(kind.due_at(now), due, "at {now}");
        }
    }

    #[test]
    fn threads_share_a_kind_and_each_line_is_said_or_counted() {
        static KIND: Repeated = Repeated::new(1);
        let said = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if let Some(left_out) = KIND.due_at(7) {
                            said.fetch_add(1 + left_out, Relaxed);
                        }
                    }
                });
            }
        });
        let next = KIND.due_at(7 + WHILE).unwrap();
        assert_eq!(said.load(Relaxed) + next, 4000);
    }
}
