//! Entries of the kernel's forwarding table.

use crate::state::Mac;

/// An entry of the kernel's forwarding table without a VLAN, as a dump or a notification has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The station's address.
    pub mac: Mac,
    /// The port's interface index; the bridge's own for entries of the bridge itself.
    pub port: u32,
    /// What it is.
    pub kind: EntryKind,
    /// The kernel would not move it to another port (`sticky`).
    pub sticky: bool,
    /// Only the kernel may use it: a locked entry, one of a tunnel, or one whose activity is
    /// watched.
    pub kernel_only: bool,
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Learned, or added as if it were: forgotten after the ageing time.
    Ageing,
    /// Stays until it is removed.
    Static,
    /// The bridge's own: packets to it go up to the host.
    Local,
}

/// What a notification says about the forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry is there now, or has changed.
    Set(Entry),
    /// The entry of this address is gone.
    Removed(Mac),
}
