//! Counters, each declared in one line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter's name, its unit, and what it means in a sentence: what `knobs` registers.
pub type Field = (&'static str, &'static str, &'static str);

/// A number that one thread counts up and others read, without a locked instruction.
///
/// All accesses are `Relaxed`: a counter says how often something happened, never that something
/// else is ready, so there is nothing to order. Give each thread its own, on cache lines of its
/// own, and add them up when somebody asks: threads that shared one would pull its line from each
/// other, and lose counts.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Counts `n` more, on the one thread that counts; wraps past `u64::MAX`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Says what the count is now, on the one thread that counts.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The count so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares a struct of counters, a line for each: its name, its unit and what it means.
///
/// The struct has `FIELDS`, a [`Field`] for each counter; `values`, their values in the same order;
/// and `add`, which adds up what several workers or CPUs counted, wrapping. A block `by` adds
/// arrays of what is counted by [reasons](crate::reasons), and a method for one reason of each.
/// After `from TYPE`, the struct is also made from a reference to `TYPE`, which has fields of the
/// same names, such as a struct that is shared with a BPF program; its arrays may be longer. After
/// `of NAME` there is also a struct `NAME` of [`Count`]s, for each thread that counts, from which
/// it is made likewise.
///
/// ```
/// cachelane_kit::counters! {
///     /// What happened so far.
///     pub struct Counters {
///         sent: "packets", "Packets sent.";
///         lost: "packets", "Packets lost.";
///     }
/// }
///
/// let mut all = Counters { sent: 3, ..Counters::default() };
/// all.add(&Counters { sent: 1, lost: 1 });
/// assert_eq!(all.values(), [4, 1]);
/// assert_eq!(Counters::FIELDS[1], ("lost", "packets", "Packets lost."));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Counters:ident of $(#[$attribute:meta])* $Counts:ident {
            $($name:ident: $unit:literal, $help:literal;)+
        }
    ) => {
        $crate::counters! {
            $(#[$meta])*
            $vis struct $Counters { $($name: $unit, $help;)+ }
        }

        /// One thread's counters.
        #[derive(Debug, Default)]
        $(#[$attribute])*
        pub(crate) struct $Counts { $(pub(crate) $name: $crate::Count,)+ }

        impl From<&$Counts> for $Counters {
            fn from(counts: &$Counts) -> Self {
                Self { $($name: counts.$name.get()),+ }
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $Counters:ident from $Counts:ident {
            $($name:ident: $unit:literal, $help:literal;)+
        }
        $(by { $($by:ident: $Reason:ident;)+ })?
    ) => {
        $crate::counters! {
            $(#[$meta])*
            $vis struct $Counters { $($name: $unit, $help;)+ }
            $(by { $($by: $Reason;)+ })?
        }

        impl From<&$Counts> for $Counters {
            fn from(counts: &$Counts) -> Self {
                let mut all = Self { $($name: counts.$name,)+ ..Self::default() };
                $($(all.$by.copy_from_slice(&counts.$by[..$Reason::ALL.len()]);)+)?
                all
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $Counters:ident {
            $($name:ident: $unit:literal, $help:literal;)+
        }
        $(by { $($by:ident: $Reason:ident;)+ })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        $vis struct $Counters {
            $(#[doc = $help] $vis $name: u64,)+
            $($(#[doc = concat!("By [`", stringify!($Reason), "`].")]
                $vis $by: [u64; $Reason::ALL.len()],)+)?
        }

        impl $Counters {
            /// Each counter's name, unit and meaning, of those that are not counted by reasons.
            $vis const FIELDS: [$crate::Field; [$(stringify!($name)),+].len()] =
                [$((stringify!($name), $unit, $help)),+];

            /// The counters' values, in the order of `FIELDS`.
            $vis fn values(&self) -> [u64; Self::FIELDS.len()] {
                [$(self.$name),+]
            }

            /// Adds another's counts; wraps past `u64::MAX`.
            $vis fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)+
                $($(for (sum, one) in self.$by.iter_mut().zip(other.$by) {
                    *sum = sum.wrapping_add(one);
                })+)?
            }

            $($(
                /// Of these, those for this reason.
                $vis fn $by(&self, reason: $Reason) -> u64 {
                    self.$by[reason as usize]
                }
            )+)?
        }
    };
}

/// Declares an enum of reasons, or of anything else that is counted apart, a line for each: its
/// number, which is also its place among the counters, such as a constant that a BPF program
/// shares; its name in counters, and what it means. The unit is of all of them.
///
/// The enum has `ALL`, in the order of the lines; `name`, `help`; and `FIELDS`, a [`Field`] for
/// each. A number that is not the line's place does not compile.
///
/// ```
/// cachelane_kit::reasons! {
///     /// Why a packet was refused.
///     pub enum Reason: "packets" {
///         Short = 0, "short", "No whole header.";
///         Other = 1, "other", "Of another protocol.";
///     }
/// }
///
/// assert_eq!(Reason::ALL[Reason::Other as usize].name(), "other");
/// assert_eq!(Reason::FIELDS[0], ("short", "packets", "No whole header."));
/// ```
#[macro_export]
macro_rules! reasons {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Reason:ident: $unit:literal {
            $($Variant:ident = $number:expr, $name:literal, $help:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $Reason { $(#[doc = $help] $Variant = $number as isize,)+ }

        impl $Reason {
            /// All of them.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Each one's name, unit and meaning.
            $vis const FIELDS: [$crate::Field; Self::ALL.len()] = [$(($name, $unit, $help)),+];

            /// Its name in counters.
            $vis fn name(self) -> &'static str {
                Self::FIELDS[self as usize].0
            }

            /// What it means, in a sentence.
            $vis fn help(self) -> &'static str {
                Self::FIELDS[self as usize].2
            }
        }

        const _: () = {
            let mut place = 0;
            while place < $Reason::ALL.len() {
                assert!($Reason::ALL[place] as usize == place, "its number is its place");
                place += 1;
            }
        };
    };
}

#[cfg(test)]
mod tests {
    counters! {
        /// What the test counts.
        pub(crate) struct Counters from Counts {
            one: "times", "One.";
            two: "times", "Two.";
        }
        by {
            kernel: Reason;
        }
    }

    reasons! {
        /// Why.
        pub(crate) enum Reason: "packets" {
            Short = 0, "short", "No whole header.";
            Other = 1, "other", "Of another protocol.";
        }
    }

    counters! {
        /// What threads count.
        pub(crate) struct Sums of Tally {
            sent: "packets", "Sent.";
        }
    }

    #[test]
    fn what_threads_count_is_read_by_others() {
        let tallies = [Tally::default(), Tally::default()];
        std::thread::scope(|scope| {
            for tally in &tallies {
                scope.spawn(|| (0..1000).for_each(|_| tally.sent.add(1)));
            }
        });
        let mut sums = Sums::default();
        tallies.iter().for_each(|tally| sums.add(&tally.into()));
        assert_eq!(sums.values(), [2000]);
        assert_eq!(Sums::FIELDS, [("sent", "packets", "Sent.")]);
    }

    struct Counts {
        kernel: [u64; 4],
        two: u64,
        one: u64,
    }

    #[test]
    fn counters_are_added_up_and_taken_over_by_name() {
        let one = Counters::from(&Counts { kernel: [1, 2, 9, 9], two: u64::MAX, one: 1 });
        assert_eq!((one.values(), one.kernel), ([1, u64::MAX], [1, 2]));
        assert_eq!(one.kernel(Reason::Other), 2);
        let mut sum = one;
        sum.add(&one);
        assert_eq!((sum.values(), sum.kernel), ([2, u64::MAX - 1], [2, 4]));
        assert_eq!((Reason::Other.name(), Reason::Other.help()), ("other", "Of another protocol."));
    }
}
