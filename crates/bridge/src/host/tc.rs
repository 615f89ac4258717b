//! tc filters at the ingress and the egress of devices.

use std::collections::HashMap;
use std::io;

use kit::netlink::{Socket, emitted, find_after, string};
use libc::{RTM_GETQDISC, RTM_GETTFILTER, TCA_KIND};
use netlink_packet_route::tc::{TcHandle, TcHeader};

const HEADER: usize = 20; // struct tcmsg

/// The queue disciplines that only hold filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterHolder {
    /// `ingress`: of what the device receives.
    Ingress,
    /// `clsact`: of that and of what it sends.
    Clsact,
}

/// Which devices of this namespace have one of them, by interface index.
pub(super) fn filter_holders(socket: &mut Socket) -> io::Result<HashMap<u32, FilterHolder>> {
    let request = emitted(&TcHeader::default());
    let found = socket.dump(RTM_GETQDISC, &request, |message| {
        let Ok(header) = TcHeader::parse(message) else { return Ok(None) };
        let holder = match find_after(HEADER, message, TCA_KIND).map(string).as_deref() {
            Some("ingress") => FilterHolder::Ingress,
            Some("clsact") => FilterHolder::Clsact,
            _ => return Ok(None),
        };
        Ok(Some((header.index.cast_unsigned(), holder)))
    })?;
    Ok(found.into_iter().collect())
}

/// Whether a filter is attached to this hook of the device, `TcHandle::MIN_INGRESS` or `MIN_EGRESS`.
/// The kernel lists those of a block that is shared between devices as well.
pub(super) fn has_filters(socket: &mut Socket, index: u32, minor: u16) -> io::Result<bool> {
    let parent = TcHandle { major: TcHandle::CLSACT.major, minor };
    let header = TcHeader { index: index.cast_signed(), parent, ..TcHeader::default() };
    // Not in the terse form: the kernel has that for some kinds of filters and fails on others.
    Ok(!socket.dump(RTM_GETTFILTER, &emitted(&header), |_| Ok(Some(())))?.is_empty())
}
