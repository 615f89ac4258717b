//! Bridges, in the words of `bridge`.

use super::table;
use super::words::{at_once, list, quote, trial_of_sysctl};
use crate::{BridgeAnswer, Device, Facts, Found};

table! { Bridges:
    "CL027" Warning through_iptables ["bridge"]
        "Bridged packets pass the IP tables"
        costs "each bridged packet pays for the rules and for connection tracking of the host, and \
               the fast path leaves it to the kernel";
    "CL028" Warning all_to_kernel ["bridge"]
        "A bridge is left to the kernel path as a whole"
        costs "its fast path would take no packet";
    "CL029" Info could_be_fast ["bridge"]
        "A bridge could take the fast path"
        costs "each packet between its ports writes cache lines that all CPUs read, and passes the \
               whole of the kernel's path";
    "CL030" Info through_queue ["bridge"]
        "A bridge's port can be sent to through its queue only"
        costs "packets to it pass the port's queue and its peer's backlog as on the kernel path, so \
               that the fast path saves less";
}

fn through_iptables(facts: &Facts) -> Option<Found> {
    let is_bridge = |device: &&Device| device.bridge_calls.is_some();
    let bridges: Vec<&Device> = facts.devices.iter().filter(is_bridge).collect();
    let tables = ["iptables", "ip6tables", "arptables"];
    let of_host = tables.into_iter().filter(|table| {
        facts.sysctl(&format!("net.bridge.bridge-nf-call-{table}")).is_some_and(|on| on > 0)
    });
    let of_host: Vec<&str> = of_host.collect();
    let evidence = bridges.iter().filter_map(|bridge| {
        let own = bridge.bridge_calls.iter().flatten().map(String::as_str);
        let called: Vec<&str> = of_host.iter().copied().chain(own).collect();
        if called.is_empty() {
            return None;
        }
        let said = answer(facts, &bridge.name).map(|answer| &answer.remarks).into_iter().flatten();
        let said = said.filter(|remark| remark.contains("br_netfilter"));
        Some(match list(said) {
            said if said.is_empty() => {
                format!("{}: br_netfilter calls {}", bridge.name, list(called))
            }
            said => format!("{}: {said}", bridge.name),
        })
    });
    let sysctls = |value: u8| {
        let names = if of_host.is_empty() { &tables[..1] } else { &of_host };
        let set = |table: &&str| format!("net.bridge.bridge-nf-call-{table}={value}");
        names.iter().map(set).collect::<Vec<_>>().join(" ")
    };
    Found::if_any(
        evidence.collect(),
        || {
            format!(
                "sysctl -w {}, if no rule is meant for bridged packets (Kubernetes and Docker's own \
                 rules may be)",
                sysctls(0)
            )
        },
        || at_once(&trial_of_sysctl("net.bridge.bridge-nf-call-iptables", "1,0")),
    )
}

fn all_to_kernel(facts: &Facts) -> Option<Found> {
    let closed: Vec<&BridgeAnswer> =
        facts.answers.bridges.iter().filter(|bridge| !bridge.obstacles.is_empty()).collect();
    let evidence = closed
        .iter()
        .flat_map(|bridge| bridge.obstacles.iter().map(|said| quote(&bridge.name, said)));
    let first = closed.first()?;
    Found::if_any(evidence.collect(), || check(first), || check(first))
}

fn could_be_fast(facts: &Facts) -> Option<Found> {
    let ready = |bridge: &&BridgeAnswer| bridge.can_forward && !bridge.accelerated;
    let ready: Vec<&BridgeAnswer> = facts.answers.bridges.iter().filter(ready).collect();
    let evidence = ready.iter().map(|bridge| {
        let straight = bridge.ports.iter().filter(|port| port.to == "straight").count();
        format!(
            "{}: {} ports, of which {straight} can be sent to straight",
            bridge.name,
            bridge.ports.len()
        )
    });
    let first = ready.first()?;
    Found::if_any(
        evidence.collect(),
        || format!("cachelane bridge {}", first.name),
        || trial_of_bridge(first.ports.first().map_or("PORT", |port| &port.name)),
    )
}

/// What is no veth has no straight way, and nothing mends that.
fn through_queue(facts: &Facts) -> Option<Found> {
    let ports: Vec<_> = facts
        .answers
        .bridges
        .iter()
        .filter(|bridge| bridge.can_forward)
        .flat_map(|bridge| bridge.ports.iter().map(move |port| (bridge, port)))
        .filter(|(_, port)| port.to == "queue")
        .filter(|(_, port)| port.against_better_to.iter().all(|said| said.id != "no-peer"))
        .collect();
    let evidence = ports.iter().map(|(bridge, port)| {
        let why = port.against_better_to.iter().map(|said| format!("{} [{}]", said.text, said.id));
        format!("{} of {}: {}", port.name, bridge.name, list(why))
    });
    let (bridge, port) = ports.first()?;
    let shaped = port.against_better_to.iter().any(|said| said.id == "queue-discipline");
    Found::if_any(
        evidence.collect(),
        || match shaped {
            true => format!(
                "tc qdisc replace dev {} root noqueue, if nothing is shaped there",
                port.name
            ),
            false => check(bridge),
        },
        || trial_of_bridge(&port.name),
    )
}

/// By the packets of a port: those that the host's own devices count need not cross the bridge.
fn trial_of_bridge(port: &str) -> String {
    format!("cachelane trial bridge.fastpath --measure cpu.busy/net.packets@{port}")
}

fn answer<'a>(facts: &'a Facts, name: &str) -> Option<&'a BridgeAnswer> {
    facts.answers.bridges.iter().find(|bridge| bridge.name == name)
}

fn check(bridge: &BridgeAnswer) -> String {
    format!("cachelane bridge {} --check", bridge.name)
}
