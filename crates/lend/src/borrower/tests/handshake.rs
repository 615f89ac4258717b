//! How a connection begins, or does not.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixDatagram, UnixListener};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use zerocopy::FromZeros as _;

use super::*;
use crate::layout::{HELLO_MIRROR, Status};

#[test]
fn a_hello_says_what_is_asked_for_and_the_welcome_says_what_is_given() {
    let options = BorrowerOptions::default().name("é".repeat(24)).quota(7).mirror(true);
    let serve = |socket| {
        let lender = Lender::new(socket);
        lender.take_in();
        lender.hello
    };
    let (borrower, hello) = with(&options, serve);
    let borrower = borrower.expect("welcome");
    assert_eq!((hello.magic, hello.version_min, hello.version_max), (MAGIC, 2, 3));
    assert_eq!((hello.flags, hello.quota), (HELLO_MIRROR, 7));
    assert_eq!(hello.name, "é".repeat(24).as_bytes());
    assert_eq!((borrower.quota(), borrower.channels(), borrower.is_mirror()), (24, 2, true));
    assert_eq!((borrower.frames(), borrower.frame_size()), (FRAMES, FRAME));
    let in_group = BorrowerOptions::default().group(513);
    let (_, hello) = with(&in_group, serve);
    assert_eq!((hello.version_min, hello.version_max, hello.flags), (3, 3, 513 << 16));
    assert_eq!(borrower.device(), None, "a lender of version 2 does not say");
    let (borrower, ()) = with(&options, |socket| {
        let lender = Lender::new(socket);
        let mut welcome = Welcome { version: 3, ..lender.welcome() };
        // Somebody's text: nothing in it moves a cursor.
        welcome.reason[..7].copy_from_slice(b"eth\x1b[2m");
        lender.take_in_with(&welcome);
    });
    assert_eq!(borrower.expect("welcome").device(), Some("eth?[2m"));
    let (unnamed, hello) = with(&BorrowerOptions::default(), serve);
    assert!(unnamed.is_ok() && hello.name[0] != 0, "the process's name");
}

#[test]
fn what_cannot_be_connected_to_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let stream = dir.path().join("stream");
    let _stream = UnixListener::bind(&stream).unwrap();
    let datagram = dir.path().join("datagram");
    let _datagram = UnixDatagram::bind(&datagram).unwrap();
    let long = dir.path().join("x".repeat(108));
    for (path, kind, part) in [
        (dir.path().join("nothing"), ErrorKind::NoLender, "no such socket"),
        (file, ErrorKind::NoLender, "nobody listens"),
        (stream, ErrorKind::Protocol, "another kind of socket"),
        (datagram, ErrorKind::Protocol, "another kind of socket"),
        (long, ErrorKind::Invalid, "no path of a socket"),
    ] {
        let error = Borrower::connect(&path, &BorrowerOptions::default()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let said = error.to_string();
        assert!(said.contains(part) && said.contains(path.to_str().unwrap()), "{said}");
    }
    for name in ["x".repeat(49), "a\0b".into()] {
        let options = BorrowerOptions::default().name(name);
        let error = Borrower::connect(dir.path(), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[test]
fn a_lender_that_says_nothing_is_waited_for_no_longer_than_asked() {
    let timeout = Duration::from_millis(20);
    let options = BorrowerOptions::default().timeout(timeout);
    let (_dir, path, listener) = listener();
    let error = Borrower::connect(&path, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("did not answer within 20ms"), "{error}");
    // Nor one that does not accept: its queue is full.
    let mut waiting = Vec::new();
    let error = loop {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap();
        match rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()) {
            Ok(()) => waiting.push(socket),
            Err(Errno::AGAIN) => break Borrower::connect(&path, &options).unwrap_err(),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("did not accept within 20ms"), "{error}");
    drop(listener);
}

#[test]
fn a_refusal_gives_the_lenders_reason_and_what_is_no_welcome_is_not_believed() {
    type Change = fn(&mut Welcome);
    let refused: Change = |welcome| {
        welcome.status = Status::Quota as u16;
        welcome.reason[..10].copy_from_slice(b"too\x1b many!");
    };
    let cases: [(Change, ErrorKind, &str); 15] = [
        (refused, ErrorKind::NoRoom, "the lender refuses: too? many!"),
        (|w| w.status = Status::Denied as u16, ErrorKind::Refused, "the lender refuses, status 8"),
        (|w| w.status = 99, ErrorKind::Refused, "the lender refuses, status 99"),
        (|w| w.magic = 1, ErrorKind::Protocol, "does not start as a lender's"),
        (|w| w.version = 0, ErrorKind::Protocol, "version 0"),
        (|w| w.version = 1, ErrorKind::Protocol, "version 1"),
        (|w| w.frame_size = 1000, ErrorKind::Protocol, "frames of 1000 bytes"),
        (|w| w.frames = 0, ErrorKind::Protocol, "0 frames"),
        (|w| w.slots = 48, ErrorKind::Protocol, "48 slots"),
        (|w| w.slots = 1 << 31, ErrorKind::Protocol, "2147483648 slots"),
        (|w| w.channels = 0, ErrorKind::Protocol, "0 channels"),
        (|w| w.channels = u32::MAX, ErrorKind::Protocol, "4294967295 channels"),
        (|w| w.quota = 33, ErrorKind::Protocol, "33 loans"),
        (|w| w.out_len -= 1, ErrorKind::Protocol, "2303 bytes of memory where 2304"),
        (|w| w.area_len += 1, ErrorKind::Protocol, "'area' with fewer than 32769 bytes"),
    ];
    for (change, kind, part) in cases {
        let (borrower, ()) = with(&BorrowerOptions::default(), move |socket| {
            let lender = Lender::new(socket);
            let mut welcome = lender.welcome();
            change(&mut welcome);
            lender.answer(&welcome, &lender.descriptors());
        });
        let error = borrower.map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[test]
fn descriptors_that_are_missing_or_not_sealed_are_not_used() {
    let (borrower, ()) = with(&BorrowerOptions::default(), |socket| {
        let lender = Lender::new(socket);
        lender.answer(&lender.welcome(), &lender.descriptors()[..2]);
    });
    assert!(borrower.map(drop).unwrap_err().to_string().contains("it sent 2 descriptors"));
    for at in 0..3 {
        let (borrower, ()) = with(&BorrowerOptions::default(), move |socket| {
            let lender = Lender::new(socket);
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = memfd_create(c"loose", flags).unwrap();
            ftruncate(&fd, 1 << 20).unwrap();
            let mut descriptors = lender.descriptors();
            descriptors[at] = fd.as_fd();
            lender.answer(&lender.welcome(), &descriptors);
        });
        let error = borrower.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("which is not sealed"), "{at}: {error}");
    }
}

#[test]
fn a_refusal_is_heard_also_from_a_lender_that_did_not_listen() {
    let (borrower, ()) = with(&BorrowerOptions::default(), |socket| {
        // The hello is there, and is not read: the connection is reset.
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
        let mut refusal =
            Welcome { magic: MAGIC, status: Status::Busy as u16, ..Welcome::new_zeroed() };
        refusal.reason[..5].copy_from_slice(b"later");
        wire::send(&socket, &refusal, &[]).unwrap();
    });
    let error = borrower.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRoom);
    assert!(error.to_string().ends_with("the lender refuses: later"), "{error}");
    for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let (borrower, ()) = with(&BorrowerOptions::default(), move |socket| {
            poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
            rustix::io::write(&socket, answer).unwrap();
        });
        let error = borrower.map(drop).unwrap_err();
        let expected = if answer.is_empty() { ErrorKind::Died } else { ErrorKind::Protocol };
        assert_eq!(error.kind(), expected, "{error}");
    }
}
