//! What tests with hosts begin with and wait for.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::Host;

/// The longest that [`comes_true`] waits, unless `CACHELANE_PATIENCE` gives the seconds: an emulated machine
/// takes ten times as long as others.
const LIMIT: Duration = Duration::from_secs(30);

/// How long it sleeps between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Whether a test that needs root can run; says on stderr that `test` is skipped if not.
pub fn root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {test}: needs root");
    }
    root
}

/// The settings by which `br_netfilter` hands a bridge's packets to the tables of iptables.
const BRIDGE_CALLS: [&str; 3] = ["iptables", "ip6tables", "arptables"];

/// Whether a test that needs `br_netfilter` can run; says on stderr that `test` is skipped if not. Some
/// kernels have it built in, and in others it is a module that somebody may have loaded.
pub fn br_netfilter(test: &str) -> bool {
    let is_there = Path::new("/proc/sys/net/bridge").exists();
    if !is_there {
        eprintln!("skipped: {test}: needs br_netfilter (modprobe br_netfilter)");
    }
    is_there
}

/// Has nothing but the bridges themselves look at the packets of a host's bridges. Without `br_netfilter`
/// nothing does.
pub fn no_bridge_calls(host: &Host) {
    for table in BRIDGE_CALLS {
        let name = format!("net.bridge.bridge-nf-call-{table}");
        if host.sysctl(&name).is_ok() {
            host.set_sysctl(&name, "0").expect("a sysctl that is there");
        }
    }
}

/// Waits until `condition` holds and says whether it came to hold within 30 seconds, or those of
/// `CACHELANE_PATIENCE`. For what other threads, other processes and the kernel do in their own time and
/// report to nobody.
pub fn comes_true(condition: impl FnMut() -> bool) -> bool {
    let patience = std::env::var("CACHELANE_PATIENCE").ok().and_then(|text| text.parse().ok());
    within(patience.map_or(LIMIT, Duration::from_secs), condition)
}

/// [`comes_true`] with another limit.
pub(crate) fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// Sets a flag when it is dropped, also by a panic: threads of a scope that go on until then would
/// keep a failed test from ending.
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
