//! Where the relay's workers run.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use lab::testing::comes_true;
use lanes::CpuSet;

use crate::common::{Ended, Place, says};
use crate::machine::{Cgroup, Offline, cpus, own_machine};

/// A relay with connections that never rest.
struct Relaying {
    relay: Ended,
    _log: Box<dyn std::io::Read>,
    place: Place,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Relaying {
    /// Starts it by `prepare`, which may change what is run.
    fn start(more: &[&str], prepare: impl FnOnce(Command) -> Command) -> Relaying {
        let backend = echo();
        let front = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = front.local_addr().expect("its address");
        drop(front);
        let place = Place::new();
        let (listen, to) = (at.to_string(), backend.to_string());
        let args = ["relay", "--listen", &listen, "--to", &to];
        let mut command = place.command(&[&args[..], more].concat());
        command.env("CACHELANE_RUNTIME_DIR", place.path()).env("NO_COLOR", "1");
        let (relay, log) = says(&mut prepare(command), "relaying");
        let (done, stop) = (Arc::default(), Arc::default());
        let clients = (0..4).map(|_| client(at, Arc::clone(&done), Arc::clone(&stop))).collect();
        let relay = Ended(relay);
        Relaying { relay, _log: Box::new(log), place, done, stop, clients }
    }

    /// The CPUs that its workers may run on, one after the other.
    fn workers(&self) -> Vec<CpuSet> {
        let tasks = format!("/proc/{}/task", self.relay.0.id());
        let mut found: Vec<(usize, CpuSet)> = fs::read_dir(tasks)
            .expect("it runs")
            .flatten()
            .filter_map(|task| {
                let status = fs::read_to_string(task.path().join("status")).ok()?;
                let value = |key| status.lines().find_map(|line| line.strip_prefix(key));
                let number = value("Name:\trelay-")?.parse().ok()?;
                Some((number, value("Cpus_allowed_list:\t")?.parse().ok()?))
            })
            .collect();
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().map(|(_, cpus)| cpus).collect()
    }

    /// Waits until the workers are each on one of these CPUs, in this order, and go on. One whose CPU
    /// others use may have that lane's other CPU besides.
    fn are_on(&self, list: &[usize]) {
        let is_on = |worker: &CpuSet, cpu: usize| {
            worker.contains(cpu) && worker.iter().all(|other| other / 2 == cpu / 2)
        };
        let are = || {
            let workers = self.workers();
            workers.len() == list.len()
                && workers.iter().zip(list).all(|(worker, cpu)| is_on(worker, *cpu))
        };
        assert!(comes_true(are), "{list:?}: {:?}", self.workers());
        self.goes_on();
    }

    fn goes_on(&self) {
        let before = self.done.load(Relaxed);
        assert!(comes_true(|| self.done.load(Relaxed) >= before + 100), "nothing comes back");
    }

    fn knob(&self, value: &str) {
        let args = ["knob", "set", "relay.cpus", value];
        let mut command = self.place.command(&args);
        let set =
            command.env("CACHELANE_RUNTIME_DIR", self.place.path()).output().expect("it runs");
        assert!(set.status.success(), "{value}: {set:?}");
    }

    fn end(mut self) {
        self.stop.store(true, Relaxed);
        self.clients.drain(..).for_each(|client| client.join().expect("what was sent came back"));
    }
}

impl Drop for Relaying {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// A server that sends back what it gets, for as long as the test's process runs.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut from, mut to) = (&stream, &stream);
                // The client tells what went wrong.
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    at
}

/// A connection over which numbers go and come back.
fn client(at: SocketAddr, done: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(at).expect("the relay accepts");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        for number in 0_u64.. {
            if stop.load(Relaxed) {
                break;
            }
            stream.write_all(&number.to_ne_bytes()).expect("it takes it");
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(u64::from_ne_bytes(answer), number);
            done.fetch_add(1, Relaxed);
        }
    })
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_workers_are_on_the_lanes_that_the_knob_names() {
    let Some(_own) = own_machine("root_workers_are_on_the_lanes_that_the_knob_names") else {
        return;
    };
    let relaying = Relaying::start(&["--cpus", "lane:1"], |command| command);
    relaying.are_on(&[2, 3]);
    relaying.knob("lane:3");
    relaying.are_on(&[6, 7]);
    relaying.knob("0,lane:2");
    relaying.are_on(&[0, 4, 5]);
    relaying.end();
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_workers_whose_cpu_goes_are_on_another_until_it_is_back() {
    let Some(_own) = own_machine("root_workers_whose_cpu_goes_are_on_another_until_it_is_back")
    else {
        return;
    };
    let relaying = Relaying::start(&["--cpus", "4-7"], |command| command);
    relaying.are_on(&[4, 5, 6, 7]);
    for _ in 0..2 {
        let offline = Offline::new(5);
        relaying.are_on(&[4, 6, 6, 7]);
        let another = Offline::new(7);
        relaying.are_on(&[4, 6, 6, 4]);
        drop(another);
        relaying.are_on(&[4, 6, 6, 7]);
        drop(offline);
        relaying.are_on(&[4, 5, 6, 7]);
    }
    // All of them go: the workers run somewhere, and are back when one is.
    let offline = [4, 5, 6, 7].map(Offline::new);
    relaying.goes_on();
    drop(offline);
    relaying.are_on(&[4, 5, 6, 7]);
    relaying.end();
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_workers_follow_a_cpuset_that_shrinks_and_grows() {
    let Some(_own) = own_machine("root_workers_follow_a_cpuset_that_shrinks_and_grows") else {
        return;
    };
    let cgroup = Cgroup::new("cachelane-cpuset");
    cgroup.set("cpuset.cpus", "0-7");
    let relaying = Relaying::start(&["--cpus", "2-5"], |command| command);
    cgroup.set("cgroup.procs", &relaying.relay.0.id().to_string());
    relaying.are_on(&[2, 3, 4, 5]);
    cgroup.set("cpuset.cpus", "0-3");
    relaying.are_on(&[2, 3, 2, 2]);
    // None of its CPUs: where the cpuset is.
    cgroup.set("cpuset.cpus", "0-1");
    let within = |cpus: &CpuSet| cpus.difference(&self::cpus("0-1")).is_empty();
    assert!(comes_true(|| relaying.workers().iter().all(within)), "{:?}", relaying.workers());
    relaying.goes_on();
    cgroup.set("cpuset.cpus", "0-7");
    relaying.are_on(&[2, 3, 4, 5]);
    relaying.end();
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_there_are_no_more_workers_than_the_quota_pays_for() {
    let Some(_own) = own_machine("root_there_are_no_more_workers_than_the_quota_pays_for") else {
        return;
    };
    for (quota, workers) in [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 8)] {
        let cgroup = Cgroup::new("cachelane-quota");
        cgroup.set("cpu.max", quota);
        let relaying = Relaying::start(&[], |command| {
            let script = "echo $$ > /sys/fs/cgroup/cachelane-quota/cgroup.procs && exec \"$@\"";
            let mut within = Command::new("sh");
            within.args(["-ec", script, "sh"]).arg(command.get_program()).args(command.get_args());
            within.current_dir(command.get_current_dir().expect("a folder"));
            within.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
            within.stderr(std::process::Stdio::piped());
            within
        });
        assert_eq!(relaying.workers().len(), workers, "{quota}");
        relaying.goes_on();
        // Whoever asks for CPUs gets a worker on each.
        relaying.knob("0-7");
        relaying.are_on(&[0, 1, 2, 3, 4, 5, 6, 7]);
        relaying.end();
    }
}
