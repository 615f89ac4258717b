//! What can go wrong.

use std::io;

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// A value that cannot be used.
        Invalid => BadInput,
        /// Another lender has the socket's path.
        InUse => Failed,
        /// Nobody listens there.
        NoLender => Failed,
        /// The caller may not.
        NotPermitted => NotPermitted,
        /// The lender refused the borrower: no version in common, or a wish that it does not grant.
        Refused => Failed,
        /// The lender has no room for the borrower now: too many, no frames left, about to end.
        NoRoom => Failed,
        /// The lender is gone, and did not say that it ends: it was killed, or it crashed.
        Died => Failed,
        /// The lender has disconnected the borrower, for what it takes for offences.
        Disconnected => Failed,
        /// The lender has disconnected the borrower, which had its quota and returned nothing for longer
        /// than borrowers may.
        Evicted => Failed,
        /// What the other side said makes no sense.
        Protocol => Failed,
        /// It cannot be changed while frames are on loan.
        OnLoan => Failed,
        /// The other side did not answer in time.
        TimedOut => Failed,
        /// Anything else that the system reported.
        Io => Failed,
    }
    io: |source| match source.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
        _ => ErrorKind::Io,
    },
}

impl ErrorKind {
    /// Whether a borrower that has come to this may succeed with the same options later: when the lender
    /// starts again, or has room.
    pub fn may_pass(self) -> bool {
        use ErrorKind::{Died, Evicted, NoLender, NoRoom, TimedOut};
        matches!(self, NoLender | NoRoom | TimedOut | Died | Evicted)
    }
}
