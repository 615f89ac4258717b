"""What stands where in the shared memories and in the messages of the handshake: versions 2 and 3.

All numbers are in the machine's byte order. A test compares this with the lender's own layout.
"""

import enum
import struct

import numpy as np

MAGIC = struct.unpack("=I", b"CLnd")[0]
"""Starts all messages of the handshake."""

VERSIONS = (2, 3)
"""The versions that this package speaks, oldest and newest."""

VERSION_GROUPS = 3
"""The first version that has groups."""

LINE = 128
"""Bytes of a block that one side writes."""

SLOTS_MIN = 32
"""The fewest slots of a ring."""

HELLO_MIRROR = 1
"""In the hello's flags: every packet, beside those who share them out among themselves."""

GROUP_SHIFT = 16
"""Where in the flags of hello and welcome the group is."""

LOAN_MORE = 1
"""In a loan's flags: the packet goes on in the next loan."""

LOAN_SHARED = 2
"""In a loan's flags: other borrowers have the frame too."""

LOAN_STAMPED = 4
"""In a loan's flags: its time is that of its packet alone."""

ASLEEP = 0
"""Where the word ``asleep`` is in the memory back."""


class Status(enum.IntEnum):
    """How a handshake went."""

    WELCOME = 0
    VERSION = 1
    INVALID = 2
    FULL = 3
    QUOTA = 4
    BUSY = 5
    MIRROR = 6
    CLOSING = 7
    DENIED = 8


class Ending(enum.IntEnum):
    """Why nothing will follow."""

    UNSAID = 0
    """The lender did not say that it ends: it was killed, or it crashed."""
    LENDER = 1
    """The lender ended."""
    OFFENCE = 2
    """This borrower was disconnected for what it did."""
    EVICTED = 3
    """This borrower was disconnected: it had its quota, and returned nothing for too long."""


MAPPED = np.dtype([("magic", "u4")])
"""What a borrower says once it has mapped what came with the welcome."""

HELLO = np.dtype(
    [
        ("magic", "u4"),
        ("version_min", "u2"),
        ("version_max", "u2"),
        ("flags", "u4"),
        ("quota", "u4"),
        ("name", "S48"),
    ]
)
"""What a borrower says first."""

WELCOME = np.dtype(
    [
        ("magic", "u4"),
        ("version", "u2"),
        ("status", "u2"),
        ("frame_size", "u4"),
        ("frames", "u4"),
        ("area_len", "u8"),
        ("quota", "u4"),
        ("slots", "u4"),
        ("channels", "u4"),
        ("flags", "u4"),
        ("out_len", "u8"),
        ("back_len", "u8"),
        ("version_min", "u2"),
        ("version_max", "u2"),
        ("reserved", "u4"),
        ("reason", "S96"),
    ]
)
"""What the lender answers."""

LOAN = np.dtype(
    [
        ("addr", "u8"),
        ("len", "u4"),
        ("token", "u4"),
        ("flags", "u4"),
        ("hash", "u4"),
        ("time", "u8"),
    ]
)
"""One frame on loan: a slot of a ring in the memory out."""

RECEIVED = np.dtype(
    [
        ("addr", "i8"),
        ("len", "u4"),
        ("token", "u4"),
        ("flags", "u4"),
        ("hash", "u4"),
        ("time", "i8"),
        ("channel", "u4"),
        ("reserved", "u4"),
    ]
)
"""A loan as it is received: beside what is in the ring, the channel that it came in.

``addr`` and ``len`` say where in the area it lies; ``token`` goes back; ``flags`` has
:data:`LOAN_MORE`, :data:`LOAN_SHARED` and :data:`LOAN_STAMPED`; ``hash`` is the same for all packets
of a flow, in both directions; ``time`` is when its packet came, if it is stamped, and else when the
lender took its batch from its queue, in nanoseconds since 1970
(``loans["time"].astype("M8[ns]")`` for numpy's dates). What is 64 bits wide is signed here, as
numpy has indices and dates.
"""

OUT = np.dtype(
    [("producer", "u4"), ("closed", "u4"), ("dropped", "u8"), ("ended", "u4")], align=True
)
"""At the start of a channel in the memory out; slots follow after LINE bytes."""

BACK = np.dtype([("producer", "u4")])
"""At the start of a channel in the memory back; slots of 4 bytes follow after LINE bytes."""


def out_channel(slots: int, channel: int) -> int:
    """Where a channel is in the memory out; of the number of channels: how long that memory is."""
    return channel * (LINE + slots * LOAN.itemsize)


def back_channel(slots: int, channel: int) -> int:
    """Where a channel is in the memory back; of the number of channels: its length."""
    return LINE + channel * (LINE + slots * 4)
