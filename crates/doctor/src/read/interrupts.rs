//! Interrupts of network devices, and who moves them: irqbalance, and threads of threaded NAPI.

use lanes::CpuSet;

use super::lines;
use crate::tree::Tree;
use crate::{Interrupt, Irqbalance, NapiThread};

const ROOT: &str = "sys/kernel/irq";

/// What drivers put into the names of queues' interrupts. Others are for errors, links and events.
const QUEUES: [&str; 8] = ["txrx", "tx-rx", "input", "output", "comp", "ntfy", "-rx-", "-tx-"];

/// The numbers of the machine's interrupts and what drivers call them, without those that nobody
/// asked for.
pub(crate) fn actions(tree: &Tree) -> Vec<(u32, String)> {
    let numbers = tree.numbered(ROOT, "");
    let named = numbers.into_iter().filter_map(|number| {
        let name = tree.text(&format!("{ROOT}/{number}/actions"))?;
        (!name.is_empty()).then_some((number, name))
    });
    named.collect()
}

/// The interrupts of a device's queues.
pub(super) fn of(tree: &Tree, name: &str, root: &str, all: &[(u32, String)]) -> Vec<Interrupt> {
    // The function on the PCI bus is the device itself or, for virtio, what is above it.
    let own = ["device/msi_irqs", "device/../msi_irqs"].map(|folder| {
        let folder = format!("{root}/{folder}");
        let numbers = tree.numbered(&folder, "");
        numbers.iter().for_each(|number| tree.folder(&format!("{folder}/{number}")));
        numbers
    });
    let own = own.concat();
    // Where the bus has none to show, drivers put the device's name into the interrupt's.
    let hardware = tree.target(&format!("{root}/device"));
    tree.folder(&format!("{root}/device"));
    let named = |action: &str| {
        let names = [Some(name), hardware.as_deref()];
        names.into_iter().flatten().any(|name| {
            let parts = action.split(['-', '@', ',', ' ', '.']);
            parts.into_iter().any(|part| part == name)
        })
    };
    let is_queue = |action: &str| {
        let action = action.to_lowercase();
        QUEUES.iter().any(|part| action.contains(part))
    };
    let found = all.iter().filter(|(number, action)| {
        is_queue(action) && if own.is_empty() { named(action) } else { own.contains(number) }
    });
    found.filter_map(|(number, action)| interrupt(tree, *number, action)).collect()
}

fn interrupt(tree: &Tree, number: u32, name: &str) -> Option<Interrupt> {
    let list = |file: &str| tree.text(&format!("proc/irq/{number}/{file}"))?.parse::<CpuSet>().ok();
    let effective = list("effective_affinity_list").filter(|cpus| !cpus.is_empty());
    let cpus = list("smp_affinity_list")?;
    Some(Interrupt { number, name: name.to_owned(), cpus, effective })
}

/// The daemon, if a process of its name runs, with the options of its service.
pub(crate) fn irqbalance(tree: &Tree, processes: &[(u32, String)]) -> Option<Irqbalance> {
    processes.iter().find(|(_, name)| name == "irqbalance")?;
    // Debian's and Fedora's places for them.
    let files = ["etc/default/irqbalance", "etc/sysconfig/irqbalance"].map(|path| {
        let is_option =
            |line: &str| line.starts_with("OPTIONS=") || line.starts_with("IRQBALANCE_ARGS=");
        tree.filtered(path, path, |text| lines(text, is_option)).unwrap_or_default()
    });
    let all = files.join("\n");
    let values = all.lines().filter_map(|line| Some(line.split_once('=')?.1.trim_matches('"')));
    Some(Irqbalance { options: values.collect::<Vec<_>>().join(" ") })
}

/// The threads that poll devices.
pub(crate) fn napi_threads(tree: &Tree, processes: &[(u32, String)]) -> Vec<NapiThread> {
    let threads = processes.iter().filter(|(_, name)| name.starts_with("napi/"));
    let threads = threads.filter_map(|(pid, name)| {
        let path = format!("proc/{pid}/status");
        let keep = |text: &str| lines(text, |line| line.starts_with("Cpus_allowed_list:"));
        let cpus = tree.filtered(&path, &path, keep)?;
        let cpus = cpus.strip_prefix("Cpus_allowed_list:")?.parse().ok()?;
        Some(NapiThread { name: name.clone(), cpus })
    });
    threads.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_queues_interrupts_are_taken_and_only_of_the_device() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        for (number, name) in [
            (40, "eth0"),
            (41, "eth0-TxRx-0"),
            (42, "virtio2-config"),
            (43, "virtio2-input.0"),
            (44, "mlx5_comp0@pci:0000:01:00.0"),
            (45, "virtio21-input.0"),
            (46, ""),
            (47, "i40e-eth0-TxRx-1"),
        ] {
            write(&format!("sys/kernel/irq/{number}/actions"), name);
            write(&format!("proc/irq/{number}/smp_affinity_list"), "0-3\n");
            write(&format!("proc/irq/{number}/effective_affinity_list"), "2\n");
        }
        write("sys/class/net/eth2/device/msi_irqs/44", "msix");
        let device = |name: &str| dir.path().join(format!("sys/class/net/{name}"));
        fs::create_dir_all(device("eth1")).expect("a folder");
        std::os::unix::fs::symlink("../../virtio2", device("eth1").join("device")).expect("may");
        let tree = Tree::at(dir.path());
        let all = actions(&tree);
        assert_eq!(all.len(), 7, "{all:?}");
        let found = |name: &str| -> Vec<u32> {
            let of = of(&tree, name, &format!("sys/class/net/{name}"), &all);
            assert!(
                of.iter().all(|one| one.effective.as_ref().is_some_and(|cpus| cpus.contains(2)))
            );
            of.iter().map(|interrupt| interrupt.number).collect()
        };
        assert_eq!(found("eth0"), [41, 47]);
        assert_eq!(found("eth1"), [43]);
        assert_eq!(found("eth2"), [44]);
        assert_eq!(found("eth3"), [0; 0]);
    }
}
