//! What can go wrong.

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// There is no device of this name.
        NoDevice => BadInput,
        /// The device is not a bridge.
        NotABridge => BadInput,
        /// Another process accelerates the bridge already.
        Busy => Failed,
        /// A value that cannot be used.
        Invalid => BadInput,
        /// The caller may not.
        NotPermitted => NotPermitted,
        /// The kernel lacks what is needed.
        Unsupported => HostCannot,
        /// Netlink notifications were lost: what is known of the kernel's state is out of date.
        Overrun => Failed,
        /// Anything else that the system reported.
        Io => Failed,
    }
    io,
}
