//! What can go wrong.

kit::error! {
    /// What sort of error it is, for callers that act on it.
    pub enum ErrorKind {
        /// The text is not a CPU set or a lane layout.
        Syntax => BadInput,
        /// The machine has no such CPU.
        NoSuchCpu => BadInput,
        /// The CPU exists but is offline.
        Offline => BadInput,
        /// This process may not run on the CPU (cpuset, affinity).
        NotAllowed => BadInput,
        /// The map has no such lane.
        NoSuchLane => BadInput,
        /// A lane layout names a CPU twice.
        Overlap => BadInput,
        /// A lane layout leaves out an online CPU.
        Incomplete => BadInput,
        /// A file below `/sys/devices/system` could not be read or makes no sense.
        Sysfs => Failed,
        /// The kernel refused to say which CPUs this process may use.
        Affinity => Failed,
    }
    also offset: Option<usize>,
}

impl Error {
    /// For an error in a text that a user wrote: the byte offset in it where the trouble starts.
    pub fn offset(&self) -> Option<usize> {
        self.offset
    }
    /// With the byte offset of the trouble in the text.
    pub(crate) fn at(self, offset: usize) -> Self {
        Self { offset: Some(offset), ..self }
    }
}
