//! A lender that is connected to as often as the machine can.

mod common;

use std::time::{Duration, Instant};

use common::*;
use rustix::io::Errno;

#[test]
fn ten_thousand_connections_a_second_cost_little_and_keep_nobody_waiting_who_borrows() {
    let mut rig = Rig::new(256, 1, |options| options.quota = 64);
    let mut borrower = rig.connect("one", 0);
    rig.collect();
    let start = Instant::now();
    let end = start + Duration::from_secs(1);
    let (mut tried, mut connected) = (0_u64, 0_u64);
    let path = rig.socket.clone();
    let cpu = cpu_of_control_thread();
    let attack = std::thread::spawn(move || {
        // Ten in each millisecond.
        let mut next = Instant::now();
        while Instant::now() < end {
            for _ in 0..10 {
                tried += 1;
                connected += u64::from(dial_now(&path));
            }
            next += Duration::from_millis(1);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        (tried, connected)
    });
    // Wraps, as flows do.
    let (mut lent, mut count, mut got) = (0_u16, 0_u32, Vec::new());
    while !attack.is_finished() {
        rig.lend(0, (0..16).map(|at| lent.wrapping_add(at)));
        (lent, count) = (lent.wrapping_add(16), count + 16);
        let loans = borrower.receive(0);
        got.extend(loans.iter().map(|loan| flow_and_place(&borrower.bytes(loan)).0));
        borrower.give_back(0, loans.iter().map(|loan| loan.token));
        rig.collect();
        std::thread::yield_now();
    }
    let (tried, connected) = attack.join().unwrap();
    let cpu = cpu_of_control_thread() - cpu;
    let counters = rig.lender.counters();
    eprintln!(
        "{tried} connects, {connected} accepted or queued, {} paused, {cpu:?} of CPU, {count} lent",
        counters.paused
    );
    assert!(tried >= 5000, "the test could not connect fast enough: {tried}");
    assert!(got.into_iter().eq((0..count).map(|at| at as u16)), "not all, or not in order");
    assert_eq!(counters.dropped, 0);
    // A burst, and a thousand in each second.
    let most = 32 + start.elapsed().as_millis() as u64 + 1;
    assert!(rig.lender.refusals().total() <= most && counters.paused > 0, "{counters:?}");
    assert!(cpu < Duration::from_millis(300), "{cpu:?} of CPU in a second");
    drop(borrower);
    rig.close();
}

/// Connects without waiting, and closes.
fn dial_now(path: &std::path::Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()) {
        Ok(()) => true,
        Err(Errno::AGAIN) => false,
        Err(e) => panic!("{e}"),
    }
}

/// What the control thread has used: there is one, this file having one test.
fn cpu_of_control_thread() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
        let used = times.split(' ').next()?.parse::<u64>().ok()?;
        (name.trim() == "lend-control").then_some(used)
    });
    Duration::from_nanos(nanoseconds.sum())
}
