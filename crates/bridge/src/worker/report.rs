//! What a look at the host has changed, for the log.

use std::collections::{HashMap, HashSet};

use crate::decide::{Obstacle, Plan, PortPlan};

/// Logs what a look has changed.
pub(super) fn changes(before: &Plan, now: &Plan) {
    if before.obstacles != now.obstacles {
        match now.obstacles.as_slice() {
            [] => tracing::info!("the bridge may take the fast path"),
            why => tracing::warn!("the whole bridge is left to the kernel path: {}", list(why)),
        }
    }
    if before.left != now.left && !now.left.is_empty() {
        let left: Vec<String> = now.left.iter().map(ToString::to_string).collect();
        tracing::warn!("left to the kernel path on every port: {}", left.join(", "));
    }
    let known: HashMap<u32, &PortPlan> = before.ports.iter().map(|old| (old.index, old)).collect();
    for port in &now.ports {
        let old = known.get(&port.index);
        let name = &port.name;
        match (old, port.receive.as_slice(), port.limits.as_slice()) {
            (Some(old), receive, limits) if old.receive == receive && old.limits == limits => {}
            (_, [], []) => tracing::info!("port {name}: taken, and sent to straight"),
            (_, receive, limits) => {
                let way = port.send.name();
                let (from, to) = (list(receive), list(limits));
                tracing::info!("port {name}: from it: {from}; to it by {way}: {to}");
            }
        }
    }
    let there: HashSet<u32> = now.ports.iter().map(|port| port.index).collect();
    for old in before.ports.iter().filter(|old| !there.contains(&old.index)) {
        tracing::info!("port {} has left", old.name);
    }
}

fn list(obstacles: &[Obstacle]) -> String {
    match obstacles {
        [] => "nothing in the way".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
