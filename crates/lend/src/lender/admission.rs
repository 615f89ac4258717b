//! Whether somebody who said hello becomes a borrower, and on what terms: decided from what is
//! known, without doing anything.

use frames::{Accounting, LoanTable};

use crate::layout::{HELLO_MIRROR, Hello, MAGIC, Status, VERSIONS};

/// What there is to give.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    pub(crate) accounting: Accounting,
    /// The first slot that nobody has.
    pub(crate) free_slot: Option<u8>,
    /// How many borrowers there are, leaving ones among them.
    pub(crate) borrowers: usize,
    /// Loans that are nobody's quota.
    pub(crate) left: u64,
    /// Distributors.
    pub(crate) channels: u32,
    /// The quota of who does not say, and the most that anybody gets.
    pub(crate) quota: u32,
    /// Whether as many joined in the last second as may.
    pub(crate) is_busy: bool,
}

/// What a borrower gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) version: u16,
    pub(crate) slot: u8,
    /// For each channel.
    pub(crate) quota: u32,
    pub(crate) mirror: bool,
    pub(crate) name: String,
}

/// Why it gets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(status: Status, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }
}

/// Decides.
pub(crate) fn decide(hello: &Hello, situation: &Situation) -> Result<Terms, Refusal> {
    let refuse = |status, reason: String| Err(Refusal::new(status, reason));
    let version = agree(hello)?;
    let Situation { accounting, borrowers, left, channels, .. } = *situation;
    if situation.is_busy {
        return refuse(Status::Busy, "too many have joined in the last second: later".into());
    }
    let Some(slot) = situation.free_slot else {
        return refuse(
            Status::Full,
            format!("there are {borrowers} borrowers, and no more can be"),
        );
    };
    let mirror = hello.flags & HELLO_MIRROR != 0;
    if mirror && accounting == Accounting::Ledgers {
        return refuse(
            Status::Mirror,
            "no mirrors while a ledger is kept for each borrower (lend.autorelease is on)".into(),
        );
    }
    let quota = match hello.quota {
        0 => situation.quota,
        asked => asked.min(situation.quota).min(LoanTable::QUOTA),
    };
    let wanted = u64::from(quota) * u64::from(channels);
    if wanted > left {
        return refuse(Status::Quota, format!("asked for {wanted} loans, {left} are left"));
    }
    Ok(Terms { version, slot, quota, mirror, name: name(&hello.name, slot) })
}

/// The newest version that both speak, if what came is a hello at all.
fn agree(hello: &Hello) -> Result<u16, Refusal> {
    let &Hello { magic, version_min, version_max, flags, .. } = hello;
    let (oldest, newest) = VERSIONS;
    if magic != MAGIC || version_min > version_max {
        return Err(Refusal::new(Status::Invalid, "that is not a hello"));
    }
    let version = version_max.min(newest);
    if version < version_min.max(oldest) {
        return Err(Refusal::new(
            Status::Version,
            format!(
                "the borrower speaks versions {version_min} to {version_max}, \
                 the lender {oldest} to {newest}"
            ),
        ));
    }
    // After the version: a newer one may have more flags.
    if flags & !HELLO_MIRROR != 0 {
        let reason = format!("flags {flags:#x}: version {version} has {HELLO_MIRROR:#x} only");
        return Err(Refusal::new(Status::Invalid, reason));
    }
    Ok(version)
}

/// A name for people's eyes: nothing in it moves a cursor.
fn name(bytes: &[u8], slot: u8) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    let text: String = text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.is_empty() { format!("borrower {slot}") } else { text }
}

#[cfg(test)]
mod tests;
