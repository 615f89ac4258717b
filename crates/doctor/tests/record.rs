//! Recording a host, and reading the record.

mod common;

use std::fs;
use std::path::Path;

use cachelane_doctor::{ErrorKind, Host, LookOptions, Place, Result};
use common::{Made, found, hosts};
use tempfile::TempDir;

/// All files below a folder: path and text.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.to_string_lossy().into_owned();
        let kind = path.symlink_metadata().expect("it is there").file_type();
        if kind.is_dir() {
            all.push((name, String::new()));
            all.extend(files(&path));
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).expect("a link");
            all.push((name, target.to_string_lossy().into_owned()));
        } else {
            all.push((name, fs::read_to_string(&path).expect("text")));
        }
    }
    all
}

fn here(pid: Option<u32>) -> Result<Host> {
    Host::look(&Place::Here { pid }, &LookOptions::default())
}

fn recorded(folder: &Path) -> Result<Host> {
    Host::look(&Place::Recorded(folder.to_owned()), &LookOptions::default())
}

fn record(host: &Host) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    host.record(dir.path()).expect("it records");
    dir
}

#[test]
fn a_record_says_what_the_host_said() {
    for (name, _) in hosts() {
        let host = Made::new(&name).look();
        let dir = record(&host);
        let again = recorded(dir.path()).expect("a record");
        let facts = |host: &Host| serde_json::to_value(&host.facts).expect("facts");
        assert_eq!(facts(&again), facts(&host), "{name}");
        assert_eq!(found(&again.facts), found(&host.facts), "{name}");
        assert_eq!(again.not_seen, host.not_seen, "{name}");
        // A record of a record is the same record.
        let third = record(&again);
        let below = |dir: &TempDir| {
            let mut all = files(dir.path());
            let root = dir.path().to_string_lossy().into_owned();
            all.iter_mut().for_each(|(path, _)| *path = path.replacen(&root, "", 1));
            all.sort();
            all
        };
        assert_eq!(below(&third), below(&dir), "{name}");
    }
}

#[test]
fn what_is_private_is_not_in_a_record() {
    const PRIVATE: [&str; 8] = [
        "02:11:22:33:44:55",
        "021122334455",
        "192.0.2.7",
        "secret-host",
        "SN12345",
        "--token",
        "nginx",
        "pod0815",
    ];

    let mut made = Made::new("quiet");
    made.change(
        "sys/class/net/eth0/address 02:11:22:33:44:55\n\
         sys/class/net/eth0/uevent INTERFACE=eth0\\nMAC=02:11:22:33:44:55\\nDEVTYPE=wlan\n\
         sys/class/net/enx021122334455/flags 0x1003\n\
         sys/class/net/enx021122334455/mtu 9000\n\
         sys/class/net/enx021122334455/device/driver -> r8152\n\
         json /device_answers/enx021122334455/kind \"veth\"\n\
         proc/sys/kernel/hostname secret-host\n\
         proc/self/status Name:\tnginx\\nCpus_allowed_list:\t0-7\\nCapEff:\t0\n\
         proc/self/cgroup 0::/kubepods/pod0815\n\
         proc/4711/comm nginx\n\
         proc/4711/cmdline nginx --token\n\
         proc/4712/comm irqbalance\n\
         proc/4712/cmdline irqbalance --token\n\
         etc/default/irqbalance # for secret-host\\nOPTIONS=\\nKEY=--token\n\
         proc/cpuinfo model name\\t: A processor\\nserial\\t: SN12345\n\
         proc/net/route 192.0.2.7\n\
         boot/config-6.19.3-generic CONFIG_HZ=1000\\nCONFIG_DEFAULT_HOSTNAME=\"secret-host\"",
    );
    let host = made.look();
    assert!(host.facts.irqbalance.is_some() && host.facts.devices.len() == 3);
    let dir = record(&host);
    let all = files(dir.path());
    assert!(all.len() > 20, "{all:?}");
    for (path, text) in &all {
        for private in PRIVATE {
            assert!(
                !path.contains(private) && !text.contains(private),
                "{private}: {path}: {text}"
            );
        }
    }
    // The device is still there, under another name.
    let again = recorded(dir.path()).expect("a record");
    assert_eq!(found(&again.facts), found(&host.facts));
    assert!(again.facts.devices.iter().any(|device| device.name == "enx0"));
}

#[test]
fn a_folder_with_something_in_it_is_not_written_to() {
    let host = Made::new("quiet").look();
    let dir = TempDir::new().expect("a folder");
    fs::write(dir.path().join("mine"), "mine").expect("a file");
    let error = host.record(dir.path()).expect_err("it is not empty");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("expected an empty folder"), "{error}");
    assert_eq!(files(dir.path()).len(), 1);
    let error = host.record(&dir.path().join("mine/below")).expect_err("no folder");
    assert!(error.to_string().contains("mine/below"), "{error}");
}

#[test]
fn what_is_no_record_is_named() {
    let dir = TempDir::new().expect("a folder");
    let look = || recorded(dir.path()).map(drop);
    let path = dir.path().display().to_string();
    let error = look().expect_err("it is empty");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(&path) && error.to_string().contains("not a recorded host"));
    for (text, says) in [
        ("", "EOF"),
        ("{\"schema\": 2}", "schema 2, and this doctor reads schema 1"),
        ("{\"schema\": 1, \"bridges\": 7}", "invalid type"),
        ("{\"bridges\": []}", "missing field `schema`"),
    ] {
        fs::write(dir.path().join("cachelane-doctor.json"), text).expect("a file");
        let error = look().expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(error.to_string().contains(says), "{text}: {error}");
    }
    fs::write(dir.path().join("cachelane-doctor.json"), "{\"schema\": 1}").expect("a file");
    let error = look().expect_err("it has no CPUs");
    assert!(error.to_string().contains("cpu/online"), "{error}");
}

#[test]
fn this_host_is_looked_at_and_its_record_says_the_same() {
    let host = here(None).expect("this host");
    assert!(host.facts.kernel.release.is_some());
    assert!(host.facts.devices.iter().any(|device| device.name == "lo"));
    assert!(host.facts.process.allowed.as_ref().is_some_and(|cpus| !cpus.is_empty()));
    let dir = record(&host);
    let again = recorded(dir.path()).expect("a record");
    assert_eq!(found(&again.facts), found(&host.facts));
    assert_eq!(again.not_seen, host.not_seen);
    let mine = here(Some(std::process::id())).expect("this process");
    assert_eq!(mine.facts.process.allowed, host.facts.process.allowed);
    // PIDs end below that.
    let gone = here(Some(u32::MAX)).expect_err("no such process");
    assert_eq!(gone.kind(), ErrorKind::Invalid);
    assert!(gone.to_string().contains("no process 4294967295"), "{gone}");
}
