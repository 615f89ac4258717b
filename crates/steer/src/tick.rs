//! The kernel's tick, as far as it says what GRO does.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_getres};

/// Whether a NAPI poll that used its whole budget may leave packets in GRO: the kernel then
/// flushes only what is older than a tick if ticks are short, and else everything
/// (`gro_flush_normal(&n->gro, HZ >= 1000)` in net/core/dev.c, `napi_gro_flush` before 6.15). The
/// thread of a cpumap that has more to do does the same (`cpu_map_gro_flush` in
/// kernel/bpf/cpumap.c).
pub(crate) fn gro_outlasts_poll() -> bool {
    length().is_none_or(|length| length <= SHORT)
}

/// So many ticks, at least two: of two that follow each other, the second may be just over. Where
/// ticks are of no known length they are taken for long ones, of which fewer have to pass.
pub(crate) fn ticks(time: Duration) -> u32 {
    ticks_in(time).max(2)
}

/// The whole ticks in this time.
pub(crate) fn ticks_in(time: Duration) -> u32 {
    let length = length().unwrap_or(LONGEST);
    (time.as_nanos() / length.as_nanos()).min(u32::MAX.into()) as u32
}

/// With HZ of 1000.
const SHORT: Duration = Duration::from_millis(1);
/// With HZ of 100, the least that there is on what this runs on.
const LONGEST: Duration = Duration::from_millis(10);

/// That of a tick, 1/HZ; none if it is none that a tick can have.
fn length() -> Option<Duration> {
    // The coarse clock's resolution.
    length_of(clock_getres(ClockId::MonotonicCoarse))
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
    fn a_stall_takes_two_ticks_at_least() {
        assert_eq!(ticks(Duration::from_nanos(1)), 2);
        let second = ticks(Duration::from_secs(1));
        assert!((10..=10_000).contains(&second), "HZ of {second}");
    }
}
