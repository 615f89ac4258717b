//! The name that a TLS client asks for, where backends have names: looked at, and left in the stream.

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Worker;
use crate::cause::Cause;
use crate::connection::{Hello, Phase, Search};
use crate::repeated::say;
use crate::tls;

pub(super) const LATE: &str = "it did not say in time which";
const GONE: &str = "it went before it said which";
const TORN: &str = "it says which in too many pieces";

/// The most looks at a message that is not whole yet, each of which reads it from its start. The longest
/// one comes in 31 packets of the smallest size that a network must be able to carry.
const MOST_LOOKS: u32 = 64;

impl Worker {
    pub(super) fn await_hello(&mut self, key: usize, search: Search) {
        let connection = &mut self.connections[key];
        connection.active = self.tick;
        connection.phase = Phase::Hello(Box::new(Hello { search, looks: 0 }));
        self.set_timer(key);
        // Behind a PROXY header it may be there already, and raise no event.
        self.read_hello(key);
    }

    pub(super) fn read_hello(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let Phase::Hello(hello) = &mut connection.phase else { return };
        let first = &mut self.resources.scratch()[..tls::MAX_HELLO];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let read = match rustix::net::recv(&connection.client.socket, &mut *first, flags) {
            Ok((0, _)) => return self.refuse_hello(key, Cause::Client, GONE),
            Ok((n, _)) => tls::read(&first[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.refuse_hello(key, Cause::Client, GONE),
        };
        hello.looks += 1;
        let name = match read {
            tls::Hello::Named(name) => Some(name),
            tls::Hello::Nameless | tls::Hello::NotTls => None,
            tls::Hello::Incomplete if connection.client.hup => {
                return self.refuse_hello(key, Cause::Client, GONE);
            }
            tls::Hello::Incomplete if hello.looks >= MOST_LOOKS => {
                return self.refuse_hello(key, Cause::Proxy, TORN);
            }
            tls::Hello::Incomplete => return,
        };
        let Some(route) = self.shared.backends.routes.find(name.as_deref()) else {
            let why = match name {
                Some(name) => format!("there is none for the name '{name}'"),
                None => "it names none, and all have names".into(),
            };
            return self.refuse_hello(key, Cause::Proxy, &why);
        };
        let phase = std::mem::replace(&mut connection.phase, Phase::Moving);
        let Phase::Hello(hello) = phase else { return };
        let mut search = hello.search;
        search.route = route;
        search.deadline = self.tick.wrapping_add(self.limits.deadline);
        self.seek_backend(key, search);
    }

    pub(super) fn refuse_hello(&mut self, key: usize, cause: Cause, reason: &str) {
        let client = self.connections[key].session.client;
        let client = client.map_or("a client".into(), |addr| format!("client {addr}"));
        say!(INFO, "{client} got no backend: {reason}");
        self.resources.counters.no_route.add(1);
        self.refuse(key, cause);
    }
}
