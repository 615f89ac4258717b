//! What is announced, and what is passed over.

use lab::Lab;

use super::run;
use crate::host::{Reader, Watch};

/// On a bridge that is down and without ports: nothing happens but what is done here.
#[test]
fn root_devices_of_others_are_passed_over_once_it_is_known_what_matters() {
    let test = "root_devices_of_others_are_passed_over_once_it_is_known_what_matters";
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: {test}: needs root");
        return;
    }
    let lab = Lab::new("watching").expect("a lab");
    let host = lab.host("switch").expect("a host");
    let ip = |step: &str| run(&host, "ip", &step.split(' ').collect::<Vec<_>>());
    let tc = |step: &str| run(&host, "tc", &step.split(' ').collect::<Vec<_>>());
    ip("link add br0 type bridge");
    ip("link add v0 type veth peer name v1");
    let work = || {
        let state = Reader::new().and_then(|mut reader| reader.state("br0")).expect("the state");
        let mut watch = Watch::new(state.bridge.index).expect("a watch");
        let changed = |step: &dyn Fn(), watch: &mut Watch| {
            step();
            watch.drain(&mut Vec::new()).expect("nothing is lost")
        };
        assert!(changed(&|| ip("link set v0 mtu 1400"), &mut watch), "before it is told");
        watch.follow(&state);
        assert!(!changed(&|| ip("link set v0 mtu 1300"), &mut watch), "another device");
        assert!(!changed(&|| tc("qdisc add dev v0 clsact"), &mut watch), "its filters");
        assert!(changed(&|| ip("link set v0 master br0"), &mut watch), "a new port");
        assert!(changed(&|| ip("link set br0 mtu 1400"), &mut watch), "the bridge");
    };
    host.run(work).expect("a thread in the host");
}
