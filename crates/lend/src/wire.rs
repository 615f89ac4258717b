//! Messages of the handshake on their way: a packet of a `SOCK_SEQPACKET` socket each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The descriptors of a welcome: area, out, back, and what to wait on.
pub(crate) const DESCRIPTORS: usize = 4;

/// Sends a message, with descriptors or with none. It does not wait.
pub(crate) fn send(
    to: impl AsFd,
    message: &(impl IntoBytes + Immutable),
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(message.as_bytes())], &mut ancillary, flags).map(drop)
}

/// What came: nothing more will, or a message with its descriptors, or something that is none.
#[derive(Debug)]
pub(crate) enum Received<T> {
    Closed,
    Message(T, Vec<OwnedFd>),
    Garbage,
}

/// Receives a message of type `T`; it does not wait. Descriptors that come with garbage are closed.
pub(crate) fn receive<T: FromBytes + IntoBytes>(from: impl AsFd) -> Result<Received<T>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut message = T::new_zeroed();
    let size = size_of::<T>();
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(from, &mut [IoSliceMut::new(message.as_mut_bytes())], &mut ancillary, flags)?;
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|each| match each {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(match got.bytes {
        // An empty packet looks the same as the end; whoever sends one gets the end.
        0 => Received::Closed,
        bytes if bytes == size && !cut => Received::Message(message, descriptors),
        _ => Received::Garbage,
    })
}
