//! What a lender tells about itself. What was done is counted by the threads that do it, each in
//! lines of its own.

use std::time::Instant;

use frames::TokenRefused;
use kit::Count;

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
    /// The group that it shares the flows with; of a mirror 0.
    pub group: u16,
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

kit::counters! {
    /// What a lender has done so far.
    pub struct LenderCounters of LenderCounts {
        joined: "borrowers", "Borrowers that joined.";
        left: "borrowers", "Borrowers that went by themselves, or died.";
        disconnected: "borrowers", "Borrowers disconnected for what they did.";
        evicted: "borrowers",
            "Borrowers that had their quota and returned nothing, for longer than they may.";
        paused: "times", "Times that no connections were accepted for a while.";
        lent: "loans", "Loans, one for each part of a packet and borrower.";
        returned: "loans", "Loans that came back.";
        reclaimed: "loans", "Loans that ended with their borrower.";
        dropped: "packets", "Packets of borrowers that had their quota.";
        unwanted: "packets", "Packets received for nobody.";
        unstamped: "packets", "Packets lent without a time of their own, where they are to have one.";
    }
}

kit::counters! {
    /// What there is now.
    pub struct Standing {
        on_loan: "frames", "Frames that borrowers have.";
        borrowers: "borrowers", "Borrowers that are there.";
        lingering: "borrowers",
            "Borrowers that left and hold the memory that was made for them.";
    }
}

kit::counters! {
    /// Connections that did not become borrowers, by reason.
    pub struct Refusals of RefusalCounts {
        version: "connections", "No version in common.";
        invalid: "connections",
            "What they said was not a hello, or not that they had mapped what they got.";
        full: "connections", "As many borrowers as there can be.";
        quota: "connections", "Not frames enough for such a quota.";
        busy: "connections", "Too many handshakes at a time, or joins in a second.";
        mirror: "connections", "A mirror, or a group but 0, while a ledger is kept for each borrower.";
        user: "connections", "A user that had its share, or may have no mirror and no group.";
        closing: "connections", "The lender was about to end.";
        late: "connections", "They said nothing in time, or did not map what they got.";
        gone: "connections", "They closed before the handshake was over.";
        failed: "connections", "The system did not give what a borrower needs.";
    }
}

kit::counters! {
    /// What borrowers did that no honest one does, by reason.
    pub struct Offences of OffenceCounts {
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

impl OffenceCounts {
    pub(crate) fn of(&self, refused: TokenRefused) -> &Count {
        match refused {
            TokenRefused::OutOfRange => &self.out_of_range,
            TokenRefused::NotOut => &self.not_out,
            TokenRefused::NotItsOwn => &self.not_its_own,
        }
    }
}

/// What one distributor has done, or the control thread. Two cache lines, since prefetchers fetch
/// pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) counts: LenderCounts,
    pub(crate) offences: OffenceCounts,
    /// Frames that somebody has.
    pub(crate) on_loan: Count,
}

/// What one distributor has done for one borrower.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ChannelTally {
    pub(crate) lent: Count,
    pub(crate) returned: Count,
    pub(crate) dropped: Count,
    /// Loans that it has now.
    pub(crate) out: Count,
}
