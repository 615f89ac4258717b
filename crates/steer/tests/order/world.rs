//! Two hosts, the second of which steers what it gets from the first, and what is done to it
//! while packets pass.

use std::fs;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cachelane_steer::{Counters, SteerOptions, Steering};
use lab::testing::End;
use lab::{Host, Lab, Link, LinkOptions};
use lanes::{CpuSet, LaneMap};
use xsk::Device;

use crate::{Seen, tcp, udp};

/// What the scenarios differ in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) v6: bool,
    /// Streams instead of numbered datagrams.
    pub(crate) tcp: bool,
    pub(crate) flows: usize,
    /// Receive queues of the device.
    pub(crate) queues: u32,
    /// Whether the device puts segments together.
    pub(crate) gro: bool,
    /// Records of flows.
    pub(crate) records: u32,
    /// Packets that wait for a CPU at most.
    pub(crate) queue_size: u32,
    /// Flows are sent to one CPU only, and take the kernel path while they are to go to others.
    pub(crate) one_target: bool,
    /// All CPUs share a lane, instead of each having one of its own.
    pub(crate) one_lane: bool,
    pub(crate) keep_order: bool,
    /// The sender pauses for so long every 128 datagrams: queues run empty now and then, and flows
    /// may leave.
    pub(crate) pause: Duration,
    pub(crate) meanwhile: Meanwhile,
}

/// What happens while packets pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meanwhile {
    Nothing,
    /// `llc_affinity` is turned on and off.
    Flip,
    /// CPUs other than the first become targets and cease to be.
    Follow,
}

pub(crate) const PLAIN: Scenario = Scenario {
    v6: false,
    tcp: false,
    flows: 2,
    queues: 1,
    gro: false,
    records: 32768,
    queue_size: 1024,
    one_target: false,
    one_lane: false,
    keep_order: true,
    pause: Duration::from_micros(200),
    meanwhile: Meanwhile::Nothing,
};

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) b: Host,
    pub(crate) link: Link,
    /// With all CPUs, and with the first alone.
    lanes: [LaneMap; 2],
    steering: Mutex<Steering>,
    _lab: Lab,
}

/// What the threads of an exchange have in common. Relaxed: each stands for itself.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) over: AtomicBool,
    pub(crate) received: AtomicU64,
    pub(crate) overtaken: AtomicU64,
    pub(crate) hops: AtomicU64,
}

impl Exchange {
    fn seen(&self) -> Seen {
        let [received, overtaken, hops] = [&self.received, &self.overtaken, &self.hops]
            .map(|count| count.load(Ordering::Relaxed));
        Seen { received, overtaken, hops }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let lab = Lab::new("order").unwrap();
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let options =
            LinkOptions { wire_like: true, queues: scenario.queues, ..LinkOptions::default() };
        let link = lab.link(&a, &b, options).unwrap();
        if scenario.gro {
            b.command("ethtool").args(["-K", &link.b.device, "gro", "on"]).run().unwrap();
        }
        let lanes = lanes(&lab, scenario.one_lane);
        let first = cpus()[0];
        let options = SteerOptions {
            records: scenario.records,
            queue_size: scenario.queue_size,
            targets: (0..=CpuSet::MAX)
                .filter(|&cpu| !scenario.one_target || cpu == first)
                .collect(),
            keep_order: scenario.keep_order,
            ..SteerOptions::default()
        };
        let attach = || {
            Steering::attach(&Device::find(&link.b.device).unwrap(), &lanes[0], &options).unwrap()
        };
        let steering = Mutex::new(b.run(attach).unwrap());
        Self { scenario: *scenario, b, link, lanes, steering, _lab: lab }
    }

    /// An address at an end, with any port.
    pub(crate) fn address(&self, end: &lab::End) -> SocketAddr {
        if self.scenario.v6 { end.socket_v6(0) } else { end.socket(0) }
    }

    /// Sends packets and receives them on CPUs that change until it is `over`.
    pub(crate) fn exchange(&self, mut over: impl FnMut(Seen) -> bool) -> Seen {
        let exchange = Exchange::default();
        // What it panics with ends the threads too.
        let _end = End(&exchange.over);
        thread::scope(|scope| {
            let _end = End(&exchange.over);
            match self.scenario.tcp {
                true => tcp::start(self, &exchange, scope),
                false => udp::start(self, &exchange, scope),
            }
            let mut turn = 0;
            while !over(self.seen(&exchange)) {
                turn += 1;
                self.meanwhile(turn);
                thread::sleep(Duration::from_millis(1));
            }
        });
        self.seen(&exchange)
    }

    fn seen(&self, exchange: &Exchange) -> Seen {
        match self.scenario.tcp {
            true => Seen { overtaken: tcp::overtaken(&self.b), ..exchange.seen() },
            false => exchange.seen(),
        }
    }

    fn meanwhile(&self, turn: usize) {
        let steering = self.steering.lock().unwrap();
        steering.look(std::time::Instant::now()).unwrap();
        match self.scenario.meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Flip => steering.set_llc_affinity(turn.is_multiple_of(2)).unwrap(),
            // Long enough for flows to go there and back.
            Meanwhile::Follow if turn.is_multiple_of(8) => {
                steering.follow(&self.lanes[turn / 8 % 2]).unwrap();
            }
            Meanwhile::Follow => {}
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.steering.lock().unwrap().counters().unwrap()
    }

    /// What the hosts' kernels and devices have counted, losses among it.
    pub(crate) fn counted_by_the_kernel(&self) -> String {
        let shown = |end: &lab::End| {
            let script = format!("nstat -as; ip -s link show dev {}", end.device);
            end.host.command("sh").args(["-c", &script]).run().unwrap()
        };
        format!("the sender's:\n{}\nthe receiver's:\n{}", shown(&self.link.a), shown(&self.link.b))
    }

    /// That what the scenario is about did happen.
    pub(crate) fn check(&self) {
        let (scenario, counters) = (&self.scenario, self.counters());
        if scenario.queues > 1 {
            let counts = self.b.command("ethtool").args(["-S", &self.link.b.device]).run().unwrap();
            for queue in 0..scenario.queues {
                let none = format!("rx_queue_{queue}_xdp_packets: 0\n");
                assert!(!counts.contains(&none), "queue {queue} got nothing: {counts}");
            }
        }
        if scenario.flows >= scenario.records as usize / 2 {
            assert!(counters.evicted > 10, "{counters:?}");
        }
        if scenario.one_target {
            let target = counters.kernel[cachelane_steer::Reason::Target as usize];
            assert!(target > 100 && counters.steered > 100, "{counters:?}");
        }
        if matches!(scenario.meanwhile, Meanwhile::Flip) {
            assert!(counters.same_lane > 100 && counters.written > 100, "{counters:?}");
        }
    }
}

/// The CPUs that a consumer can hop between.
pub(crate) fn cpus() -> Vec<usize> {
    LaneMap::detect().unwrap().allowed().iter().collect()
}

fn lanes(lab: &Lab, one_lane: bool) -> [LaneMap; 2] {
    let all = LaneMap::detect().unwrap();
    let online: Vec<_> = all.online().iter().map(|cpu| cpu.to_string()).collect();
    let all = all.with_override(&online.join(if one_lane { "," } else { "|" })).unwrap();
    // The same machine as the kernel would show it if all but one of its CPUs were offline.
    let cpu = lab.dir().join("cpu");
    fs::create_dir(&cpu).unwrap();
    fs::write(cpu.join("present"), online.join(",")).unwrap();
    fs::write(cpu.join("online"), &online[0]).unwrap();
    let first = LaneMap::from_sysfs(lab.dir(), None).unwrap();
    [all, first]
}

/// The CPU that a sender is on, which is mostly also where its packets are received. With one target it
/// has to change: while it is the target, no packet is sent there; with two CPUs and while it is the other
/// one, each consumer is at the target or where its packets are received already.
pub(crate) struct Sender {
    cpus: Vec<usize>,
    hops: usize,
}

impl Sender {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self { cpus: if scenario.one_target { cpus() } else { Vec::new() }, hops: 0 }
    }

    /// Goes to the next CPU, if the scenario wants that.
    pub(crate) fn hop(&mut self) {
        if !self.cpus.is_empty() {
            self.hops += 1;
            lanes::pin(self.cpus[self.hops % self.cpus.len()]).unwrap();
        }
    }
}
