//! What is counted of each listener and each backend.

mod common;

use std::time::Duration;

use cachelane_relay::{Cause, Engine, Traffic};
use common::*;

on_every_engine! {
    bytes_and_times_are_counted_by_listener_and_backend,
}

fn bytes_and_times_are_counted_by_listener_and_backend(engine: Engine) {
    const PAUSE: Duration = Duration::from_millis(50);
    let rig = Rig::with(engine, |config| config.listen.push("[::1]:0".parse().unwrap()));
    let pair = rig.warm_pair(Warmth::Down);
    converse(&pair);
    // What the kernel moves is counted a moment later.
    let moved = || rig.relay.statistics().listeners[0].bytes_down;
    await_that("all is counted", || moved() == BULK as u64 + 7);
    let statistics = rig.relay.statistics();
    let (open, backend) = (&statistics.listeners[0], &statistics.backends[0]);
    assert_eq!(
        (&open.addr, &backend.addr),
        (&rig.relay.addrs()[0].to_string(), &rig.listener.local_addr().unwrap().to_string())
    );
    for traffic in [open, backend] {
        // While it runs.
        assert_eq!((traffic.active, traffic.connections), (1, 1), "{traffic:?}");
        assert_eq!([traffic.bytes_up, traffic.bytes_down], [9, BULK as u64 + 7], "{traffic:?}");
        assert_eq!(traffic.session_time.count(), 0);
    }
    std::thread::sleep(PAUSE);
    part(pair);
    // Not only the kernel has connected it, but the relay too.
    let pair = rig.warm_pair(Warmth::Up);
    abort(pair.client);
    expect_reset(&pair.backend);
    rig.await_empty();
    let statistics = rig.relay.statistics();
    for traffic in [&statistics.listeners[0], &statistics.backends[0]] {
        assert_eq!((traffic.active, traffic.connections), (0, 2), "{traffic:?}");
        assert_eq!((traffic.ended(Cause::Normal), traffic.ended(Cause::Client)), (1, 1));
        assert_eq!((traffic.failed(), traffic.connect_failed), (1, 0));
        assert_eq!((traffic.connect_time.count(), traffic.session_time.count()), (2, 2));
        assert!(traffic.session_time.quantile(1.0) >= Some(PAUSE), "{traffic:?}");
        assert!(traffic.is_up);
    }
    assert_eq!(statistics.listeners[1].connections, 0);
}

#[test]
fn failures_are_counted_where_they_happen() {
    let (_socket, dead) = bound();
    let rig = Rig::with(Engine::Auto, |config| {
        config.backends.insert(0, dead.into());
        config.retry_after = Duration::from_secs(60);
    });
    for _ in 0..8 {
        part(rig.pair());
    }
    rig.await_empty();
    let statistics = rig.relay.statistics();
    let [down, up]: &[Traffic; 2] = statistics.backends.as_slice().try_into().unwrap();
    assert!(down.connect_failed > 0 && !down.is_up && down.connections == 0, "{down:?}");
    assert_eq!((up.connections, up.connect_failed, up.ended(Cause::Normal)), (8, 0, 8));
    assert_eq!(statistics.listeners[0].ended(Cause::Normal), 8);
}
