//! The kernel: its version, its configuration, lockdown, BTF.

use std::collections::BTreeMap;
use std::path::Path;

use super::lines;
use crate::Kernel;
use crate::tree::Tree;

/// The options that matter here.
const OPTIONS: [&str; 8] = [
    "CONFIG_BPF_JIT",
    "CONFIG_BPF_STREAM_PARSER",
    "CONFIG_BPF_SYSCALL",
    "CONFIG_HZ",
    "CONFIG_NET_RX_BUSY_POLL",
    "CONFIG_RPS",
    "CONFIG_XDP_SOCKETS",
    "CONFIG_XPS",
];

impl Kernel {
    /// The one that runs here, as far as anybody may know it.
    pub fn here() -> Kernel {
        kernel(&Tree::at(Path::new("/")))
    }
}

pub(crate) fn kernel(tree: &Tree) -> Kernel {
    let release = tree.text("proc/sys/kernel/osrelease").unwrap_or_default();
    Kernel {
        release: release.parse().ok(),
        options: options(tree, &release),
        lockdown: lockdown(tree),
        btf: tree.exists("sys/kernel/btf/vmlinux"),
    }
}

/// Those of the options that it says something of: `y`, `m`, a value, or `n` for one that is not
/// set.
fn options(tree: &Tree, release: &str) -> BTreeMap<String, String> {
    // Where a record has them, whichever place they are from.
    let at = format!("boot/config-{release}");
    let keep = |text: &str| lines(text, |line| option(line).is_some());
    let text = tree
        .filtered(&at, &at, keep)
        .or_else(|| tree.unzipped("proc/config.gz", &at, keep))
        .or_else(|| tree.filtered(&format!("usr/lib/modules/{release}/config"), &at, keep))
        .or_else(|| tree.filtered(&format!("lib/modules/{release}/config"), &at, keep));
    if text.is_none() {
        tree.note(format!(
            "no configuration of the kernel in /proc/config.gz or /boot/config-{release}"
        ));
    }
    text.unwrap_or_default().lines().filter_map(option).collect()
}

fn option(line: &str) -> Option<(String, String)> {
    let (name, value) = match line.strip_prefix("# ") {
        Some(unset) => (unset.strip_suffix(" is not set")?, "n"),
        None => line.split_once('=')?,
    };
    OPTIONS.contains(&name).then(|| (name.to_owned(), value.to_owned()))
}

/// The mode in brackets: `none [integrity] confidentiality`.
fn lockdown(tree: &Tree) -> Option<String> {
    let text = tree.text("sys/kernel/security/lockdown")?;
    let (mode, _) = text.split_once('[')?.1.split_once(']')?;
    Some(mode.to_owned())
}
