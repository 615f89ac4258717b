//! Network devices, as sysfs has them.

use lanes::CpuSet;

use super::{interrupts, lines};
use crate::tree::Tree;
use crate::{Device, RxQueue, TxQueue};

const ROOT: &str = "sys/class/net";

/// The names of the devices.
pub(crate) fn names(tree: &Tree) -> Vec<String> {
    let mut names = tree.names(ROOT);
    // A file there holds the names of bonds.
    names.retain(|name| name != "bonding_masters");
    names
}

/// The devices, in the order of their names. One that goes away while it is read was not there.
pub(crate) fn devices(tree: &Tree, names: &[String]) -> Vec<Device> {
    let actions = interrupts::actions(tree);
    let there = |name: &String| {
        let device = device(tree, name, &actions);
        let root = format!("{ROOT}/{name}");
        // A link to where it was may outlast it for a moment.
        let is_there = tree.at_path(&root).join(".").exists();
        if !is_there {
            tree.forget(&root);
        }
        is_there.then_some(device)
    };
    names.iter().filter_map(there).collect()
}

fn device(tree: &Tree, name: &str, actions: &[(u32, String)]) -> Device {
    let root = format!("{ROOT}/{name}");
    let file = |path: &str| tree.text(&format!("{root}/{path}"));
    let number = |path: &str| tree.value::<u64>(&format!("{root}/{path}"));
    let flags =
        file("flags").and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    let entries = tree.names(&root);
    let beside = |prefix: &str| -> Vec<String> {
        let found = entries.iter().filter(|entry| entry.starts_with(prefix));
        let found: Vec<&String> = found.collect();
        found.iter().for_each(|entry| tree.folder(&format!("{root}/{entry}")));
        found.iter().map(|entry| entry[prefix.len()..].to_owned()).collect()
    };
    let driver = tree.target(&format!("{root}/device/driver"));
    Device {
        kind: kind(tree, &root, &entries),
        // IFF_UP.
        up: flags.is_some_and(|flags| flags & 1 == 1),
        mtu: number("mtu").and_then(|mtu| mtu.try_into().ok()),
        // -1: the firmware says none.
        node: driver
            .as_ref()
            .and_then(|_| tree.value::<i32>(&format!("{root}/device/numa_node"))?.try_into().ok()),
        near: driver.as_ref().and_then(|_| tree.value(&format!("{root}/device/local_cpulist"))),
        rx: tree
            .numbered(&format!("{root}/queues"), "rx-")
            .into_iter()
            .map(|queue| rx(tree, &root, queue))
            .collect(),
        tx: tree
            .numbered(&format!("{root}/queues"), "tx-")
            .into_iter()
            .map(|queue| tx(tree, &root, queue))
            .collect(),
        gro_flush_timeout: number("gro_flush_timeout").unwrap_or(0),
        napi_defer_hard_irqs: number("napi_defer_hard_irqs").unwrap_or(0),
        // 2 is busy polling by threads.
        threaded: number("threaded").is_some_and(|threaded| threaded > 0),
        master: tree.target(&format!("{root}/master")),
        above: beside("upper_"),
        below: beside("lower_"),
        bridge_calls: entries.iter().any(|entry| entry == "bridge").then(|| calls(tree, &root)),
        interrupts: match &driver {
            Some(_) => interrupts::of(tree, name, &root, actions),
            None => Vec::new(),
        },
        driver,
        name: name.to_owned(),
    }
}

fn rx(tree: &Tree, root: &str, number: u32) -> RxQueue {
    tree.folder(&format!("{root}/queues/rx-{number}"));
    let file = |name: &str| tree.text(&format!("{root}/queues/rx-{number}/{name}"));
    RxQueue {
        number,
        rps_cpus: cpus(file("rps_cpus")),
        rps_flow_cnt: file("rps_flow_cnt").and_then(|text| text.parse().ok()).unwrap_or(0),
    }
}

fn tx(tree: &Tree, root: &str, number: u32) -> TxQueue {
    // One of several alone has files that can be read.
    tree.folder(&format!("{root}/queues/tx-{number}"));
    let file = |name: &str| tree.text(&format!("{root}/queues/tx-{number}/{name}"));
    TxQueue {
        number,
        xps_cpus: cpus(file("xps_cpus")),
        by_rx_queue: file("xps_rxqs")
            .is_some_and(|text| text.chars().any(|c| !matches!(c, '0' | ','))),
    }
}

/// The CPUs of a mask; none where there is none.
fn cpus(mask: Option<String>) -> CpuSet {
    mask.and_then(|mask| CpuSet::from_mask(&mask).ok()).unwrap_or_default()
}

/// What sysfs shows of a device's kind; a veth is not told from others there.
fn kind(tree: &Tree, root: &str, entries: &[String]) -> Option<String> {
    let path = format!("{root}/uevent");
    let keep = |text: &str| lines(text, |line| line.starts_with("DEVTYPE="));
    let said = tree.filtered(&path, &path, keep).unwrap_or_default();
    let named = said.strip_prefix("DEVTYPE=").map(str::to_owned);
    let has = |entry: &str| entries.iter().any(|found| found == entry);
    if has("tun_flags") {
        tree.text(&format!("{root}/tun_flags"));
    }
    if has("bonding") {
        tree.folder(&format!("{root}/bonding"));
    }
    named
        .or_else(|| has("bonding").then(|| "bond".into()))
        .or_else(|| has("bridge").then(|| "bridge".into()))
        .or_else(|| has("tun_flags").then(|| "tun".into()))
}

fn calls(tree: &Tree, root: &str) -> Vec<String> {
    tree.folder(&format!("{root}/bridge"));
    let is_on = |name: &&str| {
        let text = tree.text(&format!("{root}/bridge/nf_call_{name}"));
        text.is_some_and(|text| text != "0")
    };
    ["iptables", "ip6tables", "arptables"]
        .iter()
        .filter(|name| is_on(name))
        .map(|name| (*name).to_owned())
        .collect()
}
