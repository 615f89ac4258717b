//! A connection that idles costs no CPU time, whatever it did before and whichever engine moved its
//! bytes; and the first byte after that arrives.

mod common;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::net::TcpStream;
use std::time::Duration;

use cachelane_relay::Engine;
use common::pattern::Pattern;
use common::*;
use rustix::time::{ClockId, clock_gettime};

/// Connections that idle.
const CROWD: usize = 100;

/// For how long.
const IDLE: Duration = Duration::from_secs(2);

/// One test, because it measures what the process costs.
#[test]
fn idle_connections_cost_nothing_root() {
    let test = "idle_connections_cost_nothing_root";
    for engine in Engine::ALL.into_iter().filter(|&engine| may_use(engine, test)) {
        let rig = Rig::new(engine);
        let states: Vec<_> = (0..CROWD).map(|n| Warmth::ALL[n % 3]).collect();
        let pairs = rig.warm_pairs(&states);
        // What has stood still goes on being looked at for a while.
        await_that("nobody is looked at any more", || cost(IDLE / 4).0 < 10);
        let (wake_ups, time) = cost(IDLE);
        println!("{engine}: {wake_ups} wake-ups, {time:?}");
        // The test's own thread, and a worker's timers. A look every half millisecond made 8,000.
        assert!(wake_ups < 100, "{engine}: {wake_ups} wake-ups in {IDLE:?}");
        assert!(time < IDLE / 50, "{engine}: {time:?} of CPU time in {IDLE:?}");
        pairs.iter().for_each(converse);
        let redirected = rig.relay.stats().bytes_redirected;
        for (n, Pair { client, backend }) in pairs.iter().enumerate().take(6) {
            let (from, to) = if n % 3 == 1 { (client, backend) } else { (backend, client) };
            bulk_in_pieces(from, to);
        }
        if engine == Engine::Sockmap {
            assert!(rig.relay.stats().bytes_redirected > redirected, "no flow woke up");
        }
        pairs.into_iter().for_each(part);
    }
}

/// Wake-ups of this process's threads during `time`, and the CPU time that they took.
fn cost(time: Duration) -> (u64, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let before = (wake_ups(), now());
    std::thread::sleep(time);
    let after = (wake_ups(), now());
    let more = |(task, all)| before.0.get(&task).map_or(0, |earlier| all - earlier);
    (after.0.into_iter().map(more).sum(), after.1 - before.1)
}

/// By thread, how often each has slept.
fn wake_ups() -> HashMap<OsString, u64> {
    let of = |task: DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        Some((task.file_name(), line.split_whitespace().nth(1)?.parse().ok()?))
    };
    std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| of(task.unwrap())).collect()
}

/// Several pieces with pauses between them, so that the verdict redirects.
fn bulk_in_pieces(from: &TcpStream, to: &TcpStream) {
    let pattern = Pattern::new(4);
    let length = common::pattern::LONGEST;
    for piece in 0..4 {
        let offset = (piece * length) as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(from, pattern.at(offset, length)));
            pattern.check(offset, &receive(to, length));
        });
    }
}
