//! The network of one arm: hosts behind a bridge, with or without the fast path, and what the
//! steps of a scenario do with it.

use std::time::{Duration, Instant};

pub use cachelane_bridge::Reason;
use cachelane_bridge::{Accelerator, Config, Counters};
use lab::testing::no_bridge_calls;
use lab::traffic::{FrameCapture, FrameSender};
use lab::{Bridge, BridgeOptions, Host, Lab, LinkOptions};

use super::frame::{Arrival, Mac, Sent, UNCOUNTED, segment};
use super::outcome::Outcome;
use super::record::{Record, Step};
use super::traffic::{Barrier, send_segments, transfer};

/// How long anything may take before a test calls it stuck.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Which of the two runs of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The Linux bridge alone.
    Kernel,
    /// With the fast path.
    Fast,
}

/// What a scenario starts with.
#[derive(Clone, Debug)]
pub struct Setup {
    pub members: usize,
    pub ageing: Duration,
    pub mtu: u16,
    /// Whether `br_netfilter` hands bridged packets to the IP tables, as is the kernel's default.
    pub netfilter: bool,
    /// IPv4 addresses for the members and the bridge.
    pub addresses: bool,
}

/// One arm's network.
pub struct Net {
    pub arm: Arm,
    pub bridge: Bridge,
    pub accelerator: Option<Accelerator>,
    members: Vec<Member>,
    barrier: Barrier,
    record: Record,
    notes: Vec<String>,
    before: Option<Counters>,
    /// What fast paths that have ended had forwarded.
    earlier: u64,
    lab: Lab,
}

struct Member {
    sender: FrameSender,
    capture: FrameCapture,
}

impl Default for Setup {
    fn default() -> Self {
        let ageing = Duration::from_secs(300);
        Self { members: 3, ageing, mtu: 1500, netfilter: false, addresses: false }
    }
}

impl Net {
    pub fn new(arm: Arm, name: &str, setup: &Setup) -> Self {
        let lab = Lab::new(name).unwrap();
        let names = (0..setup.members).map(|member| format!("m{member}"));
        let hosts: Vec<Host> = names.map(|name| lab.host(&name).unwrap()).collect();
        let link = LinkOptions { mtu: setup.mtu, ..Default::default() };
        let ageing = setup.ageing;
        let options = BridgeOptions { link, ageing, quiet: true };
        let members: Vec<&Host> = hosts.iter().collect();
        let bridge = lab.bridge("switch", &members, options).unwrap();
        let barrier = Barrier::new(&lab);
        let record = Record::default();
        let mut net = Self {
            arm,
            bridge,
            accelerator: None,
            members: Vec::new(),
            barrier,
            record,
            notes: Vec::new(),
            before: None,
            earlier: 0,
            lab,
        };
        net.configure(setup);
        net.settle();
        net.members = (0..setup.members).map(|member| net.member(member)).collect();
        if arm == Arm::Fast {
            net.start();
        }
        net
    }

    fn configure(&self, setup: &Setup) {
        if !setup.netfilter {
            no_bridge_calls(&self.bridge.own.host);
        }
        if setup.addresses {
            for end in self.bridge.members.iter().chain([&self.bridge.own]) {
                let address = format!("{}/24", end.v4);
                end.host.ip(["address", "add", &address, "dev", &end.device]).unwrap();
            }
        }
    }

    fn member(&self, index: usize) -> Member {
        let end = &self.bridge.members[index];
        Member {
            sender: FrameSender::open(&end.host, &end.device).unwrap(),
            capture: FrameCapture::open(&end.host, &end.device).unwrap(),
        }
    }

    /// Starts the fast path in the bridge's host.
    pub fn start(&mut self) {
        // It may run on any CPU, at the same time as the packet path.
        let started = self.bridge.own.host.run(|| {
            super::run_anywhere();
            Accelerator::start("br0", Config::default())
        });
        let started = started.unwrap();
        self.accelerator = Some(started.unwrap());
        self.sync();
        self.before = self.counters();
    }

    /// Ends the fast path, where there is one, and starts it anew.
    pub fn restart(&mut self) {
        self.earlier = self.forwarded();
        if self.accelerator.take().is_some() {
            self.start();
        }
    }

    /// A member's own address.
    pub fn mac(&self, member: usize) -> Mac {
        self.bridge.members[member].mac.0
    }

    /// The last of a member's IPv4 addresses' bytes, as frames carry them.
    pub fn v4(&self, member: usize) -> [u8; 4] {
        self.bridge.members[member].v4.octets()
    }

    /// Sends a short frame of a protocol of our own.
    pub fn send(&mut self, member: usize, to: Mac, from: Mac) {
        self.send_frame(member, &Sent::new(to, from));
    }

    /// Sends a frame each way between two members that is in no step: where the arms may send a
    /// different number of them, to keep stations from being forgotten.
    pub fn murmur(&mut self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let frame = Sent::new(self.mac(to), self.mac(from));
            let _ = self.members[from].sender.send(&frame.bytes(UNCOUNTED));
        }
    }

    pub fn send_frame(&mut self, member: usize, frame: &Sent) {
        let id = self.record.frames.len() as u32;
        self.record.frames.push(format!("from member {member}: {frame}"));
        // A device that is down refuses it, in both arms.
        let _ = self.members[member].sender.send(&frame.bytes(id));
    }

    /// Sends these bytes, which are not looked for where they arrive.
    pub fn send_bytes(&mut self, member: usize, bytes: &[u8]) {
        let _ = self.members[member].sender.send(bytes);
    }

    /// Sends UDP frames in a row from one member's stack to another's: its device has to leave
    /// cutting them to the stack, which hands all over before the first is looked at.
    pub fn burst(&mut self, from: usize, to: usize, frames: usize) {
        let (source, target) = (self.bridge.members[from].clone(), &self.bridge.members[to]);
        let mut bytes = Vec::new();
        for _ in 0..frames {
            let id = self.record.frames.len() as u32;
            self.record.frames.push(format!("from member {from}: UDP in a burst"));
            bytes.extend(segment(id));
        }
        send_segments(&source, target.v4, &bytes);
    }

    /// The numbers of the frames that have arrived at a member by now, in the order in which they
    /// came. They are in no step then.
    pub fn order(&mut self, member: usize) -> Vec<u32> {
        self.pass();
        let capture = &mut self.members[member].capture;
        let frames = std::iter::from_fn(|| capture.next(Duration::ZERO).unwrap());
        frames.filter_map(|frame| Some(Arrival::of(&frame)?.id)).collect()
    }

    /// How many seconds ago the kernel has seen a station, as its table says.
    pub fn age(&self, mac: Mac) -> u64 {
        let json = command(&self.bridge.own.host, "bridge -s -j fdb show br br0");
        let entries: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
        let mac = lab::Mac(mac).to_string();
        let entry = entries.iter().find(|entry| entry["mac"] == *mac && entry["state"] == "");
        let age = entry.and_then(|entry| entry["updated"].as_u64());
        age.unwrap_or_else(|| panic!("{mac} is not in {entries:#?}"))
    }

    /// Has each member send frames from its own address: everybody is known then, and has had
    /// the first packet that the fast path leaves to the kernel to keep the kernel's entry fresh.
    pub fn introduce(&mut self) {
        for name in ["introduction", "introduction again"] {
            for member in 0..self.members.len() {
                let to = self.mac((member + 1) % self.members.len());
                self.send(member, to, self.mac(member));
            }
            self.step(name);
        }
    }

    /// Sends this many frames in each direction between two members.
    pub fn talk(&mut self, one: usize, other: usize, frames: usize) {
        for _ in 0..frames {
            self.send(one, self.mac(other), self.mac(one));
            self.send(other, self.mac(one), self.mac(other));
        }
    }

    /// Runs a command line in the bridge's host and waits until the fast path has followed.
    pub fn run(&mut self, line: &str) -> String {
        let output = command(&self.bridge.own.host, line);
        self.sync();
        output
    }

    /// The index of a device of the bridge's host.
    pub fn index(&self, device: &str) -> u32 {
        let shown = command(&self.bridge.own.host, &format!("ip -o link show dev {device}"));
        shown.split(':').next().unwrap().trim().parse().unwrap()
    }

    /// Has the bridge look at VLANs, if its kernel knows how to; says so if not. Each port is in
    /// the kernel's default VLAN then, 1.
    pub fn looks_at_vlans(&mut self) -> bool {
        let line = "ip link set br0 type bridge vlan_filtering 1";
        let mut words = line.split_whitespace();
        let command = self.bridge.own.host.command(words.next().unwrap()).args(words);
        let output = command.output().unwrap();
        let can = output.status.success();
        if !can {
            // Built without it; whatever else is wrong with it is a failure.
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("Operation not supported"), "{line}: {said}");
            eprintln!(
                "skipped: this kernel's bridges know no VLANs (CONFIG_BRIDGE_VLAN_FILTERING)"
            );
            self.step("skipped");
        }
        self.sync();
        can
    }

    /// Runs a command line that may fail in the bridge's host; whether it does is written down.
    pub fn try_run(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let command = self.bridge.own.host.command(words.next().unwrap()).args(words);
        let well = command.output().unwrap().status.success();
        self.note(format!("{line}: {well}"));
        self.sync();
    }

    /// Runs a command line in a member's host and waits until the fast path has followed.
    pub fn run_at(&mut self, member: usize, line: &str) -> String {
        let output = command(&self.bridge.members[member].host, line);
        self.sync();
        output
    }

    /// Sets a sysctl in the bridge's host.
    pub fn sysctl(&mut self, name: &str, value: &str) {
        self.bridge.own.host.set_sysctl(name, value).unwrap();
        self.sync();
    }

    /// Waits until all that is there now is in force in the fast path.
    pub fn sync(&self) {
        if let Some(accelerator) = &self.accelerator {
            accelerator.sync().unwrap();
        }
    }

    /// Waits until a condition holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let limit = Instant::now() + PATIENCE;
        while !condition(self) {
            if Instant::now() > limit {
                let (arm, table) = (self.arm, self.table());
                panic!("{arm:?}: not within {PATIENCE:?}: {what}; the table is {table:#?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.sync();
    }

    /// Waits until every device that is up can send, and its port, where it is one, forwards.
    pub fn settle(&mut self) {
        let hosts: Vec<Host> = self.bridge.members.iter().map(|end| end.host.clone()).collect();
        self.until("all devices are up", |net| {
            hosts.iter().chain([&net.bridge.own.host]).all(|host| {
                let devices = host.ip(["-br", "link"]).unwrap();
                devices.lines().filter(|line| line.contains(",UP")).all(|line| {
                    let state = line.split_whitespace().nth(1);
                    matches!(state, Some("UP" | "UNKNOWN"))
                })
            })
        });
    }

    /// Waits until what was sent has got where it goes.
    pub fn pass(&self) {
        self.barrier.pass();
    }

    /// What has arrived at each member by now. It is in no step then.
    pub fn arrived(&mut self) -> Vec<Vec<Arrival>> {
        self.pass();
        let drain = |member: &mut Member| {
            let mut frames = Vec::new();
            // An error says once that the device went down or away; what came before follows.
            while let Ok(Some(frame)) =
                member.capture.next(Duration::ZERO).or_else(|_| member.capture.next(Duration::ZERO))
            {
                frames.extend(Arrival::of(&frame));
            }
            frames.sort();
            frames
        };
        self.members.iter_mut().map(drain).collect()
    }

    /// Writes something down that has to be the same in both arms.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The kernel's forwarding table: a line an entry, sorted.
    pub fn table(&self) -> Vec<String> {
        let json = command(&self.bridge.own.host, "bridge -j fdb show br br0");
        let entries: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
        let word = |entry: &serde_json::Value, key: &str| {
            entry[key].as_str().unwrap_or_default().to_owned()
        };
        let line = |entry: &serde_json::Value| {
            let flags = &entry["flags"];
            let names = ["mac", "ifname", "master", "state"].map(|key| word(entry, key));
            let vlan = entry["vlan"].as_u64().map(|vlan| format!(" vlan {vlan}"));
            // A learned entry has no state, or waits to be forgotten.
            let line = format!("{} {flags}{}", names.join(" "), vlan.unwrap_or_default());
            line.replace(" stale ", "  ")
        };
        let mut lines: Vec<String> = entries.iter().map(line).collect();
        lines.sort();
        lines
    }

    /// Whether the kernel knows an address on a member's port.
    pub fn knows(&self, mac: Mac, member: usize) -> bool {
        let start = format!("{} {} ", lab::Mac(mac), self.bridge.ports[member]);
        self.table().iter().any(|line| line.starts_with(&start))
    }

    /// Ends a step: waits for what is under way, and writes down what was seen.
    pub fn step(&mut self, name: &str) -> Outcome {
        let arrived = self.arrived();
        self.sync();
        let (table, notes) = (self.table(), std::mem::take(&mut self.notes));
        let step = Step { name: name.into(), arrived, table, notes };
        self.record.steps.push(step.clone());
        let (before, after) = (self.before.take(), self.counters());
        self.before.clone_from(&after);
        Outcome { arm: self.arm, step, counted: before.zip(after) }
    }

    /// How many frames have taken the fast path since the network was made.
    pub fn forwarded(&self) -> u64 {
        self.earlier + self.counters().map_or(0, |counters| counters.forwarded())
    }

    pub fn counters(&self) -> Option<Counters> {
        self.accelerator.as_ref().map(|fast| fast.counters().unwrap())
    }

    /// Sends bytes from one host to another over TCP and checks that they are the same there.
    pub fn tcp(&mut self, from: usize, to: usize, bytes: usize) {
        let (from, to) = (self.bridge.members[from].clone(), self.bridge.members[to].clone());
        transfer(&from.host, &to.host, to.v4, bytes);
    }

    /// The same to an address that a member was given.
    pub fn tcp_to(&mut self, from: usize, to: usize, address: [u8; 4], bytes: usize) {
        let (from, to) = (self.bridge.members[from].clone(), self.bridge.members[to].clone());
        transfer(&from.host, &to.host, address, bytes);
    }

    /// Makes a member's link anew: the port's device and the member's are gone and come back
    /// with the same names and addresses.
    pub fn replug(&mut self, member: usize) {
        let (port, end) = (self.bridge.ports[member].clone(), self.bridge.members[member].clone());
        let shown = command(&self.bridge.own.host, &format!("ip -br link show {port}"));
        let port_mac = shown.split_whitespace().nth(2).unwrap();
        self.run(&format!("ip link del {port}"));
        self.plug(member, &end.device, end.mac.0, port_mac);
        self.run(&format!("ip link set {port} master br0"));
        self.reopen(member);
    }

    fn plug(&mut self, member: usize, device: &str, mac: Mac, port_mac: &str) {
        let port = self.bridge.ports[member].clone();
        let host = self.bridge.members[member].host.clone();
        let there = host.namespace_path().unwrap().display().to_string();
        let mac = lab::Mac(mac);
        self.run(&format!(
            "ip link add {port} address {port_mac} type veth peer name {device} address {mac} \
             netns {there}"
        ));
        self.run_at(member, &format!("ip link set {device} up"));
        self.run(&format!("ip link set {port} up"));
    }

    /// Opens a member's sender and capture again, after its device was made anew.
    pub fn reopen(&mut self, member: usize) {
        self.settle();
        self.members[member] = self.member(member);
    }

    /// A new file in the lab's folder.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.lab.dir().join(name)
    }

    pub fn into_record(self) -> Record {
        self.record
    }
}

/// Runs a command line, split at spaces, in a host.
pub fn command(host: &Host, line: &str) -> String {
    let mut words = line.split_whitespace();
    host.command(words.next().unwrap()).args(words).run().unwrap()
}
