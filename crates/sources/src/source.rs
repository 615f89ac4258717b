//! Where quantities come from.

mod cgroup;
mod counter;
mod devices;
mod file;
mod memory;
mod pressure;
mod process;
mod protocols;
mod scheduler;
mod softnet;
mod stat;
mod text;

pub(crate) use counter::{Counters, all_counters, quantity};
pub(crate) use text::Text;

use crate::quantity::Family;
use crate::spec::Named;
use crate::{Error, ErrorKind, Quantity, Result, Value};

/// Something that has quantities, all of which it reads at once.
pub(crate) trait Source: Send {
    /// Its quantities.
    fn quantities(&self) -> &[Quantity];

    /// What they say now, in the order of [`quantities`](Self::quantities).
    ///
    /// # Errors
    /// Why they cannot be read now. A source stays usable: it may answer the next time.
    fn read(&mut self) -> Result<Vec<Value>>;

    /// What a reader of the figures must know of how they were made, if anything.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Opens a source for names of one family.
pub(crate) fn open(family: Family, names: &[Named]) -> Result<Text> {
    match family {
        Family::Stat => stat::open(names),
        Family::CpuPressure => pressure::open("cpu", names),
        Family::MemoryPressure => pressure::open("memory", names),
        Family::IoPressure => pressure::open("io", names),
        Family::Devices => devices::open(names),
        Family::Protocols => protocols::open(names),
        Family::Softnet => softnet::open(names),
        Family::Scheduler => scheduler::open(names),
        Family::Memory => memory::open(names),
        Family::Process => process::open(names),
        Family::Cgroup => cgroup::open(names),
    }
}

/// The error for a file that does not say what it should.
pub(crate) fn unexpected(path: &str, wanted: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Absent, format!("{path}: this kernel gives no {wanted}"))
}
