//! Whether a device's packets fit into frames.

use frames::FramePool;

use crate::{Device, Error, ErrorKind, Mode, Result, SocketOptions};

/// What the kernel keeps before a received packet in its frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;

/// An Ethernet header with a VLAN tag.
const HEADER: u32 = 18;

/// The largest frame that can be, where pages have 4096 bytes.
const LARGEST: u32 = 4096;

/// Longer packets than a frame takes would be dropped without a word.
pub(super) fn check_mtu(pool: &FramePool, device: &Device, options: &SocketOptions) -> Result<()> {
    if options.rx_size == 0 || options.multi_buffer {
        return Ok(());
    }
    match mtu_past_frames(pool.area().frame_size(), device) {
        None => Ok(()),
        Some(message) => Err(Error::new(ErrorKind::FrameTooSmall, message)),
    }
}

/// If a frame does not hold the longest packet of the device: that, and what would do.
pub(super) fn mtu_past_frames(size: u32, device: &Device) -> Option<String> {
    // Of a device that is gone, something else is said.
    let mtu = device.mtu().ok()?;
    let needed = mtu.saturating_add(HEADER + HEADROOM);
    if needed <= size {
        return None;
    }
    let most = size - HEADER - HEADROOM;
    let larger = if needed <= LARGEST { "use frames of 4096 bytes" } else { "use multi-buffer" };
    Some(format!(
        "{device} has an MTU of {mtu}, for which a frame needs {needed} bytes ({HEADER} for the \
         Ethernet header, {HEADROOM} for the kernel), and frames have {size}: {larger}, or \
         `ip link set {device} mtu {most}`"
    ))
}

/// In zero-copy mode some devices take less into a frame than there is room, and cut longer packets.
/// Where that would happen: the size of frames that it would not happen with. Such sockets are to
/// copy.
///
/// # Errors
/// `FrameTooSmall` if the socket has to be zero-copy.
pub(super) fn needs_for_zero_copy(
    pool: &FramePool,
    device: &Device,
    options: &SocketOptions,
) -> Result<Option<u32>> {
    if options.rx_size == 0
        || options.mode == Mode::Copy
        || !counts_in_kib(device.driver().as_deref())
    {
        return Ok(None);
    }
    let (size, longest) = (pool.area().frame_size(), device.mtu()?.saturating_add(HEADER));
    if longest <= whole_kib(size) {
        return Ok(None);
    }
    if options.mode == Mode::Auto {
        return Ok(Some(LARGEST));
    }
    let fits = |size: u32| whole_kib(size).saturating_sub(HEADER);
    let instead = match size < LARGEST && longest <= whole_kib(LARGEST) {
        true => "use frames of 4096 bytes, or copy mode".to_string(),
        false => format!("use copy mode, or `ip link set {device} mtu {}`", fits(size)),
    };
    let mtu = longest - HEADER;
    Err(Error::new(
        ErrorKind::FrameTooSmall,
        format!(
            "{device} has an MTU of {mtu}, and in zero-copy mode its driver cuts packets to whole \
             KiB: of frames of {size} bytes it uses {}, for an MTU of {}: {instead}",
            whole_kib(size),
            fits(size)
        ),
    ))
}

/// What is used of a frame by hardware that counts in KiB.
fn whole_kib(size: u32) -> u32 {
    size.saturating_sub(HEADROOM) / 1024 * 1024
}

/// Drivers of cards whose register for the length of a receive buffer counts whole KiB
/// (`SRRCTL.BSIZEPKT` of igb, igc and the 82599 of ixgbe). Of frames of 2048 bytes that leaves 1024.
fn counts_in_kib(driver: Option<&str>) -> bool {
    matches!(driver, Some("igb" | "igc" | "ixgbe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_that_counts_in_kib_uses_whole_ones_behind_the_headroom() {
        assert_eq!([2048, 4096].map(whole_kib), [1024, 3072]);
        assert!(counts_in_kib(Some("igb")) && !counts_in_kib(Some("virtio_net")));
        assert!(!counts_in_kib(None), "what is not known is not forbidden");
    }
}
