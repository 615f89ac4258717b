//! The kernel's tick.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_getres};

/// How long a tick (a jiffy, 1/HZ) is: the resolution of the coarse clock. None if it is none that a
/// tick can have.
pub fn tick() -> Option<Duration> {
    length_of(clock_getres(ClockId::MonotonicCoarse))
}

/// The whole ticks in this time, where they are as long as `unknown` if that is not known.
pub fn ticks(time: Duration, unknown: Duration) -> u32 {
    let length = tick().unwrap_or(unknown);
    u32::try_from(time.as_nanos() / length.as_nanos()).unwrap_or(u32::MAX)
}

fn length_of(Timespec { tv_sec, tv_nsec }: Timespec) -> Option<Duration> {
    let nanoseconds = u64::try_from(tv_nsec).ok()?;
    let possible = tv_sec == 0 && (100_000..=100_000_000).contains(&nanoseconds);
    possible.then(|| Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_the_length_of_the_coarse_clocks_resolution_or_none() {
        for (tick, length) in [
            ((0, 10_000_000), Some(10_000_000)), // HZ=100
            ((0, 4_000_000), Some(4_000_000)),   // 250
            ((0, 1_000_000), Some(1_000_000)),   // 1000
            ((0, 976_563), Some(976_563)),       // 1024
            ((0, 0), None),
            ((0, 1), None),
            ((1, 0), None),
            ((0, -4_000_000), None),
        ] {
            let tick = Timespec { tv_sec: tick.0, tv_nsec: tick.1 };
            assert_eq!(length_of(tick), length.map(Duration::from_nanos), "{tick:?}");
        }
    }

    #[test]
    fn this_kernels_tick_is_between_one_and_ten_milliseconds() {
        let tick = tick().expect("it has one");
        assert!((976_563..=10_000_000).contains(&tick.as_nanos()), "{tick:?}");
    }
}
