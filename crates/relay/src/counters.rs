//! What a relay counts. One set of counters a worker, summed when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident : $unit:literal,)+) => {
        /// One worker's counters. Written by that worker alone, so on lines of their own;
        /// Relaxed, since each is a number by itself and orders nothing.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)+ }

        /// The sums over all workers, at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl Stats {
            /// Each counter's name, unit and meaning, in the order of the fields.
            pub const FIELDS: &'static [(&'static str, &'static str, &'static str)] =
                &[$((stringify!($name), $unit, concat!($($doc),+)),)+];

            /// The value of a counter by its name.
            pub fn by_name(&self, name: &str) -> Option<u64> {
                match name { $(stringify!($name) => Some(self.$name),)+ _ => None }
            }

            pub(crate) fn add(&mut self, one: &Counters) {
                $(self.$name += one.$name.load(Relaxed);)+
            }
        }
    };
}

counters! {
    /// Connections accepted from clients.
    accepted: "connections",
    /// Connections that ended with every byte delivered both ways.
    closed: "connections",
    /// Connections that ended by a reset, from either side or by the relay.
    reset: "connections",
    /// Clients refused because no backend could be reached.
    no_backend: "connections",
    /// Attempts to reach a backend that failed.
    connect_failed: "attempts",
    /// Connections reset because nothing moved for the idle timeout.
    idle_timeout: "connections",
    /// Clients refused because their PROXY header was bad or late.
    bad_proxy_header: "connections",
    /// Times accepting paused because the connection limit was reached.
    limit_reached: "times",
    /// Times accepting or connecting failed because open files ran out.
    no_files: "times",
    /// Bytes forwarded from clients to backends.
    bytes_up: "bytes",
    /// Bytes forwarded from backends to clients.
    bytes_down: "bytes",
    /// Bytes that the copy engine forwarded.
    bytes_copied: "bytes",
    /// Bytes that the splice engine forwarded.
    bytes_spliced: "bytes",
    /// Bytes that the sockmap engine forwarded in the kernel.
    bytes_redirected: "bytes",
    /// Directions handed to the sockmap engine.
    sockmap_taken: "directions",
    /// Times the sockmap governor sent data the slow way because the budget was used up.
    sockmap_held: "times",
    /// Times a flow found its destination full and waited.
    backpressure: "times",
}

impl Counters {
    pub(crate) fn bump(counter: &AtomicU64) {
        Counters::add(counter, 1);
    }

    /// A load and a store, not a locked add: this worker is the only writer.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }
}
