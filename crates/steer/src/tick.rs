//! The kernel's tick, as far as it says what GRO does.

use std::time::Duration;

use bpf::tick;

/// Whether a NAPI poll that used its whole budget may leave packets in GRO: the kernel then
/// flushes only what is older than a tick if ticks are short, and else everything
/// (`gro_flush_normal(&n->gro, HZ >= 1000)` in net/core/dev.c, `napi_gro_flush` before 6.15). The
/// thread of a cpumap that has more to do does the same (`cpu_map_gro_flush` in
/// kernel/bpf/cpumap.c).
pub(crate) fn gro_outlasts_poll() -> bool {
    tick().is_none_or(|length| length <= SHORT)
}

/// So many ticks, at least two: of two that follow each other, the second may be just over. Where
/// ticks are of no known length they are taken for long ones, of which fewer have to pass.
pub(crate) fn ticks(time: Duration) -> u32 {
    bpf::ticks(time, LONGEST).max(2)
}

/// With HZ of 1000.
const SHORT: Duration = Duration::from_millis(1);
/// With HZ of 100, the least that there is on what this runs on.
pub(crate) const LONGEST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_takes_two_ticks_at_least() {
        assert_eq!(ticks(Duration::from_nanos(1)), 2);
        let second = ticks(Duration::from_secs(1));
        assert!((10..=10_000).contains(&second), "HZ of {second}");
    }
}
