//! What of a host a process could change, as text: settings, devices, programs, addresses, rules,
//! sockets, mounts, files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use lab::Host;
use serde_json::Value;

use crate::stage::Stage;

/// Each thing by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<String, String>);

/// Of a host, what is printed by programs; the name of a device takes the place of `$dev`.
const SHOWN: [&str; 9] = [
    "ip -j address",
    "ip -j route show table all",
    "ip -j -6 route show table all",
    "ip -j rule",
    "ip -j -6 rule",
    "bridge -d -j vlan",
    "tc qdisc show",
    "nft list ruleset",
    // Listening, and those of packets.
    "ss -H -ltu; ss -H -lx; ss -H -a -0; ss -H -a --xdp",
];
const SHOWN_OF_DEVICE: [&str; 3] =
    ["ethtool -k $dev", "tc filter show dev $dev ingress", "tc filter show dev $dev egress"];

/// Files of /proc/sys and of a device that say what happens, not what is set. To read `stat_refresh` has
/// every CPU work.
const FIGURES: [&str; 13] = [
    "stat_refresh",
    "hung_task_detect_count",
    "hung_task_warnings",
    "nf_conntrack_count",
    "pty",
    "ns_last_pid",
    "random",
    "statistics",
    "carrier_changes",
    "carrier_up_count",
    "carrier_down_count",
    "brforward",
    "drop_caches",
];

impl Snapshot {
    pub(crate) fn of(stage: &Stage) -> Snapshot {
        let mut all = BTreeMap::new();
        for part in ["kernel", "vm", "net/core"] {
            files(&Path::new("/proc/sys").join(part), "the machine's ", &mut all);
        }
        for host in stage.neighbours().into_iter().chain([stage.host()]) {
            host.run(|| devices(host, &mut all)).expect("the host");
        }
        stage.within(|| {
            files(Path::new("/proc/sys/net"), "", &mut all);
            for device in fs::read_dir("/sys/class/net").expect("sysfs").flatten() {
                files(&device.path(), "", &mut all);
            }
            printed(&SHOWN, "", &mut all);
            let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("mounts");
            // Whatever their numbers.
            let mounts = mounts.lines().map(|line| line.splitn(4, ' ').last().unwrap_or(line));
            all.insert("mounts".into(), mounts.collect::<Vec<_>>().join("\n"));
            for dir in ["/run", "/tmp", "/dev/shm"] {
                names(Path::new(dir), &mut all);
            }
        });
        Snapshot(all)
    }

    /// What is not as it is here, and how it is there.
    pub(crate) fn changes(&self, later: &Snapshot) -> Vec<String> {
        let keys: BTreeSet<_> = self.0.keys().chain(later.0.keys()).collect();
        let change = |key: &&String| {
            let [before, after] = [&self.0, &later.0].map(|all| all.get(*key));
            (before != after).then(|| match (before, after) {
                (None, Some(is)) if is.is_empty() => (*key).clone(),
                (Some(was), None) if was.is_empty() => format!("{key} is gone"),
                _ => format!("{key}: {before:?} became {after:?}"),
            })
        };
        keys.iter().filter_map(change).collect()
    }
}

/// The devices of a host, with the programs on them.
fn devices(host: &Host, all: &mut BTreeMap<String, String>) {
    let of = format!("{host}: ");
    let links = output("ip -j -d link");
    let mut links: Value = serde_json::from_str(&links).expect("JSON");
    without_timers(&mut links);
    for link in links.as_array().expect("links") {
        let (name, index) = (link["ifname"].as_str().expect("a name"), &link["ifindex"]);
        let index = index.as_u64().and_then(|it| u32::try_from(it).ok()).expect("a number");
        all.insert(format!("{of}link {name}"), link.to_string());
        let commands = SHOWN_OF_DEVICE.map(|line| line.replace("$dev", name));
        printed(&commands.each_ref().map(String::as_str), &of, all);
        for hook in [bpf::tcx::Hook::Ingress, bpf::tcx::Hook::Egress] {
            let programs = bpf::tcx::programs(index, hook).expect("tcx");
            all.insert(format!("{of}{name} tcx {hook:?}"), format!("{programs:?}"));
        }
    }
}

fn printed(lines: &[&str], of: &str, all: &mut BTreeMap<String, String>) {
    // In one shell: it is what a snapshot costs most.
    let script: String = lines.iter().map(|line| format!("{line} 2>&1; echo ----\n")).collect();
    let said = output(&script);
    let said: Vec<_> = said.split("----\n").collect();
    assert_eq!(said.len(), lines.len() + 1, "{said:?}");
    for (line, text) in lines.iter().zip(said) {
        match serde_json::from_str(text) {
            Ok(Value::Array(parts)) => {
                all.extend(parts.iter().map(|part| (format!("{of}{line}: {part}"), String::new())));
            }
            _ => {
                all.extend(text.lines().map(|part| (format!("{of}{line}: {part}"), String::new())))
            }
        }
    }
}

fn output(script: &str) -> String {
    let output = std::process::Command::new("sh").args(["-c", script]).output().expect("sh runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What every regular file in a folder says, without following links.
fn files(dir: &Path, of: &str, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if FIGURES.contains(&&*name) || name.ends_with("_timer") {
            continue;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            files(&path, of, all);
        } else if kind.is_file()
            // Some can only be written, or ask the device.
            && let Ok(text) = fs::read(&path)
        {
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            all.insert(format!("{of}{}", path.display()), text);
        }
    }
}

/// What is in a folder, whatever it says.
fn names(dir: &Path, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        all.insert(entry.path().display().to_string(), String::new());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names(&entry.path(), all);
        }
    }
}

/// Takes away what counts down.
fn without_timers(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !name.ends_with("_timer"));
            fields.values_mut().for_each(without_timers);
        }
        Value::Array(all) => all.iter_mut().for_each(without_timers),
        _ => {}
    }
}
