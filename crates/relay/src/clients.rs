//! How many connections each client has, and how fast it makes new ones, over all workers.
//!
//! **Who is one client.** An IPv4 address, or an IPv6 network of 64 bits: a host has all of it. Other
//! lengths can be set ([`ClientMask`]).
//!
//! **What is kept.** A client with connections has an entry until its last one has ended: so there are
//! no more of these than the relay has connections. One without is remembered only where there is a rate,
//! and only until it may make as many new connections as one that was never seen. Of those there are
//! at most [`REMEMBERED`]; if there is no room for another, the one that has been away longest is
//! forgotten, and may begin anew. So whoever has that many addresses can evade a rate, but for the
//! connections that he keeps, and costs no more memory than that.
//!
//! **Where threads meet.** The entries stand in shards, each behind a lock that is held for a few look-ups
//! in hash tables, whoever the clients are: keyed hashes keep clients from choosing their shard. A
//! shard is small, so a table that grows holds nobody up for long.

mod rate;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use hashlink::LinkedHashMap;
use parking_lot::Mutex;

pub use rate::Rate;

use crate::{Config, Error};

/// The most clients without a connection that are remembered.
pub(crate) const REMEMBERED: usize = 128 * 1024;

const SHARDS: usize = 256;

/// Which part of an address tells clients apart: the lengths of prefixes, in bits. From text as
/// `IPV4,IPV6`, as HAProxy's `ipmask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMask {
    /// Of IPv4, 0 to 32.
    pub v4: u8,
    /// Of IPv6, 0 to 128.
    pub v6: u8,
}

impl Default for ClientMask {
    fn default() -> ClientMask {
        ClientMask { v4: 32, v6: 64 }
    }
}

impl FromStr for ClientMask {
    type Err = Error;

    fn from_str(s: &str) -> Result<ClientMask, Error> {
        let read = || {
            let (v4, v6) = s.split_once(',')?;
            let mask = ClientMask { v4: v4.parse().ok()?, v6: v6.parse().ok()? };
            mask.is_valid().then_some(mask)
        };
        read().ok_or_else(|| Error::invalid(format!("mask '{s}' does not parse ({MASK})")))
    }
}

const MASK: &str = "expected two lengths in bits, of IPv4 and IPv6, such as 32,64";

impl ClientMask {
    pub(crate) fn is_valid(self) -> bool {
        self.v4 <= 32 && self.v6 <= 128
    }

    /// The client that an address belongs to.
    fn client(self, addr: IpAddr) -> Client {
        let (bits, prefix) = match addr.to_canonical() {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), 96 + u32::from(self.v4)),
            IpAddr::V6(v6) => (v6.to_bits(), u32::from(self.v6)),
        };
        let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
        Client(Ipv6Addr::from_bits(bits & mask))
    }
}

/// A client; IPv4 as mapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client(Ipv6Addr);

/// Why a client gets no more connections for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// It has as many as it may.
    Connections,
    /// It makes them too fast.
    Rate,
}

/// The clients of a relay.
#[derive(Debug)]
pub(crate) struct Clients {
    mask: ClientMask,
    most: Option<u32>,
    rate: Option<Rate>,
    start: Instant,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    present: HashMap<Client, Present>,
    /// Those without a connection, by how long they have been away: when they are due
    /// ([`Rate::take`]).
    away: LinkedHashMap<Client, u64>,
}

/// A client that has connections.
#[derive(Debug)]
struct Present {
    connections: u32,
    due: u64,
}

/// One connection of a client's, counted for as long as this is there.
#[derive(Debug)]
pub(crate) struct Guest {
    clients: Arc<Clients>,
    client: Client,
}

impl Clients {
    /// None where nothing limits a client.
    pub(crate) fn new(config: &Config) -> Option<Arc<Clients>> {
        let Config { client_connections: most, client_rate: rate, client_mask: mask, .. } = *config;
        if most.is_none() && rate.is_none() {
            return None;
        }
        let remembered = if rate.is_some() { REMEMBERED / SHARDS } else { 0 };
        let shard = || Mutex::new(Shard::new(remembered));
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        let (start, hasher) = (Instant::now(), RandomState::new());
        Some(Arc::new(Clients { mask, most, rate, start, hasher, shards }))
    }

    /// Counts one more connection of this client's, unless it has too many or makes them too fast: then
    /// nothing is counted.
    pub(crate) fn enter(self: &Arc<Self>, addr: IpAddr, now: Instant) -> Result<Guest, Excess> {
        let client = self.mask.client(addr);
        let now = self.nanos(now);
        let mut shard = self.shard(client).lock();
        let shard = &mut *shard;
        match shard.present.entry(client) {
            Slot::Occupied(mut slot) => {
                let present = slot.get_mut();
                if self.most.is_some_and(|most| present.connections >= most) {
                    return Err(Excess::Connections);
                }
                present.due = self.take(present.due, now)?;
                present.connections += 1;
            }
            Slot::Vacant(slot) => {
                let due = shard.away.get(&client).copied().unwrap_or(0);
                let due = self.take(due, now)?;
                shard.away.remove(&client);
                slot.insert(Present { connections: 1, due });
            }
        }
        Ok(Guest { clients: Arc::clone(self), client })
    }

    fn take(&self, due: u64, now: u64) -> Result<u64, Excess> {
        self.rate.map_or(Ok(0), |rate| rate.take(due, now).ok_or(Excess::Rate))
    }

    fn leave(&self, client: Client) {
        let mut shard = self.shard(client).lock();
        let Slot::Occupied(mut slot) = shard.present.entry(client) else { return };
        slot.get_mut().connections -= 1;
        if slot.get().connections > 0 {
            return;
        }
        let due = slot.remove().due;
        if self.rate.is_some() {
            shard.remember(client, due, self.nanos(Instant::now()));
        }
    }

    /// Clients that have connections, and those that are remembered.
    pub(crate) fn count(&self) -> [usize; 2] {
        let each = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            [shard.present.len(), shard.away.len()]
        });
        each.fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    }

    fn shard(&self, client: Client) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(client) as usize % SHARDS]
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

impl Shard {
    /// For so many that are away.
    fn new(remembered: usize) -> Shard {
        Shard { present: HashMap::new(), away: LinkedHashMap::with_capacity(remembered) }
    }

    /// The last connection of a client has ended.
    fn remember(&mut self, client: Client, due: u64, now: u64) {
        /// Those who are due are as good as never seen. More leave at a time than come.
        const FORGOTTEN_AT_ONCE: usize = 2;
        for _ in 0..FORGOTTEN_AT_ONCE {
            if self.away.front().is_some_and(|(_, due)| *due <= now) {
                self.away.pop_front();
            }
        }
        if due <= now {
            return;
        }
        if self.away.len() >= REMEMBERED / SHARDS {
            self.away.pop_front();
        }
        self.away.insert(client, due);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.clients.leave(self.client);
    }
}

#[cfg(test)]
mod tests;
