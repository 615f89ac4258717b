//! The kernel's tick, as far as it says what GRO does.

use rustix::time::{ClockId, Timespec, clock_getres};

/// Whether a NAPI poll that used its whole budget may leave packets in GRO: the kernel then
/// flushes only what is older than a tick if ticks are short, and else everything
/// (`gro_flush_normal(&n->gro, HZ >= 1000)` in net/core/dev.c, `napi_gro_flush` before 6.15). The
/// thread of a cpumap that has more to do does the same (`cpu_map_gro_flush` in
/// kernel/bpf/cpumap.c).
pub(crate) fn gro_outlasts_poll() -> bool {
    // The coarse clock's resolution is a tick, 1/HZ.
    is_short(clock_getres(ClockId::MonotonicCoarse))
}

/// HZ is 1000 or more, or the resolution is none that a tick can have: then the answer is the one
/// that holds packets back for longer.
fn is_short(tick: Timespec) -> bool {
    let Timespec { tv_sec, tv_nsec } = tick;
    tv_sec != 0 || !(1_000_001..=100_000_000).contains(&tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_a_millisecond_or_less_or_of_no_known_length_are_short() {
        for (tick, short) in [
            ((0, 10_000_000), false), // HZ=100
            ((0, 4_000_000), false),  // 250
            ((0, 3_333_333), false),  // 300
            ((0, 1_000_000), true),   // 1000
            ((0, 976_563), true),     // 1024
            ((0, 0), true),
            ((0, 1), true),
            ((1, 0), true),
            ((0, -4_000_000), true),
        ] {
            let tick = Timespec { tv_sec: tick.0, tv_nsec: tick.1 };
            assert_eq!(is_short(tick), short, "{tick:?}");
        }
    }
}
