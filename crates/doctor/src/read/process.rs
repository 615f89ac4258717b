//! What limits a process.

use super::lines;
use crate::Process;
use crate::tree::Tree;

/// `CAP_IPC_LOCK` of linux/capability.h.
const IPC_LOCK: u32 = 14;

/// The process `pid`, or `self`; a record has it as `self`.
pub(crate) fn process(tree: &Tree, pid: &str) -> Process {
    let keep = |text: &str| {
        lines(text, |line| line.starts_with("Cpus_allowed_list:") || line.starts_with("CapEff:"))
    };
    let status = tree.filtered(&format!("proc/{pid}/status"), "proc/self/status", keep);
    let status = status.unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let limits = tree.filtered(&format!("proc/{pid}/limits"), "proc/self/limits", |text| {
        let is_kept = |line: &str| {
            line.starts_with("Max open files") || line.starts_with("Max locked memory")
        };
        lines(text, is_kept)
    });
    let limits = limits.unwrap_or_default();
    // The soft limit, the hard limit, the unit.
    let limit = |name: &str, column: usize| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(column)?.parse().ok()
    };
    Process {
        allowed: field("Cpus_allowed_list:").and_then(|text| text.trim().parse().ok()),
        memlock: limit("Max locked memory", 0),
        // A relay raises its own to the hard one.
        files: limit("Max open files", 1),
        locks_any: capabilities.is_some_and(|set| set >> IPC_LOCK & 1 == 1),
    }
}
