//! What the fast path counts.

use crate::Reason;

/// What the fast path has done since it started, and what it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent straight into the peer's namespace.
    pub straight: u64,
    /// Packets sent through the port's own queue.
    pub redirected: u64,
    /// Bytes of both, with Ethernet headers; a GSO packet counts once.
    pub bytes: u64,
    /// Copies of packets that were made to keep the kernel's entries fresh.
    pub copies: u64,
    /// Stations that the packet path knows.
    pub stations: u64,
    /// Stations that it could use and has no room for.
    pub left_out: u64,
    /// Times that notifications were lost, and the mirror rebuilt.
    pub overruns: u64,
    pub(crate) kernel: Vec<u64>,
}

impl Stats {
    /// Adds what another has done and knows.
    pub(crate) fn add(&mut self, other: &Stats) {
        let pairs = [
            (&mut self.straight, other.straight),
            (&mut self.redirected, other.redirected),
            (&mut self.bytes, other.bytes),
            (&mut self.copies, other.copies),
            (&mut self.stations, other.stations),
            (&mut self.left_out, other.left_out),
            (&mut self.overruns, other.overruns),
        ];
        for (sum, count) in pairs {
            *sum = sum.wrapping_add(count);
        }
        self.kernel.resize(Reason::ALL.len(), 0);
        for (sum, count) in self.kernel.iter_mut().zip(&other.kernel) {
            *sum = sum.wrapping_add(*count);
        }
    }

    /// What has been counted, without what is known at the moment.
    pub(crate) fn counted(self) -> Stats {
        Stats { stations: 0, left_out: 0, ..self }
    }

    /// Packets forwarded by the fast path.
    pub fn forwarded(&self) -> u64 {
        self.straight.wrapping_add(self.redirected)
    }

    /// Packets left to the kernel path for this reason.
    pub fn kernel(&self, reason: Reason) -> u64 {
        self.kernel.get(reason as usize).copied().unwrap_or(0)
    }

    /// Packets left to the kernel path.
    pub fn left_to_kernel(&self) -> u64 {
        self.kernel.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}
