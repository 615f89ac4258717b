//! Bridges that look at VLANs: their ports' VLANs, and frames in them.

use super::frame::Sent;
use super::{Net, Setup, compare};

/// The VLANs of a port: each with what `bridge vlan add` takes behind it.
pub fn put(net: &mut Net, port: usize, vlans: &[&str]) {
    let _ = net.run(&format!("bridge vlan del dev p{port} vid 1-4094"));
    for vlan in vlans {
        net.run(&format!("bridge vlan add dev p{port} vid {vlan}"));
    }
}

pub const A: &str = "10 pvid untagged";
pub const B: &str = "20 pvid untagged";

/// A scenario on a bridge that looks at VLANs, where the kernel has such.
pub fn by_vlan(test: &str, setup: &Setup, script: impl Fn(&mut Net) + Sync) {
    compare(test, setup, |net| {
        if net.looks_at_vlans() {
            script(net);
        }
    });
}

/// Sends a frame from one member to another, as `change` makes it.
pub fn send(net: &mut Net, from: usize, to: usize, change: impl Fn(Sent) -> Sent) {
    let frame = change(Sent::new(net.mac(to), net.mac(from)));
    net.send_frame(from, &frame);
}

/// The same in both directions, so often.
pub fn talk(net: &mut Net, one: usize, other: usize, frames: usize, change: impl Fn(Sent) -> Sent) {
    for _ in 0..frames {
        send(net, one, other, &change);
        send(net, other, one, &change);
    }
}

pub fn plain(frame: Sent) -> Sent {
    frame
}

pub fn ten(frame: Sent) -> Sent {
    frame.tagged(10)
}

pub fn twenty(frame: Sent) -> Sent {
    frame.tagged(20)
}
