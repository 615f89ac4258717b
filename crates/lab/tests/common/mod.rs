//! What the tests of this crate share.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::{collections::HashSet, fs, path::Path, process::Command};

use cachelane_lab::Bridge;

/// The network of the machine as its user sees it.
pub(crate) fn machine_network() -> String {
    let print = |args: &[&str]| {
        let output = Command::new("ip").args(args).output().expect("ip runs");
        assert!(output.status.success(), "ip {args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("ip prints text")
    };
    [["-br", "link"], ["-br", "addr"], ["netns", "list"]].map(|args| print(&args)).concat()
}

/// The network namespaces that processes are in, by their inode links.
pub(crate) fn namespaces() -> HashSet<String> {
    let threads = fs::read_dir("/proc").into_iter().flatten().flatten().flat_map(|process| {
        fs::read_dir(process.path().join("task")).into_iter().flatten().flatten()
    });
    threads
        .filter_map(|thread| fs::read_link(thread.path().join("ns/net")).ok())
        .map(|link| link.display().to_string())
        .collect()
}

/// Whether there is such a process.
pub(crate) fn lives(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// A bridge's forwarding table.
pub(crate) fn fdb(bridge: &Bridge) -> String {
    let args = ["fdb", "show", "br", &bridge.own.device];
    bridge.own.host.command("bridge").args(args).run().expect("a table")
}
