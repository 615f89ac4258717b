//! The threads that take packets from CPUs' queues, which the kernel moves when their CPU goes
//! offline.

use std::thread;

use super::steered::{Steered, pin};
use crate::program::tests::{self as trying, XdpPacket};

#[test]
fn root_packets_count_for_the_cpu_that_their_thread_serves_wherever_it_runs() {
    let name = "root_packets_count_for_the_cpu_that_their_thread_serves_wherever_it_runs";
    if !lab::testing::root(name) {
        return;
    }
    let on = Steered::new(1);
    let &[here, other] = on.cpus.as_slice() else {
        eprintln!("skipped: {name}: needs two CPUs");
        return;
    };
    for (thread, serves) in [
        (format!("cpumap/{other}/map:7"), other),
        (format!("cpumap/{here}/map:123456"), here),
        (format!("cpumaps/{other}/map"), here),
        ("worker".to_owned(), here),
    ] {
        let taken = || [here, other].map(|cpu| on.taken(0, cpu));
        let mut expected = taken();
        expected[usize::from(serves == other)] += 1;
        let take = || {
            pin(here);
            let packet = XdpPacket { data: vec![7; 60], ..XdpPacket::default() };
            trying::run_xdp(&on.loaded.programs.try_taken, &packet).expect("it runs");
        };
        thread::scope(|scope| {
            thread::Builder::new().name(thread.clone()).spawn_scoped(scope, take).map(drop)
        })
        .expect("a thread");
        assert_eq!(taken(), expected, "{thread}");
    }
}
