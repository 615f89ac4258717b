//! What a lender tells about itself.

use std::time::Instant;

/// A borrower, as the lender sees it. Counts are of all channels together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BorrowerStatus {
    /// Its number among those that are there: below 64, used again.
    pub slot: u8,
    /// What it calls itself; nobody checks that.
    pub name: String,
    /// Its process when it connected, as the kernel says; none if that is of another namespace.
    pub pid: Option<u32>,
    /// Its user when it connected, as the kernel says.
    pub uid: u32,
    /// Whether it gets every packet.
    pub mirror: bool,
    /// The most loans that it may have at a time, in each channel.
    pub quota: u32,
    /// Loans that it has now.
    pub out: u64,
    /// Loans that it ever had: one for each part of a packet.
    pub lent: u64,
    /// Tokens that it gave back.
    pub returned: u64,
    /// Packets that it did not get because it had its quota.
    pub dropped: u64,
    /// What it did that no honest borrower does.
    pub offences: u64,
    /// Since when it is there.
    pub since: Instant,
}

/// What a lender has done so far.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LenderCounters {
    /// Borrowers that joined.
    pub joined: u64,
    /// Borrowers that went by themselves, or died.
    pub left: u64,
    /// Borrowers that were disconnected for what they did.
    pub disconnected: u64,
    /// Connections that did not become borrowers.
    pub refused: Refusals,
    /// What borrowers did that no honest one does.
    pub offences: Offences,
    /// Times that the lender stopped accepting connections for a while, there being too many, or
    /// no file descriptors. Those that the kernel turned away meanwhile it does not know.
    pub paused: u64,
    /// Loans: one for each part of a packet and borrower. Each of them was returned or reclaimed,
    /// or a borrower has it.
    pub lent: u64,
    /// Tokens that came back and were right.
    pub returned: u64,
    /// Loans that ended with their borrower, which had not given them back.
    pub reclaimed: u64,
    /// Packets that a borrower did not get because it had its quota.
    pub dropped: u64,
    /// Packets that nobody was there for, or that came while the accounting was being changed.
    pub unwanted: u64,
    /// Frames that somebody has.
    pub on_loan: u64,
    /// Borrowers that left and hold the memory that was made for them. They count for their users'
    /// shares; those of root and of the lender's own user are not watched.
    pub lingering: u64,
}

kit::counters! {
    /// Connections that did not become borrowers, by reason.
    pub struct Refusals {
        version: "connections", "No version in common.";
        invalid: "connections",
            "What they said was not a hello, or not that they had mapped what they got.";
        full: "connections", "As many borrowers as there can be.";
        quota: "connections", "Not frames enough for such a quota.";
        busy: "connections", "Too many handshakes at a time, or joins in a second.";
        mirror: "connections", "A mirror, while a ledger is kept for each borrower.";
        user: "connections", "A user that had its share, or may have no mirror.";
        closing: "connections", "The lender was about to end.";
        late: "connections", "They said nothing in time, or did not map what they got.";
        gone: "connections", "They closed before the handshake was over.";
        failed: "connections", "The system did not give what a borrower needs.";
    }
}

kit::counters! {
    /// What borrowers did that no honest one does, by reason.
    pub struct Offences {
        out_of_range: "offences", "Tokens that no loan can have.";
        not_out: "offences", "Tokens that nobody had: returned before, or never lent.";
        not_its_own: "offences", "Tokens that others had.";
        index: "offences", "A ring's index that moved backwards, or by more than its slots.";
        message: "offences", "Something sent after the hello.";
        slow: "offences", "Too many waiters of its own: wake-ups that took too long.";
    }
}

impl Refusals {
    /// All together.
    pub fn total(&self) -> u64 {
        self.values().iter().sum()
    }
}

impl Offences {
    /// All together.
    pub fn total(&self) -> u64 {
        self.values().iter().sum()
    }
}
