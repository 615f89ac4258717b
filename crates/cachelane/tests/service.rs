//! The systemd unit, and `cachelane up` with what it allows.

mod common;

use std::collections::HashMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::clients::echo;
use common::daemon::{Daemon, Scene};
use common::{PROGRAM, Place, text};
use lab::testing::{comes_true, root};
use lab::{BridgeOptions, Lab, LinkOptions};
use rustix::process::{Pid, Signal, kill_process};

const UNIT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/cachelane.service");

/// What the unit says of this key, in one line.
fn of_unit(key: &str) -> String {
    let unit = fs::read_to_string(UNIT).expect("the unit");
    let line =
        unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")).map(str::to_owned));
    line.expect(key)
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_little_exposed() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: the unit is not checked: systemd-analyze is not there");
        return;
    }
    let place = Place::new();
    let unit = place.path().join("cachelane.service");
    let here = fs::read_to_string(UNIT).expect("the unit").replace("/usr/bin/cachelane", PROGRAM);
    // Manual pages are not installed here.
    let here = here.lines().filter(|line| !line.starts_with("Documentation=")).collect::<Vec<_>>();
    fs::write(&unit, here.join("\n")).expect("a file");
    let path = unit.to_str().expect("text");
    for args in [&["verify", path][..], &["security", "--offline=true", "--threshold=30", path]] {
        let output = place.wrapped("systemd-analyze".as_ref(), args).output().expect("it runs");
        assert!(output.status.success(), "{args:?}: {output:?}");
        if args[0] == "verify" {
            assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        }
    }
}

/// What each thread of a process may do, as its status says: the name of the thread, and the sets. The one
/// that writes the log was there first, and hears of nobody.
fn capabilities(pid: u32) -> Vec<(String, HashMap<String, u64>)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let of = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).expect("it runs");
        let name = status.lines().next().and_then(|line| line.strip_prefix("Name:\t"));
        let set = |line: &str| {
            let (name, mask) = line.strip_prefix("Cap")?.split_once(":\t")?;
            Some((name.to_owned(), u64::from_str_radix(mask, 16).ok()?))
        };
        (name.expect("a name").to_owned(), status.lines().filter_map(set).collect())
    };
    tasks.map(of).filter(|(name, _)| name != "log").collect()
}

#[test]
fn root_all_mechanisms_run_with_what_the_unit_allows_and_keep_no_more_than_they_need() {
    if !root("root_all_mechanisms_run_with_what_the_unit_allows_and_keep_no_more_than_they_need") {
        return;
    }
    const NET_BROADCAST: u64 = 1 << 11;
    const NET_ADMIN: u64 = 1 << 12;
    const NET_RAW: u64 = 1 << 13;
    const SYS_NICE: u64 = 1 << 23;
    const PERFMON: u64 = 1 << 38;
    const BPF: u64 = 1 << 39;

    let lab = Lab::new("upcaps").expect("a lab");
    let [a, b, c] = ["a", "b", "c"].map(|name| lab.host(name).expect("a host"));
    let bridge = lab.bridge("host", &[&a, &b], BridgeOptions::default()).expect("a bridge");
    let host = bridge.own.host.clone();
    let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
    let steered = lab.link(&c, &host, options.clone()).expect("a link");
    let lent = lab.link(&c, &host, options).expect("a link");
    let mut scene = Scene::new("");
    scene.host = Some(host.clone());
    scene.write(&format!(
        "[bridge.all]\nall = true\n[steer.in]\ninterface = \"{}\"\nforce = true\n[lend.x]\n\
         interface = \"{}\"\nsocket = \"x.lend\"\nudp-port = 53\n[relay.low]\nlisten = \"127.0.0.1:80\"\nto = \
         \"127.0.0.1:81\"\n[metrics]\nlisten = \"127.0.0.1:82\"\n",
        steered.b.device, lent.b.device
    ));
    // setpriv writes them without CAP_, in small letters. The unit's service sees the host's sysfs.
    let allowed =
        of_unit("CapabilityBoundingSet").to_lowercase().replace("cap_", "+").replace(' ', ",");
    let script = format!(
        "mount -t sysfs sysfs /sys && exec setpriv --bounding-set=-all,{allowed} --inh-caps=-all -- \
         \"$0\" up -c up.toml"
    );
    let mut command = scene.command(&[]);
    let mut wrapped = Command::new("unshare");
    wrapped.args(["-m", "sh", "-c", &script, PROGRAM]);
    wrapped.current_dir(scene.place.path()).stderr(std::process::Stdio::piped());
    for (name, value) in command.envs(std::iter::empty::<(&str, &str)>()).get_envs() {
        value.map(|value| wrapped.env(name, value));
    }
    let child = host.run(move || wrapped.spawn()).expect("the host").expect("it starts");
    let mut daemon = Daemon::of(child);
    assert!(comes_true(|| scene.all_run()), "{:?}\n{}", scene.status(), daemon.log());
    assert!(!daemon.log().contains("some members will fail"), "{}", daemon.log());
    let of = |member: &str| capabilities(scene.pid(member).expect("it runs"));
    for (member, has, lacks) in [
        ("bridge.all", NET_ADMIN | PERFMON, NET_RAW),
        // What these have attached, they have.
        ("steer.in", SYS_NICE, BPF | NET_ADMIN | NET_RAW | PERFMON),
        ("lend.x", 0, BPF | NET_ADMIN | NET_RAW | NET_BROADCAST | PERFMON),
        ("relay.low", NET_ADMIN, NET_BROADCAST),
        ("metrics", 0, NET_ADMIN | NET_RAW | PERFMON),
    ] {
        for (thread, sets) in of(member) {
            assert_eq!(sets["Eff"] & has, has, "{member} {thread}: {sets:?}");
            for set in ["Eff", "Prm"] {
                assert_eq!(sets[set] & lacks, 0, "{member} {thread} {set}: {sets:?}");
            }
            assert_eq!(sets["Inh"], 0, "{member} {thread}: {sets:?}");
        }
    }
    // And go on with that: steering looks at its device once a second.
    thread::sleep(Duration::from_secs(3));
    assert!(scene.status().values().all(|one| one.failures == 0), "{}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
}

#[test]
fn root_what_is_missing_for_all_members_is_said_at_once() {
    if !root("root_what_is_missing_for_all_members_is_said_at_once") {
        return;
    }
    let scene = Scene::new(
        "[bridge.all]\nall = true\n[lend.x]\ninterface = \"lo\"\nsocket = \"x\"\n[steer.x]\n\
         interface = \"lo\"\n",
    );
    let mut command = scene.place.wrapped("setpriv".as_ref(), &["--bounding-set=-all", "--"]);
    command.arg(PROGRAM).args(["up", "-c", "up.toml"]);
    command.env("CACHELANE_RUNTIME_DIR", scene.place.path().join("run"));
    let daemon = Daemon::of(command.spawn().expect("it starts"));
    assert!(daemon.says("some members will fail: they need root, or "), "{}", daemon.log());
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("some members will fail")).expect("said");
    for name in [
        "CAP_BPF",
        "CAP_NET_ADMIN",
        "CAP_NET_BROADCAST",
        "CAP_NET_RAW",
        "CAP_PERFMON",
        "CAP_SYS_NICE",
    ] {
        assert_eq!(line.matches(name).count(), 1, "{name}: {line}");
    }
}

/// A service manager's socket, and what it is told.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    /// Whether it comes to be told this.
    fn hears(&mut self, words: &str) -> bool {
        let mut buffer = [0; 4096];
        comes_true(|| {
            while let Ok(length) = self.socket.recv(&mut buffer) {
                let said = String::from_utf8_lossy(&buffer[..length]);
                self.heard.extend(said.lines().map(str::to_owned));
            }
            self.heard.iter().any(|line| line.starts_with(words))
        })
    }
}

#[test]
fn the_service_manager_is_told_how_it_stands() {
    let to = echo();
    let scene = Scene::new(&format!("[relay.web]\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n"));
    let path = scene.place.path().join("manager");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    let mut manager = Manager { socket, heard: Vec::new() };
    let start = |more: &[&str]| {
        // As systemd does it: WATCHDOG_PID is the main process, and is inherited by its children.
        let script = "WATCHDOG_PID=$$ exec \"$0\" up -c up.toml \"$@\"";
        let mut command = scene.command(&[]);
        let mut shell = scene.place.wrapped("sh".as_ref(), &["-c", script, PROGRAM]);
        shell.args(more);
        for (name, value) in command.env("WATCHDOG_USEC", "400000").get_envs() {
            value.map(|value| shell.env(name, value));
        }
        Daemon::of(shell.env("NOTIFY_SOCKET", &path).spawn().expect("it starts"))
    };
    let mut daemon = start(&[]);
    for words in ["READY=1", "STATUS=1 of 1 members run", "WATCHDOG=1"] {
        assert!(manager.hears(words), "{words}: {:?}\n{}", manager.heard, daemon.log());
    }
    let ready = manager.heard.iter().position(|line| line == "READY=1");
    let runs = manager.heard.iter().position(|line| line.starts_with("STATUS=1 of 1"));
    assert!(runs < ready, "ready once it is known how all fare: {:?}", manager.heard);

    daemon.signal(Signal::USR2);
    assert!(manager.hears("MAINPID="), "{:?}\n{}", manager.heard, daemon.log());
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    assert!(!manager.heard.iter().any(|line| line == "STOPPING=1"), "{:?}", manager.heard);
    // The one that has its place does as it did.
    let main = manager.heard.iter().find_map(|line| line.strip_prefix("MAINPID=")).expect("said");
    let main = Pid::from_raw(main.parse().expect("a pid")).expect("a pid");
    manager.heard.clear();
    for words in ["STATUS=1 of 1 members run", "WATCHDOG=1"] {
        assert!(manager.hears(words), "{words}: {:?}\n{}", manager.heard, daemon.log());
    }
    kill_process(main, Signal::TERM).expect("it runs");
    assert!(manager.hears("STOPPING=1"), "{:?}", manager.heard);
    assert!(comes_true(|| scene.place.processes().is_empty()), "{:?}", scene.place.processes());
}
