//! Settings of the kernel's networking, and what its packet processing has counted.

use std::collections::BTreeMap;

use crate::Softnet;
use crate::tree::Tree;

/// The settings that findings look at, by their names for sysctl.
const SYSCTLS: [&str; 12] = [
    "net.bridge.bridge-nf-call-arptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.bridge.bridge-nf-call-iptables",
    "net.core.bpf_jit_enable",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.skb_defer_max",
    "net.ipv4.tcp_rmem",
];

/// The values of those that are there.
pub(crate) fn sysctls(tree: &Tree) -> BTreeMap<String, String> {
    let value = |name: &&str| {
        let text = tree.text(&format!("proc/sys/{}", name.replace('.', "/")))?;
        Some(((*name).to_owned(), text))
    };
    SYSCTLS.iter().filter_map(value).collect()
}

/// The counters of each CPU.
pub(crate) fn softnet(tree: &Tree) -> Vec<Softnet> {
    let text = tree.text("proc/net/softnet_stat").unwrap_or_default();
    text.lines().enumerate().filter_map(|(line, text)| counters(line, text)).collect()
}

/// One line of hexadecimal numbers. The CPU's number is the 13th (Linux 5.10); before that the lines
/// are in the order of the CPUs that are online.
fn counters(line: usize, text: &str) -> Option<Softnet> {
    let numbers = text.split_whitespace().map(|number| u64::from_str_radix(number, 16).ok());
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    let cpu = numbers.get(12).map_or(line, |cpu| *cpu as usize);
    let [processed, dropped, squeezed, ..] = numbers[..] else { return None };
    Some(Softnet { cpu, processed, dropped, squeezed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_cpu() {
        let line = "000000ff 00000002 00000010 00000000 00000000 00000000 00000000 00000000 \
                    00000000 00000000 00000000 00000000 00000005 00000000 00000000";
        let expected = Softnet { cpu: 5, processed: 255, dropped: 2, squeezed: 16 };
        assert_eq!(counters(1, line), Some(expected));
        assert_eq!(counters(1, "1 2 3").map(|line| line.cpu), Some(1));
        assert_eq!(counters(1, "1 2"), None);
        assert_eq!(counters(1, "1 x 3"), None);
    }
}
