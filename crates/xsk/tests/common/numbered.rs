//! Packets that say their number, and whose every byte follows from it.

/// The Ethernet type for local experiments: nobody else on a link sends it.
pub(crate) const EXPERIMENT: u16 = 0x88b5;

/// A packet of `len` bytes, at least 22.
pub(crate) fn numbered(from: [u8; 6], to: [u8; 6], number: u64, len: usize) -> Vec<u8> {
    let mut packet = Vec::with_capacity(len);
    packet.extend(to);
    packet.extend(from);
    packet.extend(EXPERIMENT.to_be_bytes());
    packet.extend(number.to_be_bytes());
    packet.extend((0..).map(|i: u64| (i ^ number) as u8).take(len.saturating_sub(22)));
    packet
}

/// The number of a packet that [`numbered`] has made, every byte of it checked.
pub(crate) fn number(packet: &[u8]) -> u64 {
    let number = u64::from_be_bytes(packet[14..22].try_into().expect("eight bytes"));
    for (i, byte) in packet[22..].iter().enumerate() {
        assert_eq!(*byte, (i as u64 ^ number) as u8, "byte {} of packet {number}", i + 22);
    }
    number
}

/// A length for each number, so that lengths are checked too.
pub(crate) fn length(number: u64) -> usize {
    60 + number as usize % 1000
}
