//! Which of the servers that may be used a new connection gets.
//!
//! Each way gives an order of preference; the first server in it that can be taken is. The weights
//! stand in a schedule: a round in which each server comes as often as its weight says, spread out.

use std::net::IpAddr;
use std::time::Instant;

use super::server::Server;
use crate::addr::Addr;

/// The most places in a schedule for each server: weights are scaled down to that.
const MOST_PLACES: usize = 64;

/// A round of indices in which each comes as often as its weight says, as far apart as can be.
pub(super) fn schedule(weights: &[u16]) -> Vec<u32> {
    let divisor = weights.iter().fold(0, |a, &b| gcd(a, b)).max(1);
    let places = |weight: u16| {
        let exact = usize::from(weight / divisor);
        let largest = usize::from(weights.iter().copied().max().unwrap_or(1) / divisor);
        if largest <= MOST_PLACES { exact } else { (exact * MOST_PLACES).div_ceil(largest) }
    };
    // Each server's places at even distances, those of equal distance in the order of the servers.
    let mut round: Vec<(f64, u32)> = Vec::new();
    for (index, &weight) in weights.iter().enumerate() {
        let places = places(weight);
        round.extend((0..places).map(|n| ((n as f64 + 0.5) / places as f64, index as u32)));
    }
    round.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    round.into_iter().map(|(_, index)| index).collect()
}

fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Connections for each part of its weight, as there would be with one more.
pub(super) fn load(server: &Server, now: Instant) -> f64 {
    let weight = f64::from(server.spec.weight()) * server.warmth(now);
    (server.active() + 1) as f64 / weight
}

/// A client's fondness of a server, by which clients are spread as the weights say. If a server
/// goes, only its own clients go elsewhere, and if it comes back, they come back (rendezvous
/// hashing). It hangs on the addresses alone, so all relays before the same servers agree.
pub(super) fn fondness(server: &Server, client: IpAddr, now: Instant) -> f64 {
    let server_hash = match &server.addr {
        Addr::Ip(addr) => mix(hash(addr.ip()) ^ u64::from(addr.port())),
        Addr::Unix(addr) => addr.bytes().iter().fold(0, |sum, &byte| mix(sum ^ u64::from(byte))),
    };
    // In (0, 1): the lowest 53 bits are what a float holds.
    let draw = ((mix(hash(client) ^ server_hash) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let weight = f64::from(server.spec.weight()) * server.warmth(now);
    -weight / draw.ln()
}

fn hash(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => mix(u64::from(v4.to_bits())),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            mix(mix((bits >> 64) as u64) ^ bits as u64)
        }
    }
}

/// A permutation that spreads every bit (splitmix64's finaliser).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A worker's own source of chance, for spreading only (splitmix64).
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance(mix(seed))
    }

    /// Below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * n as u128) >> 64) as usize
    }

    /// Whether a chance of `p` comes out.
    pub(super) fn comes(&mut self, p: f64) -> bool {
        p >= 1.0 || (self.below(1 << 30) as f64) < p * (1u64 << 30) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_each_as_often_as_its_weight_says_and_spread_out() {
        assert_eq!(schedule(&[1, 1, 1]), [0, 1, 2]);
        assert_eq!(schedule(&[20, 20]), [0, 1]);
        assert_eq!(schedule(&[2, 1]), [0, 1, 0]);
        assert_eq!(schedule(&[0, 3]), [1]);
        assert!(schedule(&[0, 0]).is_empty());
        let round = schedule(&[1, 256]);
        let of = |index| round.iter().filter(|i| **i == index).count();
        assert_eq!((of(0), of(1)), (1, MOST_PLACES));
    }
}
