//! A packet, or a part of one, in a frame.

use crate::{Frame, FrameArea};

/// A packet in a frame, or a part of a packet that lies in several.
#[derive(Debug)]
pub struct Packet {
    /// The frame.
    pub frame: Frame,
    /// Where in the frame it starts, in bytes.
    pub offset: u32,
    /// Its bytes, at least 1; offset and length together are at most the frame's size.
    pub len: u32,
    /// The packet goes on in the next one.
    pub more: bool,
}

impl Packet {
    /// A whole packet of `len` bytes at the start of a frame.
    pub fn new(frame: Frame, len: u32) -> Self {
        Self { frame, offset: 0, len, more: false }
    }

    /// The packet's bytes.
    ///
    /// # Panics
    /// If offset and length are not inside the frame.
    pub fn bytes<'a>(&'a self, area: &'a FrameArea) -> &'a [u8] {
        &area.bytes(&self.frame)[self.offset as usize..][..self.len as usize]
    }

    /// The packet's bytes, to be written.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    pub fn bytes_mut<'a>(&'a mut self, area: &'a FrameArea) -> &'a mut [u8] {
        &mut area.bytes_mut(&mut self.frame)[self.offset as usize..][..self.len as usize]
    }
}
