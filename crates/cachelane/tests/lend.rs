//! `cachelane lend` as a user meets it: packets over links between test hosts, borrowers that come
//! and go, and ends of every kind.

mod common;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::text;
use common::xsk::{Running, Scene, has_program, number};
use lab::Link;
use lab::testing::{End, comes_true, root};
use lab::traffic::UdpSender;
use lend::{Borrower, BorrowerOptions, ErrorKind, Loan, Wait};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::Signal;
use serde_json::Value;

const PORT: u16 = 9000;
const FLOWS: u32 = 32;

/// A lender on the second end of a link.
struct Lending {
    lender: Running,
    link: Link,
    socket: PathBuf,
    scene: Scene,
}

impl Lending {
    fn start(name: &str, more: &[&str]) -> Lending {
        let scene = Scene::new(name);
        let link = scene.link("a", "b");
        let socket = scene.place.path().join("lend.sock");
        let lender = lend(&scene, &link, &socket, more);
        Lending { lender, link, socket, scene }
    }

    fn borrow(&self, name: &str, quota: u32) -> Borrower {
        borrow(&self.socket, name, quota)
    }

    fn counter(&self, name: &str) -> u64 {
        self.scene.counter(&self.lender, name)
    }

    /// Sends datagrams of many flows; returns once the borrowers get them: what is sent before
    /// the first one is there is the kernel's.
    fn send(&self, rate: u64) -> UdpSender {
        let target = self.link.b.socket(PORT);
        let sender = UdpSender::start(&self.link.a.host, target, rate, FLOWS).expect("a sender");
        assert!(comes_true(|| self.counter("lend.lent") > 0), "nothing is lent");
        sender
    }
}

fn lend(scene: &Scene, link: &Link, socket: &Path, more: &[&str]) -> Running {
    let (port, path) = (PORT.to_string(), socket.to_str().expect("text"));
    let args = ["lend", &link.b.device, "--udp-port", &port, "--socket", path, "--json"];
    scene.start(&link.b.host, &[&args[..], more].concat(), "lending UDP to port 9000 on")
}

fn borrow(socket: &Path, name: &str, quota: u32) -> Borrower {
    let options = BorrowerOptions::default().name(name.into()).quota(quota);
    Borrower::connect(socket, &options).expect("a borrower")
}

/// The flow and the number of a datagram: `lab::traffic::udp` says how they are written.
fn datagram(bytes: &[u8]) -> (u32, u64) {
    const PAYLOAD: usize = 14 + 20 + 8;
    payload(&bytes[PAYLOAD..])
}

fn payload(bytes: &[u8]) -> (u32, u64) {
    let header = bytes.first_chunk::<16>().expect("a header");
    assert_eq!(&header[..4], b"CLud");
    let flow = u32::from_be_bytes(*header[4..].first_chunk().expect("four bytes"));
    (flow, u64::from_be_bytes(*header[8..].first_chunk().expect("eight bytes")))
}

/// Receives until `enough` says so; what it says is asked again when nothing has come for a while.
fn receive(borrower: &mut Borrower, mut each: impl FnMut(&[u8]), enough: impl Fn() -> bool) {
    let mut loans: Vec<Loan> = Vec::new();
    while !enough() {
        if borrower.wait(Some(Duration::from_millis(5))).expect("a lender") == Wait::Closed {
            return;
        }
        borrower.receive(&mut loans, 64).expect("loans");
        loans.iter().for_each(|loan| each(borrower.bytes(loan)));
        borrower.give_back(loans.drain(..));
    }
}

#[test]
fn root_two_borrowers_share_the_flows_and_every_flow_stays_in_order() {
    if !root("root_two_borrowers_share_the_flows_and_every_flow_stays_in_order") {
        return;
    }
    for (autorelease, more) in [("off", &[][..]), ("on", &[]), ("off", &["--private"])] {
        let lending =
            Lending::start("lendflows", &[&["--autorelease", autorelease], more].concat());
        let mut borrowers = ["one", "two"].map(|name| lending.borrow(name, 256));
        let done = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let end = End(&done);
            let work = |borrower: &mut Borrower| {
                let mut last: HashMap<u32, u64> = HashMap::new();
                let each = |bytes: &[u8]| {
                    let (flow, number) = datagram(bytes);
                    let before = last.insert(flow, number);
                    assert!(before.is_none_or(|before| before < number), "flow {flow}");
                };
                receive(borrower, each, || done.load(Relaxed));
                last
            };
            let threads: Vec<_> =
                borrowers.iter_mut().map(|borrower| scope.spawn(move || work(borrower))).collect();
            let sender = lending.send(5_000);
            assert!(comes_true(|| lending.counter("lend.lent") >= 5_000));
            drop(sender);
            let quiet = || {
                let [lent, returned] =
                    ["lent", "returned"].map(|of| lending.counter(&format!("lend.{of}")));
                lent == returned
            };
            assert!(comes_true(quiet));
            drop(end);
            threads.into_iter().map(|thread| thread.join().expect("flows")).collect::<Vec<_>>()
        });
        let all: usize = seen.iter().map(HashMap::len).sum();
        assert_eq!(all, FLOWS as usize, "a flow is with one borrower, and none is missing");
        assert!(seen.iter().all(|flows| flows.len() > 1), "{seen:?}");
        let got = lending.lender.object();
        assert_eq!((&got["schema"], &got["command"]), (&1.into(), &"lend".into()));
        assert_eq!(number(&got, "/lend/lent"), number(&got, "/lend/returned"), "{got:#}");
        // A borrower that waits for its CPU fills its quota.
        let [lent, dropped] = ["/lend/lent", "/lend/dropped"].map(|of| number(&got, of));
        assert_eq!(lent + dropped, number(&got, "/rx/packets"), "{got:#}");
        assert_eq!(number(&got, "/frames/leaked"), 0);
        assert_eq!(got["lend"]["autorelease"], autorelease);
        let names: Vec<_> = got["borrowers"].as_array().expect("a list").iter().collect();
        assert_eq!(names.len(), 2, "{got:#}");
        assert!(names.iter().all(|b| number(b, "/lent") > 0 && number(b, "/out") == 0));
    }
}

/// How often the threads of a process that are called so have gone to sleep.
fn sleeps_of(lender: &Running, is_one: impl Fn(&str) -> bool) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", lender.pid())).expect("its threads");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = tasks.map(|task| task.expect("a thread").path());
    let found: Vec<_> = tasks.filter(|task| is_one(read(task.join("comm")).trim())).collect();
    assert!(!found.is_empty(), "no such thread");
    let field = |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
    let slept = |task: PathBuf| read(task.join("status")).lines().find_map(field).unwrap_or(0);
    found.into_iter().map(slept).sum()
}

/// How often the thread that lends has gone to sleep.
fn sleeps(lender: &Running) -> u64 {
    sleeps_of(lender, |name| name == "xsk-0")
}

#[test]
fn root_a_lender_without_packets_sleeps() {
    if !root("root_a_lender_without_packets_sleeps") {
        return;
    }
    let lending = Lending::start("lendidle", &[]);
    let _borrower = lending.borrow("reader", 0);
    let wakes = || sleeps_of(&lending.lender, |_| true);
    // What it has to do at first is over.
    let woken = || {
        let before = wakes();
        std::thread::sleep(Duration::from_secs(1));
        wakes() - before
    };
    woken();
    let woken = woken();
    // The thread that lends looks 20 times whether it is to end.
    assert!(woken <= 40, "{woken} times in a second");
}

#[test]
fn root_at_a_thousand_packets_a_second_the_lender_wakes_once_for_several() {
    if !root("root_at_a_thousand_packets_a_second_the_lender_wakes_once_for_several") {
        return;
    }
    const PACKETS: u64 = 3_000;
    let lending = Lending::start("lendquiet", &["--quota", "2048"]);
    let mut borrower = lending.borrow("reader", 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&done);
        scope.spawn(|| receive(&mut borrower, |_| (), || done.load(Relaxed)));
        let sender = lending.send(1_000);
        // It finds the rate.
        let first = lending.counter("lend.lent") + 100;
        assert!(comes_true(|| lending.counter("lend.lent") >= first));
        let before = (lending.counter("lend.lent"), sleeps(&lending.lender));
        assert!(comes_true(|| lending.counter("lend.lent") >= before.0 + PACKETS));
        let slept = sleeps(&lending.lender) - before.1;
        let lent = lending.counter("lend.lent") - before.0;
        assert!(slept * 2 < lent, "{slept} times asleep for {lent} packets");
        drop((sender, end));
    });
    let got = lending.lender.object();
    assert_eq!(number(&got, "/lend/dropped"), 0, "{got:#}");
}

/// Numbers of datagrams that came, by flow.
type Came = HashMap<u32, Vec<u64>>;

/// Datagrams of the port that come to the kernel's socket, to the last one.
fn left_to_the_kernel(socket: &UdpSocket, over: &AtomicBool) -> Came {
    let (mut came, mut bytes) = (Came::new(), [0; 64]);
    loop {
        match socket.recv(&mut bytes) {
            Ok(_) => {
                let (flow, number) = payload(&bytes);
                came.entry(flow).or_default().push(number);
            }
            Err(_) if over.load(Relaxed) => return came,
            // Nothing for a while.
            Err(_) => {}
        }
    }
}

/// It naps between packets. Whatever came meanwhile is lent when it goes on; what came once its lease was
/// over is the kernel's.
#[test]
fn root_a_lender_that_is_stopped_loses_none_of_what_its_ring_holds() {
    if !root("root_a_lender_that_is_stopped_loses_none_of_what_its_ring_holds") {
        return;
    }
    const RATE: u64 = 1_000;
    let lending = Lending::start("lendstop", &["--quota", "2048"]);
    let (socket, _) = plain(&lending.link);
    // All of what may come in ten seconds, also where its reader waits for a CPU.
    set_socket_recv_buffer_size_force(&socket, 16 << 20).expect("root may");
    let mut borrower = lending.borrow("reader", 2048);
    let done = AtomicBool::new(false);
    let (mut lent, left) = std::thread::scope(|scope| {
        let end = End(&done);
        let reader = scope.spawn(|| {
            let mut came = Came::new();
            let each = |bytes: &[u8]| {
                let (flow, number) = datagram(bytes);
                came.entry(flow).or_default().push(number);
            };
            receive(&mut borrower, each, || done.load(Relaxed));
            came
        });
        let left = scope.spawn(|| left_to_the_kernel(&socket, &done));
        let sender = lending.send(RATE);
        let goes_on = || {
            let enough = lending.counter("lend.lent") + RATE / 2;
            comes_true(|| lending.counter("lend.lent") >= enough)
        };
        assert!(goes_on());
        // Within the lease of a second, and beyond it.
        for millis in [300, 300, 1800] {
            lending.lender.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(millis));
            lending.lender.signal(Signal::CONT);
            assert!(goes_on(), "after {millis} ms");
        }
        drop(sender);
        let quiet = || lending.counter("lend.lent") == lending.counter("lend.returned");
        assert!(comes_true(quiet));
        drop(end);
        (reader.join().expect("what was lent"), left.join().expect("what was not"))
    });
    let got = lending.lender.object();
    assert!(number(&got, "/program/unattended") > 0, "{got:#}");
    assert!(lent.values().all(|numbers| numbers.is_sorted()), "out of order");
    // Each came once, to one or the other.
    for (flow, numbers) in left {
        lent.entry(flow).or_default().extend(numbers);
    }
    let mut missing = 0;
    for (flow, numbers) in &mut lent {
        numbers.sort_unstable();
        assert!(numbers.is_sorted_by(|a, b| a < b), "flow {flow}: one came twice");
        missing += numbers.last().map_or(0, |last| last + 1) - numbers.len() as u64;
    }
    // A borrower or a lender that waits for its CPU may have no room, and then that is counted.
    let drops = got["drops"].as_object().expect("reasons").values().filter_map(Value::as_u64);
    let dropped = number(&got, "/lend/dropped") + drops.sum::<u64>() + not_sent(&lending.link);
    assert!(missing <= dropped, "{missing} are missing, {dropped} were dropped: {got:#}");
}

/// Packets that the first end's device had to drop.
fn not_sent(link: &Link) -> u64 {
    let shown = link.a.host.ip(["-s", "-j", "link", "show", "dev", &link.a.device]).expect("ip");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    number(&shown, "/0/stats64/tx/dropped")
}

#[test]
fn root_a_device_that_goes_while_the_lender_naps_ends_it_and_its_borrowers() {
    if !root("root_a_device_that_goes_while_the_lender_naps_ends_it_and_its_borrowers") {
        return;
    }
    let mut lending = Lending::start("lendgone", &["--quota", "2048"]);
    let mut borrower = lending.borrow("reader", 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&done);
        // Until the lender has ended.
        let reader = scope.spawn(|| receive(&mut borrower, |_| (), || done.load(Relaxed)));
        let sender = lending.send(2_000);
        assert!(comes_true(|| lending.counter("lend.lent") >= 2_000));
        lending.link.b.host.ip(["link", "delete", &lending.link.b.device]).expect("root may");
        let lender = lending.lender.0.take().expect("it runs");
        let output = common::ends_within(lender, Duration::from_secs(20));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let got: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!(got["ended_by"], "error", "{got:#}");
        assert!(comes_true(|| reader.is_finished()), "the borrower is not told");
        drop((sender, end));
    });
}

#[test]
fn root_a_borrower_killed_under_load_takes_no_other_and_no_frame_with_it() {
    if !root("root_a_borrower_killed_under_load_takes_no_other_and_no_frame_with_it") {
        return;
    }
    for more in [["--autorelease", "off"], ["--autorelease", "on"], ["--quota=1024", "--private"]] {
        let lending = Lending::start("lendkill", &more);
        let mut lives = lending.borrow("lives", 0);
        let path = lending.socket.to_str().expect("text");
        let dies = ["borrow", path, "--name", "dies"];
        let mut command = lending.scene.command(&dies);
        let dies = Running(Some(command.spawn().expect("it starts")));
        assert!(comes_true(|| lending.counter("lend.borrowers") == 2));
        let (done, sender) = (AtomicBool::new(false), lending.send(20_000));
        let flows = std::thread::scope(|scope| {
            let end = End(&done);
            let living = scope.spawn(|| {
                let mut flows: HashMap<u32, Instant> = HashMap::new();
                let each = |bytes: &[u8]| {
                    flows.insert(datagram(bytes).0, Instant::now());
                };
                receive(&mut lives, each, || done.load(Relaxed));
                flows
            });
            let lent = lending.counter("lend.lent");
            assert!(comes_true(|| lending.counter("lend.lent") > lent + 5_000));
            dies.end(Signal::KILL);
            assert!(comes_true(|| lending.counter("lend.left") == 1));
            let killed = Instant::now();
            let lent = lending.counter("lend.lent");
            assert!(comes_true(|| lending.counter("lend.lent") > lent + 5_000));
            drop(sender);
            assert!(comes_true(|| lending.counter("lend.on_loan") == 0));
            drop(end);
            let flows = living.join().expect("flows");
            flows.into_values().filter(|last| *last > killed).count()
        });
        assert_eq!(flows, FLOWS as usize, "those of the dead one as well");
        let got = lending.lender.object();
        assert_eq!(number(&got, "/frames/leaked"), 0, "{got:#}");
        assert_eq!((number(&got, "/lend/joined"), number(&got, "/lend/left")), (2, 1), "{got:#}");
        assert_eq!(got["borrowers"].as_array().map(Vec::len), Some(1), "{got:#}");
    }
}

/// A socket of the kernel's that the lent packets would go to, and one to send them from.
fn plain(link: &Link) -> (UdpSocket, impl Fn() + use<>) {
    let address = link.b.socket(PORT);
    let bind = move || UdpSocket::bind(address);
    let socket = link.b.host.run(bind).expect("the host").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let client = link.a.host.run(|| UdpSocket::bind("0.0.0.0:0")).expect("the host").expect("one");
    let send = move || {
        client.send_to(b"hello", address).expect("sent");
    };
    (socket, send)
}

#[test]
fn root_without_borrowers_packets_are_the_kernels() {
    if !root("root_without_borrowers_packets_are_the_kernels") {
        return;
    }
    let lending = Lending::start("lendnobody", &[]);
    let (socket, send) = plain(&lending.link);
    let arrives = || {
        send();
        socket.recv(&mut [0; 16]).is_ok()
    };
    assert!(has_program(&lending.link.b) && comes_true(arrives));
    for _ in 0..2 {
        let mut borrower = lending.borrow("tap", 0);
        let lent = || {
            send();
            let mut loans = Vec::new();
            borrower.wait(Some(Duration::from_millis(100))).expect("a lender");
            borrower.receive(&mut loans, 64).expect("loans");
            let there = loans.iter().any(|loan| borrower.bytes(loan)[42..].starts_with(b"hello"));
            borrower.give_back(loans);
            there
        };
        let mut lent = lent;
        let until = Instant::now() + Duration::from_secs(30);
        while !lent() {
            assert!(Instant::now() < until, "nothing is lent");
        }
        // What was sent before the queue was switched may still be there.
        assert!(comes_true(|| !arrives()));
        drop(borrower);
        assert!(comes_true(arrives), "when the last borrower has gone");
    }
    let got = lending.lender.object();
    assert!(number(&got, "/program/no_socket") > 0, "{got:#}");
    assert!(comes_true(arrives));
}

#[test]
fn root_however_the_lender_ends_borrowers_see_it_and_the_kernel_goes_on() {
    if !root("root_however_the_lender_ends_borrowers_see_it_and_the_kernel_goes_on") {
        return;
    }
    let scene = Scene::new("lendends");
    let link = scene.link("a", "b");
    let path = scene.place.path().join("lend.sock");
    let (socket, send) = plain(&link);
    let arrives = || {
        send();
        socket.recv(&mut [0; 16]).is_ok()
    };
    // The socket that a killed one left behind is the next one's.
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let lender = lend(&scene, &link, &path, &[]);
        let mut borrower = borrow(&path, "tap", 0);
        assert!(comes_true(|| {
            send();
            scene.counter(&lender, "lend.on_loan") > 0
        }));
        let output = lender.end(signal);
        assert_eq!(output.status.success(), signal != Signal::KILL, "{output:?}");
        let mut loans = Vec::new();
        let mut last = borrower.wait(Some(Duration::from_secs(20)));
        while matches!(last, Ok(Wait::Ready)) {
            borrower.receive(&mut loans, 64).expect("what was lent before");
            // Its bytes are there for as long as the borrower is.
            assert!(loans.iter().all(|loan| borrower.bytes(loan)[42..].starts_with(b"hello")));
            last = borrower.wait(Some(Duration::from_secs(20)));
        }
        match signal {
            Signal::KILL => assert_eq!(last.unwrap_err().kind(), ErrorKind::Died),
            _ => assert_eq!(last.expect("a clean end"), Wait::Closed, "{signal:?}"),
        }
        borrower.give_back(loans);
        assert!(comes_true(arrives), "{signal:?}");
        assert!(comes_true(|| !has_program(&link.b)), "{signal:?}");
        assert_eq!(path.exists(), signal == Signal::KILL, "{signal:?}");
    }
}

#[test]
fn root_a_borrower_of_a_lender_that_is_killed_says_so_or_goes_on_with_the_next_one() {
    const NAME: &str =
        "root_a_borrower_of_a_lender_that_is_killed_says_so_or_goes_on_with_the_next_one";
    if !root(NAME) {
        return;
    }
    let scene = Scene::new("lendagain");
    let link = scene.link("a", "b");
    let path = scene.place.path().join("lend.sock");
    let (_socket, send) = plain(&link);
    let lender = lend(&scene, &link, &path, &[]);
    let args = ["borrow", path.to_str().expect("text"), "--json"];
    let start = |more: &[&str]| scene.start(&link.b.host, &[&args[..], more].concat(), "at a time");
    let [plain, stays] = [&["--mirror"][..], &["--reconnect", "--worker", "2"]].map(start);
    let lent = |lender: &Running| {
        assert!(comes_true(|| {
            send();
            scene.counter(lender, "lend.lent") > 3
        }));
    };
    lent(&lender);
    lender.end(Signal::KILL);
    let output = plain.ends();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let end: Value = serde_json::from_str(text(&output.stdout).trim()).expect("JSON");
    let said = "lend.sock: the lender is gone and said nothing: it was killed, or it crashed";
    assert!(end["error"].as_str().expect("an error").ends_with(said), "{end:#}");
    // One that ends as it should, after one that was killed; and one that comes late.
    for signal in [Signal::TERM, Signal::TERM] {
        let lender = lend(&scene, &link, &path, &[]);
        assert!(comes_true(|| scene.counter(&lender, "lend.borrowers") == 2));
        lent(&lender);
        lender.end(signal);
    }
    let end = stays.object();
    assert_eq!(number(&end, "/reconnects"), 4, "{end:#}");
    assert!(number(&end, "/packets") >= 9, "{end:#}");
}

#[test]
fn root_a_stopped_worker_is_evicted_and_others_get_its_flows_until_it_is_back() {
    const NAME: &str = "root_a_stopped_worker_is_evicted_and_others_get_its_flows_until_it_is_back";
    if !root(NAME) {
        return;
    }
    let lending = Lending::start("lendevict", &["--evict-after", "1s"]);
    let args = ["borrow", lending.socket.to_str().expect("text"), "--json", "--reconnect"];
    let start = |name| {
        let args = [&args[..], &["--name", name]].concat();
        lending.scene.start(&lending.link.b.host, &args, "at a time")
    };
    let [stopped, other] = ["stopped", "other"].map(start);
    let sender = lending.send(5_000);
    stopped.signal(Signal::STOP);
    assert!(comes_true(|| lending.counter("lend.evicted") == 1));
    assert_eq!(lending.counter("lend.borrowers"), 1);
    // The other one gets all flows: half of them were dropped before. It may have to wait for a CPU.
    let [dropped, lent] = ["lend.dropped", "lend.lent"].map(|name| lending.counter(name));
    assert!(comes_true(|| lending.counter("lend.lent") > lent + 10_000));
    let dropped = lending.counter("lend.dropped") - dropped;
    assert!(dropped < 2_500, "{dropped} of 10,000 packets");
    stopped.signal(Signal::CONT);
    assert!(comes_true(|| lending.counter("lend.borrowers") == 2));
    drop(sender);
    for (borrower, again) in [(stopped, 1), (other, 0)] {
        let end = borrower.object();
        assert_eq!(number(&end, "/reconnects"), again, "{end:#}");
    }
}

#[test]
fn root_a_lender_that_was_stopped_for_longer_than_borrowers_may_be_evicts_nobody() {
    const NAME: &str =
        "root_a_lender_that_was_stopped_for_longer_than_borrowers_may_be_evicts_nobody";
    if !root(NAME) {
        return;
    }
    let lending = Lending::start("lendstop", &["--evict-after", "1s"]);
    let args = ["borrow", lending.socket.to_str().expect("text"), "--json", "--worker", "2"];
    let borrower = lending.scene.start(&lending.link.b.host, &args, "at a time");
    let _sender = lending.send(5_000);
    lending.lender.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(2));
    lending.lender.signal(Signal::CONT);
    let lent = lending.counter("lend.lent");
    assert!(comes_true(|| lending.counter("lend.lent") > lent + 5_000));
    assert_eq!((lending.counter("lend.evicted"), lending.counter("lend.borrowers")), (0, 2));
    assert!(number(&borrower.object(), "/packets") > 5_000);
}

#[test]
fn root_the_knob_is_refused_by_name_while_frames_are_on_loan() {
    if !root("root_the_knob_is_refused_by_name_while_frames_are_on_loan") {
        return;
    }
    let lending = Lending::start("lendknob", &[]);
    let set = |value: &str| {
        let pid = lending.lender.pid();
        let args = ["knob", "set", "lend.autorelease", value, "--pid", &pid];
        lending.scene.command(&args).output().expect("it runs")
    };
    assert!(set("on").status.success() && set("off").status.success());
    lending.scene.set_alien_free(&lending.lender, "defer");
    let borrower = lending.borrow("hoarder", 64);
    let sender = lending.send(1_000);
    assert!(comes_true(|| lending.counter("lend.on_loan") == 64), "it gives nothing back");
    let refused = set("on");
    assert!(!refused.status.success(), "{refused:?}");
    for part in ["64", "hoarder"] {
        assert!(text(&refused.stderr).contains(part), "{part}: {refused:?}");
    }
    drop(sender);
    assert!(comes_true(|| lending.counter("lend.dropped") > 0), "what is over its quota");
    // Packets that still waited come when there is room again.
    let borrower = RefCell::new(borrower);
    let gives_all_back = || {
        let (mut borrower, mut loans) = (borrower.borrow_mut(), Vec::new());
        borrower.receive(&mut loans, 64).expect("loans");
        borrower.give_back(loans);
        set("on").status.success()
    };
    assert!(comes_true(gives_all_back));
    let got = lending.lender.object();
    assert_eq!(got["lend"]["autorelease"], "on");
    assert_eq!((&got["alien_free"], number(&got, "/frames/leaked")), (&"defer".into(), 0));
}

#[test]
fn root_as_many_borrowers_as_were_asked_for_have_room_and_one_more_is_told_what_helps() {
    let test = "root_as_many_borrowers_as_were_asked_for_have_room_and_one_more_is_told_what_helps";
    if !root(test) {
        return;
    }
    let lending = Lending::start("lendroom", &["--borrowers", "12"]);
    let borrowers: Vec<Borrower> = (0..12).map(|n| lending.borrow(&format!("b{n}"), 0)).collect();
    assert!(borrowers.iter().all(|borrower| borrower.quota() == 1024));
    drop(borrowers);
    lending.lender.end(Signal::TERM);

    let lending = Lending::start("lendfull", &[]);
    let _five: Vec<Borrower> = (0..5).map(|n| lending.borrow(&format!("b{n}"), 0)).collect();
    let sixth = Borrower::connect(&lending.socket, &BorrowerOptions::default());
    let refused = sixth.expect_err("there is no room").to_string();
    assert!(refused.contains("(a smaller --quota, or more --frames to lend)"), "{refused}");
}

#[test]
fn root_what_is_lent_is_returned_reclaimed_or_on_loan() {
    if !root("root_what_is_lent_is_returned_reclaimed_or_on_loan") {
        return;
    }
    let lending = Lending::start("lendbooks", &[]);
    let mut keeper = lending.borrow("keeper", 64);
    let mut honest = lending.borrow("honest", 64);
    let sender = lending.send(2_000);
    let mut loans: Vec<Loan> = Vec::new();
    for _ in 0..200 {
        keeper.wait(Some(Duration::from_millis(5))).expect("a lender");
        keeper.receive(&mut loans, 64).expect("loans");
        let mut others = Vec::new();
        honest.receive(&mut others, 64).expect("loans");
        honest.give_back(others.drain(..));
    }
    drop(sender);
    let balance = || {
        let [lent, returned, reclaimed, on_loan] = ["lent", "returned", "reclaimed", "on_loan"]
            .map(|of| lending.counter(&format!("lend.{of}")));
        (lent == returned + reclaimed + on_loan, reclaimed, on_loan)
    };
    // The one has its quota, and goes with it.
    assert!(comes_true(|| matches!(balance(), (true, 0, 64..))), "{:?}", balance());
    drop(keeper);
    assert!(comes_true(|| matches!(balance(), (true, 64.., _))), "{:?}", balance());
    drop((honest, loans));
    let got = lending.lender.object();
    let [lent, returned, reclaimed] =
        ["lent", "returned", "reclaimed"].map(|of| number(&got, &format!("/lend/{of}")));
    assert_eq!(lent, returned + reclaimed, "{got:#}");
}

#[test]
fn root_a_dry_run_says_what_it_would_do_and_what_cannot_be_used_is_named() {
    if !root("root_a_dry_run_says_what_it_would_do_and_what_cannot_be_used_is_named") {
        return;
    }
    let scene = Scene::new("lenddry");
    let link = scene.link("a", "b");
    let device = link.b.device.as_str();
    let path = scene.place.path().join("lend.sock");
    let socket = path.to_str().expect("text");
    let given = ["lend", device, "--socket", socket, "--socket-mode", "0660", "--udp-port", "53"];
    let output = scene.run(&link.b.host, &[&given[..], &["--dry-run"]].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    for part in [
        "13312 frames of 2048 bytes",
        "takes UDP to port 53 from the kernel",
        "lend.sock (mode 0660) for up to 64 borrowers, each with at most 1024 loans",
        "would change nothing else on this host",
    ] {
        assert!(text(&output.stdout).contains(part), "{part}: {output:?}");
    }
    assert!(!path.exists() && !has_program(&link.b));
    for (more, parts) in [
        (&[][..], ["13312 frames", "to up to 10 borrowers with a quota of 1024 (--borrowers N"]),
        (
            &["--user-share", "100"],
            ["8192 frames", "to up to 5 borrowers with a quota of 1024 (--"],
        ),
        (&["--borrowers", "64"], ["68608 frames", "to up to 64 borrowers with a quota of 1024\n"]),
        (&["--quota", "8192"], ["84992 frames", "to up to 10 borrowers with a quota of 8192 (--b"]),
        (&["--quota", "16"], ["8192 frames", "to up to 64 borrowers with a quota of 16\n"]),
    ] {
        let output = scene.run(&link.b.host, &[&given[..], &["--dry-run"], more].concat());
        for part in parts {
            assert!(text(&output.stdout).contains(part), "{part}: {output:?}");
        }
    }
    let file = scene.place.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let file = file.to_str().expect("text");
    let few = [device, "--socket", socket, "--quota", "9000", "--frames", "8192"];
    let cases: [(&[&str], i32, &[&str]); 8] = [
        (&["nope", "--socket", socket], 2, &["no device 'nope'"]),
        (&[device], 2, &["--socket"]),
        (&[device, "--socket", socket, "--socket-mode", "rw"], 2, &["'rw'", "0660"]),
        (&[device, "--socket", socket, "--socket-group", "no-such"], 2, &["'no-such'"]),
        (&[device, "--socket", socket, "--quota", "0"], 2, &["--quota"]),
        (&few, 2, &["9000", "--frames"]),
        (&[device, "--socket", socket, "--autorelease", "x"], 2, &["'x'", "off or on"]),
        (&[device, "--socket", file], 1, &[file]),
    ];
    for (args, code, parts) in cases {
        let output = scene.run(&link.b.host, &[&["lend"], args].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part} is missing: {said}");
        }
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    assert!(!has_program(&link.b));
}

/// Whether each thread of a process has stopped: a signal is one thread's to see first.
fn is_stopped(pid: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).expect("it runs");
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    tasks.map(|task| task.expect("a thread")).all(stopped)
}

#[test]
fn root_a_stamped_packet_has_the_time_at_which_it_came_whenever_it_is_lent() {
    if !root("root_a_stamped_packet_has_the_time_at_which_it_came_whenever_it_is_lent") {
        return;
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    // The kernel's clock for programs and that of processes differ while the time is being corrected.
    const APART: Duration = Duration::from_millis(1);
    for (more, is_stamped) in [
        (&["--timestamps", "software"][..], true),
        (&["--timestamps", "software", "--xdp", "generic", "--private"], true),
        (&["--timestamps", "software", "--multi-buffer"], true),
        (&[], false),
    ] {
        let lending = Lending::start("lendtimes", more);
        let mut borrower = lending.borrow("reads", 0);
        let (a, target) = (&lending.link.a.host, lending.link.b.socket(PORT));
        let socket = a.run(|| UdpSocket::bind("0.0.0.0:0")).expect("the host").expect("a socket");
        // Packets that come while the lender is stopped are lent when it goes on. If it had no CPU for too
        // long before, they are the kernel's: then others are tried.
        let round = |number: u8| {
            let mut loans = Vec::new();
            assert!(comes_true(|| {
                let _ = socket.send_to(&[0], target);
                borrower.receive(&mut loans, 64).expect("in step") > 0
            }));
            borrower.give_back(loans.drain(..));
            lending.lender.signal(Signal::STOP);
            assert!(comes_true(|| is_stopped(&lending.lender.pid())));
            let sent = now();
            (0..10).for_each(|_| drop(socket.send_to(&[number], target)));
            std::thread::sleep(Duration::from_millis(100));
            let goes_on = now();
            lending.lender.signal(Signal::CONT);
            let until = Instant::now() + Duration::from_secs(2);
            let mut times = Vec::new();
            while times.len() < 10 && Instant::now() < until {
                borrower.wait(Some(Duration::from_millis(50))).expect("it is there");
                borrower.receive(&mut loans, 64).expect("in step");
                let of_round = loans.iter().filter(|loan| borrower.bytes(loan)[42] == number);
                times.extend(of_round.map(|loan| (loan.stamped(), loan.time())));
                borrower.give_back(loans.drain(..));
            }
            let mut all_during = !times.is_empty();
            for (stamped, time) in &times {
                let time = time.duration_since(UNIX_EPOCH).expect("after 1970");
                let during = (sent - APART..goes_on).contains(&time);
                assert!(*stamped == is_stamped && time >= sent - APART, "{more:?}: {time:?}");
                assert!(is_stamped || !during, "{more:?}: {time:?}");
                all_during &= during;
            }
            // The kernel may have had no CPU to receive them meanwhile, either.
            if is_stamped { all_during } else { !times.is_empty() }
        };
        assert!((1..20).any(round), "{more:?}: none came, or none with its own time");
        assert_eq!(lending.counter("lend.unstamped"), 0, "{more:?}");
        drop(borrower);
        lending.lender.object();
    }
}
