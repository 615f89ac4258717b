//! Who is let in: decided of each client as soon as its address is known, before a backend is looked
//! for.

use std::net::IpAddr;

use super::Worker;
use crate::cause::Cause;
use crate::clients::Excess;
use crate::repeated::say;
use crate::session::{Client, Session};

/// Why a client is not let in.
enum Refusal {
    Denied,
    Excess(Excess),
}

impl Worker {
    /// Whether a client that has just been accepted is to begin with a PROXY header.
    pub(super) fn names_another(&self, key: usize) -> bool {
        let peer = || self.connections[key].session.client.and_then(Client::ip);
        self.shared.config.accept_proxy && self.shared.access.is_proxy(peer())
    }

    /// Whether a client is let in; one that is not is reset. Its address is in its session by now.
    pub(super) fn lets_in(&mut self, key: usize) -> bool {
        let Session { client, listener, .. } = self.connections[key].session;
        let Err(refusal) = self.judge(key, client.and_then(Client::ip)) else { return true };
        let client = client.map_or("a client".into(), |addr| format!("client {addr}"));
        let counters = &self.resources.counters;
        match refusal {
            Refusal::Denied => {
                say!(INFO, "{client} was refused: the lists of addresses do not let it in");
                counters.denied.add(1);
            }
            Refusal::Excess(Excess::Connections) => {
                say!(INFO, "{client} was refused: it has as many connections as it may");
                counters.over_client_connections.add(1);
            }
            Refusal::Excess(Excess::Rate) => {
                say!(INFO, "{client} was refused: it makes connections too fast");
                counters.over_client_rate.add(1);
            }
        }
        if let Some(tally) = self.tallies.listeners.get(listener as usize) {
            tally.refused.add(1);
        }
        self.refuse(key, Cause::Proxy);
        false
    }

    fn judge(&mut self, key: usize, client: Option<IpAddr>) -> Result<(), Refusal> {
        if !self.shared.access.lets_in(client) {
            return Err(Refusal::Denied);
        }
        // One without an address is this host's own.
        if let (Some(clients), Some(addr)) = (&self.shared.clients, client) {
            let guest = clients.enter(addr, self.now).map_err(Refusal::Excess)?;
            self.connections[key].guest = Some(guest);
        }
        Ok(())
    }
}
