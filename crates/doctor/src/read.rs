//! The readers: each takes one subject from the files of a host. What they read is what a record
//! has.

mod cpus;
mod devices;
mod interrupts;
mod kernel;
mod process;
mod settings;

pub(crate) use cpus::cpus;
pub(crate) use devices::{devices, names};
pub(crate) use interrupts::{irqbalance, napi_threads};
pub(crate) use kernel::kernel;
pub(crate) use process::process;
pub(crate) use settings::{softnet, sysctls};

/// The lines of a text that this keeps.
fn lines(text: &str, keep: impl Fn(&str) -> bool) -> String {
    text.lines().filter(|line| keep(line)).collect::<Vec<_>>().join("\n")
}
