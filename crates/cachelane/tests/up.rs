//! `cachelane up` as a user meets it: its members, their failures, new configurations, and its end.

mod common;

use std::collections::HashMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use common::clients::{PATIENCE, Storm, ask, echo};
use common::daemon::{Scene, Status, free, is_there, never_starts, relay, send, serves};
use common::{Place, ends_within, text};
use lab::testing::comes_true;
use rustix::process::Signal;

#[test]
fn one_member_that_fails_takes_no_other_down_and_is_tried_again() {
    let (to, listen) = (echo(), free());
    let lend = "[lend.x]\ninterface = \"no-such-dev\"\nsocket = \"x.lend\"\n";
    let scene = Scene::new(&(relay("web", listen, to, "") + lend));
    let daemon = scene.spawn(&["--retry-after", "50ms"]);
    let trouble = "no device 'no-such-dev' here";
    let is_so = |all: &HashMap<String, Status>| {
        let web = all.get("relay.web").is_some_and(|one| one.state == "running");
        let failing = all.get("lend.x").is_some_and(|one| {
            one.failures >= 3 && one.trouble.as_deref().is_some_and(|why| why.contains(trouble))
        });
        web && failing
    };
    assert!(comes_true(|| is_so(&scene.status())), "{:?}\n{}", scene.status(), daemon.log());
    assert!(serves(listen), "{}", daemon.log());
    let shown = scene.run(&["up", "--status"]);
    assert_eq!(shown.status.code(), Some(1), "somebody has trouble");
    assert!(text(&shown.stdout).contains(trouble), "{}", text(&shown.stdout));
    // By the pauses, which double: 50, 100 and 200 ms.
    let log = daemon.log();
    for pause in ["50ms", "100ms", "200ms"] {
        assert!(log.contains(&format!("trying again in {pause}\n")), "{pause}: {log}");
    }
    let counters = scene.run(&["knob", "list", "--counters"]);
    assert!(text(&counters.stdout).contains("up.failing"), "{}", text(&counters.stdout));
}

#[test]
fn a_new_configuration_touches_what_differs_and_nothing_else() {
    let (to, other) = (echo(), echo());
    let addrs: [SocketAddr; 5] = std::array::from_fn(|_| free());
    let of = |name: &str, at: usize, more: &str| relay(name, addrs[at], to, more);
    let before = of("same", 0, "") + &of("knob", 1, "") + &of("moves", 2, "") + &of("goes", 3, "");
    let scene = Scene::new(&before);
    let mut daemon = scene.start(&[]);
    let pids = scene.status();
    let held = TcpStream::connect(addrs[2]).expect("it listens");
    assert!(comes_true(|| serves(addrs[2])));

    let after = of("same", 0, "")
        + &of("knob", 1, "engine = \"copy\"")
        + &relay("moves", addrs[2], other, "keepalive = \"20s\"")
        + &of("comes", 4, "");
    scene.write(&after);
    daemon.signal(Signal::HUP);
    let is_so = |all: &HashMap<String, Status>| {
        let runs = |name: &str| all.get(name).is_some_and(|one| one.state == "running");
        let moved =
            all.get("relay.moves").map(|one| one.pid) != pids.get("relay.moves").map(|one| one.pid);
        runs("relay.comes") && runs("relay.moves") && moved && !all.contains_key("relay.goes")
    };
    assert!(comes_true(|| is_so(&scene.status())), "{:?}\n{}", scene.status(), daemon.log());
    let now = scene.status();
    assert_eq!(now["relay.same"], pids["relay.same"], "it was touched");
    assert_eq!(now["relay.knob"].pid, pids["relay.knob"].pid, "a knob needs no new process");
    let knob = scene.run(&["knob", "get", "relay.engine", "--name", "relay.knob"]);
    assert_eq!(text(&knob.stdout), "copy\n", "{}", daemon.log());
    for at in [0, 1, 2, 4] {
        assert!(serves(addrs[at]), "{at}: {}", daemon.log());
    }
    assert!(TcpStream::connect(addrs[3]).is_err(), "it was taken out");
    ask(&held).expect("a client of before is served to its end");

    // And back: what a key is where it is not set.
    scene.write(&before);
    daemon.signal(Signal::HUP);
    let engine = || scene.run(&["knob", "get", "relay.engine", "--name", "relay.knob"]).stdout;
    assert!(comes_true(|| text(&engine()) == "auto\n"), "{}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    assert!(addrs.iter().all(|addr| TcpStream::connect(addr).is_err()));
}

#[test]
fn what_is_logged_follows_the_configuration_while_members_run() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let daemon = scene.start(&[]);
    let pid = scene.pid("relay.web");
    // On SIGUSR1 the daemon logs how its members fare, and each of these what it has counted.
    let says = |whose: &str| {
        let lines = || daemon.log().lines().filter(|line| line.contains(whose)).count();
        let before = lines();
        daemon.signal(Signal::USR1);
        thread::sleep(Duration::from_millis(500));
        lines() > before
    };
    for (level, is_heard) in [("info", true), ("error", false), ("info", true)] {
        let log = format!("[log]\nlevel = \"{level}\"\n");
        scene.write(&(log + &relay("web", addr, to, "")));
        daemon.signal(Signal::HUP);
        for whose in ["INFO Stats", "INFO relay.web running"] {
            assert!(comes_true(|| says(whose) == is_heard), "{level}: {whose}\n{}", daemon.log());
        }
    }
    assert_eq!(scene.pid("relay.web"), pid, "it was started anew");
}

#[test]
fn a_wrong_configuration_changes_nothing_and_says_all_that_is_wrong() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let daemon = scene.start(&[]);
    let before = scene.status();
    scene.write("[relay.web]\nlisten = \"nowhere\"\ntoo = 1\n[relay.b]\n");
    daemon.signal(Signal::HUP);
    assert!(daemon.says("nothing is changed: the configuration has 3 errors"), "{}", daemon.log());
    for words in ["up.toml:2:1: ", "up.toml:3:1: unknown key too", "up.toml:4:8: "] {
        assert!(daemon.log().contains(words), "{words}: {}", daemon.log());
    }
    assert_eq!(scene.status(), before);
    assert!(serves(addr));
    // Filters are of a language of their own.
    let lend = "[lend.x]\ninterface = \"lo\"\nsocket = \"x\"\nfilter = \"tcp prot 80\"\n";
    scene.write(&(relay("web", addr, to, "engine = \"copy\"") + lend));
    daemon.signal(Signal::HUP);
    assert!(daemon.says("nothing is changed: the configuration has 1 errors"), "{}", daemon.log());
    assert!(daemon.log().contains("lend.x.filter 'tcp prot 80': "), "{}", daemon.log());
    assert_eq!(scene.status(), before);
    let engine = scene.run(&["knob", "get", "relay.engine", "--name", "relay.web"]);
    assert_eq!(text(&engine.stdout), "auto\n", "{}", daemon.log());
    // Nor does one that starts with it.
    let other = scene.run(&["up", "-c", "up.toml", "--name", "other"]);
    assert_eq!(other.status.code(), Some(2), "{other:?}");
}

#[test]
fn a_member_that_is_killed_or_stopped_is_started_again() {
    let (to, addr, other) = (echo(), free(), free());
    let scene = Scene::new(&(relay("web", addr, to, "") + &relay("other", other, to, "")));
    let more = ["--silent-after", "4s", "--retry-after", "50ms"];
    let daemon = scene.start(&more);
    let untouched = scene.status()["relay.other"].clone();
    for (signal, says) in [
        (Signal::KILL, "relay.web: killed by signal 9"),
        (Signal::STOP, "relay.web: said nothing for 4s: killed by signal 9"),
    ] {
        let pid = scene.pid("relay.web").expect("it runs");
        send(pid, signal);
        assert!(daemon.says(says), "{}", daemon.log());
        let is_new = || scene.pid("relay.web").is_some_and(|now| now != pid) && scene.all_run();
        assert!(comes_true(is_new), "{:?}\n{}", scene.status(), daemon.log());
        assert!(serves(addr), "{}", daemon.log());
    }
    assert_eq!(scene.status()["relay.other"], untouched);
}

#[test]
fn members_end_with_a_daemon_that_is_killed() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let daemon = scene.start(&[]);
    let pid = scene.pid("relay.web").expect("it runs");
    daemon.signal(Signal::KILL);
    assert!(comes_true(|| !is_there(pid) || is_zombie(pid)), "process {pid} goes on");
    assert!(TcpStream::connect(addr).is_err());
    drop(daemon);
    // And the next one finds nothing in its way.
    let mut next = scene.start(&[]);
    assert!(serves(addr), "{}", next.log());
    next.signal(Signal::TERM);
    assert_eq!(next.ended(), Some(0));
    let left = fs::read_dir(scene.place.path().join("run")).expect("a folder").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Whoever it is a child of now has not waited for it.
fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn a_daemon_takes_the_place_of_another_and_no_client_notices() {
    let (to, addr, other) = (echo(), free(), free());
    let config = relay("web", addr, to, "") + &relay("other", other, to, "");
    let scene = Scene::new(&config);
    let mut daemon = scene.start(&[]);
    let refused = scene.run(&["up", "-c", "up.toml"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("--replace to take its place"), "{refused:?}");
    let storms = [Storm::on(addr), Storm::on(other)];
    let held = TcpStream::connect(addr).expect("it listens");
    for round in 0..5 {
        let pids: Vec<_> = scene.status().into_values().map(|one| one.pid).collect();
        let next = scene.spawn(&["--replace"]);
        let is_new = || {
            let now = scene.status();
            now.len() == 2 && scene.all_run() && now.values().all(|one| !pids.contains(&one.pid))
        };
        assert!(
            comes_true(is_new),
            "{round}: {:?}\n{}{}",
            scene.status(),
            daemon.log(),
            next.log()
        );
        let mut last = std::mem::replace(&mut daemon, next);
        if round == 0 {
            // The client that it has is still there.
            ask(&held).expect("it is served to its end");
        }
        assert_eq!(last.ended(), Some(0), "{round}: {}", last.log());
    }
    for storm in storms {
        let tally = storm.end();
        assert!(tally.served > 0 && (tally.refused, tally.reset) == (0, 0), "{tally:?}");
    }
}

#[test]
fn a_daemon_that_is_to_upgrade_starts_its_successor_itself() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let mut daemon = scene.start(&[]);
    let pid = scene.pid("relay.web");
    let storm = Storm::on(addr);
    daemon.signal(Signal::USR2);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    assert!(comes_true(|| scene.all_run() && scene.pid("relay.web") != pid), "{}", daemon.log());
    let tally = storm.end();
    assert!(tally.served > 0 && (tally.refused, tally.reset) == (0, 0), "{tally:?}");
    let names = scene.place.processes();
    let successor = names.iter().find(|(_, line)| line.contains(" up ")).expect("it runs");
    assert!(successor.1.ends_with("--replace "), "{names:?}");
    send(successor.0, Signal::TERM);
    assert!(comes_true(|| scene.place.processes().is_empty()), "{:?}", scene.place.processes());
}

#[test]
fn a_daemon_goes_on_if_what_was_to_take_its_place_is_killed_or_stopped() {
    let (to, addr) = (echo(), free());
    let web = relay("web", addr, to, "");
    let scene = Scene::new(&web);
    let mut daemon = scene.start(&["--silent-after", "2s"]);
    // The successor never gets so far as to say that it has the place: one of its members never starts.
    let never = never_starts(&scene, to);
    for (round, signal) in [Signal::KILL, Signal::STOP].into_iter().enumerate() {
        scene.write(&(web.clone() + &never));
        let successor = scene.spawn(&["--replace"]);
        assert!(successor.says("relay.web: runs"), "{}", successor.log());
        // However long that takes, one that is well is waited for.
        thread::sleep(Duration::from_secs(10));
        assert_eq!(daemon.log().matches("going on").count(), round, "{}", daemon.log());
        successor.signal(signal);
        let goes_on = || daemon.log().matches("going on").count() == round + 1;
        assert!(comes_true(goes_on), "{}", daemon.log());
        scene.write(&web);
        assert!(comes_true(|| scene.all_run() && serves(addr)), "{}", daemon.log());
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
}

#[test]
fn it_ends_once_connections_have_and_at_once_when_told_twice() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let mut daemon = scene.start(&[]);
    let mut client = TcpStream::connect(addr).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.write_all(b"a").expect("it takes it");
    let mut one = [0];
    client.read_exact(&mut one).expect("it comes back");
    daemon.signal(Signal::TERM);
    assert!(daemon.says("draining 1 connections"), "{}", daemon.log());
    client.write_all(b"b").expect("it takes it");
    client.read_exact(&mut one).expect("it comes back");
    assert_eq!(&one, b"b");
    client.shutdown(Shutdown::Write).expect("an end");
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());

    let mut daemon = scene.start(&[]);
    let mut client = TcpStream::connect(addr).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.write_all(b"a").expect("it takes it");
    client.read_exact(&mut one).expect("it comes back");
    daemon.signal(Signal::TERM);
    assert!(daemon.says("draining 1 connections"), "{}", daemon.log());
    thread::sleep(Duration::from_millis(100));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    let end = client.read(&mut one);
    assert!(end.is_err(), "it was reset: {end:?}");
}

#[test]
fn a_dry_run_says_what_each_member_would_do_and_starts_none() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(
        &(relay("web", addr, to, "") + "[lend.x]\ninterface = \"no-such-dev\"\nsocket = \"x\"\n"),
    );
    let output = scene.run(&["up", "-c", "up.toml", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains(&format!("relay.web: would listen on {addr}")), "{said}");
    assert!(said.contains("lend.x: cachelane: no device 'no-such-dev'"), "{said}");
    assert!(TcpStream::connect(addr).is_err());
    assert_eq!(scene.run(&["up", "--status"]).status.code(), Some(1), "none runs");
}

#[test]
fn logs_are_opened_anew_on_hangup() {
    let (to, addr) = (echo(), free());
    let place = Place::new();
    let log = place.path().join("access.log");
    let more = format!("access-log = \"{}\"", log.display());
    let scene = Scene { place, host: None };
    scene.write(&relay("web", addr, to, &more));
    let daemon = scene.start(&[]);
    let pid = scene.pid("relay.web");
    assert!(serves(addr) && comes_true(|| fs::read(&log).is_ok_and(|text| !text.is_empty())));
    fs::rename(&log, log.with_extension("1")).expect("it is there");
    daemon.signal(Signal::HUP);
    assert!(comes_true(|| log.exists()), "{}", daemon.log());
    assert!(serves(addr) && comes_true(|| fs::read(&log).is_ok_and(|text| !text.is_empty())));
    assert_eq!(scene.pid("relay.web"), pid, "it was not touched");
    let output =
        ends_within(scene.command(&["up", "--status"]).spawn().expect("it starts"), PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
