//! What this process may do: asked before anything is done, so that all that is missing is said at
//! once and in our words. A member of `cachelane up` gives up at its start what it has no use for.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities,
};

use crate::exit::not_permitted;

/// A capability, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    name: &'static str,
    own: CapabilitySet,
    /// One that includes it.
    or: CapabilitySet,
    what_for: &'static str,
}

const fn need(name: &'static str, own: CapabilitySet, what_for: &'static str) -> Need {
    Need { name, own, or: CapabilitySet::empty(), what_for }
}

impl Need {
    const fn or(self, or: CapabilitySet) -> Need {
        Need { or, ..self }
    }
}

/// Sockets of AF_XDP.
pub(crate) const SOCKETS: Need = need("CAP_NET_RAW", CapabilitySet::NET_RAW, "AF_XDP sockets");

/// BPF programs and their maps.
pub(crate) const PROGRAMS: Need =
    need("CAP_BPF", CapabilitySet::BPF, "BPF programs").or(CapabilitySet::SYS_ADMIN);

/// A program on a device.
pub(crate) const DEVICES: Need =
    need("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN, "a program on a device");

/// Programs that read the kernel's structures.
pub(crate) const TRACEPOINTS: Need =
    need("CAP_PERFMON", CapabilitySet::PERFMON, "tracepoints").or(CapabilitySet::SYS_ADMIN);

/// Programs that look into packets: without it, the kernel lets them do less with addresses.
pub(crate) const PACKETS: Need =
    need("CAP_PERFMON", CapabilitySet::PERFMON, "BPF programs that look into packets")
        .or(CapabilitySet::SYS_ADMIN);

/// Notifications of all network namespaces.
pub(crate) const NOTIFICATIONS: Need = need(
    "CAP_NET_BROADCAST",
    CapabilitySet::NET_BROADCAST,
    "hearing of what the ports' peers become",
);

/// A real-time priority of the kernel's threads.
pub(crate) const PRIORITY: Need = need(
    "CAP_SYS_NICE",
    CapabilitySet::SYS_NICE,
    "the priority of the threads that take packets; --priority 0 does without",
);

/// What a mechanism needs.
pub(crate) fn needs_of(kind: &str) -> &'static [Need] {
    match kind {
        "bridge" => &[PROGRAMS, DEVICES, NOTIFICATIONS],
        "lend" => &[SOCKETS, PROGRAMS, PACKETS, DEVICES],
        "steer" => &[PROGRAMS, TRACEPOINTS, DEVICES, PRIORITY],
        _ => &[],
    }
}

/// Unix sockets may be another user's, and in a folder of another user's.
const FILES: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::FOWNER).union(CapabilitySet::DAC_OVERRIDE);

/// Frames that the kernel makes: programs, run by us, and a tracepoint to count at.
pub(crate) const LIVE: &[Need] = &[PROGRAMS, TRACEPOINTS, DEVICES];

/// What a mechanism makes use of where it has it.
fn uses_of(kind: &str) -> CapabilitySet {
    match kind {
        // Its thread's priority; who accelerates a bridge already; what netfilter does.
        "bridge" => CapabilitySet::SYS_NICE | CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON,
        "lend" => FILES | CapabilitySet::IPC_LOCK | CapabilitySet::SYS_NICE,
        // Low ports; buffers beyond the host's limit, clients' own addresses; the sockmap engine.
        "relay" => {
            let network = CapabilitySet::NET_BIND_SERVICE | CapabilitySet::NET_ADMIN;
            FILES | network | CapabilitySet::NET_RAW | CapabilitySet::BPF | CapabilitySet::PERFMON
        }
        // sysfs of its network namespace.
        "steer" => CapabilitySet::SYS_ADMIN,
        // Control sockets of other users.
        _ => CapabilitySet::NET_BIND_SERVICE | CapabilitySet::DAC_OVERRIDE,
    }
}

/// What of that it needs or uses once all is attached and opened: a bridge gets ports, and a relay engines
/// and backends, at any time.
fn uses_later(kind: &str) -> CapabilitySet {
    match kind {
        // Its socket's file, which comes with the thread that others speak to; its threads' priority.
        "lend" => FILES | CapabilitySet::SYS_NICE,
        // Threads for CPUs that come; sysfs.
        "steer" => CapabilitySet::SYS_NICE | CapabilitySet::SYS_ADMIN,
        "metrics" => CapabilitySet::DAC_OVERRIDE,
        _ => CapabilitySet::all(),
    }
}

/// Gives up for good what a mechanism neither needs nor makes use of. To be called before there are
/// threads, which inherit it.
pub(crate) fn keep_those_of(kind: &str) -> std::io::Result<()> {
    let have = capabilities(None)?.permitted;
    let needs = needs_of(kind).iter().map(|need| match have.contains(need.own) {
        true => need.own,
        false => need.or,
    });
    keep(needs.fold(uses_of(kind), CapabilitySet::union))
}

/// Gives up for good what a mechanism has needed to attach and open what it works on. To be called before
/// there are threads that others can speak to.
pub(crate) fn keep_those_for_later(kind: &str) -> std::io::Result<()> {
    keep(uses_later(kind))
}

/// Gives up all others, in this thread and those that it makes.
fn keep(those: CapabilitySet) -> std::io::Result<()> {
    let have = capabilities(None)?.permitted;
    let keep = have & those;
    // Those that this kernel knows; without CAP_SETPCAP, what cannot be had again by the set below.
    if have.contains(CapabilitySet::SETPCAP) {
        for one in (CapabilitySet::all() - keep).iter() {
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// What is missing for all these mechanisms together, if something is.
pub(crate) fn missing_for<'a>(kinds: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut needs: Vec<&Need> = Vec::new();
    for need in kinds.flat_map(needs_of) {
        if !needs.iter().any(|known| known.name == need.name) {
            needs.push(need);
        }
    }
    missing(capabilities(None).ok()?.effective, needs)
}

/// Whether capabilities count in this process's user namespace alone, which is not the host's.
pub(crate) fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let all = [0, 0, u32::MAX].map(|number| number.to_string());
    !map.is_empty() && !map.split_whitespace().eq(all.iter().map(String::as_str))
}

/// Nothing, if this process has all of them. Whether that is enough here, the kernel says: in a container it
/// may not be.
pub(crate) fn require(what: &str, needs: &[Need]) -> anyhow::Result<()> {
    // A kernel that does not tell refuses later.
    let Ok(sets) = capabilities(None) else { return Ok(()) };
    match missing(sets.effective, needs.iter()) {
        Some(missing) => Err(not_permitted(format!("{what} needs root, or {missing}"))),
        None => Ok(()),
    }
}

fn missing<'a>(have: CapabilitySet, needs: impl IntoIterator<Item = &'a Need>) -> Option<String> {
    let missing = needs.into_iter().filter(|need| !have.intersects(need.own | need.or));
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
