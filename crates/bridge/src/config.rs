//! How a bridge is accelerated.

use strum::{Display, EnumString, IntoStaticStr};

use crate::{Error, ErrorKind};

/// How to accelerate a bridge.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most stations that the packet path knows, 1 to 2^20; more take the kernel path. None: a
    /// quarter more than the bridge knows at the start, and at least 8192.
    pub max_stations: Option<u32>,
    /// Whether the fast path is on at first.
    pub fastpath: bool,
    /// Where the last-seen stamps live at first.
    pub table: Table,
}

/// Where the stamps of when a station was last seen live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_table)]
pub enum Table {
    /// With each CPU: no line of the table is written by the packet path.
    Split,
    /// One for all CPUs, as in the kernel's own table: there to measure against.
    Shared,
}

impl Default for Config {
    fn default() -> Config {
        Config { max_stations: None, fastpath: true, table: Table::Split }
    }
}

impl Table {
    /// Every value.
    pub const ALL: [Table; 2] = [Table::Split, Table::Shared];

    /// Its name as the knob's value.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn unknown_table(name: &str) -> Error {
    let expected = kit::or(Table::ALL.map(Table::name));
    Error::new(ErrorKind::Invalid, format!("'{name}' is no table (expected {expected})"))
}
