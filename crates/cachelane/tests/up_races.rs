//! `cachelane up` where several things happen at once, or something stands still.

mod common;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::clients::{Storm, echo};
use common::daemon::{Daemon, Scene, free, never_starts, relay, send, serves};
use lab::testing::comes_true;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::process::Signal;

#[test]
fn of_two_that_start_at_once_one_runs() {
    let to = echo();
    let scene = Scene::new(&relay("web", free(), to, ""));
    let mut both = [scene.spawn(&[]), scene.spawn(&[])];
    let mut ended = [None; 2];
    assert!(comes_true(|| {
        ended = both.each_mut().map(|daemon| daemon.child.try_wait().expect("a child"));
        ended.iter().any(Option::is_some)
    }));
    assert!(comes_true(|| scene.all_run()), "{}{}", both[0].log(), both[1].log());
    let codes = ended.map(|status| status.and_then(|status| status.code()));
    assert!(codes == [Some(2), None] || codes == [None, Some(2)], "{codes:?}");
}

#[test]
fn of_several_successors_one_takes_the_place() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let mut daemon = scene.start(&[]);
    for round in 0..3 {
        let storm = Storm::on(addr);
        let mut all: Vec<_> = (0..3).map(|_| scene.spawn(&["--replace"])).collect();
        daemon.signal(Signal::USR2);
        daemon.signal(Signal::USR2);
        assert_eq!(daemon.ended(), Some(0), "{round}: {}", daemon.log());
        // One runs: of these, or the one that the daemon has started.
        assert!(comes_true(|| scene.all_run()), "{round}: {:?}", scene.status());
        let ups = || {
            let all = scene.place.processes();
            all.into_iter()
                .filter(|(_, line)| line.contains(" up "))
                .map(|(pid, _)| pid)
                .collect::<Vec<_>>()
        };
        let alone = comes_true(|| {
            all.iter_mut().for_each(|one| drop(one.child.try_wait()));
            ups().len() == 1
        });
        let logs: Vec<_> = all.iter().map(Daemon::log).collect();
        assert!(
            alone,
            "{round}: {:?}\n{}\n{}",
            scene.place.processes(),
            daemon.log(),
            logs.join("\n--\n")
        );
        // It goes on with the process that it has.
        let pid = scene.pid("relay.web");
        thread::sleep(Duration::from_millis(500));
        assert_eq!(scene.pid("relay.web"), pid, "{round}");
        let tally = storm.end();
        assert!(tally.served > 0 && (tally.refused, tally.reset) == (0, 0), "{round}: {tally:?}");
        all.retain_mut(|one| one.child.try_wait().expect("a child").is_none());
        match all.pop() {
            Some(next) => daemon = next,
            None => {
                send(ups()[0], Signal::TERM);
                assert!(comes_true(|| ups().is_empty()));
                break;
            }
        }
    }
}

#[test]
fn members_of_a_daemon_that_was_stopped_are_not_taken_for_silent() {
    let (to, addrs) = (echo(), [free(), free(), free()]);
    let config: String =
        ["a", "b", "c"].iter().zip(addrs).map(|(name, at)| relay(name, at, to, "")).collect();
    let scene = Scene::new(&config);
    let daemon = scene.start(&["--silent-after", "3s"]);
    let pids = scene.status();
    let relays: Vec<_> = pids.values().filter_map(|one| one.pid).collect();
    // All of them, and the daemon goes on first.
    relays.iter().for_each(|pid| send(*pid, Signal::STOP));
    daemon.signal(Signal::STOP);
    thread::sleep(Duration::from_secs(5));
    daemon.signal(Signal::CONT);
    thread::sleep(Duration::from_millis(500));
    relays.iter().for_each(|pid| send(*pid, Signal::CONT));
    // Long enough for one that is late to be killed.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(scene.status(), pids, "{}", daemon.log());
    // The daemon alone.
    daemon.signal(Signal::STOP);
    thread::sleep(Duration::from_secs(5));
    assert!(addrs.iter().all(|addr| serves(*addr)), "members go on without it");
    daemon.signal(Signal::CONT);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(scene.status(), pids, "{}", daemon.log());
}

/// Holds a thread of a process at the first system call that it makes for a client of this address.
fn hold(pid: u32, thread: &str, addr: SocketAddr) -> nix::unistd::Pid {
    /// `epoll_wait`, `epoll_pwait` and `epoll_pwait2`, in which it waits.
    const WAITS: [&str; 4] = ["22", "232", "281", "441"];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let name = |task: &Path| fs::read_to_string(task.join("comm")).unwrap_or_default();
    let task = tasks.map(|task| task.path()).find(|task| name(task).trim() == thread);
    let task = task.expect("it has the thread");
    let tid = task.file_name().and_then(|tid| tid.to_str()?.parse().ok()).expect("a number");
    let tid = nix::unistd::Pid::from_raw(tid);
    ptrace::seize(tid, ptrace::Options::empty()).expect("it may be traced");
    ptrace::interrupt(tid).expect("it is traced");
    let _client = TcpStream::connect(addr).expect("its socket listens");
    loop {
        waitpid(tid, Some(WaitPidFlag::__WALL)).expect("it is traced");
        let call = fs::read_to_string(task.join("syscall")).expect("it is stopped");
        if !WAITS.contains(&call.split(' ').next().unwrap_or_default()) {
            return tid;
        }
        ptrace::syscall(tid, None).expect("it is stopped");
    }
}

#[test]
fn a_member_one_of_whose_threads_is_stuck_is_started_again() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, "cpus = \"0\"\n"));
    let daemon = scene.start(&["--silent-after", "4s", "--retry-after", "50ms"]);
    let pid = scene.pid("relay.web").expect("it runs");
    let thread = hold(pid, "relay-0", addr);
    // Its main loop says all the time that it is well.
    let looks = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    let is_killed = || {
        let seen = waitpid(thread, Some(looks)).expect("it is traced");
        matches!(seen, WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGKILL, _))
    };
    assert!(comes_true(is_killed), "{}", daemon.log());
    assert!(daemon.says("relay.web: its thread 'relay-0' is stuck: killed"), "{}", daemon.log());
    let is_new = || scene.pid("relay.web").is_some_and(|now| now != pid) && scene.all_run();
    assert!(comes_true(is_new), "{:?}\n{}", scene.status(), daemon.log());
    assert!(serves(addr), "{}", daemon.log());
}

#[test]
fn a_daemon_that_is_stopped_while_it_gives_way_is_waited_for() {
    let (to, addr) = (echo(), free());
    let web = relay("web", addr, to, "");
    let scene = Scene::new(&web);
    let mut daemon = scene.start(&["--silent-after", "1s"]);
    // The successor has the place only when it is known how all of its members fare.
    scene.write(&(web.clone() + &never_starts(&scene, to)));
    let successor = scene.spawn(&["--replace"]);
    assert!(successor.says("relay.web: runs"), "{}", successor.log());
    daemon.signal(Signal::STOP);
    // Longer than it waits itself for a successor that says nothing.
    thread::sleep(Duration::from_secs(6));
    assert!(serves(addr), "{}", successor.log());
    daemon.signal(Signal::CONT);
    thread::sleep(Duration::from_secs(2));
    let logs = || format!("{}\n{}", daemon.log(), successor.log());
    assert!(
        !daemon.log().contains("is killed") && !daemon.log().contains("going on"),
        "{}",
        logs()
    );
    scene.write(&web);
    successor.signal(Signal::HUP);
    assert_eq!(daemon.ended(), Some(0), "{}", successor.log());
    assert!(comes_true(|| scene.all_run() && serves(addr)), "{}", successor.log());
}

#[test]
fn a_daemon_that_waits_for_its_predecessor_does_not_say_that_it_has_no_members() {
    let (to, addr) = (echo(), free());
    let metrics = format!("[metrics]\nlisten = \"{}\"\n", free());
    let scene = Scene::new(&(relay("web", addr, to, "") + &metrics));
    let mut daemon = scene.start(&[]);
    // The one that is to give way has to wait for the end of this one.
    let pid = scene.pid("metrics").expect("it runs");
    send(pid, Signal::STOP);
    let successor = scene.spawn(&["--replace"]);
    assert!(daemon.says("takes the place of this one"), "{}", daemon.log());
    let run = scene.place.path().join("run");
    let ask = || {
        let all = knobs::discover_in(&run).expect("a folder");
        let one = all.into_iter().find(|one| one.pid == successor.child.id()).expect("its socket");
        one.connect().and_then(|mut client| client.ask("up.members", serde_json::json!({})))
    };
    let refused = ask().expect_err("it has no members yet").to_string();
    assert!(refused.contains("it has not started its members yet"), "{refused}");
    send(pid, Signal::CONT);
    assert_eq!(daemon.ended(), Some(0), "{}", successor.log());
    assert!(ask().is_ok_and(|answer| answer.value.as_array().is_some_and(|all| all.len() == 2)));
    assert!(comes_true(|| scene.all_run()), "{}", successor.log());
}

#[test]
fn a_member_that_is_stopped_when_the_log_level_changes_is_told_once_it_goes_on() {
    let to = echo();
    let members = relay("web", free(), to, "") + &relay("other", free(), to, "");
    let scene = Scene::new(&members);
    let daemon = scene.start(&["--silent-after", "8s"]);
    let pids = ["relay.web", "relay.other"].map(|name| scene.pid(name).expect("it runs"));
    // What it has counted, which it logs on SIGUSR1.
    let says = |pid: u32| {
        let lines = || daemon.log().matches("INFO Stats").count();
        let before = lines();
        send(pid, Signal::USR1);
        thread::sleep(Duration::from_millis(500));
        lines() > before
    };
    assert!(pids.iter().all(|pid| comes_true(|| says(*pid))), "{}", daemon.log());
    send(pids[1], Signal::STOP);
    scene.write(&format!("[log]\nlevel = \"error\"\n{members}"));
    daemon.signal(Signal::HUP);
    assert!(daemon.says("relay.other logs as before until it answers"), "{}", daemon.log());
    // The other one does not wait for it.
    assert!(comes_true(|| !says(pids[0])), "{}", daemon.log());
    send(pids[1], Signal::CONT);
    assert!(comes_true(|| !says(pids[1])) && !says(pids[1]), "{}", daemon.log());
    let now = ["relay.web", "relay.other"].map(|name| scene.pid(name).expect("it runs"));
    assert_eq!(now, pids, "none was started anew: {}", daemon.log());
}

#[test]
fn a_relay_goes_on_while_its_successor_fails_also_in_another_daemon() {
    let (to, addr, other) = (echo(), free(), free());
    let good = relay("web", addr, to, "") + &relay("other", other, to, "");
    let scene = Scene::new(&good);
    let mut daemon = scene.start(&[]);
    let storms = [Storm::on(addr), Storm::on(other)];
    let bad = "access-log = \"/no/such/folder/x.log\"";
    scene.write(&(relay("web", addr, to, bad) + &relay("other", other, to, "")));
    let next = scene.spawn(&["--replace", "--retry-after", "100ms", "--retry-at-most", "200ms"]);
    assert!(next.says("the process before this one serves until relay.web runs"), "{}", next.log());
    thread::sleep(Duration::from_millis(500));
    assert!(daemon.child.try_wait().expect("a child").is_none(), "{}", daemon.log());
    // Once that is mended, it gets it.
    scene.write(&good);
    next.signal(Signal::HUP);
    assert_eq!(daemon.ended(), Some(0), "{}\n{}", daemon.log(), next.log());
    assert!(comes_true(|| scene.all_run()), "{}", next.log());
    for storm in storms {
        let tally = storm.end();
        assert!(
            tally.served > 0 && (tally.refused, tally.reset) == (0, 0),
            "{tally:?}\n{}",
            next.log()
        );
    }
}

#[test]
fn addresses_go_from_one_relay_to_another_and_no_client_notices() {
    let (to, addrs) = (echo(), [free(), free()]);
    let of = |name: &str, listen: &[SocketAddr]| {
        let all: Vec<_> = listen.iter().map(|addr| format!("\"{addr}\"")).collect();
        format!("[relay.{name}]\nlisten = [{}]\nto = \"{to}\"\n", all.join(", "))
    };
    let [a, b] = addrs;
    let scene = Scene::new(&(of("one", &[a]) + &of("two", &[b])));
    let mut daemon = scene.start(&[]);
    let storms = addrs.map(Storm::on);
    for (what, config, members) in [
        ("another name", of("uno", &[a]) + &of("two", &[b]), &["relay.uno", "relay.two"][..]),
        ("swapped", of("uno", &[b]) + &of("two", &[a]), &["relay.uno", "relay.two"]),
        ("split off", of("uno", &[b]) + &of("due", &[a]), &["relay.uno", "relay.due"]),
    ] {
        scene.write(&config);
        daemon.signal(Signal::HUP);
        let is_so = || {
            let all = scene.status();
            let runs = |name: &&str| all.get(*name).is_some_and(|one| one.state == "running");
            all.len() == members.len() && members.iter().all(runs)
        };
        // `running` is also what it was before it is replaced.
        thread::sleep(Duration::from_millis(300));
        assert!(comes_true(is_so), "{what}: {:?}\n{}", scene.status(), daemon.log());
        assert!(addrs.iter().all(|addr| serves(*addr)), "{what}: {}", daemon.log());
    }
    for storm in storms {
        let tally = storm.end();
        assert!(
            tally.served > 0 && (tally.refused, tally.reset) == (0, 0),
            "{tally:?}\n{}",
            daemon.log()
        );
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
}

#[test]
fn a_file_that_is_being_written_ends_nothing() {
    let (to, addr) = (echo(), free());
    let scene = Scene::new(&relay("web", addr, to, ""));
    let daemon = scene.start(&[]);
    let before = scene.status();
    scene.write("");
    daemon.signal(Signal::HUP);
    assert!(daemon.says("it asks for nothing"), "{}", daemon.log());
    assert_eq!(scene.status(), before);
}

#[test]
fn a_member_that_is_stuck_at_its_start_holds_up_no_end() {
    let scene = Scene::new("");
    scene.write(&never_starts(&scene, echo()));
    let mut daemon = scene.spawn(&[]);
    assert!(comes_true(|| scene.pid("relay.never").is_some()), "{}", daemon.log());
    thread::sleep(Duration::from_millis(300));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    assert!(comes_true(|| scene.place.processes().is_empty()), "{:?}", scene.place.processes());
}
