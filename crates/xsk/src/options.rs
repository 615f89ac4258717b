//! How a socket is made, and what of it the kernel took.

use derive_setters::Setters;
use std::fmt;

/// How packets get from frames to the device and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy where the device can, else copy.
    #[default]
    Auto,
    /// The kernel copies between frames and its own buffers; any device.
    Copy,
    /// The device reads and writes the frames, or an error.
    ZeroCopy,
}

/// Busy polling: the device's packets are processed in this socket's calls rather than in
/// interrupts (`SO_PREFER_BUSY_POLL`). In zero-copy mode on virtio_net, igb and igc interrupts go on
/// beside it: a socket that puts them off sends nothing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a call that finds nothing polls, in microseconds, at least 1.
    pub microseconds: u32,
    /// The most packets of one poll, 1 to 65535. More than 64 needs `CAP_NET_ADMIN`.
    pub budget: u32,
}

/// How a socket is made.
///
/// Ring sizes are powers of two, up to 2^30.
#[derive(Clone, Debug, PartialEq, Eq, Setters)]
#[non_exhaustive]
pub struct SocketOptions {
    /// Descriptors of the receive ring; 0 for a socket that does not receive.
    pub rx_size: u32,
    /// Descriptors of the transmit ring; 0 for a socket that does not send.
    pub tx_size: u32,
    /// Frames of the fill ring. The kernel needs the ring also for a socket that does not receive.
    pub fill_size: u32,
    /// Frames of the completion ring. The kernel needs it also for a socket that does not send.
    pub completion_size: u32,
    /// Copy or zero-copy.
    pub mode: Mode,
    /// The kernel says when it has to be woken (`XDP_USE_NEED_WAKEUP`), else it is woken always.
    pub need_wakeup: bool,
    /// Busy polling, if wanted.
    pub busy_poll: Option<BusyPoll>,
    /// A packet may lie in several frames (`XDP_USE_SG`, Linux 6.6).
    pub multi_buffer: bool,
    /// In copy mode, the most packets that one call sends (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17):
    /// 32 to `tx_size`. Where the kernel lacks it, 32 are sent in a call;
    /// [`InForce::tx_budget`] says which it is.
    ///
    /// Who posts no more than this between two calls finds the ring empty after each, and all
    /// frames back where the device is as quick: the same few frames, still warm, are sent again.
    /// With more the ring fills up, and every frame of it is cold when its turn comes.
    pub tx_budget: Option<u32>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            rx_size: 2048,
            tx_size: 2048,
            fill_size: 4096,
            completion_size: 2048,
            mode: Mode::Auto,
            need_wakeup: true,
            busy_poll: None,
            multi_buffer: false,
            tx_budget: None,
        }
    }
}

/// What the kernel took of a socket's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The device reads and writes the frames; false: the kernel copies.
    pub zero_copy: bool,
    /// The kernel says when it has to be woken.
    pub need_wakeup: bool,
    /// Busy polling.
    pub busy_poll: Option<BusyPoll>,
    /// A packet may lie in several frames.
    pub multi_buffer: bool,
    /// In copy mode, the most packets that one call sends; 32 on kernels where it cannot be set.
    pub tx_budget: u32,
    /// It copies because in zero-copy mode the device would cut packets that fit into a frame: the
    /// size of frames in bytes with which it would not, if the MTU stays.
    pub needs_for_zero_copy: Option<u32>,
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.zero_copy { "zero-copy" } else { "copy" })?;
        if !self.zero_copy {
            write!(f, ", {} packets a send call", self.tx_budget)?;
        }
        if self.need_wakeup {
            f.write_str(", need-wakeup")?;
        }
        if let Some(BusyPoll { microseconds, budget }) = self.busy_poll {
            write!(f, ", busy poll {microseconds} us, budget {budget}")?;
        }
        if self.multi_buffer {
            f.write_str(", multi-buffer")?;
        }
        if let Some(size) = self.needs_for_zero_copy {
            write!(f, ", zero-copy needs frames of {size} bytes")?;
        }
        Ok(())
    }
}
