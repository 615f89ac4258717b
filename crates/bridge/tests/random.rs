//! Random bridges and random events: what arrives, and what the kernel knows, is the same with
//! and without the fast path.
//!
//! Where the kernel's bridges know VLANs, half of the rounds are of bridges that look at them.
//! `CACHELANE_RANDOM_SECONDS` sets how long it goes on, `CACHELANE_SEED` where it begins. A
//! failure names the seed of its round.

mod common;

use std::env;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use common::frame::{BROADCAST, Mac, PROVIDER, Sent, VLAN, station};
use common::{Arm, Net, Setup, compare};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// Events in a round, which has hosts of its own.
const EVENTS: usize = 40;
/// Stations that no host has.
const STATIONS: u8 = 5;
/// The VLANs of most rules and frames.
const VLANS: [u16; 3] = [1, 10, 20];

/// How long random events go on in the usual run, and in the long one.
const SHORT: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn root_random_events_look_the_same_with_and_without_the_fast_path() {
    rounds("root_random_events_look_the_same_with_and_without_the_fast_path", SHORT);
}

#[test]
#[ignore = "ten minutes"]
fn root_random_events_look_the_same_for_a_long_time() {
    rounds("root_random_events_look_the_same_for_a_long_time", LONG);
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    /// Frames, each from a member, one right after the other.
    Frames(Vec<(usize, Sent)>),
    /// A command in the bridge's host, which may fail.
    Run(String),
    /// A port leaves the bridge and comes back, or goes down and up.
    Port { leave: String, back: String },
    /// A port and its member are made anew.
    Replug(usize),
    /// The bridge learns nothing for a while, and forgets.
    Forget,
    /// A setting of `br_netfilter`.
    Netfilter(&'static str, bool),
    /// The fast path is turned off or on.
    Fastpath(bool),
    /// The stamps move.
    Table(cachelane_bridge::Table),
    /// The fast path ends, and starts anew.
    Restart,
}

/// Rounds that go both of the fast path's ways by any chance.
const ENOUGH: usize = 20;

/// What the fast path did over all rounds.
#[derive(Debug, Default)]
struct Totals {
    rounds: usize,
    straight: u64,
    redirected: u64,
    kernel: u64,
    /// Of the fast ones, those of bridges that look at VLANs.
    by_vlan: u64,
}

impl Totals {
    fn both_ways(&self) -> bool {
        self.straight > 0 && self.redirected > 0
    }
}

fn rounds(test: &str, time: Duration) {
    if !lab::testing::root(test) {
        return;
    }
    let until =
        Instant::now() + number("CACHELANE_RANDOM_SECONDS").map_or(time, Duration::from_secs);
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let first = number("CACHELANE_SEED").unwrap_or(since_1970.as_millis() as u64);
    let totals = Mutex::new(Totals::default());
    for seed in first.. {
        println!("a round with CACHELANE_SEED={seed}");
        round(&format!("{test}: CACHELANE_SEED={seed}"), seed, &totals);
        // Where the machine has time for few rounds, they may all be without a queue.
        let totals = totals.lock().unwrap();
        if Instant::now() > until && (totals.both_ways() || totals.rounds >= ENOUGH) {
            break;
        }
    }
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    assert!(totals.both_ways(), "{totals:?}");
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value}: expected a number")))
}

fn round(test: &str, seed: u64, totals: &Mutex<Totals>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let members = rng.random_range(2..=6);
    let mtu = *[1500, 1500, 3000].choose(&mut rng).expect("not empty");
    let events = rng.random();
    let by_vlan = rng.random() && knows_vlans();
    let setup = Setup { members, mtu, ..Default::default() };
    compare(test, &setup, |net| {
        let mut rng = StdRng::seed_from_u64(events);
        hold_states(net);
        if by_vlan {
            net.run("ip link set br0 type bridge vlan_filtering 1");
        }
        net.introduce();
        for number in 0..EVENTS {
            let event = event(&mut rng, net, by_vlan);
            if net.arm == Arm::Fast {
                println!("event {number}: {event:?}");
            }
            apply(net, &event);
            net.step(&format!("event {number}"));
        }
        if let (Arm::Fast, Some(stats)) = (net.arm, net.counters()) {
            let mut totals = totals.lock().unwrap();
            totals.rounds += 1;
            totals.straight += stats.straight;
            totals.redirected += stats.redirected;
            totals.kernel += stats.left_to_kernel();
            totals.by_vlan += if by_vlan { net.forwarded() } else { 0 };
        }
    });
}

/// Has ports keep the spanning tree's states that they are given. The kernel moves one on that listens
/// or learns once it has been up for 15 seconds, also without a spanning tree: on a slow machine in
/// the middle of a round, and not at the same event in both arms.
fn hold_states(net: &mut Net) {
    net.run("ip link set br0 type bridge forward_delay 0");
    for port in net.bridge.ports.clone() {
        net.run(&format!("ip link set {port} down"));
        net.run(&format!("ip link set {port} up"));
    }
    net.settle();
}

/// Whether this kernel's bridges know VLANs.
fn knows_vlans() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let lab = lab::Lab::new("vlans").unwrap();
        let host = lab.host("bridge").unwrap();
        host.ip("link add br0 type bridge vlan_filtering 1".split(' ')).is_ok()
    })
}

/// The next event: from the dice and from what is the same in both arms.
fn event(rng: &mut StdRng, net: &Net, by_vlan: bool) -> Event {
    let members = net.bridge.members.len();
    let port = rng.random_range(0..members);
    let device = &net.bridge.ports[port];
    if by_vlan && rng.random_bool(0.15) {
        return Event::Run(vlan_rule(rng, device));
    }
    match rng.random_range(0..100) {
        0..55 => {
            let frames = (0..rng.random_range(1..8)).map(|_| frame(rng, net, by_vlan));
            Event::Frames(frames.collect())
        }
        55..70 => Event::Run(format!("bridge link set dev {device} {}", flag(rng))),
        70..78 => Event::Run(entry(rng, net, device, by_vlan)),
        78..84 => Event::Run(device_setting(rng, device)),
        84..87 => {
            let leave = format!("ip link set {device} nomaster");
            Event::Port { leave, back: format!("ip link set {device} master br0") }
        }
        87..89 => {
            let leave = format!("ip link set {device} down");
            Event::Port { leave, back: format!("ip link set {device} up") }
        }
        89..90 => Event::Replug(port),
        90..91 => Event::Forget,
        91..94 => {
            let tables = ["iptables", "ip6tables", "arptables"].choose(rng).expect("not empty");
            Event::Netfilter(tables, rng.random())
        }
        94..97 => Event::Fastpath(rng.random_bool(0.7)),
        97..99 => {
            let shared = rng.random();
            Event::Table(if shared {
                cachelane_bridge::Table::Shared
            } else {
                cachelane_bridge::Table::Split
            })
        }
        _ => Event::Restart,
    }
}

/// A change of a port's VLANs, or of what the bridge makes of them.
fn vlan_rule(rng: &mut StdRng, device: &str) -> String {
    let vlan = VLANS.choose(rng).expect("not empty");
    let how = *["", "pvid", "untagged", "pvid untagged"].choose(rng).expect("not empty");
    match rng.random_range(0..20) {
        0..8 => format!("bridge vlan add dev {device} vid {vlan} {how}"),
        8..11 => format!("bridge vlan del dev {device} vid {vlan}"),
        11 => format!("bridge vlan add dev {device} vid 2-4094"),
        12 => format!("bridge vlan del dev {device} vid 2-4094"),
        13..15 => {
            let state = *[0, 1, 2, 3, 3, 3, 4].choose(rng).expect("not empty");
            format!("bridge vlan set dev {device} vid {vlan} state {state}")
        }
        15 => format!("bridge vlan add dev br0 vid {vlan} self"),
        16 => {
            let on = if rng.random_bool(0.3) { "on" } else { "off" };
            format!("bridge link set dev {device} vlan_tunnel {on}")
        }
        17 => {
            let default = [0, 1, 1, 10].choose(rng).expect("not empty");
            format!("ip link set br0 type bridge vlan_default_pvid {default}")
        }
        18 => {
            let protocol = if rng.random() { "802.1Q" } else { "802.1ad" };
            format!("ip link set br0 type bridge vlan_protocol {protocol}")
        }
        _ => {
            let on = u8::from(rng.random_bool(0.7));
            format!("ip link set br0 type bridge vlan_filtering {on}")
        }
    }
}

/// A frame with a tag, two, or none.
fn tagged(rng: &mut StdRng, frame: Sent) -> Sent {
    let mut tag = |frame: Sent| {
        let protocol = *[VLAN, VLAN, PROVIDER].choose(rng).expect("not empty");
        let vlan = *[0, 1, 10, 10, 20, 20, 30].choose(rng).expect("not empty");
        let priority = *[0, 0, 0x3000, 0xe000].choose(rng).expect("not empty");
        frame.tag(protocol, priority | vlan)
    };
    let once = tag(frame.clone());
    let twice = tag(once.clone());
    match rng.random_range(0..10) {
        0..6 => frame,
        6..9 => once,
        _ => twice,
    }
}

fn frame(rng: &mut StdRng, net: &Net, by_vlan: bool) -> (usize, Sent) {
    let member = rng.random_range(0..net.bridge.members.len());
    // Mostly from where it belongs.
    let from = match rng.random_range(0..10) {
        0..6 => net.mac(member),
        6..9 => station(rng.random_range(0..STATIONS)),
        _ => address(rng, net),
    };
    let frame = Sent::new(address(rng, net), from);
    let frame = match rng.random_range(0..10) {
        0..3 => frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]),
        3 => frame.ipv6(),
        4 => frame.arp([10, 0, 0, 2], [10, 0, 0, 1]),
        5 => frame.tagged(rng.random_range(0..3)),
        _ => frame,
    };
    // What IP says of its length has to be true, or netfilter cuts the frame.
    let plain = frame.ethertype == common::frame::OWN;
    let len = *[60, 60, 600, 1514, 1515, 3014].choose(rng).expect("not empty");
    let frame = if plain { frame.len(len) } else { frame };
    (member, if by_vlan { tagged(rng, frame) } else { frame })
}

fn address(rng: &mut StdRng, net: &Net) -> Mac {
    match rng.random_range(0..20) {
        0..12 => net.mac(rng.random_range(0..net.bridge.members.len())),
        12..17 => station(rng.random_range(0..STATIONS)),
        17 => BROADCAST,
        18 => [1, 0x80, 0xc2, 0, 0, rng.random_range(0..16)],
        _ => net.bridge.own.mac.0,
    }
}

fn flag(rng: &mut StdRng) -> String {
    let names = ["isolated", "learning", "flood", "hairpin", "locked", "neigh_suppress"];
    match rng.random_range(0..8) {
        0 => format!("state {}", rng.random_range(0..4)),
        // Most of the time back to what forwards.
        1..4 => "state 3 isolated off learning on locked off neigh_suppress off".to_owned(),
        _ => {
            let name = names.choose(rng).expect("not empty");
            format!("{name} {}", if rng.random() { "on" } else { "off" })
        }
    }
}

fn entry(rng: &mut StdRng, net: &Net, device: &str, by_vlan: bool) -> String {
    let mac = lab::Mac(match rng.random() {
        true => station(rng.random_range(0..STATIONS)),
        false => net.mac(rng.random_range(0..net.bridge.members.len())),
    });
    let verb = *["replace", "add", "del"].choose(rng).expect("not empty");
    let kinds = ["dynamic", "static", "static sticky", "permanent", "dynamic sticky"];
    let kind = if verb == "del" { "" } else { kinds.choose(rng).expect("not empty") };
    let vlan = match by_vlan && rng.random() {
        true => format!("vlan {}", VLANS.choose(rng).expect("not empty")),
        false => String::new(),
    };
    format!("bridge fdb {verb} {mac} dev {device} master {kind} {vlan}")
}

fn device_setting(rng: &mut StdRng, device: &str) -> String {
    let lines = [
        format!("tc qdisc add dev {device} root pfifo"),
        format!("tc qdisc del dev {device} root"),
        format!("ip link set {device} mtu 1500"),
        format!("ip link set {device} mtu 3000"),
        "ip link set br0 type bridge fdb_flush".to_owned(),
        "ip link set br0 promisc on".to_owned(),
        "ip link set br0 promisc off".to_owned(),
        "ip link set br0 type bridge ageing_time 10000".to_owned(),
    ];
    lines.choose(rng).expect("not empty").clone()
}

fn apply(net: &mut Net, event: &Event) {
    match event {
        Event::Frames(frames) => {
            frames.iter().for_each(|(from, frame)| net.send_frame(*from, frame))
        }
        Event::Run(line) => net.try_run(line),
        Event::Port { leave, back } => {
            net.run(leave);
            net.talk(0, 1, 1);
            net.pass();
            net.run(back);
            net.settle();
        }
        Event::Replug(member) => net.replug(*member),
        Event::Forget => {
            net.run("ip link set br0 type bridge ageing_time 0");
            net.until("everybody is forgotten", |net| {
                // Learned entries stand there without a state.
                !net.table().iter().any(|line| line.contains(" br0  ["))
            });
            net.talk(0, 1, 1);
            net.run("ip link set br0 type bridge ageing_time 30000");
        }
        Event::Netfilter(tables, on) => {
            let name = format!("net.bridge.bridge-nf-call-{tables}");
            // Not there without br_netfilter.
            if net.bridge.own.host.sysctl(&name).is_ok() {
                net.sysctl(&name, if *on { "1" } else { "0" });
            }
        }
        Event::Fastpath(on) => {
            if let Some(accelerator) = &net.accelerator {
                accelerator.set_fastpath(*on).unwrap();
            }
        }
        Event::Table(table) => {
            if let Some(accelerator) = &net.accelerator {
                accelerator.set_table(*table).unwrap();
            }
        }
        Event::Restart => net.restart(),
    }
}
