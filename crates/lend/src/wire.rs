//! Messages of the handshake on their way: a packet of a `SOCK_SEQPACKET` socket each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The descriptors of a welcome: area, out, back.
pub(crate) const DESCRIPTORS: usize = 3;

/// What is polled of a borrower's socket.
pub(crate) const EVENTS: PollFlags = PollFlags::IN.union(PollFlags::RDHUP);

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

/// The message of type `T` that nothing may come with, which stays where it is; it does not wait.
///
/// To take a message is to wake those who wait for room at the other end, and to drop what comes
/// with it: what there is to do at the end of a stranger's file can take for ever. A message with
/// descriptors is garbage. A look at it for which no room for descriptors is given says that there
/// are some, and takes none.
pub(crate) fn peek<T: FromBytes + IntoBytes>(from: impl AsFd) -> Result<Received<T>> {
    let mut none = RecvAncillaryBuffer::default();
    let mut message = T::new_zeroed();
    let size = size_of::<T>();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let got = recvmsg(from, &mut [IoSliceMut::new(message.as_mut_bytes())], &mut none, flags)?;
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(match got.bytes {
        _ if cut => Received::Garbage,
        // An empty packet looks the same as the end; whoever sends one gets the end.
        0 => Received::Closed,
        bytes if bytes == size => Received::Message(message, Vec::new()),
        _ => Received::Garbage,
    })
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
        0 => Received::Closed,
        bytes if bytes == size && !cut => Received::Message(message, descriptors),
        _ => Received::Garbage,
    })
}

/// Both ends of a connection as between a lender and a borrower, for tests.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .expect("a pair of sockets")
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, Timespec, poll};
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn descriptors_of_a_message_that_should_have_none_are_not_taken() {
        let (ours, theirs) = pair();
        let (reader, writer) = pipe().unwrap();
        send(&theirs, &7_u64, &[writer.as_fd()]).unwrap();
        drop(writer);
        let is_over = || {
            let mut fds = [PollFd::new(&reader, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap();
            fds[0].revents().contains(PollFlags::HUP)
        };
        for _ in 0..2 {
            assert!(matches!(peek::<u64>(&ours), Ok(Received::Garbage)));
            assert!(!is_over(), "the last handle of a stranger's file was closed here");
        }
        drop(ours);
        assert!(is_over());
    }

    #[test]
    fn a_message_that_is_peeked_is_there_to_be_received() {
        let (ours, theirs) = pair();
        send(&theirs, &7_u64, &[]).unwrap();
        for _ in 0..2 {
            assert!(matches!(peek::<u64>(&ours), Ok(Received::Message(7, _))));
            assert!(matches!(peek::<u32>(&ours), Ok(Received::Garbage)));
        }
        assert!(matches!(receive::<u64>(&ours), Ok(Received::Message(7, _))));
        assert_eq!(peek::<u64>(&ours).unwrap_err(), Errno::AGAIN);
        drop(theirs);
        assert!(matches!(peek::<u64>(&ours), Ok(Received::Closed)));
    }
}
