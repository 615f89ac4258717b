//! A lender without a free descriptor. Alone in its process, since it takes them all.

mod common;

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use common::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerocopy::IntoBytes as _;

#[test]
fn without_descriptors_the_lender_goes_on_waits_and_does_not_spin() {
    let mut rig = Rig::new(128, 1, |options| {
        (options.quota, options.reserve) = (32, 80);
        options.handshake = Duration::from_millis(300);
    });
    let mut borrower = rig.connect("one", 24);
    rig.collect();
    // By now the lender has closed what it does not keep of the first one.
    rig.refusal(&hello("too much", 25, false));
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..limit }).unwrap();

    let flags = SocketFlags::CLOEXEC;
    let mut sockets: Vec<OwnedFd> = (0..4)
        .map(|_| socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap())
        .collect();
    let all: Vec<OwnedFd> =
        std::iter::from_fn(|| sockets[0].as_fd().try_clone_to_owned().ok()).collect();
    assert!(all.len() > 32, "no limit in force");
    let address = SocketAddrUnix::new(&rig.socket).unwrap();
    sockets.iter().for_each(|socket| connect(socket, &address).unwrap());
    rig.until("it pauses", |rig| rig.lender.counters().paused >= 3);
    // Three pauses are 0.2 s at least; with a spinning thread there were thousands by now.
    assert!(rig.lender.counters().paused < 1000);

    // Who is there is served, and may go.
    rig.lend(0, 0..16);
    let loans = borrower.receive(0);
    assert_eq!(loans.len(), 16);
    borrower.give_back(0, loans.iter().take(8).map(|loan| loan.token));
    rig.collect();
    assert_eq!(rig.on_loan(), 8);

    // Room for a connection, and not for a borrower's memories.
    let mut all = all;
    all.truncate(all.len() - 2);
    let hello = hello("late", 24, false);
    let last = sockets.pop().unwrap();
    say(&last, hello.as_bytes()).unwrap();
    rig.until("the others were accepted", |rig| {
        let refused = rig.lender.refusals();
        refused.late + refused.failed >= 4
    });
    assert_eq!(rig.lender.refusals().failed, 1);
    drop(all);
    setrlimit(Resource::Nofile, limit).unwrap();
    let (welcome, _) = answer(&last).unwrap().unwrap();
    let text = reason(&welcome);
    assert!(text.starts_with("the lender cannot: "), "{text}");
    assert!(text.contains(&std::io::Error::from(Errno::MFILE).to_string()[..19]), "{text}");

    // And then it goes on as ever.
    let later = rig.connect("later", 24);
    drop((borrower, later));
    rig.close_empty();
}
