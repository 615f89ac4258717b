//! What a finding is.

use std::fmt;

use serde::Serialize;

use crate::Facts;

/// How much a finding matters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display, strum::EnumString,
)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing is wrong.
    Info,
    /// It costs something.
    Warning,
    /// Something does not work, or stops working under load.
    Problem,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// Processors and their caches.
    Topology,
    /// Queues of cards.
    Queues,
    /// Interrupts, and who moves them.
    Interrupts,
    /// The kernel's own steering: RPS, RFS, XPS.
    Steering,
    /// Settings of the network stack.
    Stack,
    /// Bridges.
    Bridges,
    /// XDP and AF_XDP.
    Xdp,
    /// The kernel.
    Kernel,
    /// Limits of processes.
    Limits,
    /// What traffic was seen to do.
    Traffic,
}

/// Something that can be found.
#[derive(Clone, Copy)]
pub struct Finding {
    /// Its stable name: `CL001`.
    pub id: &'static str,
    /// What it is, in a line.
    pub title: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What it is about.
    pub subject: Subject,
    /// The mechanisms of cachelane that it matters for.
    pub mechanisms: &'static [&'static str],
    /// What it costs to ignore it.
    pub cost: &'static str,
    /// Its page: what it means, how it is seen, what to do, how to check that it helped.
    pub page: &'static str,
    pub(crate) check: fn(&Facts) -> Option<Found>,
}

/// What was found on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Names and values of this host, a sentence each.
    pub evidence: Vec<String>,
    /// What addresses it: a command, or what to change where no command does.
    pub command: String,
    /// What shows whether it helped: a trial where there is a knob to flip.
    pub check: String,
}

impl Finding {
    /// Whether it is so on this host, and what says so.
    pub fn check(&self, facts: &Facts) -> Option<Found> {
        let mut found = (self.check)(facts)?;
        // People paste commands, and a device may be named `$(reboot)`.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
        for device in facts.devices.iter().filter(|one| !one.name.chars().all(is_plain)) {
            for text in [&mut found.command, &mut found.check] {
                *text = text.replace(&device.name, "IFACE");
            }
        }
        Some(found)
    }
}

impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.title)
    }
}

impl Found {
    /// With these; none if there is no evidence.
    pub(crate) fn if_any(
        evidence: Vec<String>,
        command: impl FnOnce() -> String,
        check: impl FnOnce() -> String,
    ) -> Option<Self> {
        /// A host may have a thousand devices of a kind.
        const MOST: usize = 12;

        if evidence.is_empty() {
            return None;
        }
        let more = evidence.len().saturating_sub(MOST);
        let mut evidence = evidence;
        evidence.truncate(MOST);
        evidence.extend((more > 0).then(|| format!("and {more} more")));
        Some(Self { evidence, command: command(), check: check() })
    }
}
