//! Bytes with open files beside them, over a Unix stream socket.
//!
//! The kernel takes at most [`BATCH`] files with one message, and each message needs a byte. So a text
//! with more files goes out as some messages of one byte, each with a batch, before the rest of it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Result;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The kernel's SCM_MAX_FD.
pub(crate) const BATCH: usize = 253;

/// Sends some of `bytes`, which are not empty, with the next batch of `files`, which then leave the
/// list and are closed here. How many bytes went.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], files: &mut Vec<OwnedFd>) -> Result<usize> {
    let batch: Vec<_> = files.iter().take(BATCH).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let count = batch.len();
    if count > 0 {
        // The space is for as many.
        ancillary.push(SendAncillaryMessage::ScmRights(&batch));
    }
    let bytes = if files.len() > count { &bytes[..1] } else { bytes };
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    files.drain(..count);
    Ok(sent)
}

/// Receives bytes, and adds the files that came beside them. How many bytes; 0 at the end.
pub(crate) fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got =
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            files.extend(came);
        }
    }
    Ok(got.bytes)
}
