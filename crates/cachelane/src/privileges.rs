//! What this process may do: asked before anything is done, so that all that is missing is said at
//! once and in our words.

use rustix::thread::{CapabilitySet, capabilities};

use crate::exit::not_permitted;

/// A capability, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    name: &'static str,
    /// It, or one that includes it.
    any: CapabilitySet,
    what_for: &'static str,
}

const fn need(name: &'static str, any: CapabilitySet, what_for: &'static str) -> Need {
    Need { name, any, what_for }
}

/// Sockets of AF_XDP.
pub(crate) const SOCKETS: Need = need("CAP_NET_RAW", CapabilitySet::NET_RAW, "AF_XDP sockets");

/// BPF programs and their maps.
pub(crate) const PROGRAMS: Need =
    need("CAP_BPF", CapabilitySet::BPF.union(CapabilitySet::SYS_ADMIN), "BPF programs");

/// A program on a device.
pub(crate) const DEVICES: Need =
    need("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN, "a program on a device");

/// Programs that read the kernel's structures.
pub(crate) const TRACEPOINTS: Need =
    need("CAP_PERFMON", CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN), "tracepoints");

/// A real-time priority of the kernel's threads.
pub(crate) const PRIORITY: Need = need(
    "CAP_SYS_NICE",
    CapabilitySet::SYS_NICE,
    "the priority of the threads that take packets; --priority 0 does without",
);

/// sysfs of a network namespace.
pub(crate) const SYSFS: Need =
    need("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN, "looking at a device's queues");

/// Nothing, if this process has all of them.
/// Whether what it has is enough here, the kernel says: in a container it may not be.
pub(crate) fn require(what: &str, needs: &[Need]) -> anyhow::Result<()> {
    // A kernel that does not tell refuses later.
    let Ok(sets) = capabilities(None) else { return Ok(()) };
    match missing(sets.effective, needs) {
        Some(missing) => Err(not_permitted(format!("{what} needs root, or {missing}"))),
        None => Ok(()),
    }
}

fn missing(have: CapabilitySet, needs: &[Need]) -> Option<String> {
    let missing = needs.iter().filter(|need| !have.intersects(need.any));
    let texts: Vec<String> = missing.map(|n| format!("{} ({})", n.name, n.what_for)).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_said_at_once() {
        let needs = [SOCKETS, PROGRAMS, DEVICES];
        for (have, expected) in [
            (CapabilitySet::all(), None),
            (
                CapabilitySet::empty(),
                Some(
                    "CAP_NET_RAW (AF_XDP sockets), CAP_BPF (BPF programs), CAP_NET_ADMIN (a \
                     program on a device)",
                ),
            ),
            (
                CapabilitySet::SYS_ADMIN | CapabilitySet::NET_RAW,
                Some("CAP_NET_ADMIN (a program on a device)"),
            ),
        ] {
            assert_eq!(missing(have, &needs).as_deref(), expected);
        }
    }
}
