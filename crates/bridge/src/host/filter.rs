//! A socket that hears of the stations of one bridge alone: those of others, and the neighbours of
//! the IP protocols, would each wake whoever waits for it.

use std::io;
use std::os::fd::AsFd as _;

use libc::{
    BPF_ABS, BPF_H, BPF_IMM, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MISC, BPF_RET,
    BPF_TAX, BPF_W, RTM_DELNEIGH, RTM_NEWNEIGH, sock_filter,
};

use super::neighbour::NDA_MASTER;

/// Where a message's kind is (struct nlmsghdr).
const KIND: u32 = 4;
/// Where a neighbour's attributes begin, behind struct nlmsghdr and struct ndmsg.
const ATTRIBUTES: u32 = 16 + 12;
/// An attribute's value is so far behind its beginning (struct nlattr).
const VALUE: u32 = 4;
/// Finds an attribute (SKF_AD_OFF + SKF_AD_NLATTR).
const FIND: u32 = (-0x1000_i32 + 12).cast_unsigned();

/// Has a socket take messages about neighbours only where they are stations of this bridge. All
/// others it takes as before.
pub(super) fn only_stations_of(socket: &netlink_sys::Socket, bridge: u32) -> io::Result<()> {
    // What is compared was loaded as if it were big-endian.
    let kind = |kind: u16| u32::from(kind.to_be());
    let step = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(BPF_LD | BPF_H | BPF_ABS, 0, 0, KIND),
        step(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, kind(RTM_NEWNEIGH)),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 7, kind(RTM_DELNEIGH)),
        step(BPF_LD | BPF_IMM, 0, 0, ATTRIBUTES),
        step(BPF_LDX | BPF_IMM, 0, 0, u32::from(NDA_MASTER)),
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, FIND),
        step(BPF_JMP | BPF_JEQ | BPF_K, 4, 0, 0),
        step(BPF_MISC | BPF_TAX, 0, 0, 0),
        step(BPF_LD | BPF_W | BPF_IND, 0, 0, VALUE),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, bridge.to_be()),
        step(BPF_RET | BPF_K, 0, 0, u32::MAX),
        step(BPF_RET | BPF_K, 0, 0, 0),
    ];
    bpf::attach_filter(socket.as_fd(), &mut steps)
}
