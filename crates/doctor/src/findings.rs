//! All findings, with a file for each subject. Each is a pure function of [`Facts`].
//!
//! To add one, give it the next free id in its subject's table, a page `docs/findings/ID.md`, a
//! host in `tests/fixtures` on which it is found, and one on which it is not.

mod bridges;
mod interrupts;
mod kernel;
mod limits;
mod queues;
mod stack;
mod steering;
mod topology;
mod traffic;
mod words;
mod xdp;

use crate::{Facts, Finding};

/// All of them, by id.
pub fn findings() -> impl Iterator<Item = &'static Finding> {
    const ALL: [&[Finding]; 10] = [
        topology::FINDINGS,
        queues::FINDINGS,
        interrupts::FINDINGS,
        steering::FINDINGS,
        stack::FINDINGS,
        bridges::FINDINGS,
        xdp::FINDINGS,
        kernel::FINDINGS,
        limits::FINDINGS,
        traffic::FINDINGS,
    ];
    ALL.into_iter().flatten()
}

/// The one with this id.
pub fn find(id: &str) -> Option<&'static Finding> {
    findings().find(|finding| finding.id == id)
}

/// A line of a subject's table: id, title, severity, mechanisms, cost, and the function of the same
/// name.
macro_rules! table {
    ($subject:ident: $($id:literal $severity:ident $check:ident [$($mechanism:literal)*]
        $title:literal costs $cost:literal;)+) => {
        pub(super) const FINDINGS: &[crate::Finding] = &[$(crate::Finding {
            id: $id,
            title: $title,
            severity: crate::Severity::$severity,
            subject: crate::Subject::$subject,
            mechanisms: &[$($mechanism),*],
            cost: $cost,
            page: include_str!(concat!("../../../../docs/findings/", $id, ".md")),
            check: $check,
        }),+];
    };
}
use table;

/// The devices of hardware with several receive queues.
fn multi_queue(facts: &Facts) -> impl Iterator<Item = &crate::Device> {
    facts.cards().filter(|card| card.rx.len() > 1)
}
