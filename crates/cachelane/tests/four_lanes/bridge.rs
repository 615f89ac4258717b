//! A bridge's fast path, whose tables are per CPU.

use lab::BridgeOptions;
use lab::testing::{comes_true, no_bridge_calls};
use lab::traffic::{EchoOptions, EchoServer, RrOptions, RrSession};
use rustix::process::Signal;

use crate::common::xsk::Scene;
use crate::machine::{Offline, own_machine};

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_a_bridge_forwards_while_cpus_come_and_go() {
    let Some(_own) = own_machine("root_a_bridge_forwards_while_cpus_come_and_go") else { return };
    let scene = Scene::new("lanebridge");
    let hosts = ["a", "b"].map(|name| scene.host(name));
    let bridge = scene.bridge("switch", &hosts.each_ref(), BridgeOptions::default());
    no_bridge_calls(&bridge.own.host);
    let [a, b] = &bridge.members[..] else { panic!("two members") };
    let running = scene.start(&bridge.own.host, &["bridge", "br0"], "2 of 2 ports accelerated");
    let server = EchoServer::start(&b.host, b.socket(7000), EchoOptions::default()).expect("one");
    let options = RrOptions { connections: 8, ..RrOptions::default() };
    let session = RrSession::start(&a.host, server.address(), &options).expect("connections");
    let goes_on = || {
        let before = scene.counter(&running, "bridge.straight");
        comes_true(|| scene.counter(&running, "bridge.straight") > before + 500)
    };
    assert!(goes_on());
    let counted = || scene.counter(&running, "bridge.straight");
    for gone in [&[5][..], &[2, 3], &[1, 4, 6, 7]] {
        let before = counted();
        let offline: Vec<Offline> = gone.iter().map(|cpu| Offline::new(*cpu)).collect();
        assert!(counted() >= before, "what was counted on {gone:?} is forgotten");
        assert!(goes_on(), "while {gone:?} are gone");
        drop(offline);
        assert!(goes_on(), "when {gone:?} are back");
    }
    let window = session.measure(std::time::Duration::from_millis(500));
    assert_eq!(window.errors, 0, "{window:?}");
    assert!(running.end(Signal::TERM).status.success());
}
