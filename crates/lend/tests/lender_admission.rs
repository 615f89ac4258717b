//! Who becomes a borrower, and who does not and why.

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cachelane_lend::layout::{Hello, Status, Welcome};
use cachelane_lend::{Distributor, ErrorKind, Lender, LenderOptions};
use common::*;
use frames::{Accounting, AreaOptions, FrameArea, FramePool, PoolOptions};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use zerocopy::IntoBytes as _;

fn is(welcome: &Welcome, status: Status, text: &str) {
    assert_eq!((welcome.status, &*reason(welcome)), (status as u16, text));
    assert_eq!((welcome.version, welcome.version_min, welcome.version_max), (0, 2, 3));
}

#[test]
fn every_refusal_says_why_and_is_counted_by_its_reason() {
    let mut rig = Rig::new(128, 2, |options| {
        (options.quota, options.reserve, options.borrowers) = (32, 20, 2);
    });
    let version = |min, max| {
        let mut hello = hello("old", 0, false);
        (hello.version_min, hello.version_max) = (min, max);
        hello
    };
    let said = "the borrower speaks versions 4 to 7, the lender 2 to 3";
    is(&rig.refusal(&version(4, 7)), Status::Version, said);
    let said = "the borrower speaks versions 1 to 1, the lender 2 to 3";
    is(&rig.refusal(&version(1, 1)), Status::Version, said);
    is(&rig.refusal(&version(3, 2)), Status::Invalid, "that is not a hello");

    // 108 may be lent, in two channels.
    let big = rig.connect("big", 32);
    let said = "asked for 46 loans, 44 are left (a smaller --quota, or more --frames to lend)";
    is(&rig.refusal(&hello("greedy", 23, false)), Status::Quota, said);
    let small = rig.connect("small", 22);
    let said = "there are 2 borrowers, and no more can be";
    is(&rig.refusal(&hello("third", 1, false)), Status::Full, said);
    drop(small);
    rig.until("it has left", |rig| rig.lender.borrowers().len() == 1);
    rig.collect();
    let again = rig.connect("again", 22);

    drop((big, again));
    rig.until("all have left", |rig| rig.lender.borrowers().is_empty());
    rig.set_accounting(Accounting::Ledgers).unwrap();
    let said = "no mirrors while a ledger is kept for each borrower (lend.autorelease is on)";
    is(&rig.refusal(&hello("tap", 1, true)), Status::Mirror, said);
    let refused = rig.lender.refusals();
    assert_eq!((refused.version, refused.invalid, refused.mirror), (2, 1, 1));
    assert_eq!((refused.quota, refused.full), (1, 1));
    let other = refused.busy + refused.closing + refused.late + refused.gone + refused.failed;
    assert_eq!(other, 0);
    rig.close();
}

#[test]
fn what_is_not_a_hello_is_refused() {
    let rig = Rig::new(64, 1, |options| options.quota = 32);
    let whole = hello("x", 0, false);
    let whole = whole.as_bytes();
    let cases: [(&str, Vec<u8>); 5] = [
        ("a byte", vec![1]),
        ("zeros", vec![0; 64]),
        ("a byte less", whole[..63].to_vec()),
        ("a byte more", [whole, &[0]].concat()),
        ("much more", vec![0x55; 60_000]),
    ];
    for (what, bytes) in &cases {
        let socket = dial(&rig.socket).unwrap();
        say(&socket, bytes).unwrap();
        let (welcome, descriptors) = answer(&socket).unwrap().expect(what);
        is(&welcome, Status::Invalid, "that is not a hello");
        assert!(descriptors.is_empty() && answer(&socket).unwrap().is_none(), "{what}");
    }
    assert_eq!(rig.lender.refusals().invalid, cases.len() as u64);
    assert_eq!(rig.lender.counters().joined, 0);
    rig.close();
}

#[test]
fn descriptors_in_a_hello_are_not_taken() {
    let rig = Rig::new(64, 1, |options| options.quota = 32);
    let socket = dial(&rig.socket).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sent = [socket.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sent)));
    let hello = hello("x", 0, false);
    let buffers = [IoSlice::new(hello.as_bytes())];
    match sendmsg(&socket, &buffers, &mut ancillary, SendFlags::NOSIGNAL) {
        // Linux 6.16 and newer do not even carry them.
        Err(Errno::PERM) => {}
        sent => {
            sent.unwrap();
            let (welcome, _) = answer(&socket).unwrap().unwrap();
            is(&welcome, Status::Invalid, "that is not a hello");
        }
    }
    assert_eq!(rig.lender.counters().joined, 0);
    rig.close();
}

#[test]
fn who_says_nothing_makes_room_for_who_speaks() {
    let rig = Rig::new(64, 1, |options| {
        (options.quota, options.handshake) = (32, Duration::from_secs(600));
    });
    // More connections than may be without a hello: those that were silent for longest go.
    let silent: Vec<OwnedFd> = (0..100).map(|_| dial(&rig.socket).unwrap()).collect();
    let borrower = rig.connect("one", 0);
    for socket in &silent[..36] {
        let (welcome, _) = answer(socket).unwrap().unwrap();
        is(&welcome, Status::Busy, "too many connections without a hello");
    }
    // Whoever spoke was accepted as the 101st, and has said hello since.
    assert_eq!(rig.lender.refusals().busy, 37);
    assert_eq!(rig.lender.refusals().total(), 37);
    drop(borrower);
    // The lender ends: the others are told.
    let Rig { pool, cache, lender, distributors, .. } = rig;
    lender.close();
    for socket in &silent[37..] {
        let (welcome, _) = answer(socket).unwrap().unwrap();
        is(&welcome, Status::Closing, "the lender is about to end");
    }
    drop((cache, distributors));
    pool.close().unwrap();
}

#[test]
fn who_says_nothing_is_given_up_in_time() {
    let mut rig = Rig::new(64, 1, |options| {
        (options.quota, options.handshake) = (32, Duration::from_millis(200));
    });
    let start = Instant::now();
    let silent: Vec<OwnedFd> = (0..10).map(|_| dial(&rig.socket).unwrap()).collect();
    for socket in &silent {
        let (welcome, _) = answer(socket).unwrap().unwrap();
        is(&welcome, Status::Invalid, "no hello within 200 ms");
        assert!(start.elapsed() >= Duration::from_millis(200));
        assert!(answer(socket).unwrap().is_none());
    }
    rig.until("all are counted", |rig| rig.lender.refusals().late == 10);
    // Half-way through, and closed.
    for _ in 0..10 {
        drop(dial(&rig.socket).unwrap());
    }
    rig.until("they are gone", |rig| rig.lender.refusals().gone == 10);
    assert_eq!(rig.lender.refusals().total(), 20);
    rig.close();
}

#[test]
fn who_closes_after_the_hello_leaves_nothing_behind() {
    let mut rig = Rig::new(256, 2, |options| options.quota = 32);
    for _ in 0..50 {
        let socket = dial(&rig.socket).unwrap();
        say(&socket, hello("x", 0, false).as_bytes()).unwrap();
        drop(socket);
    }
    rig.until("all were noticed", |rig| {
        let counters = rig.lender.counters();
        counters.left + rig.lender.refusals().total() == 50 && rig.lender.borrowers().is_empty()
    });
    let mut borrower = None;
    rig.until("there is room for a large one", |rig| {
        borrower = RawBorrower::connect(&rig.socket, &hello("x", 32, false)).ok();
        borrower.is_some()
    });
    rig.close();
}

#[test]
fn joins_in_a_second_are_limited() {
    let mut rig = Rig::new(64, 1, |options| {
        (options.quota, options.joins_per_second) = (1, 5);
    });
    let mut joined = Vec::new();
    let start = Instant::now();
    let refusal = loop {
        match RawBorrower::connect(&rig.socket, &hello("x", 1, false)) {
            Ok(borrower) => joined.push(borrower),
            Err(refusal) => break refusal,
        }
    };
    let most = 6 + start.elapsed().as_millis() / 200;
    assert!((5..=most).contains(&(joined.len() as u128)), "{} joined", joined.len());
    is(&refusal, Status::Busy, "too many have joined in the last second: later");
    let mut later = None;
    rig.until("it is later", |rig| {
        later = RawBorrower::connect(&rig.socket, &hello("x", 1, false)).ok();
        later.is_some()
    });
    rig.close();
}

#[test]
fn a_socket_is_for_whom_it_says_and_goes_with_its_lender() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lend");
    let pool = pool(64);
    let open = |mode: u32| Lender::open(&pool, 1, &LenderOptions::new(&path).mode(mode).quota(1));
    for mode in [0o600, 0o660, 0o777] {
        let (lender, distributors) = open(mode).unwrap();
        let file = path.symlink_metadata().unwrap();
        assert!(file.file_type().is_socket());
        assert_eq!(file.mode() & 0o777, mode);
        // A second one does not take it away, nor harm the first.
        let error = open(mode).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().ends_with("another lender has it"), "{error}");
        RawBorrower::connect(&path, &hello("x", 1, false)).unwrap();
        lender.close();
        assert!(!path.exists());
        drop(distributors);
    }
    // What is left of a lender that was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (lender, distributors) = open(0o600).unwrap();
    RawBorrower::connect(&path, &hello("x", 1, false)).unwrap();
    // Somebody else's by now: not removed.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    lender.close();
    drop(distributors);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    // What is not a socket is not removed, and what listens in another way is not disturbed.
    let error = open(0o600).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().ends_with("lend: it is not a socket"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    let error = open(0o600).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().ends_with("another program listens there"), "{error}");
    drop(other);
    pool.close().unwrap();
}

#[test]
fn a_lock_that_others_hold_on_the_directory_stops_no_lender() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lend");
    let directory = std::fs::File::open(dir.path()).unwrap();
    flock(&directory, FlockOperation::LockExclusive).unwrap();
    let pool = pool(64);
    let open = || Lender::open(&pool, 1, &LenderOptions::new(&path).quota(1));
    let (lender, distributors) = open().unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files(), 1, "the socket, and no lock is left behind");
    lender.close();
    drop(distributors);

    // One that was left by a lender that was killed is no obstacle; one that is held is, for a while.
    let lock = std::fs::File::create(path.with_extension("lock")).unwrap();
    let (lender, distributors) = open().unwrap();
    assert_eq!(files(), 1);
    lender.close();
    drop((distributors, lock));
    let lock = std::fs::File::create(path.with_extension("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let error = open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().ends_with("lend.lock: another lender is starting"), "{error}");
    drop(lock);

    // A link is not followed.
    let elsewhere = dir.path().join("elsewhere");
    std::fs::remove_file(path.with_extension("lock")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, path.with_extension("lock")).unwrap();
    open().unwrap_err();
    assert!(!elsewhere.exists());
    pool.close().unwrap();
}

#[test]
fn options_that_cannot_be_met_are_named() {
    type Change = fn(&mut LenderOptions);
    let cases: [(u32, Change, &str); 12] = [
        (0, |_| {}, "0 distributors: expected 1 to 4096"),
        (5000, |_| {}, "5000 distributors: expected 1 to 4096"),
        (1, |options| options.borrowers = 0, "0 borrowers: expected 1 to 64"),
        (1, |options| options.borrowers = 65, "65 borrowers: expected 1 to 64"),
        (1, |options| options.quota = 0, "a quota of 0: expected 1 to 65536"),
        (1, |options| options.quota = 65_537, "a quota of 65537: expected 1 to 65536"),
        (1, |options| options.reserve = 64, "a reserve of 64 of 64 frames"),
        (1, |options| options.mode = 0o1777, "mode 0o1777: expected at most 0o777"),
        (1, |options| options.user_share = 0, "a user's share of 0 %: expected 1 to 100"),
        (1, |options| options.user_share = 101, "a user's share of 101 %: expected 1 to 100"),
        (1, |options| options.joins_per_second = 0, "no time for a handshake, or no joins"),
        (
            1,
            |options| options.socket = "x".repeat(108).into(),
            ": a socket's path has 1 to 107 bytes",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(64);
    for (distributors, change, text) in cases {
        let mut options = LenderOptions::new(dir.path().join("lend"));
        change(&mut options);
        let error = Lender::open(&pool, distributors, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().ends_with(text), "{error}");
    }
    let options = LenderOptions::new(dir.path().join("not there/lend"));
    let error = Lender::open(&pool, 1, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("not there/lend.lock: No such file"), "{error}");

    let private = FrameArea::new(&AreaOptions::default().frames(64)).unwrap();
    let private = FramePool::new(private, &PoolOptions::default()).unwrap();
    let options = LenderOptions::new(dir.path().join("lend"));
    let error = Lender::open(&private, 1, &options).unwrap_err();
    assert!(error.to_string().contains("AreaOptions::shared(true)"), "{error}");
    pool.close().unwrap();
}

#[test]
fn whoever_comes_when_the_threads_that_receive_have_ended_is_told_to_come_later() {
    let mut rig = Rig::new(64, 2, |options| options.quota = 16);
    let borrower = rig.connect("before", 0);
    rig.until("it has joined", |rig| rig.distributors.iter().all(Distributor::is_wanted));
    drop(rig.distributors.pop());
    drop(rig.connect("with one of them", 0));
    rig.distributors.clear();
    let refusal = rig.refusal(&hello("after", 0, false));
    is(&refusal, Status::Closing, "the lender is about to end");
    assert!(borrower.is_closed(0) && borrower.is_closed(1));
    rig.close();
}

#[test]
fn a_welcome_names_the_device_if_its_version_has_that() {
    let rig = Rig::new(64, 1, |options| (options.quota, options.device) = (8, "eth7".into()));
    for (version, expected) in [(2, ""), (3, "eth7")] {
        let hello = Hello { version_max: version, ..hello("x", 0, false) };
        let borrower = RawBorrower::connect(&rig.socket, &hello).unwrap();
        assert_eq!((borrower.welcome.version, &*reason(&borrower.welcome)), (version, expected));
    }
    rig.close();
    let long = LenderOptions::new("/nowhere").device("x".repeat(96));
    let area = FrameArea::new(&AreaOptions::default().frames(2048).shared(true)).unwrap();
    let pool = FramePool::new(area, &PoolOptions::default()).unwrap();
    let refused = Lender::open(&pool, 1, &long).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}
