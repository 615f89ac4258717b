//! How the four socket buffers of a connection share its kernel memory.
//!
//! Each begins with its share ([`Shares`]), which is enough where the peers are near. Over a long path one
//! buffer needs more: what it holds goes round once a round trip, so a stream is no faster than that. The
//! others have memory that they do not use, most of all those of the leg to a peer that is near. So the
//! four are one pool, and who needs less than its share lends to who needs more. What a buffer needs follows
//! from the bytes that went through it and the round trip of its leg. If the path has room, the stream gets
//! faster with its buffer, and the next look finds that it needs more, until the pool is lent out.
//!
//! The bound on a connection's memory is the same as without: buffers shrink before others grow, and what
//! one that has shrunk still holds is not lent yet. While the host is short of memory nobody borrows.
//!
//! A Unix socket has no round trip, and the sockmap engine has its own use for the buffers: connections
//! with either keep their shares.

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
}

impl Grants {
    pub(crate) fn new(is_fixed: bool) -> Grants {
        Grants { is_fixed, last: None }
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
        let before = self.last.as_ref().map_or([0; 2], |last| last.moved);
        let step = [0, 1].map(|way| moved[way].saturating_sub(before[way]));
        if self.is_fixed || step[0] + step[1] < STEP {
            return;
        }
        let at = Instant::now();
        let passed = self.last.as_ref().map(|last| at.saturating_duration_since(last.at));
        if let (Some(passed), Some(last)) = (passed, &self.last)
            && passed < last.period
        {
            return;
        }
        let trips = legs.map(least_round_trip);
        let longest = trips[0].max(trips[1]);
        let period = if longest < NEAR { PERIOD_NEAR } else { longest.max(PERIOD) };
        let needs = match (passed, &self.last) {
            (Some(passed), Some(last)) => needs(step, passed, trips, last.needs),
            // It began at an unknown pace.
            _ => [0; 4],
        };
        self.last = Some(Box::new(Last { at, period, moved, needs }));
        let granted = share_out(shares, needs);
        let has_memory = granted == fixed(shares) || !memory.is_short(at);
        grant(legs, if has_memory { granted } else { fixed(shares) }, pool(shares));
    }
}

/// What all four have together, bytes.
pub(crate) fn pool(shares: Shares) -> usize {
    fixed(shares).iter().sum()
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
    let more: Four = std::array::from_fn(|n| needs[n].min(pool(shares)).saturating_sub(own[n]));
    let [all_spare, all_more] = [spare, more].map(|four| four.iter().sum::<usize>());
    let lent = all_spare.min(all_more);
    let given = lent - lent / 16;
    let part = |bytes: usize, of: usize, all: usize| match all {
        0 => 0,
        all => (bytes as u128 * of as u128 / all as u128) as usize,
    };
    std::array::from_fn(|n| {
        let kept = spare[n] - part(lent, spare[n], all_spare);
        own[n] - spare[n] + kept + part(given, more[n], all_more)
    })
}

/// The next sizes of buffers that are `granted` so much, from their present ones and what they hold. One
/// that shrinks does so at once; what it still holds is not there for those that grow.
fn resized(granted: Four, sizes: Four, held: Four, pool: usize) -> Four {
    let shrunk: Four = std::array::from_fn(|n| sizes[n].min(granted[n]));
    let used: usize = (0..4).map(|n| shrunk[n].max(held[n])).sum();
    let mut left = pool.saturating_sub(used);
    std::array::from_fn(|n| {
        let more = (granted[n] - shrunk[n]).min(left);
        left -= more;
        shrunk[n] + more
    })
}

/// Resizes the buffers, those that shrink before those that grow. What fails is a broken socket, which its
/// flow finds out.
fn grant(legs: [&OwnedFd; 2], granted: Four, pool: usize) {
    let [Ok(client), Ok(backend)] = legs.map(buffers) else { return };
    let sizes = [client.receive, client.send, backend.receive, backend.send];
    let held = [client.received, client.queued, backend.received, backend.queued];
    let next = resized(granted, sizes, held, pool);
    for n in (0..4).filter(|&n| next[n] < sizes[n]) {
        resize(legs, n, next[n]);
    }
    for n in (0..4).filter(|&n| next[n] > sizes[n]) {
        resize(legs, n, next[n]);
        if receives(n) {
            // The kernel may have clamped the window to what the smaller buffer was good for.
            let _ = clamp_window(legs[n / 2], next[n]);
        }
    }
}

/// Whether that is a receive buffer.
fn receives(n: usize) -> bool {
    n & 1 == 0
}

fn resize(legs: [&OwnedFd; 2], n: usize, bytes: usize) {
    let limit = if receives(n) { limit_receive } else { limit_send };
    let _ = limit(legs[n / 2], bytes);
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
            prop_assert!(granted.iter().sum::<usize>() <= pool(shares), "{granted:?}");
            for n in 0..4 {
                prop_assert!(granted[n] >= floors[n].max(needs[n].min(own[n])), "{n}: {granted:?}");
                prop_assert!(granted[n] <= own[n].max(needs[n]), "{n}: {granted:?}");
            }
        }

        #[test]
        fn who_needs_its_share_at_most_changes_nothing(shares in shares(), needs in four()) {
            let own = fixed(shares);
            let needs = std::array::from_fn(|n| needs[n].min(own[n]));
            prop_assert_eq!(share_out(shares, needs), own);
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
                sizes = resized(share_out(shares, needs), sizes, held, pool(shares));
                let most: usize = (0..4).map(|n| sizes[n].max(held[n])).sum();
                prop_assert!(most <= pool(shares), "{sizes:?}, {held:?}");
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
        assert!(granted[1] > pool(shares) * 2 / 3, "{granted:?} of {}", pool(shares));
        assert!(granted[0] < shares.receive && granted[3] < shares.send, "{granted:?}");
    }

    #[test]
    fn a_need_is_forgotten_little_by_little() {
        let (before, ms) = ([0, 1000, 0, 0], Duration::from_millis);
        assert_eq!(needs([0; 2], ms(100), [ms(100); 2], before), [0, 750, 0, 0]);
    }
}
