//! `net.core.rps_sock_flow_entries`: the size of the table that the kernel's own receive flow
//! steering needs. It is the whole machine's; there is none for a test host alone.
//!
//! What was found is put back when this is dropped, and by the next command if this process is killed.
//! A value that somebody else has written meanwhile is left alone.

use std::time::Duration;

use knobs::{Held, Result, Subject};

/// Its name.
const SETTING: &str = "sysctl:net.core.rps_sock_flow_entries";
/// What the kernel's documentation advises for a moderately loaded server
/// (Documentation/networking/scaling.rst).
pub(super) const ADVISED: &str = "32768";

/// The setting, as found until it is raised.
#[derive(Debug)]
pub(super) struct FlowEntries(Held);

impl FlowEntries {
    /// Reads the machine's, and makes sure that it is put back.
    pub(super) fn of_machine() -> Result<FlowEntries> {
        // A setting is held until it is let go: no time runs out.
        let held = Subject::find(SETTING, None)?.hold("bench steer", Duration::MAX)?;
        Ok(FlowEntries(held))
    }

    /// What was found.
    pub(super) fn found(&self) -> &str {
        self.0.before()
    }

    /// Has it as advised, or as found.
    pub(super) fn set(&mut self, advised: bool) -> Result<()> {
        let value = if advised { ADVISED.to_owned() } else { self.found().to_owned() };
        self.0.set(&value).map(drop)
    }
}
