//! Which process accelerates a bridge: one at a time, as each would want its programs to be last.
//!
//! Each process loads a packet path of its own, and whose it is stands among the constants of its
//! program: so it is there as soon as the program is, also for a bridge without ports, and goes
//! with the process. A process first loads its own, then looks for others: of two that start at
//! the same time, the later finds the earlier. Only who has `CAP_BPF` and `CAP_NET_ADMIN` can load
//! such a program, and so keep others from a bridge.

use std::os::unix::fs::MetadataExt as _;

use bpf::{Map, Plain as _};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::error::Context as _;
use crate::program::{self, Owner, Program};
use crate::state::Bridge;
use crate::{Error, ErrorKind, Result};

/// The process that accelerates a bridge.
#[derive(Debug)]
pub struct Accelerated {
    /// Its process id, in its own namespace of processes.
    pub pid: u32,
    /// Whether that is this process's namespace too.
    pub is_local: bool,
    /// The id of its program, as tcx lists it.
    pub program: u32,
    /// The program's map of ports, if it may be read.
    pub(crate) ports: Option<Map>,
}

/// What says that this process accelerates the bridge with this index.
///
/// # Errors
/// [`ErrorKind::Io`] if `/proc` does not say in which namespaces it is.
pub(crate) fn claim(bridge: u32) -> Result<Owner> {
    let inode = |path: &str| {
        let namespace = std::fs::metadata(path).context(path)?;
        Ok(namespace.ino())
    };
    Ok(Owner {
        magic: program::OWNER_MAGIC,
        netns: inode("/proc/thread-self/ns/net")?,
        pidns: inode("/proc/self/ns/pid")?,
        bridge,
        pid: std::process::id(),
    })
}

/// The process that accelerates the bridge with this index of this network namespace; none if
/// nobody does, or the caller may not look (`CAP_SYS_ADMIN`).
pub(crate) fn of(bridge: u32) -> Result<Option<Accelerated>> {
    let own = claim(bridge)?;
    let maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let ours = |info: &ProgramInfo| info.name.as_encoded_bytes() == program::NAME.as_bytes();
    // They come by their ids: the earliest first.
    Ok(ProgInfoIter::with_query_opts(maps).filter(ours).find_map(|info| read(&info, &own)))
}

/// Refuses a bridge that somebody accelerates already, by a program that was loaded before `own`, if
/// that is loaded.
///
/// # Errors
/// [`ErrorKind::Busy`] then; otherwise as [`claim`].
pub(crate) fn refuse_second(bridge: &Bridge, own: Option<&Program>) -> Result<()> {
    let earlier = |first: &Accelerated| own.is_none_or(|own| first.program < own.id());
    let Some(first) = of(bridge.index)?.filter(earlier) else { return Ok(()) };
    let Accelerated { pid, is_local, .. } = first;
    let name = &bridge.name;
    let message = match is_local {
        true if pid == std::process::id() => {
            format!("'{name}' is accelerated by this process already")
        }
        true => format!("'{name}' is already accelerated by pid {pid} (end it with: kill {pid})"),
        false => format!("'{name}' is already accelerated by pid {pid} of another container"),
    };
    Err(Error::new(ErrorKind::Busy, message))
}

/// What the program says of itself, if it is for the same bridge as `own`.
fn read(info: &ProgramInfo, own: &Owner) -> Option<Accelerated> {
    let maps = || info.map_ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    let constants = maps().find(|map| map.name().to_string_lossy().ends_with(".rodata"))?;
    let bytes = constants.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??;
    let owner = find(&bytes)?;
    ((owner.netns, owner.bridge) == (own.netns, own.bridge)).then(|| Accelerated {
        pid: owner.pid,
        is_local: owner.pidns == own.pidns,
        program: info.id,
        ports: maps().find(|map| map.name() == "ports").map(Map::from),
    })
}

/// The owner among a program's constants, wherever it stands: other versions have others.
fn find(constants: &[u8]) -> Option<Owner> {
    let at = |place| Owner::read(&constants[place..]);
    (0..constants.len()).step_by(8).filter_map(at).find(|owner| owner.magic == program::OWNER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_found_among_other_constants() {
        let bytes = |magic: u64| -> Vec<u8> {
            let numbers = [7_u64, magic, 9, 11];
            let ids = [3_u32, 5].into_iter().flat_map(u32::to_ne_bytes);
            numbers.into_iter().flat_map(u64::to_ne_bytes).chain(ids).chain([8; 8]).collect()
        };
        let owner = find(&bytes(program::OWNER_MAGIC)).expect("it is there");
        assert_eq!((owner.netns, owner.pidns, owner.bridge, owner.pid), (9, 11, 3, 5));
        assert!(find(&bytes(program::OWNER_MAGIC + 1)).is_none());
        for length in 0..40 {
            assert!(
                find(&bytes(program::OWNER_MAGIC)[..length]).is_none(),
                "cut to {length} bytes"
            );
        }
    }
}
