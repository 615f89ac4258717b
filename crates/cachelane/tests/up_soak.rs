//! Load and faults over the whole: `cachelane up` with all mechanisms under traffic, beside programs that
//! spin, while knobs are flipped, configurations change, devices go and come back, and backends,
//! borrowers and members are killed. In its short form it runs for twenty seconds; the long one takes
//! `CACHELANE_SOAK_SECONDS` (600 unless set), and an hour is as good.

mod common;

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::Ended;
use common::clients::{Storm, ask, echo};
use common::daemon::{Daemon, Scene, Status, serves};
use common::stage::Stage;
use lab::testing::{comes_true, root};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};

/// What may be said as a warning or an error, and why.
const EXPLAINED: &[&str] = &[
    // Devices that are taken away, and come back.
    "no device 'gone0' here",
    "gone0",
    // Members that are killed here.
    "killed by signal 9",
    // Backends that are.
    "is down",
    "backend",
    // Steering is forced on a veth of one lane.
    "steered all the same",
    "all CPUs share one cache",
    "are fewer than its CPUs",
    // Many short connections, each of which is a flow.
    "displaced another flow's record",
    // The bridge is looked at again after its ports have changed, which waits for those that change them;
    // meanwhile the kernel forwards.
    "br0",
    "a look at the host takes",
];

/// A server that can be killed, with all its connections.
struct Backend {
    addr: SocketAddr,
    over: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    thread: thread::JoinHandle<()>,
}

impl Backend {
    fn start(addr: SocketAddr) -> Backend {
        let mut listener = None;
        assert!(comes_true(|| {
            listener = TcpListener::bind(addr).ok();
            listener.is_some()
        }));
        let listener = listener.expect("it is bound");
        let addr = listener.local_addr().expect("an address");
        let (over, streams) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (ended, all) = (Arc::clone(&over), Arc::clone(&streams));
        let serve = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Relaxed) {
                    return;
                }
                let all: &Mutex<Vec<TcpStream>> = &all;
                let mut all = all.lock().expect("streams");
                all.retain(|one| one.peer_addr().is_ok());
                all.extend(stream.try_clone());
                drop(all);
                thread::spawn(move || {
                    let mut back = stream.try_clone()?;
                    std::io::copy(&mut &stream, &mut back)?;
                    stream.shutdown(std::net::Shutdown::Both)
                });
            }
        };
        Backend { addr, over, streams, thread: thread::spawn(serve) }
    }

    fn kill(self) {
        self.over.store(true, Relaxed);
        let _ = TcpStream::connect(self.addr);
        self.thread.join().expect("no panic");
        for stream in self.streams.lock().expect("streams").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A program that does nothing but take CPU time.
fn spin() -> Ended {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "while :; do :; done"]).stdout(Stdio::null());
    Ended(command.spawn().expect("it starts"))
}

/// Resident memory in KiB, and open files.
fn held(pid: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let size = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (size, std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count())
}

struct Soak {
    stage: Stage,
    steady: SocketAddr,
    rough: SocketAddr,
    stable: SocketAddr,
    backend: Option<Backend>,
    borrower: Option<Child>,
    rng: StdRng,
}

impl Soak {
    fn config(&mut self) -> String {
        let pick = |rng: &mut StdRng, all: &[&str]| all[rng.random_range(0..all.len())].to_owned();
        let engine = pick(&mut self.rng, &["auto", "copy", "splice", "sockmap"]);
        let keepalive = pick(&mut self.rng, &["1m", "30s", "2m"]);
        let more = pick(
            &mut self.rng,
            &["", "[relay.more]\nlisten = \"127.0.0.1:0\"\nto = \"127.0.0.1:9\"\n"],
        );
        let backend = self.backend.as_ref().map_or(self.stable, |backend| backend.addr);
        self.stage.config()
            + &format!(
                "[relay.steady]\nlisten = \"{}\"\nto = \"{}\"\nengine = \"{engine}\"\nkeepalive = \
                 \"{keepalive}\"\n[relay.rough]\nlisten = \"{}\"\nto = [\"{backend}\", \"{}\"]\n\
                 [lend.gone]\ninterface = \"gone0\"\nsocket = \"gone.lend\"\nudp-port = 53\n\
                 [metrics]\nlisten = \"127.0.0.1:21646\"\n{more}",
                self.steady, self.stable, self.rough, self.stable
            )
    }

    fn ip(&self, args: &[&str]) {
        let _ = self.stage.bridge.own.host.ip(args);
    }

    fn borrow(&mut self) {
        let mut command = self.stage.scene.command(&["borrow", "dns.lend", "--mirror"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let host = &self.stage.bridge.own.host;
        self.borrower = host.run(move || command.spawn()).expect("the host").ok();
    }

    fn kill_borrower(&mut self) {
        if let Some(mut borrower) = self.borrower.take() {
            let _ = borrower.kill();
            let _ = borrower.wait();
        }
    }

    /// Does something; what it was.
    fn act(&mut self, daemon: &Daemon) -> &'static str {
        let host = self.stage.bridge.own.host.clone();
        match self.rng.random_range(0..9) {
            0 => {
                let knobs: [(&str, &[&str]); 4] = [
                    ("bridge.fastpath", &["off", "on"]),
                    ("bridge.fdb", &["shared", "split"]),
                    ("steer.llc_affinity", &["off", "on"]),
                    ("frames.alien_free", &["recycle", "defer", "auto"]),
                ];
                let (knob, values) = knobs[self.rng.random_range(0..knobs.len())];
                let value = values[self.rng.random_range(0..values.len())];
                self.stage.scene.run(&["knob", "set", knob, value, "--all"]);
                "flipped a knob"
            }
            1 | 2 => {
                let config = self.config();
                self.stage.scene.write(&config);
                daemon.signal(Signal::HUP);
                "changed the configuration"
            }
            3 => {
                self.ip(&["link", "add", "gone0", "type", "veth", "peer", "name", "gone1"]);
                self.ip(&["link", "set", "gone0", "up"]);
                self.ip(&["link", "set", "gone1", "up"]);
                "added a device"
            }
            4 => {
                self.ip(&["link", "del", "gone0"]);
                "took a device away"
            }
            5 => {
                self.kill_borrower();
                self.borrow();
                "killed a borrower"
            }
            6 => {
                if let Some(backend) = self.backend.take() {
                    let addr = backend.addr;
                    let again = move || {
                        backend.kill();
                        Backend::start(addr)
                    };
                    self.backend = Some(host.run(again).expect("the host"));
                }
                "killed a backend"
            }
            7 => {
                if let Some(pid) = self.stage.scene.pid("relay.rough")
                    && let Some(pid) = Pid::from_raw(pid.cast_signed())
                {
                    let _ = kill_process(pid, Signal::KILL);
                }
                "killed a relay"
            }
            _ => {
                let port = format!("extra{}", self.rng.random_range(0..4));
                self.ip(&["link", "add", &port, "master", "br0", "type", "veth"]);
                self.ip(&["link", "set", &port, "up"]);
                let gone = format!("extra{}", self.rng.random_range(0..4));
                self.ip(&["link", "del", &gone]);
                "changed ports"
            }
        }
    }
}

fn soak(time: Duration, name: &str) {
    let seed = std::env::var("CACHELANE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("CACHELANE_SEED={seed}");
    let stage = Stage::new(name);
    let host = stage.bridge.own.host.clone();
    let here: SocketAddr = ([127, 0, 0, 1], 0).into();
    let stable = host.run(echo).expect("the host");
    let backend = host.run(move || Backend::start(here)).expect("the host");
    let free = || TcpListener::bind(here).and_then(|one| one.local_addr()).expect("a port");
    let [steady, rough] = [host.run(free), host.run(free)].map(|addr| addr.expect("the host"));
    let rng = StdRng::seed_from_u64(seed);
    let mut soak =
        Soak { stage, steady, rough, stable, backend: Some(backend), borrower: None, rng };
    let config = soak.config();
    soak.stage.scene.write(&config);
    let mut daemon = soak.stage.scene.spawn(&["--retry-after", "100ms", "--retry-at-most", "1s"]);
    let members = ["bridge.all", "steer.in", "lend.dns", "relay.steady", "relay.rough", "metrics"];
    let all_run = |soak: &Soak| {
        let all = soak.stage.scene.status();
        members.iter().all(|name| all.get(*name).is_some_and(|one| one.state == "running"))
    };
    assert!(comes_true(|| all_run(&soak)), "{:?}\n{}", soak.stage.scene.status(), daemon.log());
    soak.borrow();
    let lasting = ["bridge.all", "steer.in", "lend.dns", "metrics"];
    let pids: Vec<_> =
        lasting.iter().map(|name| soak.stage.scene.pid(name).expect("it runs")).collect();
    let spinners: Vec<_> = (0..6).map(|_| spin()).collect();
    let flows = soak.stage.flows();
    // No more than there are ports for: each is taken for a minute.
    let pause = Duration::from_millis(20);
    let storm = host.run(move || Storm::paced(steady, pause)).expect("the host");
    let rough_storm = host.run(move || Storm::paced(rough, pause)).expect("the host");
    let start = Instant::now();
    let mut early = None;
    let mut acts = std::collections::BTreeMap::<_, u32>::new();
    while start.elapsed() < time {
        *acts.entry(soak.act(&daemon)).or_default() += 1;
        thread::sleep(Duration::from_millis(soak.rng.random_range(50..1000)));
        if early.is_none() && start.elapsed() > time / 5 {
            let all = pids.iter().copied().chain([daemon.child.id()]).map(held);
            early = Some(all.collect::<Vec<_>>());
        }
        let _ = std::io::stdout().flush();
    }
    println!("{acts:?}");
    drop(spinners);
    assert!(comes_true(|| all_run(&soak)), "{:?}\n{}", soak.stage.scene.status(), daemon.log());
    // The members that nobody has killed are those of the start, and have grown no more.
    let now: Vec<_> = lasting.iter().filter_map(|name| soak.stage.scene.pid(name)).collect();
    assert_eq!(now, pids, "{:?}\n{}", soak.stage.scene.status(), daemon.log());
    let late: Vec<_> = pids.iter().copied().chain([daemon.child.id()]).map(held).collect();
    let names = lasting.iter().chain([&"up"]);
    for (name, (before, after)) in names.zip(early.unwrap_or_default().into_iter().zip(late)) {
        println!("{name}: {before:?} to {after:?} (KiB, files)");
        assert!(after.0 < before.0 + before.0 / 10 + 4096, "{name}: {before:?} to {after:?}");
        assert!(after.1 < before.1 + 32, "{name}: {before:?} to {after:?}");
    }
    let tally = storm.end();
    println!("steady: {tally:?}");
    assert!(
        tally.served > 0 && (tally.refused, tally.reset) == (0, 0),
        "{tally:?}: {}",
        daemon.log()
    );
    println!("rough: {:?}", rough_storm.end());
    let served = || host.run(move || TcpStream::connect(rough).is_ok_and(|one| ask(&one).is_ok()));
    assert!(comes_true(|| served().expect("the host")), "{}", daemon.log());
    for flow in flows {
        assert!(flow.goes_on(), "{}: {}", flow.what, daemon.log());
        let what = flow.what;
        let (sent, lost) = flow.end();
        assert!(sent > 100 && lost == 0, "{what}: {lost} of {sent}: {}", daemon.log());
    }
    let count = |name: &str| soak.stage.counter(name);
    assert_eq!(count("up.running"), count("up.members") - count("up.failing"));
    assert!(count("bridge.straight") + count("bridge.redirected") > 0);
    soak.kill_borrower();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
    let log = daemon.log();
    let is_trouble =
        |line: &&str| [" WARN ", "ERROR", "cachelane "].iter().any(|word| line.contains(word));
    let is_explained = |line: &&str| EXPLAINED.iter().any(|words| line.contains(words));
    let unexplained: Vec<_> =
        log.lines().filter(is_trouble).filter(|line| !is_explained(line)).collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
}

#[test]
fn root_all_mechanisms_go_on_under_load_and_faults() {
    if root("root_all_mechanisms_go_on_under_load_and_faults") {
        soak(Duration::from_secs(20), "upsoak");
    }
}

#[test]
#[ignore = "takes ten minutes, or as long as CACHELANE_SOAK_SECONDS says"]
fn root_all_mechanisms_go_on_under_load_and_faults_for_long() {
    if root("root_all_mechanisms_go_on_under_load_and_faults_for_long") {
        let seconds =
            std::env::var("CACHELANE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
        soak(Duration::from_secs(seconds.unwrap_or(600)), "uplong");
    }
}

#[test]
#[ignore = "takes a minute or several, and 3 GB"]
fn a_thousand_members_run_and_a_reload_touches_one() {
    const MEMBERS: usize = 1000;
    let to = echo();
    // Not all on one address: of ports there are fewer, and tests beside this one need some.
    let addr =
        |at: usize| SocketAddr::from(([127, 77, (at / 250) as u8, (at % 250) as u8 + 1], 7777));
    let of = |at: usize, more: &str| {
        format!("[relay.m{at}]\nlisten = \"{}\"\nto = \"{to}\"\ncpus = \"0\"\n{more}", addr(at))
    };
    let config = |more: &str| {
        (0..MEMBERS).map(|at| of(at, if at == 500 { more } else { "" })).collect::<String>()
    };
    let scene = Scene::new(&config(""));
    let start = Instant::now();
    let patiently = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(600), "{what}");
            thread::sleep(Duration::from_millis(500));
        }
        println!("{what}: {:.1?}", begun.elapsed());
    };
    let mut daemon = scene.spawn(&[]);
    patiently("all run", &mut || scene.status().len() == MEMBERS && scene.all_run());
    let before = scene.status();
    scene.write(&config("keepalive = \"20s\"\n"));
    daemon.signal(Signal::HUP);
    let pid = |all: &HashMap<String, Status>, at: usize| all[&format!("relay.m{at}")].pid;
    patiently("one is replaced", &mut || pid(&scene.status(), 500) != pid(&before, 500));
    let after = scene.status();
    let touched = (0..MEMBERS).filter(|at| pid(&before, *at) != pid(&after, *at));
    assert_eq!(touched.collect::<Vec<_>>(), [500]);
    assert!((0..MEMBERS).step_by(97).all(|at| serves(addr(at))), "{}", daemon.log());

    let mut next = scene.spawn(&["--replace"]);
    patiently("the place is taken", &mut || daemon.child.try_wait().expect("a child").is_some());
    assert!(scene.all_run());
    assert!((0..MEMBERS).step_by(97).all(|at| serves(addr(at))), "{}", next.log());
    // What they cost while nothing happens.
    let used = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split(' ').collect();
        fields[12].parse::<u64>().expect("ticks") + fields[13].parse::<u64>().expect("ticks")
    };
    let pids: Vec<_> = scene.status().values().filter_map(|one| one.pid).collect();
    let sum = || pids.iter().copied().map(used).sum::<u64>();
    let (members, own, at) = (sum(), used(next.child.id()), Instant::now());
    thread::sleep(Duration::from_secs(20));
    let percent = |ticks: u64| ticks as f64 / at.elapsed().as_secs_f64();
    println!("idle: the daemon {:.1} %", percent(used(next.child.id()) - own));
    println!("idle: the members {:.1} % of a CPU", percent(sum() - members));
    next.signal(Signal::TERM);
    patiently("all have ended", &mut || next.child.try_wait().expect("a child").is_some());
    println!("in all: {:.1?}", start.elapsed());
}
