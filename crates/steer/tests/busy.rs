//! Machines that have much else to do: what is steered gets through as it would without.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use cachelane_steer::{Counters, SteerOptions, Steering};
use lab::testing::End;
use lab::{Host, Lab, Link, LinkOptions};
use lanes::LaneMap;
use parking_lot::{Mutex, MutexGuard};
use rustix::thread::gettid;
use xsk::Device;

/// At least, and on a machine of more CPUs three for two of them.
const SPINNERS: usize = 6;
/// Of a consumer that is not what is tested.
const BUFFER: usize = 16 << 20;
/// The sender is on time.
const PUNCTUAL: u8 = 60;
/// A consumer that is on time too: whatever is late or lost was so before it.
const WAITS: Consumer = Consumer { priority: 10, polls: false };
const TICK: Duration = Duration::from_millis(1);

/// Two hosts, the second of which steers what it gets of the first to each of its consumers' CPUs.
struct World {
    link: Link,
    lanes: LaneMap,
    /// Where packets arrive, and where their consumer is.
    cpus: [usize; 2],
    _hosts: [Host; 2],
    _lab: Lab,
    /// What one test does with the CPUs would slow another.
    _turn: MutexGuard<'static, ()>,
}

/// Who receives them, on a CPU of its own.
#[derive(Clone, Copy, Debug)]
struct Consumer {
    /// Real-time.
    priority: u8,
    /// Looks all the time, instead of sleeping until there is something.
    polls: bool,
}

/// Numbered datagrams that were sent, and what became of them.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    sent: u64,
    received: u64,
    overtaken: u64,
    /// The longest that one was under way.
    worst: Duration,
    counters: Counters,
}

impl World {
    /// None where it cannot be, which it says.
    fn new(test: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());

        if !lab::testing::root(test) {
            return None;
        }
        let lanes = LaneMap::detect().expect("this machine");
        let allowed: Vec<usize> = lanes.allowed().iter().collect();
        let &[first, second, ..] = allowed.as_slice() else {
            eprintln!("skipped: {test}: needs two CPUs");
            return None;
        };
        let _turn = TURN.lock();
        let layout: Vec<_> = lanes.online().iter().map(|cpu| cpu.to_string()).collect();
        let lanes = lanes.with_override(&layout.join("|")).expect("a lane per CPU");
        let lab = Lab::new("busy").expect("a lab");
        let hosts = [lab.host("a").expect("a host"), lab.host("b").expect("a host")];
        let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let link = lab.link(&hosts[0], &hosts[1], options).expect("a link");
        Some(Self { link, lanes, cpus: [first, second], _hosts: hosts, _lab: lab, _turn })
    }

    fn steer(&self, options: &SteerOptions) -> Steering {
        let attach = || {
            let device = Device::find(&self.link.b.device).expect("a device");
            Steering::attach(&device, &self.lanes, options).expect("it steers")
        };
        self.link.b.host.run(attach).expect("the host")
    }

    /// Sends so many datagrams a millisecond for a time.
    fn exchange(
        &self,
        steering: &Steering,
        burst: u64,
        time: Duration,
        consumer: Consumer,
    ) -> Outcome {
        self.exchange_and(burst, time, consumer, steering, |_| look(steering))
    }

    /// The same, and does something each millisecond, when so many were sent and not received.
    fn exchange_and(
        &self,
        burst: u64,
        time: Duration,
        consumer: Consumer,
        steering: &Steering,
        meanwhile: impl Fn(u64) + Sync,
    ) -> Outcome {
        let (sender, receiver) = self.sockets();
        let over = AtomicBool::new(false);
        let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
        let start = Instant::now();
        thread::scope(|scope| {
            let (cpu, receiver, count, ended) = (self.cpus[1], &receiver, &received, &over);
            let consume = move || consume(receiver, cpu, consumer, start, count, ended);
            let consumer = scope.spawn(consume);
            scope.spawn(|| {
                run_at(self.cpus[0], PUNCTUAL);
                let mut next = Instant::now();
                while start.elapsed() < time {
                    for _ in 0..burst {
                        let at = start.elapsed().as_nanos() as u64;
                        let number = sent.fetch_add(1, Relaxed) + 1;
                        let bytes = [number.to_ne_bytes(), at.to_ne_bytes()].concat();
                        sender.send(&bytes).expect("it is sent");
                    }
                    // What the machine below takes is not made up for: no queue has room for that.
                    next = (next + TICK).max(Instant::now());
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    meanwhile(sent.load(Relaxed) - received.load(Relaxed));
                }
                // What is under way arrives.
                thread::sleep(Duration::from_millis(500));
                over.store(true, Relaxed);
            });
            let (overtaken, worst) = consumer.join().expect("it receives");
            let counters = steering.counters().expect("counters");
            let [sent, received] = [&sent, &received].map(|count| count.load(Relaxed));
            Outcome { sent, received, overtaken, worst, counters }
        })
    }

    fn sockets(&self) -> (UdpSocket, UdpSocket) {
        let bind = |end: &lab::End| {
            end.host.run(|| UdpSocket::bind(end.socket(0)).expect("a socket")).expect("the host")
        };
        let (sender, receiver) = (bind(&self.link.a), bind(&self.link.b));
        sender.connect(receiver.local_addr().expect("its address")).expect("connected");
        receiver.connect(sender.local_addr().expect("its address")).expect("connected");
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&receiver, BUFFER).expect("root");
        (sender, receiver)
    }
}

fn look(steering: &Steering) {
    steering.look(Instant::now()).expect("the programs run");
}

/// Receives until it is over. How many after a later one, and how long the slowest took.
fn consume(
    socket: &UdpSocket,
    cpu: usize,
    consumer: Consumer,
    start: Instant,
    received: &AtomicU64,
    over: &AtomicBool,
) -> (u64, Duration) {
    run_at(cpu, consumer.priority);
    socket.set_nonblocking(consumer.polls).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let (mut last, mut overtaken) = (0, 0);
    let mut worst = Duration::ZERO;
    while !over.load(Relaxed) {
        let mut bytes = [0; 16];
        match socket.recv(&mut bytes) {
            Ok(_) => {
                let [number, at] = [&bytes[..8], &bytes[8..]]
                    .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")));
                received.fetch_add(1, Relaxed);
                overtaken += u64::from(number < last);
                last = number.max(last);
                worst = worst.max(start.elapsed().saturating_sub(Duration::from_nanos(at)));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    (overtaken, worst)
}

/// Has the calling thread run on this CPU, with this real-time priority or none.
fn run_at(cpu: usize, priority: u8) {
    lanes::pin(cpu).expect("the CPU is there");
    if priority > 0 {
        let id = gettid().as_raw_nonzero().to_string();
        let set = Command::new("chrt").args(["-f", "-p", &priority.to_string(), &id]).status();
        assert!(set.expect("chrt").success(), "chrt");
    }
}

/// Programs that use all the CPU that they get.
fn spin<'scope>(scope: &'scope Scope<'scope, '_>, over: &'scope AtomicBool) {
    let lanes = LaneMap::detect().expect("this machine");
    let cpus: Vec<usize> = lanes.allowed().iter().collect();
    for cpu in cpus.iter().copied().cycle().take(SPINNERS.max(cpus.len().div_ceil(2) * 3)) {
        scope.spawn(move || {
            run_at(cpu, 0);
            while !over.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
    }
}

#[test]
fn root_nothing_is_lost_beside_programs_that_spin() {
    let Some(world) = World::new("root_nothing_is_lost_beside_programs_that_spin") else { return };
    let steering = world.steer(&SteerOptions::default());
    let over = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let _end = End(&over);
        spin(scope, &over);
        world.exchange(&steering, 60, Duration::from_secs(2), WAITS)
    });
    assert_eq!((outcome.received, outcome.overtaken), (outcome.sent, 0), "{outcome:?}");
    assert!(outcome.counters.steered > outcome.sent / 2, "{outcome:?}");
    assert!(outcome.worst < Duration::from_millis(250), "{outcome:?}");
}

/// A program of an administrator that goes before all others, and never sleeps.
const POLLS: Consumer = Consumer { priority: 50, polls: true };

#[test]
fn root_a_consumer_of_real_time_priority_that_polls_gets_all_of_its_packets_in_order() {
    let test = "root_a_consumer_of_real_time_priority_that_polls_gets_all_of_its_packets_in_order";
    let Some(world) = World::new(test) else { return };
    let steering = world.steer(&SteerOptions::default());
    let outcome = world.exchange(&steering, 1, Duration::from_secs(3), POLLS);
    assert_eq!((outcome.received, outcome.overtaken), (outcome.sent, 0), "{outcome:?}");
    let Counters { steered, stalls, .. } = outcome.counters;
    // Where ordinary programs wait, the kernel lets them go first for 50 ms of a second, after which
    // the CPU is no target for a second.
    assert!(steered > outcome.sent / if stalls > 0 { 5 } else { 2 }, "{outcome:?}");
}

#[test]
fn root_a_cpu_whose_thread_gets_no_turn_is_soon_no_target_and_loses_nothing() {
    let test = "root_a_cpu_whose_thread_gets_no_turn_is_soon_no_target_and_loses_nothing";
    let Some(world) = World::new(test) else { return };
    // Behind the consumer, so that the thread waits for as long as that polls.
    for (priority, burst) in [(0, 1), (1, 1), (0, 60), (1, 60)] {
        let steering = world.steer(&SteerOptions { priority, ..SteerOptions::default() });
        let under_way = AtomicU64::new(0);
        let time = Duration::from_secs(3);
        let outcome = world.exchange_and(burst, time, POLLS, &steering, |waiting| {
            look(&steering);
            if steering.counters().expect("counters").stalls == 0 {
                under_way.store(waiting, Relaxed);
            }
        });
        let Outcome { sent, received, counters, .. } = outcome;
        let (case, under_way) = (format!("{priority} {burst}"), under_way.into_inner());
        // Two ticks, and what the machine below takes.
        assert!(under_way <= 30 * burst, "{case}: {under_way} under way: {outcome:?}");
        // What the CPU had by then waits until the consumer ends, and what its flow sent there while
        // it waited for that: 60 ms, or all that there is room for. Where the kernel lets ordinary
        // threads run for a moment each second, the CPU is a target again.
        let late = sent - received - counters.overflows;
        assert!(late <= 1024.min(200 * burst), "{case}: {outcome:?}");
        assert!((1..=8).contains(&counters.stalls), "{case}: {outcome:?}");
        let busy = counters.kernel(cachelane_steer::Reason::Busy);
        assert!(busy > sent / 2, "{case}: {outcome:?}");
        // From then on all is in order again.
        assert!(counters.released <= counters.stalls, "{case}: {outcome:?}");
        // An ordinary thread may have its turns, but too few for what comes, while ordinary programs
        // have theirs: then its queue is full, and it takes nothing for no long time.
        assert!(counters.overflows == 0 || priority == 0, "{case}: {outcome:?}");
    }
}

#[test]
fn root_a_cpu_that_went_with_packets_and_came_back_is_a_target_once_it_has_taken_them() {
    let test = "root_a_cpu_that_went_with_packets_and_came_back_is_a_target_once_it_has_taken_them";
    let Some(world) = World::new(test) else { return };
    let steering = world.steer(&SteerOptions { priority: 1, ..SteerOptions::default() });
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            steering.follow(&world.lanes.all_offline()).expect("it follows");
            thread::sleep(Duration::from_millis(1000));
            steering.follow(&world.lanes).expect("it follows");
            assert!(!steering.targets().contains(world.cpus[1]), "its thread has packets");
        });
        let outcome = world.exchange(&steering, 4, Duration::from_secs(2), POLLS);
        assert!(outcome.sent - outcome.received <= 1024, "{outcome:?}");
        assert!(outcome.overtaken == 0 || outcome.counters.released > 0, "{outcome:?}");
    });
    let before = steering.counters().expect("counters");
    let outcome = world.exchange(&steering, 4, Duration::from_secs(1), WAITS);
    assert_eq!((outcome.received, outcome.overtaken), (outcome.sent, 0), "{outcome:?}");
    let steered = outcome.counters.steered - before.steered;
    assert!(steered > outcome.sent / 2, "{steered} steered: {outcome:?}");
}

#[test]
fn root_without_somebody_who_looks_after_it_steering_ends_in_order() {
    let Some(world) = World::new("root_without_somebody_who_looks_after_it_steering_ends_in_order")
    else {
        return;
    };
    let lease = Duration::from_millis(300);
    let steering = world.steer(&SteerOptions { lease: Some(lease), ..SteerOptions::default() });
    // The lease begins with what is sent, however long it takes to get there.
    let begun = Once::new();
    let once = |_| begun.call_once(|| look(&steering));
    let outcome = world.exchange_and(4, Duration::from_secs(2), WAITS, &steering, once);
    assert_eq!((outcome.received, outcome.overtaken), (outcome.sent, 0), "{outcome:?}");
    let Counters { steered, .. } = outcome.counters;
    let stopped = outcome.counters.kernel(cachelane_steer::Reason::Lease);
    // Some 300 of 2000 ms.
    assert!(steered > outcome.sent / 20 && steered < outcome.sent / 2, "{outcome:?}");
    assert!(stopped > outcome.sent / 2, "{outcome:?}");
    let outcome = world.exchange(&steering, 4, Duration::from_millis(500), WAITS);
    assert!(outcome.counters.steered > steered + outcome.sent / 2, "it goes on: {outcome:?}");
    // Looks that end, but began too long ago.
    let late = |_| steering.look(Instant::now() - 2 * lease).expect("the programs run");
    let before = outcome.counters.kernel(cachelane_steer::Reason::Lease);
    let outcome = world.exchange_and(4, Duration::from_millis(500), WAITS, &steering, late);
    assert_eq!((outcome.received, outcome.overtaken), (outcome.sent, 0), "{outcome:?}");
    let stopped = outcome.counters.kernel(cachelane_steer::Reason::Lease) - before;
    assert!(stopped > outcome.sent / 2, "{stopped}: {outcome:?}");
}

#[test]
fn root_a_thread_that_never_sleeps_leaves_its_cpu_to_programs_now_and_then() {
    let test = "root_a_thread_that_never_sleeps_leaves_its_cpu_to_programs_now_and_then";
    let Some(world) = World::new(test) else { return };
    // So much work for each packet that the thread has no time to sleep.
    let rule = "add rule ip filter in udp dport 9 counter\n";
    let rules =
        "add table ip filter\nadd chain ip filter in { type filter hook input priority 0; }\n"
            .to_owned()
            + &rule.repeat(500);
    let nft = world.link.b.host.command("nft").args(["-f", "-"]).input(rules);
    if let Err(error) = nft.run() {
        eprintln!("skipped: {test}: needs nft: {error}");
        return;
    }
    let steering = world.steer(&SteerOptions::default());
    let over = AtomicBool::new(false);
    let ordinary = Consumer { priority: 0, polls: false };
    let (longest, outcome) = thread::scope(|scope| {
        // An ordinary program on that CPU.
        let program = scope.spawn(|| {
            run_at(world.cpus[1], 0);
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !over.load(Relaxed) {
                thread::sleep(Duration::from_millis(1));
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        let end = End(&over);
        let outcome = world.exchange(&steering, 1000, Duration::from_secs(4), ordinary);
        drop(end);
        (program.join().expect("it runs"), outcome)
    });
    let rests = steering.rests();
    assert!(rests > 1, "{rests} rests, {longest:?}: {outcome:?}");
    assert!(longest < Duration::from_millis(600), "{rests} rests, {longest:?}: {outcome:?}");
    let Outcome { overtaken, counters, .. } = outcome;
    assert!(overtaken == 0 || counters.released > 0, "{rests} rests: {outcome:?}");
}
