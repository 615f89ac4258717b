//! Which process accelerates a bridge: one at a time, as each would want its programs to be last.
//!
//! Each process loads a packet path of its own, and whose it is stands among the constants of its
//! program: so it is there as soon as the program is, also for a bridge without ports, and goes
//! with the process. A process first loads its own, then looks for others: of two that start at
//! the same time, the later finds the earlier. Only who has `CAP_BPF` and `CAP_NET_ADMIN` can load
//! such a program, and so keep others from a bridge.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::program::{self, Owner, Program};
use crate::state::Bridge;
use crate::{Error, ErrorKind, Result};

/// The process that accelerates a bridge.
#[derive(Debug)]
pub struct Accelerated {
    /// Its process id, in its own namespace of processes.
    pub pid: u32,
    /// The id of its program, as tcx lists it.
    pub program: u32,
    /// The program's map of ports, if it may be read.
    pub(crate) ports: Option<MapHandle>,
}

/// What says that this process accelerates the bridge with this index.
///
/// # Errors
/// [`ErrorKind::Io`] if `/proc` does not say which network namespace this is.
pub(crate) fn claim(bridge: u32) -> Result<Owner> {
    let path = "/proc/thread-self/ns/net";
    let namespace = std::fs::metadata(path).map_err(|error| Error::io(path, error))?;
    Ok(Owner {
        magic: program::OWNER_MAGIC,
        netns: namespace.ino(),
        bridge,
        pid: std::process::id(),
    })
}

/// The process that accelerates the bridge with this index of this network namespace; none if
/// nobody does, or the caller may not look (`CAP_SYS_ADMIN`).
///
/// # Errors
/// As [`claim`].
pub(crate) fn of(bridge: u32) -> Result<Option<Accelerated>> {
    let own = claim(bridge)?;
    Ok(programs().filter_map(|info| read(&info, &own)).next())
}

/// Refuses a bridge that somebody accelerates already. `own` is the program that is to be attached.
///
/// # Errors
/// [`ErrorKind::Busy`] then; otherwise as [`claim`].
pub(crate) fn refuse_second(bridge: &Bridge, own: &Program) -> Result<()> {
    match of(bridge.index)?.filter(|first| first.program < own.id()) {
        Some(first) => Err(busy(&bridge.name, &first)),
        None => Ok(()),
    }
}

/// The refusal of a bridge that somebody accelerates already.
fn busy(bridge: &str, first: &Accelerated) -> Error {
    let pid = first.pid;
    let message = match pid == std::process::id() {
        true => format!("'{bridge}' is accelerated by this process already"),
        false => {
            format!("'{bridge}' is already accelerated by pid {pid} (end it with: kill {pid})")
        }
    };
    Error::new(ErrorKind::Busy, message)
}

/// All programs of ours that are loaded, by their ids: the earliest comes first.
fn programs() -> impl Iterator<Item = ProgramInfo> {
    let maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let ours = |info: &ProgramInfo| info.name.as_encoded_bytes() == program::NAME.as_bytes();
    ProgInfoIter::with_query_opts(maps).filter(ours)
}

/// What the program says of itself, if it is for the same bridge as `own`.
fn read(info: &ProgramInfo, own: &Owner) -> Option<Accelerated> {
    let maps = info.map_ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    let (mut owner, mut ports) = (None, None);
    for map in maps {
        match map.name().to_string_lossy() {
            name if name.ends_with(".rodata") => owner = owner.or_else(|| owner_in(&map).ok()?),
            name if name == "ports" => ports = Some(map),
            _ => {}
        }
    }
    let owner = owner.filter(|owner| (owner.netns, owner.bridge) == (own.netns, own.bridge))?;
    Some(Accelerated { pid: owner.pid, program: info.id, ports })
}

/// The owner among a program's constants, wherever it stands: other versions have others.
fn owner_in(constants: &MapHandle) -> io::Result<Option<Owner>> {
    let found = constants.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?;
    Ok(find(&found.unwrap_or_default()))
}

fn find(constants: &[u8]) -> Option<Owner> {
    let mut rest = constants;
    while let Some((magic, after)) = rest.split_first_chunk() {
        if u64::from_ne_bytes(*magic) == program::OWNER_MAGIC {
            let (netns, after) = after.split_first_chunk()?;
            let (bridge, after) = after.split_first_chunk()?;
            let (pid, _) = after.split_first_chunk()?;
            return Some(Owner {
                magic: program::OWNER_MAGIC,
                netns: u64::from_ne_bytes(*netns),
                bridge: u32::from_ne_bytes(*bridge),
                pid: u32::from_ne_bytes(*pid),
            });
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_found_among_other_constants() {
        let bytes = |magic: u64| -> Vec<u8> {
            let numbers = [7_u64, magic, 9, 5 << 32 | 3, 8];
            numbers.into_iter().flat_map(u64::to_le_bytes).collect()
        };
        let owner = find(&bytes(program::OWNER_MAGIC)).expect("it is there");
        assert_eq!((owner.netns, owner.bridge, owner.pid), (9, 3, 5));
        assert!(find(&bytes(program::OWNER_MAGIC + 1)).is_none());
        for length in 0..32 {
            assert!(
                find(&bytes(program::OWNER_MAGIC)[..length]).is_none(),
                "cut to {length} bytes"
            );
        }
    }
}
