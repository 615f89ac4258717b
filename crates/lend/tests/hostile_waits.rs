//! Borrowers that make whoever touches what they have wait, for long or for ever: nobody else does.

mod common;
#[path = "common/fuse.rs"]
mod fuse;

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use fuse::Fuse;
use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Adds a file to an epoll instance: to ask the file whether it is ready, with the instance locked.
fn add(to: &OwnedFd, file: &OwnedFd) -> rustix::io::Result<()> {
    epoll::add(to, file, epoll::EventData::new_u64(9), epoll::EventFlags::IN)
}

/// What a borrower was given is locked by a thread that waits for ever, and the borrower goes: the
/// lender goes on, admits others, and ends.
#[test]
fn root_a_borrower_whose_file_never_answers_hangs_nobody_when_it_goes() {
    let fuse = Fuse::new();
    let file = Arc::new(fuse.file.try_clone().unwrap());
    let (done, is_done) = std::sync::mpsc::channel();
    let lender = thread::spawn(move || {
        let mut rig = Rig::new(512, 1, |options| options.quota = 64);
        let (mut good, bad) = (rig.connect("good", 0), rig.connect("bad", 0));
        rig.collect();
        for handed in bad.descriptors() {
            // As an instance, if it is one; and in an instance of its own, if it can be.
            let (own, file) =
                (epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(), Arc::clone(&file));
            thread::spawn(move || {
                if add(&handed, &file).is_err() && add(&own, &handed).is_ok() {
                    let _ = add(&own, &file);
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(10);
        while fuse.polls() < 1 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(fuse.polls() >= 1, "nothing to add it to");
        done.send(fuse).unwrap();
        thread::sleep(Duration::from_millis(50));
        // To close it would hang the borrower.
        shutdown(&bad.socket, Shutdown::Both).unwrap();
        rig.until("it has left", |rig| rig.lender.borrowers().len() == 1);
        rig.collect();
        let mut later = rig.connect("later", 0);
        rig.collect();
        rig.lend(0, 0..64);
        let got = [&mut good, &mut later].map(|borrower| borrower.receive(0).len());
        assert!(got.iter().all(|got| *got > 8) && got.iter().sum::<usize>() == 64, "{got:?}");
        let counters = rig.lender.counters();
        assert_eq!((counters.joined, counters.left), (3, 1));
        rig.close();
        done_with(bad);
    });
    let fuse = is_done.recv().expect("somebody waits for the file");
    let until = Instant::now() + Duration::from_secs(20);
    while !lender.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    let ended = lender.is_finished();
    // Answers whoever waits for it still.
    drop(fuse);
    lender.join().unwrap();
    assert!(ended, "the lender waits for a borrower's file");
}

/// Its ends are closed by a thread that waits as long as it must.
fn done_with(borrower: RawBorrower) {
    thread::spawn(move || drop(borrower));
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whoever wakes a borrower walks the list of those who wait, and the borrower makes that list.
#[test]
fn a_borrower_with_a_hundred_thousand_waiters_costs_the_data_thread_nothing_and_itself_its_place() {
    const WAITERS: usize = 100_000;
    const COPIES: usize = 250;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut rig = Rig::new(512, 1, |options| options.quota = 64);
    let (mut good, mut bad) = (rig.connect("good", 0), rig.connect("bad", 0));
    rig.collect();
    let mut waiting = Vec::new();
    for handed in bad.descriptors() {
        let copies: Vec<_> =
            (0..COPIES).map(|_| handed.as_fd().try_clone_to_owned().unwrap()).collect();
        let Ok(first) = watch(&copies) else { continue };
        waiting.push((copies, vec![first]));
    }
    for (copies, instances) in &mut waiting {
        while instances.len() < WAITERS / COPIES {
            instances.push(watch(copies).unwrap());
        }
    }
    assert!(!waiting.is_empty(), "nothing can be waited for");
    let (mut slow, mut rounds) = (Vec::new(), 0_u32);
    rig.until("it has lost its place", |rig| {
        bad.asleep().store(2 * rounds + 1, std::sync::atomic::Ordering::SeqCst);
        rounds += 1;
        let packets = rig.packets(0..32);
        let mut packets = packets;
        let before = cpu_time();
        rig.distributors[0].lend(&mut packets, &mut rig.cache);
        let spent = cpu_time() - before;
        slow.extend((spent > Duration::from_micros(500)).then_some(spent));
        for borrower in [&mut good, &mut bad] {
            let loans = borrower.receive(0);
            borrower.give_back(0, loans.iter().map(|loan| loan.token));
        }
        rig.collect();
        rig.lender.borrowers().len() == 1
    });
    assert_eq!(good.dropped(0), 0);
    // Each of its wake-ups takes some 2 ms of whoever does them, and there are more than a hundred. One or two
    // calls in which the machine had something else to do are not those.
    assert!(slow.len() <= 2, "the data thread spent {slow:?} in {} of {rounds} calls", slow.len());
    let counters = rig.lender.counters();
    assert_eq!((counters.disconnected, counters.left), (1, 0), "{counters:?}");
    assert_eq!(rig.lender.offences().slow, 1);
    assert_eq!(rig.lender.borrowers()[0].name, "good");
    rig.lend(0, 0..64);
    assert_eq!(good.receive(0).len(), 64);
    rig.close();
    drop(waiting);
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// One instance that waits for all of these.
fn watch(copies: &[OwnedFd]) -> rustix::io::Result<OwnedFd> {
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for copy in copies {
        epoll::add(&instance, copy, epoll::EventData::new_u64(0), flags)?;
    }
    Ok(instance)
}
