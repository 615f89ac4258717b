//! How the four socket buffers of a connection share its kernel memory.
//!
//! Each begins with its share ([`Shares`]), which is enough where the peers are near. Over a long path one
//! buffer needs more: what it holds goes round once a round trip, so a stream is no faster than that. The
//! others have memory that they do not use, most of all those of the leg to a peer that is near. So the
//! four are one pool, and who needs less than its share lends to who needs more. What a buffer needs follows
//! from the bytes that went through it and the round trip of its leg. If the path has room, the stream gets
//! faster with its buffer, and the next look finds that it needs more, until the pool is lent out. What was
//! lent comes back when its lender, or another borrower, needs it.
//!
//! The bound on a connection's memory is the same as without: buffers shrink before others grow, and what
//! one that has shrunk still holds is not lent yet. While the host is short of memory, those of a connection
//! that moves have their share; nobody looks at one that stands still.
//!
//! A receive buffer that shrinks may drop what its peer was promised a window for, and the kernel then takes
//! long to trust the peer again. Where the peer is far, that may be all that is under way. So the window is
//! narrowed first, and the buffer shrinks at a later look, when the peer knows.
//!
//! A Unix socket has no round trip, and the sockmap engine has its own use for the buffers: connections
//! with either keep their shares, and so do those with a small budget ([`Shares::may_be_lent`]).

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::socket::{Shares, limit_receive, limit_send};
use crate::sockopt::{buffers, clamp_window, least_round_trip};

/// Bytes that a connection moves between two looks, at least: a request or two need no look.
const STEP: u64 = 512 << 10;

/// The least time between two looks, which otherwise is a round trip.
const PERIOD: Duration = Duration::from_millis(20);

/// A round trip below which a peer is near.
const NEAR: Duration = Duration::from_millis(1);

/// The time between two looks where both peers are.
const PERIOD_NEAR: Duration = Duration::from_secs(1);

/// The most that it is: a peer has its part in how long a round trip seems to be.
const PERIOD_FAR: Duration = Duration::from_secs(2);

/// A buffer needs this many times what goes through it in a round trip: half of a receive buffer may be
/// the kernel's own overhead, and a stream that can be twice as fast needs room to become so.
const ROOM: f64 = 4.0;

/// The least that a lender keeps, bytes, if its share is not less.
const LEAST: usize = 64 << 10;

/// A value for each buffer: client's receive, client's send, backend's receive, backend's send.
type Four = [usize; 4];

/// What a connection's buffers were last granted, and why.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// They keep their shares.
    is_fixed: bool,
    /// None until the connection has moved enough for a look.
    last: Option<Box<Last>>,
}

/// The last look.
#[derive(Debug)]
struct Last {
    at: Instant,
    /// Time until the next one, at least.
    period: Duration,
    /// Bytes moved up and down, over the connection's life.
    moved: [u64; 2],
    needs: Four,
    /// Whether the window of client and backend was narrowed, for its receive buffer to shrink.
    narrowed: [bool; 2],
}

impl Grants {
    pub(crate) fn new(is_fixed: bool) -> Grants {
        Grants { is_fixed, last: None }
    }

    /// The windows were set by somebody else.
    pub(crate) fn forget_windows(&mut self) {
        if let Some(last) = &mut self.last {
            last.narrowed = [false; 2];
        }
    }

    /// Looks at the sockets of client and backend, if it is time to, and shares the memory out anew. So
    /// many bytes have `moved` up and down.
    pub(crate) fn look(
        &mut self,
        legs: [&OwnedFd; 2],
        moved: [u64; 2],
        shares: Shares,
        memory: &mut Memory,
    ) {
        let last = self.last.as_deref();
        let before = last.map_or([0; 2], |last| last.moved);
        let step = [0, 1].map(|way| moved[way].saturating_sub(before[way]));
        let is_shrinking = last.is_some_and(|last| last.narrowed.contains(&true));
        let is_fixed = self.is_fixed || !shares.may_be_lent();
        if is_fixed || step[0] + step[1] < STEP && !is_shrinking {
            return;
        }
        let at = Instant::now();
        let passed = last.map(|last| at.saturating_duration_since(last.at));
        if last.is_some_and(|last| passed < Some(last.period)) {
            return;
        }
        let trips = legs.map(least_round_trip);
        let needs = match (last, passed) {
            (Some(last), Some(passed)) => needs(step, passed, trips, last.needs),
            // It began at an unknown pace.
            _ => [0; 4],
        };
        let narrowed = last.map_or([false; 2], |last| last.narrowed);
        let mut last = Last { at, period: period(trips), moved, needs, narrowed };
        last.narrowed = last.grant(legs, trips, shares, memory);
        self.last = Some(Box::new(last));
    }
}

/// How long the next look waits, at least.
fn period(trips: [Duration; 2]) -> Duration {
    let longest = trips[0].max(trips[1]);
    if longest < NEAR { PERIOD_NEAR } else { longest.clamp(PERIOD, PERIOD_FAR) }
}

fn fixed(Shares { receive, send, .. }: Shares) -> Four {
    [receive, send, receive, send]
}

/// What each lender keeps. A flow is woken up when half of its receive buffer is full.
fn floors(shares: Shares) -> Four {
    let receive = (2 * shares.low_water).min(shares.receive / 2);
    let send = shares.send / 8;
    fixed(Shares {
        receive: receive.max(LEAST).min(shares.receive),
        send: send.max(LEAST).min(shares.send),
        ..shares
    })
}

/// What each buffer needs if `step` bytes went up and down in the time that has `passed`. A pause makes a
/// need smaller little by little.
fn needs(step: [u64; 2], passed: Duration, trips: [Duration; 2], before: Four) -> Four {
    let [up, down] = step.map(|bytes| bytes as f64 / passed.as_secs_f64().max(1e-6));
    let [client, backend] = trips.map(|trip| trip.as_secs_f64());
    let now = [up * client, down * client, down * backend, up * backend];
    std::array::from_fn(|n| ((now[n] * ROOM) as usize).max(before[n] - before[n] / 4))
}

/// What each buffer gets if it `needs` so much: in all no more than the pool. Who needs no more than its
/// share lends what is beyond its need, and those that need more get it in proportion. A part stays back:
/// what is in a send buffer takes more memory when the kernel cuts it up for its path.
fn share_out(shares: Shares, needs: Four) -> Four {
    let (own, floors) = (fixed(shares), floors(shares));
    let spare: Four = std::array::from_fn(|n| own[n].saturating_sub(needs[n].max(floors[n])));
    let more: Four = std::array::from_fn(|n| needs[n].min(shares.pool()).saturating_sub(own[n]));
    let [all_spare, all_more] = [spare, more].map(|four| four.iter().sum::<usize>());
    let lent = all_spare.min(all_more);
    let given = lent - lent / 16;
    std::array::from_fn(|n| {
        let kept = spare[n] - part(lent, spare[n], all_spare);
        own[n] - spare[n] + kept + part(given, more[n], all_more)
    })
}

/// The sizes that buffers are to have which `need` so much. Who needs more than it has grows, and others
/// shrink by what that takes, in proportion to what they have beyond what they get when all is shared out.
fn wanted(shares: Shares, needs: Four, sizes: Four) -> Four {
    let granted = share_out(shares, needs);
    let more: Four = std::array::from_fn(|n| {
        if needs[n] > sizes[n] { granted[n].saturating_sub(sizes[n]) } else { 0 }
    });
    let beyond: Four = std::array::from_fn(|n| sizes[n].saturating_sub(granted[n]));
    let [all, all_more, all_beyond] = [sizes, more, beyond].map(|four| four.iter().sum::<usize>());
    let free = shares.pool().saturating_sub(all);
    let taken = all_more.saturating_sub(free).min(all_beyond);
    std::array::from_fn(|n| sizes[n] + more[n] - part(taken, beyond[n], all_beyond))
}

/// `of`'s part of `bytes`, if `all` is what there is of it.
fn part(bytes: usize, of: usize, all: usize) -> usize {
    if all == 0 { 0 } else { (bytes as u128 * of as u128 / all as u128) as usize }
}

/// The next sizes of buffers that are to have as much as `wanted`, from their present ones and what they
/// hold. One that shrinks does so at once; what it still holds is not there for those that grow.
fn resized(wanted: Four, sizes: Four, held: Four, pool: usize) -> Four {
    let shrunk: Four = std::array::from_fn(|n| sizes[n].min(wanted[n]));
    let used: usize = (0..4).map(|n| shrunk[n].max(held[n])).sum();
    let mut left = pool.saturating_sub(used);
    std::array::from_fn(|n| {
        let more = (wanted[n] - shrunk[n]).min(left);
        left -= more;
        shrunk[n] + more
    })
}

/// The size that the receive buffer of a far peer is to have now if in the end that is `wanted`, and the
/// window to which it is narrowed if that is not all the way yet.
fn narrowed(wanted: usize, size: usize, held: usize, was: bool) -> (usize, Option<usize>) {
    if wanted >= size - size / 8 {
        // Not for little.
        return (wanted.max(size), None);
    }
    // In memory, a window may be twice as much. With none at all the peer would have to begin anew.
    let least = wanted / 4;
    let now = if was { wanted.max(held + 2 * least).min(size) } else { size };
    let window = (wanted.saturating_sub(held) / 2).max(least);
    (now, (now > wanted).then_some(window))
}

impl Last {
    /// Shares the memory out by the needs. Returns which windows are narrowed now.
    fn grant(
        &self,
        legs: [&OwnedFd; 2],
        trips: [Duration; 2],
        shares: Shares,
        memory: &mut Memory,
    ) -> [bool; 2] {
        let [Ok(client), Ok(backend)] = legs.map(buffers) else { return self.narrowed };
        let sizes = [client.receive, client.send, backend.receive, backend.send];
        let held = [client.received, client.queued, backend.received, backend.queued];
        let mut wanted = wanted(shares, self.needs, sizes);
        let borrows = (0..4).any(|n| wanted[n] > fixed(shares)[n]);
        if borrows && memory.is_short(self.at) {
            wanted = fixed(shares);
        }
        let mut windows = [None; 2];
        for leg in (0..2).filter(|&leg| trips[leg] >= NEAR) {
            let n = 2 * leg;
            (wanted[n], windows[leg]) = narrowed(wanted[n], sizes[n], held[n], self.narrowed[leg]);
        }
        let next = resized(wanted, sizes, held, shares.pool());
        // What fails from here on is a broken socket, which its flow finds out.
        let shrinking = (0..4).filter(|&n| next[n] < sizes[n]);
        let growing = (0..4).filter(|&n| next[n] > sizes[n]);
        shrinking.chain(growing).for_each(|n| resize(legs[n / 2], n, next[n]));
        for (leg, n) in [(0, 0), (1, 2)] {
            // The kernel may have clamped the window to what a smaller buffer was good for.
            if windows[leg].is_some() || self.narrowed[leg] || next[n] > sizes[n] {
                let _ = clamp_window(legs[leg], windows[leg].unwrap_or(next[n]));
            }
        }
        windows.map(|window| window.is_some())
    }
}

/// Sets the size of a leg's buffer, the one of that number.
fn resize(leg: &OwnedFd, n: usize, bytes: usize) {
    let limit = if n & 1 == 0 { limit_receive } else { limit_send };
    let _ = limit(leg, bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Config;

    fn need() -> impl Strategy<Value = usize> {
        (0..40u32, any::<usize>()).prop_map(|(bits, n)| n & ((1 << bits) - 1))
    }

    fn four() -> impl Strategy<Value = Four> {
        [need(), need(), need(), need()]
    }

    fn shares() -> impl Strategy<Value = Shares> {
        let budget = Config::MIN_BUDGET..64 << 20;
        (budget, prop::option::of(1usize << 16..8 << 20)).prop_map(|(b, l2)| Shares::of(b, l2))
    }

    proptest! {
        #[test]
        fn what_is_shared_out_is_the_pool_at_most(shares in shares(), needs in four()) {
            let (granted, own, floors) = (share_out(shares, needs), fixed(shares), floors(shares));
            prop_assert!(granted.iter().sum::<usize>() <= shares.pool(), "{granted:?}");
            for n in 0..4 {
                prop_assert!(granted[n] >= floors[n].max(needs[n].min(own[n])), "{n}: {granted:?}");
                prop_assert!(granted[n] <= own[n].max(needs[n]), "{n}: {granted:?}");
            }
        }

        #[test]
        fn who_needs_no_more_than_it_has_changes_nothing(
            shares in shares(),
            needs in four(),
            before in four(),
        ) {
            let sizes = share_out(shares, before);
            let needs = std::array::from_fn(|n| needs[n].min(sizes[n]));
            prop_assert_eq!(wanted(shares, needs, sizes), sizes);
        }

        /// Those that need no more than their share, at once; others but for what is rounded off.
        #[test]
        fn who_needs_more_gets_what_is_shared_out(
            shares in shares(),
            needs in four(),
            before in four(),
        ) {
            let (sizes, granted) = (share_out(shares, before), share_out(shares, needs));
            let next = resized(wanted(shares, needs, sizes), sizes, [0; 4], shares.pool());
            for n in (0..4).filter(|&n| needs[n] > sizes[n]) {
                prop_assert!(next[n] + 4 >= granted[n], "{n}: {next:?}, {granted:?}");
            }
        }

        /// Whatever was granted before, and however much of it is in use.
        #[test]
        fn buffers_hold_the_pool_at_most_at_any_time(
            shares in shares(),
            looks in prop::collection::vec((four(), four()), 1..20),
        ) {
            let (mut sizes, mut held) = (fixed(shares), [0; 4]);
            for (needs, fill) in looks {
                // A buffer takes what it has room for; what is beyond its size goes only by and by.
                held = std::array::from_fn(|n| {
                    if fill[n] & 1 == 0 { held[n].max(sizes[n]) } else { fill[n].min(held[n]) }
                });
                let mut wanted = wanted(shares, needs, sizes);
                for n in [0, 2] {
                    (wanted[n], _) = narrowed(wanted[n], sizes[n], held[n], fill[n] & 2 == 0);
                }
                sizes = resized(wanted, sizes, held, shares.pool());
                let most: usize = (0..4).map(|n| sizes[n].max(held[n])).sum();
                prop_assert!(most <= shares.pool(), "{sizes:?}, {held:?}");
            }
        }
    }

    #[test]
    fn one_long_path_gets_most_of_the_pool() {
        let shares = Shares::of(Config::DEFAULT_BUDGET, Some(1 << 20));
        let ms = Duration::from_millis;
        // 30 MB/s for the client, 100 ms away.
        let trips = [ms(100), Duration::from_micros(100)];
        let needs = needs([0, 3_000_000], ms(100), trips, [0; 4]);
        assert_eq!(needs, [0, 12_000_000, 12_000, 0]);
        let granted = share_out(shares, needs);
        assert!(granted[1] > shares.pool() * 2 / 3, "{granted:?} of {}", shares.pool());
        assert!(granted[0] < shares.receive && granted[3] < shares.send, "{granted:?}");
    }

    #[test]
    fn a_window_is_narrowed_before_its_buffer_shrinks() {
        let (size, wanted) = (4 << 20, 1 << 20);
        assert_eq!(narrowed(size - 9, size, 0, false), (size, None));
        assert_eq!(narrowed(size + 9, size, 0, false), (size + 9, None));
        assert_eq!(narrowed(wanted, size, 0, false), (size, Some(wanted / 2)));
        assert_eq!(narrowed(wanted, size, 0, true), (wanted, None));
        // It is full.
        let least = wanted / 4;
        assert_eq!(narrowed(wanted, size, size, false), (size, Some(least)));
        assert_eq!(narrowed(wanted, size, size, true), (size, Some(least)));
        assert_eq!(narrowed(wanted, size, wanted, true), (wanted + 2 * least, Some(least)));
    }

    #[test]
    fn a_need_is_forgotten_little_by_little() {
        let (before, ms) = ([0, 1000, 0, 0], Duration::from_millis);
        assert_eq!(needs([0; 2], ms(100), [ms(100); 2], before), [0, 750, 0, 0]);
    }
}
