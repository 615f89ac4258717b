//! Whether somebody who said hello becomes a borrower, and on what terms: decided from what is
//! known, without doing anything.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use frames::{Accounting, LoanTable};

use crate::layout::{GROUP_SHIFT, HELLO_MIRROR, Hello, MAGIC, Status, VERSION_GROUPS, VERSIONS};

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
    /// Loans of those that left and keep their areas, where each has its own.
    pub(crate) kept: u64,
    /// Distributors.
    pub(crate) channels: u32,
    /// The quota of who does not say, and the most that anybody gets.
    pub(crate) quota: u32,
    /// Whether as many joined in the last second as may.
    pub(crate) is_busy: bool,
    /// Borrowers have areas of their own, so that none sees what others get.
    pub(crate) private: bool,
    /// None for one that may have all.
    pub(crate) user: Option<UserSituation>,
}

/// What there is to give to one user.
#[derive(Clone, Debug)]
pub(crate) struct UserSituation {
    pub(crate) uid: u32,
    /// How many borrowers it has, those among them that left and hold our memory, and how many it
    /// may have.
    pub(crate) borrowers: usize,
    pub(crate) most_borrowers: usize,
    /// How many all users together may have.
    pub(crate) all_borrowers: usize,
    /// Loans that it may have beside those that it has, those that it has, how many it may have at
    /// all, and all users together.
    pub(crate) left: u64,
    pub(crate) has: u64,
    pub(crate) most_loans: u64,
    pub(crate) all_loans: u64,
    /// How many of those that it has are of borrowers that left and hold our memory.
    pub(crate) kept: u64,
    /// Whether as many of its joined in the last second as may.
    pub(crate) is_busy: bool,
    /// Whether so many borrowers, of all users, left and hold our memory that no more can be
    /// watched.
    pub(crate) is_crowded: bool,
    /// How many mirrors are among its borrowers, and in which groups but 0 they are.
    pub(crate) mirrors: usize,
    pub(crate) groups: BTreeSet<u16>,
}

/// Mirrors and groups (but 0) that a user may have: each costs the thread that receives the time of
/// another borrower for every packet.
pub(crate) const MIRRORS: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) version: u16,
    pub(crate) slot: u8,
    /// For each channel.
    pub(crate) quota: u32,
    pub(crate) mirror: bool,
    /// Of a mirror 0.
    pub(crate) group: u16,
    pub(crate) name: String,
}

impl Terms {
    /// Whether frames are lent to it that others have too.
    pub(crate) fn shares_frames(&self) -> bool {
        self.mirror || self.group != 0
    }
}

/// Why it gets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) reason: String,
    /// There is enough for others: it is this user that has its share.
    pub(crate) user: bool,
}

impl Refusal {
    pub(crate) fn new(status: Status, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), user: false }
    }
}

pub(crate) fn decide(hello: &Hello, situation: &Situation) -> Result<Terms, Refusal> {
    let refuse = |status, reason: String| Err(Refusal::new(status, reason));
    let version = agree(hello)?;
    let Situation { accounting, borrowers, left, channels, .. } = *situation;
    let quota = match hello.quota {
        0 => situation.quota,
        asked => asked.min(situation.quota).min(LoanTable::QUOTA),
    };
    let wanted = u64::from(quota) * u64::from(channels);
    let (mirror, group) = (hello.flags & HELLO_MIRROR != 0, (hello.flags >> GROUP_SHIFT) as u16);
    let terms = |slot| Terms { version, slot, quota, mirror, group, name: name(&hello.name, slot) };
    // Before what all have in common: who has its share learns that, also when nothing is left.
    if let Some(user) = &situation.user {
        of_user(user, wanted)?;
        of_all_packets(user, situation.private, mirror, group)?;
    }
    if situation.is_busy {
        return refuse(Status::Busy, "too many have joined in the last second: later".into());
    }
    let Some(slot) = situation.free_slot else {
        return refuse(
            Status::Full,
            format!("there are {borrowers} borrowers, and no more can be"),
        );
    };
    let terms = terms(slot);
    if terms.shares_frames() && accounting == Accounting::Ledgers {
        let what = if mirror { "mirrors" } else { "groups but 0" };
        let why = "while a ledger is kept for each borrower (lend.autorelease is on)";
        return refuse(Status::Mirror, format!("no {what} {why}"));
    }
    if wanted > left {
        return refuse(Status::Quota, reason_of(wanted, left, situation.kept));
    }
    Ok(terms)
}

/// Whether a user has so many loans left of its share, and a borrower, and a join.
fn of_user(user: &UserSituation, wanted: u64) -> Result<(), Refusal> {
    let &UserSituation { uid, borrowers, most_borrowers, left, has, most_loans, .. } = user;
    if user.is_crowded {
        let reason = "too many that left hold the memory that was made for them: later";
        return Err(Refusal { user: true, ..Refusal::new(Status::Busy, reason) });
    }
    let (status, reason) = if user.is_busy {
        let what = format!("user {uid} has joined too often in the last second: later");
        (Status::Busy, what + " (--user-share)")
    } else if borrowers >= most_borrowers {
        let helps = share_of(borrowers as u64 + 1, user.all_borrowers as u64, "--borrowers");
        (
            Status::Full,
            format!("user {uid} has {borrowers} borrowers, of {most_borrowers} ({helps})"),
        )
    } else if wanted > left {
        let what = format!("asked for {wanted} loans, user {uid} has {left} left");
        let reason = match user.kept {
            0 => {
                let helps = share_of(has + wanted, user.all_loans, "--frames");
                format!("{what} of {most_loans} ({helps})")
            }
            kept => format!("{what}, {kept} kept by those that left"),
        };
        (Status::Quota, reason)
    } else {
        return Ok(());
    };
    Err(Refusal { status, reason, user: true })
}

/// The share with which a user has so many of all, or of what there has to be more.
fn share_of(needed: u64, of: u64, more: &str) -> String {
    match (needed * 100).div_ceil(of.max(1)) {
        share @ ..=100 => format!("--user-share {share}"),
        _ => format!("more {more}"),
    }
}

/// Whether a user may have a mirror, or a borrower in that group: both can see every packet, and cost as
/// much.
fn of_all_packets(
    user: &UserSituation,
    private: bool,
    mirror: bool,
    group: u16,
) -> Result<(), Refusal> {
    let UserSituation { uid, mirrors, groups, .. } = user;
    let is_more = mirror || (group != 0 && !groups.contains(&group));
    let has = mirrors + groups.len();
    let (status, reason) = if is_more && private {
        let what = if mirror { "mirrors" } else { "groups but 0" };
        let why = "it would see what others get (--private)";
        (Status::Denied, format!("no {what} for user {uid}: {why}"))
    } else if is_more && has >= MIRRORS {
        (Status::Full, format!("user {uid} has {has} mirrors and groups, of {MIRRORS}"))
    } else {
        return Ok(());
    };
    Err(Refusal { status, reason, user: true })
}

/// What helps is in it, and all of it fits into a welcome's reason.
fn reason_of(wanted: u64, left: u64, kept: u64) -> String {
    let helps = match kept {
        0 => "a smaller --quota, or more --frames to lend".into(),
        kept => format!("{kept} are kept by those that left"),
    };
    format!("asked for {wanted} loans, {left} are left ({helps})")
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
    let known = match version {
        VERSION_GROUPS.. => HELLO_MIRROR | u32::MAX << GROUP_SHIFT,
        _ => HELLO_MIRROR,
    };
    if flags & !known != 0 {
        let reason = format!("flags {flags:#x}: version {version} has {known:#x} only");
        return Err(Refusal::new(Status::Invalid, reason));
    }
    if flags & HELLO_MIRROR != 0 && flags >> GROUP_SHIFT != 0 {
        let reason = "a mirror gets everything, and is in no group";
        return Err(Refusal::new(Status::Invalid, reason));
    }
    Ok(version)
}

/// A name for people's eyes: nothing in it moves a cursor, or turns what follows around.
fn name(bytes: &[u8], slot: u8) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    let text: String = text.trim().chars().map(printable).collect();
    if text.is_empty() { format!("borrower {slot}") } else { text }
}

/// The character, or `?` in the place of one that changes how others are shown.
pub(crate) fn printable(c: char) -> char {
    // The Unicode property Bidi_Control, and what ends a line without being a control character.
    const HIDDEN: [RangeInclusive<char>; 4] = [
        '\u{61c}'..='\u{61c}',
        '\u{200e}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2066}'..='\u{2069}',
    ];
    let is_hidden = c.is_control() || HIDDEN.iter().any(|range| range.contains(&c));
    if is_hidden { '?' } else { c }
}

#[cfg(test)]
mod tests;
