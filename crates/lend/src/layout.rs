//! What stands where in the shared memories, and the messages of the handshake: versions 2 and 3.
//!
//! All numbers are in the machine's byte order. `clients/c/cachelane_lend.h` says the same in C, and
//! a test compares the two field by field. What it all means is in docs/lend-protocol.md.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Starts all of them: the bytes `CLnd`.
pub const MAGIC: u32 = u32::from_ne_bytes(*b"CLnd");

/// The versions that this crate speaks, oldest and newest.
pub const VERSIONS: (u16, u16) = (2, 3);

/// The first version that has groups, and whose welcome names the device.
pub const VERSION_GROUPS: u16 = 3;

/// Bytes of a block that one side writes: two cache lines, since prefetchers fetch pairs.
pub const LINE: usize = 128;

/// In [`Hello::flags`]: every packet, beside those who share them out among themselves.
pub const HELLO_MIRROR: u32 = 1;

/// Where in [`Hello::flags`] and [`Welcome::flags`] the group is: 16 bits.
pub const GROUP_SHIFT: u32 = 16;

/// In [`Loan::flags`]: the packet goes on in the next loan of the channel.
pub const LOAN_MORE: u32 = 1;

/// In [`Loan::flags`]: other borrowers have the frame too.
pub const LOAN_SHARED: u32 = 2;

/// In [`Loan::flags`]: its time is that of its packet alone.
pub const LOAN_STAMPED: u32 = 4;

/// What a borrower says first.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u32,
    /// The oldest version that it speaks.
    pub version_min: u16,
    /// The newest version that it speaks.
    pub version_max: u16,
    /// [`HELLO_MIRROR`], and the group from [`GROUP_SHIFT`] on.
    pub flags: u32,
    /// The most loans that it wants to have at a time in each channel; 0 leaves it to the lender.
    pub quota: u32,
    /// What it is called in the lender's tables: UTF-8, zeros after it.
    pub name: [u8; 48],
}

/// What the lender answers. With status [`Status::Welcome`] three descriptors come with it: the
/// memories area, out and back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    /// [`MAGIC`].
    pub magic: u32,
    /// The version that is spoken from now on; 0 with a refusal.
    pub version: u16,
    /// A [`Status`].
    pub status: u16,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// How many frames there are.
    pub frames: u32,
    /// Bytes of the area to map.
    pub area_len: u64,
    /// The most loans at a time in each channel.
    pub quota: u32,
    /// Slots of each ring, a power of two.
    pub slots: u32,
    /// How many channels there are.
    pub channels: u32,
    /// [`HELLO_MIRROR`], and the group from [`GROUP_SHIFT`] on.
    pub flags: u32,
    /// Bytes of the memory out.
    pub out_len: u64,
    /// Bytes of the memory back.
    pub back_len: u64,
    /// The oldest version that the lender speaks.
    pub version_min: u16,
    /// The newest version that the lender speaks.
    pub version_max: u16,
    /// 0.
    pub reserved: u32,
    /// With a refusal, why, for people; else the device that the lender receives from, if it says so. UTF-8,
    /// zeros after it.
    pub reason: [u8; 96],
}

/// What a borrower says once it has mapped what came with the welcome. The lender answers with a
/// first wake-up, once it lends to it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Mapped {
    /// [`MAGIC`].
    pub magic: u32,
}

/// How a handshake went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum Status {
    /// It is a borrower now.
    Welcome = 0,
    /// No version in common.
    Version = 1,
    /// The hello is not one.
    Invalid = 2,
    /// There are as many borrowers as there can be.
    Full = 3,
    /// There are not frames enough for such a quota.
    Quota = 4,
    /// Too many handshakes at the moment; later.
    Busy = 5,
    /// No mirrors, and no groups but 0, while a ledger is kept for each borrower.
    Mirror = 6,
    /// The lender is about to end.
    Closing = 7,
    /// Its user may not have that: a mirror or a group, where borrowers have areas of their own.
    Denied = 8,
}

/// One frame on loan: a slot of a ring in the memory out.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Loan {
    /// Where the packet, or this part of it, begins, in bytes from the start of the area.
    pub addr: u64,
    /// Its bytes, at least 1; all of them in one frame.
    pub len: u32,
    /// What goes back, in the channel that this came in.
    pub token: u32,
    /// [`LOAN_MORE`], [`LOAN_SHARED`], [`LOAN_STAMPED`].
    pub flags: u32,
    /// The same for all packets of a flow, in both directions; by what borrowers share them out.
    pub hash: u32,
    /// When the packet came, if it is stamped; else when the lender took its batch from the queue.
    /// Nanoseconds since 1970 (`CLOCK_REALTIME`).
    pub time: u64,
}

/// What stands at the start of a channel in the memory out; the rest of its [`LINE`] is 0.
/// Slots follow.
#[derive(Debug)]
#[repr(C)]
pub struct OutHeader {
    /// How many loans were ever put into the ring, modulo 2^32.
    pub producer: u32,
    /// Not 0 once nothing will follow.
    pub closed: u32,
    /// Packets of this borrower that were dropped because it had its quota.
    pub dropped: u64,
    /// In the first channel: why nothing will follow, an [`Ending`]. Written before `closed`, and before
    /// the socket ends.
    pub ended: u32,
}

/// Why nothing will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ending {
    /// It was not said: something follows, or the lender was killed.
    Unsaid = 0,
    /// The lender ended.
    Lender = 1,
    /// This borrower was disconnected for what it did.
    Offence = 2,
    /// This borrower was evicted: it had its quota, and returned nothing.
    Evicted = 3,
}

/// What stands at the start of a channel in the memory back; the rest of its [`LINE`] is 0.
/// Slots follow: a token each, as `u32`.
#[derive(Debug)]
#[repr(C)]
pub struct BackHeader {
    /// How many tokens were ever put into the ring, modulo 2^32.
    pub producer: u32,
}

/// Where the channels are, which follows from how many there are and how many slots they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many channels.
    pub channels: u32,
    /// Slots of each ring: a power of two.
    pub slots: u32,
}

impl Layout {
    /// The fewest slots of a ring: as many tokens as fill a [`LINE`].
    pub const SLOTS_MIN: u32 = 32;

    /// Rings for so many channels and loans.
    ///
    /// # Panics
    /// If `quota` is more than 2^31.
    pub fn new(channels: u32, quota: u32) -> Self {
        Self { channels, slots: quota.next_power_of_two().max(Self::SLOTS_MIN) }
    }

    /// Where a channel is in the memory out.
    pub fn out_channel(&self, channel: u32) -> usize {
        channel as usize * (LINE + self.slots as usize * size_of::<Loan>())
    }

    /// Bytes of the memory out.
    pub fn out_len(&self) -> usize {
        self.out_channel(self.channels)
    }

    /// Where the word `asleep` is in the memory back: its first [`LINE`] is the borrower's.
    pub const ASLEEP: usize = 0;

    /// Where a channel is in the memory back.
    pub fn back_channel(&self, channel: u32) -> usize {
        LINE + channel as usize * (LINE + self.slots as usize * size_of::<u32>())
    }

    /// Bytes of the memory back.
    pub fn back_len(&self) -> usize {
        self.back_channel(self.channels)
    }
}

const _: () = {
    assert!(size_of::<Hello>() == 64);
    assert!(size_of::<Welcome>() == 160);
    assert!(size_of::<Loan>() == 32);
    assert!(size_of::<OutHeader>() <= LINE && size_of::<BackHeader>() <= LINE);
};
