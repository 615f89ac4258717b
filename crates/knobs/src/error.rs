//! What can go wrong, on both ends of the socket.

use serde::{Deserialize, Serialize};

kit::error! {
    /// The sort of an [`Error`]; on the wire in snake case. An error that the other process sent keeps
    /// its kind and its words.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ErrorKind {
        /// A name that is not lowercase and dotted.
        BadName => Failed,
        /// The name is taken.
        Duplicate => Failed,
        /// The process has no such knob.
        UnknownKnob => BadInput,
        /// The process has no handler for such a request.
        UnknownRequest => Failed,
        /// The process's handler refused the request.
        Refused => Failed,
        /// The knob does not take the value.
        BadValue => BadInput,
        /// Somebody else holds the knob or the setting.
        Held => Failed,
        /// The hold has ended, by its time or by somebody's force.
        NotHeld => Failed,
        /// Somebody else has changed the value, which is left alone.
        Changed => Failed,
        /// What was named is no knob, sysctl or file that can be set and set back.
        BadSubject => BadInput,
        /// This kernel, or this host, has no such setting, or has it no longer.
        NoSetting => HostCannot,
        /// The process cannot read the knob's own value.
        Unreadable => Failed,
        /// The request is not one.
        Malformed => Failed,
        /// The request, or the answer, is longer than it may be.
        TooLarge => Failed,
        /// The other side speaks another version of the protocol.
        Schema => Failed,
        /// The other process belongs to another user, the runtime directory is open to others, or
        /// this user may not read or write something.
        NotPermitted => NotPermitted,
        /// The process is gone.
        Gone => Failed,
        /// The process did not answer in time.
        Timeout => Failed,
        /// The operating system refused something.
        Io => Failed,
        /// The process broke while it answered; it is still there.
        Internal => Failed,
        /// A kind that this version does not know.
        #[serde(other)]
        Other => Failed,
    }
    io: |source| match source.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::NotPermitted
        }
        _ => ErrorKind::Io,
    },
}
