//! How a bridge is accelerated.

use std::{fmt, str};

use crate::{Error, ErrorKind, Result};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        match self {
            Table::Split => "split",
            Table::Shared => "shared",
        }
    }
}

impl str::FromStr for Table {
    type Err = Error;

    fn from_str(s: &str) -> Result<Table> {
        Table::ALL.into_iter().find(|table| table.name() == s).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("'{s}' is no table (expected split or shared)"))
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
