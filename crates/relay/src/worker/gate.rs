//! Who is let in: decided of each client as soon as its address is known, before a backend is looked
//! for.

use super::Worker;
use crate::cause::Cause;
use crate::repeated::say;

impl Worker {
    /// Whether a client that has just been accepted is to begin with a PROXY header.
    pub(super) fn names_another(&self, key: usize) -> bool {
        let peer = || self.connections[key].session.client.map(|addr| addr.ip());
        self.shared.config.accept_proxy && self.shared.access.is_proxy(peer())
    }

    /// Whether a client is let in; one that is not is reset. Its address is in its session by now.
    pub(super) fn lets_in(&mut self, key: usize) -> bool {
        let client = self.connections[key].session.client;
        if self.shared.access.lets_in(client.map(|addr| addr.ip())) {
            return true;
        }
        let client = client.map_or("a client".into(), |addr| format!("client {addr}"));
        say!(INFO, "{client} was refused: the lists of addresses do not let it in");
        self.resources.counters.denied.add(1);
        self.refuse(key, Cause::Proxy);
        false
    }
}
