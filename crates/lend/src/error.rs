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
        /// The lender refused the borrower: too many, no frames left, no version in common.
        Refused => Failed,
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
