//! Netlink attributes by number, where no crate has them as types, and where only a few of many
//! matter: what is unknown is skipped and cannot fail.

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator, parse_u32,
};

/// The attributes in these bytes: number and value, until the end or the first that is cut off.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|attribute| {
        let (kind, length) = (attribute.kind(), attribute.value_length());
        (kind, &attribute.into_inner()[NLA_HEADER_SIZE..NLA_HEADER_SIZE + length])
    })
}

/// The attributes that follow a header of this length; none if the message is shorter.
pub fn attributes_after(header: usize, message: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(message.get(header..).unwrap_or_default())
}

/// The value of the first attribute with this number.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The same of those that follow a header of this length.
pub fn find_after(header: usize, message: &[u8], kind: u16) -> Option<&[u8]> {
    find(message.get(header..).unwrap_or_default(), kind)
}

/// A number in the host's byte order.
pub fn number(value: &[u8]) -> Option<u32> {
    parse_u32(value).ok()
}

/// A number in network byte order, as netfilter has them.
pub fn big_endian(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// A string, without the NUL that ends it.
pub fn string(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// An attribute with a number in the host's byte order.
pub fn number_attribute(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

/// An attribute with a string.
pub fn string_attribute(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, [value.as_bytes(), &[0]].concat())
}

/// An attribute with attributes inside.
pub fn nested_attribute(kind: u16, inside: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind | NLA_F_NESTED, emitted(&inside))
}

/// A message: a header and its attributes.
pub fn message(header: &[u8], attributes: &[DefaultNla]) -> Vec<u8> {
    [header, &emitted(&attributes)].concat()
}

/// The bytes of a part of a message.
pub fn emitted(part: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; part.buffer_len()];
    part.emit(&mut bytes);
    bytes
}
