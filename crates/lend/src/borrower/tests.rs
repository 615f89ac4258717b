//! Against a lender that is made by hand, and so can be out of step.

use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use tempfile::TempDir;
use zerocopy::FromZeros;

use super::*;
use crate::ErrorKind;
use crate::layout::{self, Hello, MAGIC, Mapped, Status, Welcome};
use crate::ring::{LoanWriter, TokenReader};
use crate::wake::WakeOnce;
use crate::wire::{self, Received};

mod handshake;

const LAYOUT: Layout = Layout { channels: 2, slots: 32 };
const FRAMES: u32 = 16;
const FRAME: u32 = 2048;

/// The lender's side of a connection.
struct Lender {
    socket: OwnedFd,
    hello: Hello,
    memory: Memory,
    area: OwnedFd,
    out: OwnedFd,
    back: OwnedFd,
    asleep: Memory,
    loans: Vec<LoanWriter>,
    tokens: Vec<TokenReader>,
    wake_once: WakeOnce,
}

impl Lender {
    /// Made of a connection whose hello is there.
    fn new(socket: OwnedFd) -> Lender {
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        let Ok(Received::Message(hello, none)) = wire::receive::<Hello>(&socket) else {
            panic!("no hello")
        };
        assert!(none.is_empty());
        let (memory, area) = Memory::ours(c"area", (FRAMES * FRAME) as usize).unwrap();
        let (out, out_fd) = Memory::ours(c"out", LAYOUT.out_len()).unwrap();
        let back_fd = Memory::for_other(c"back", LAYOUT.back_len()).unwrap();
        let map = || Memory::of_other(&back_fd, LAYOUT.back_len(), false).unwrap();
        let (out, back, asleep) = (Arc::new(out), Arc::new(map()), map());
        Lender {
            socket,
            hello,
            memory,
            area,
            out: out_fd,
            back: back_fd,
            asleep,
            loans: (0..2).map(|at| LoanWriter::new(&out, LAYOUT, at)).collect(),
            tokens: (0..2).map(|at| TokenReader::new(&back, LAYOUT, at)).collect(),
            wake_once: WakeOnce::default(),
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            magic: MAGIC,
            version: 2,
            status: Status::Welcome as u16,
            frame_size: FRAME,
            frames: FRAMES,
            area_len: u64::from(FRAMES * FRAME),
            quota: 24,
            slots: LAYOUT.slots,
            channels: LAYOUT.channels,
            flags: self.hello.flags,
            out_len: LAYOUT.out_len() as u64,
            back_len: LAYOUT.back_len() as u64,
            version_min: 2,
            version_max: 2,
            ..Welcome::new_zeroed()
        }
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [&self.area, &self.out, &self.back].map(|fd| fd.as_fd())
    }

    fn answer(&self, welcome: &Welcome, descriptors: &[BorrowedFd<'_>]) {
        wire::send(&self.socket, welcome, descriptors).unwrap();
    }

    /// Welcomes the borrower, hears that it has mapped, and says that it lends to it.
    fn take_in(&self) {
        self.take_in_with(&self.welcome());
    }

    fn take_in_with(&self, welcome: &Welcome) {
        self.answer(welcome, &self.descriptors());
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None).unwrap();
        let Ok(Received::Message(Mapped { magic }, none)) = wire::receive(&self.socket) else {
            panic!("not mapped")
        };
        assert!(magic == MAGIC && none.is_empty());
        rustix::io::write(&self.socket, &[0]).unwrap();
    }

    /// Lends packets of so many parts; the number of a loan is its token and its first bytes.
    fn lend(&mut self, channel: usize, first: u32, packets: &[u32]) {
        let mut token = first;
        for &parts in packets {
            for part in 1..=parts {
                let addr = u64::from(token % FRAMES * FRAME) + 64;
                self.memory.word(addr as usize).store(token, std::sync::atomic::Ordering::Relaxed);
                let flags = if part < parts { LOAN_MORE } else { LOAN_SHARED };
                let time = 1_500_000_000;
                let (hash, len) = (token ^ 1, 100 + token);
                self.loans[channel].push(layout::Loan { addr, len, token, flags, hash, time });
                token += 1;
            }
        }
        self.publish(channel);
    }

    /// Publishes, and wakes a sleeper; whether there was one.
    fn publish(&mut self, channel: usize) -> bool {
        self.loans[channel].publish();
        let wakes = self.wake_once.must_wake(self.asleep.word(Layout::ASLEEP));
        if wakes {
            rustix::io::write(&self.socket, &[0]).unwrap();
        }
        wakes
    }

    fn returned(&mut self, channel: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        tokens.extend(self.tokens[channel].take().expect("in step"));
        tokens
    }
}

/// A socket of a kind in a folder of its own.
fn listener() -> (TempDir, std::path::PathBuf, OwnedFd) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lend");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 4).unwrap();
    (dir, path, socket)
}

/// Lets a lender answer one connection while we connect.
fn with<T: Send + 'static>(
    options: &BorrowerOptions,
    serve: impl FnOnce(OwnedFd) -> T + Send + 'static,
) -> (Result<Borrower>, T) {
    let (_dir, path, listener) = listener();
    let lender: JoinHandle<T> = std::thread::spawn(move || serve(accept(&listener).unwrap()));
    let borrower = Borrower::connect(&path, options);
    (borrower, lender.join().expect("the lender"))
}

fn pair() -> (Borrower, Lender) {
    let options = BorrowerOptions::default().name("test".into());
    let (borrower, lender) = with(&options, |socket| {
        let lender = Lender::new(socket);
        lender.take_in();
        lender
    });
    (borrower.expect("welcome"), lender)
}

fn tokens(loans: &[Loan]) -> Vec<u32> {
    loans.iter().map(|loan| loan.token).collect()
}

#[test]
fn what_is_lent_is_received_as_it_is_and_what_is_given_back_arrives_in_its_channel() {
    let (mut borrower, mut lender) = pair();
    let mut loans = Vec::new();
    for round in 0..20_u32 {
        lender.lend(0, round * 7, &[1, 2]);
        lender.lend(1, round * 7 + 3, &[1, 3]);
        assert_eq!(borrower.receive(&mut loans, 64).unwrap(), 7);
        let mut seen = tokens(&loans);
        seen.sort_unstable();
        assert_eq!(seen, (round * 7..round * 7 + 7).collect::<Vec<_>>());
        for loan in &loans {
            assert_eq!(borrower.bytes(loan)[..4], loan.token.to_ne_bytes());
            assert_eq!(borrower.bytes(loan).len(), loan.len());
            assert_eq!((loan.len(), loan.flow_hash()), (100 + loan.token as usize, loan.token ^ 1));
            assert_eq!(loan.time(), UNIX_EPOCH + Duration::from_millis(1500));
            assert_ne!(loan.more(), loan.shared());
        }
        assert_eq!(borrower.out(), 7);
        borrower.give_back(loans.drain(..));
        assert_eq!(borrower.out(), 0);
        let (zero, one) = (lender.returned(0), lender.returned(1));
        let from = round * 7;
        assert_eq!((zero, one), ((from..from + 3).collect(), (from + 3..from + 7).collect()));
    }
    lender.loans[0].count_dropped(3);
    lender.loans[1].count_dropped(4);
    assert_eq!(borrower.dropped(), 7);
}

#[test]
fn packets_are_never_cut_and_no_channel_waits_for_another() {
    let (mut borrower, mut lender) = pair();
    let mut loans = Vec::new();
    // Of a packet that is not there as a whole, nothing is received.
    let part = |token, flags| layout::Loan { len: 1, token, flags, ..layout::Loan::default() };
    lender.loans[0].push(part(0, LOAN_MORE));
    lender.publish(0);
    assert_eq!(borrower.receive(&mut loans, 9).unwrap(), 0);
    lender.loans[0].push(part(1, 0));
    lender.publish(0);
    assert_eq!(borrower.receive(&mut loans, 1).unwrap(), 2, "the first is whole though it is more");
    borrower.give_back(loans.drain(..));

    // Packets of 1, 3 and 2 parts in one channel, of 1 each in the other.
    lender.lend(0, 10, &[1, 3, 2]);
    lender.lend(1, 20, &[1; 6]);
    let mut seen = Vec::new();
    while borrower.receive(&mut loans, 4).unwrap() > 0 {
        assert!(loans.len() <= 4 && !loans.last().unwrap().more(), "{loans:?}");
        seen.push(tokens(&loans));
        borrower.give_back(loans.drain(..));
    }
    assert!(seen.len() <= 4, "{seen:?}");
    for channel in [10..16, 20..26] {
        let of_channel: Vec<u32> =
            seen.iter().flatten().copied().filter(|token| channel.contains(token)).collect();
        assert_eq!(of_channel, channel.clone().collect::<Vec<_>>(), "{seen:?}");
        let in_first_two: Vec<bool> = seen[..2]
            .iter()
            .map(|batch| batch.iter().any(|token| channel.contains(token)))
            .collect();
        assert!(in_first_two.contains(&true), "{seen:?}");
    }

    // Both channels always have more than a share: neither is forgotten, also not a large packet.
    lender.lend(0, 100, &[5, 5]);
    lender.lend(1, 200, &[1; 20]);
    let mut turns = Vec::new();
    for _ in 0..4 {
        borrower.receive(&mut loans, 6).unwrap();
        turns.push(tokens(&loans));
        borrower.give_back(loans.drain(..));
    }
    assert_eq!(turns.iter().flatten().filter(|&&token| token < 200).count(), 10, "{turns:?}");
}

#[test]
fn a_loan_outside_the_area_or_of_two_frames_is_refused_and_stays_refused() {
    let end = u64::from(FRAMES * FRAME);
    for (addr, len) in [
        (end, 1),
        (end - 1, 2),
        (0, 0),
        (0, FRAME + 1),
        (2000, 49),
        (u64::MAX, 1),
        (u64::MAX - 5, u32::MAX),
        (1 << 63, FRAME),
    ] {
        let (mut borrower, mut lender) = pair();
        lender.lend(0, 0, &[1]);
        lender.loans[1].push(layout::Loan { len: 4, ..layout::Loan::default() });
        lender.loans[1].push(layout::Loan { addr, len, ..layout::Loan::default() });
        lender.publish(1);
        let mut loans = Vec::new();
        let error = borrower.receive(&mut loans, 64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains(&format!("{len} bytes at {addr}")), "{error}");
        assert_eq!((tokens(&loans), borrower.out()), (vec![0], 1), "what is good stays");
        assert_eq!(borrower.receive(&mut loans, 64).unwrap_err().kind(), ErrorKind::Protocol);
    }
    // The whole of the last frame is one.
    let (mut borrower, mut lender) = pair();
    let addr = end - u64::from(FRAME);
    lender.loans[1].push(layout::Loan { addr, len: FRAME, ..layout::Loan::default() });
    lender.publish(1);
    let mut loans = Vec::new();
    assert_eq!(borrower.receive(&mut loans, 64).unwrap(), 1);
    assert_eq!(borrower.bytes(&loans[0]).len(), FRAME as usize);
}

#[test]
fn an_index_out_of_step_is_an_error_for_who_receives_and_for_who_waits() {
    let (mut borrower, mut lender) = pair();
    for _ in 0..33 {
        lender.loans[1].push(layout::Loan { len: 1, ..layout::Loan::default() });
    }
    lender.publish(1);
    let received = borrower.receive(&mut Vec::new(), 64).unwrap_err();
    let waited = borrower.wait(None).unwrap_err();
    for error in [received, waited] {
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("from 0 to 33"), "{error}");
    }
}

#[test]
fn who_sleeps_is_woken_and_who_is_awake_costs_the_lender_nothing() {
    let (mut borrower, mut lender) = pair();
    assert_eq!(borrower.wait(Some(Duration::ZERO)).unwrap(), Wait::TimedOut);
    assert_eq!(borrower.wait(Some(Duration::from_millis(1))).unwrap(), Wait::TimedOut);
    lender.lend(1, 0, &[1]);
    assert!(!lender.publish(1), "nobody sleeps");
    let mut loans = Vec::new();
    for round in 0..50 {
        assert_eq!(borrower.wait(None).unwrap(), Wait::Ready);
        assert_eq!(borrower.receive(&mut loans, 64).unwrap(), 1, "round {round}");
        borrower.give_back(loans.drain(..));
        let sleeper = std::thread::spawn(move || {
            let there = borrower.wait(Some(Duration::from_secs(60)));
            (borrower, there)
        });
        // Until it sleeps, so that it has to be woken.
        while lender.asleep.word(Layout::ASLEEP).load(std::sync::atomic::Ordering::Acquire) % 2 == 0
        {
            std::thread::yield_now();
        }
        lender.lend(round % 2, 0, &[1]);
        let (back, there) = sleeper.join().expect("the borrower");
        assert_eq!(there.unwrap(), Wait::Ready);
        borrower = back;
    }
}

#[test]
fn the_end_comes_after_everything_was_received() {
    // Said in every channel, or the lender was killed.
    for is_said in [true, false] {
        let (mut borrower, mut lender) = pair();
        lender.lend(0, 0, &[1]);
        lender.loans[0].close(Ending::Lender);
        assert_eq!(borrower.wait(None).unwrap(), Wait::Ready);
        let mut loans = Vec::new();
        assert_eq!(borrower.receive(&mut loans, 64).unwrap(), 1);
        let soon = Some(Duration::from_millis(1));
        assert_eq!(borrower.wait(soon).unwrap(), Wait::TimedOut, "one channel is open");
        lender.lend(1, 1, &[1]);
        match is_said {
            true => lender.loans[1].close(Ending::Lender),
            false => drop(lender),
        }
        assert_eq!(borrower.wait(None).unwrap(), Wait::Ready);
        assert_eq!(borrower.receive(&mut loans, 64).unwrap(), 1);
        for timeout in [Some(Duration::ZERO), None] {
            assert_eq!(borrower.wait(timeout).unwrap(), Wait::Closed);
        }
        assert_eq!(borrower.bytes(&loans[1])[..4], 1_u32.to_ne_bytes(), "still readable");
    }
}

#[test]
fn why_nothing_follows_is_told_apart_once_everything_was_received() {
    let cases: [(Option<Ending>, Result<Wait, ErrorKind>); 5] = [
        (Some(Ending::Lender), Ok(Wait::Closed)),
        (Some(Ending::Offence), Err(ErrorKind::Disconnected)),
        (Some(Ending::Evicted), Err(ErrorKind::Evicted)),
        // An older lender closes, and does not say why.
        (Some(Ending::Unsaid), Ok(Wait::Closed)),
        (None, Err(ErrorKind::Died)),
    ];
    for (why, expected) in cases {
        let (mut borrower, mut lender) = pair();
        lender.lend(0, 0, &[1]);
        if let Some(why) = why {
            lender.loans.iter_mut().for_each(|channel| channel.close(why));
        }
        drop(lender);
        assert_eq!(borrower.wait(None).unwrap(), Wait::Ready);
        let mut loans = Vec::new();
        assert_eq!(borrower.receive(&mut loans, 64).unwrap(), 1);
        for timeout in [Some(Duration::ZERO), None] {
            let there = borrower.wait(timeout).map_err(|error| error.kind());
            assert_eq!(there, expected, "{why:?}");
        }
    }
}

#[test]
fn a_loan_is_good_for_its_own_borrower_only() {
    let (mut one, mut lender) = pair();
    let (mut other, _lender) = pair();
    lender.lend(0, 0, &[1]);
    let mut loans = Vec::new();
    one.receive(&mut loans, 1).unwrap();
    let catch = |f: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_err()
    };
    let read = catch(&mut || drop(other.bytes(&loans[0]).to_vec()));
    let given = catch(&mut || other.give_back(loans.drain(..)));
    for panic in [read, given] {
        assert_eq!(panic.downcast_ref(), Some(&"a loan of another borrower"));
    }
}
