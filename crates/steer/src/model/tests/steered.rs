//! A host whose flows are steered, with tables that can be looked at.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;

use lab::{Host, Lab, Link, LinkOptions};
use lanes::LaneMap;
use xsk::{Attach, Device, Hook};

use super::KEYS;
use crate::model::{Limits, Tuple, Words};
use crate::program::tests::{FlowSet, RecordSet, Sent, Taken};
use crate::program::{self, Loaded, Shape};

const RECORDS: u32 = 1 << 12;

/// Two hosts, the second of which steers what it gets of the first. Each CPU is a lane.
pub(super) struct Steered {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) link: Link,
    pub(super) loaded: Loaded,
    /// The CPUs that are targets, two at most.
    pub(super) cpus: Vec<u32>,
    pub(super) queues: u32,
    row: u32,
    _hook: Hook,
    _tracepoints: Vec<bpf::Link>,
    _lab: Lab,
}

impl Steered {
    pub(super) fn new(queues: u32) -> Self {
        let lab = Lab::new("steered").expect("a lab");
        let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
        let options = LinkOptions { wire_like: true, queues, ..LinkOptions::default() };
        let link = lab.link(&a, &b, options).expect("a link");
        let cpus = cpus();
        let row = cpus.iter().max().map_or(0, |last| last + 1);
        let attach = || {
            let netns = std::fs::metadata("/proc/thread-self/ns/net").expect("a namespace");
            let shape = Shape {
                records: RECORDS,
                cpus: row,
                queues,
                hash_keys: KEYS,
                keep_order: true,
                gro_outlasts_poll: true,
                limits: Limits { stall: 100, away: 250, patience: 1000, lease: 0, room: 1024 },
            };
            let loaded = Loaded::new(&shape, netns.ino() as u32, false);
            let loaded = loaded.expect("the programs load");
            loaded.set(true).expect("the setting is written");
            for cpu in cpus.iter().copied() {
                let program = loaded.programs.taken.as_fd().as_raw_fd();
                let entry = [1024, program.cast_unsigned()];
                loaded.maps.entries.set(&cpu, &entry).expect("the CPU is there");
                let target = program::Target { task: 0, active: 1, lane: cpu };
                program::write(&loaded.maps.targets, cpu, &target).expect("it is written");
            }
            let tracepoints = loaded.programs.attach_tracepoints().expect("they are there");
            let device = Device::find(&link.b.device).expect("the device is there");
            let steer = loaded.programs.steer.as_fd();
            let hook = Hook::attach(&device, steer, Attach::Native, true).expect("veth has XDP");
            (loaded, tracepoints, hook)
        };
        let (loaded, _tracepoints, _hook) = b.run(attach).expect("the host runs it");
        Self { a, b, link, loaded, cpus, queues, row, _hook, _tracepoints, _lab: lab }
    }

    /// Receives and sends that the record side looked at while `work` ran.
    pub(super) fn receives(&self, work: impl FnOnce()) -> u64 {
        let before = self.loaded.counters().expect("the counters are read");
        work();
        self.loaded.counters().expect("the counters are read").receives - before.receives
    }

    /// The CPU that the flow's record says; none if it has none.
    pub(super) fn recorded(&self, flow: &Tuple) -> Option<u32> {
        let (words, hash) = (Words::new(RECORDS, self.row), flow.hash(&KEYS));
        let set: RecordSet =
            program::read(&self.loaded.maps.records, words.set_of(hash)).expect("it is read");
        words.find(&set.words, hash).map(|way| words.cpu(set.words[way]))
    }

    /// The CPUs that the flow's packets go to, of each queue that sends them to one.
    pub(super) fn cpus_of(&self, flow: &Tuple) -> Vec<u32> {
        let (words, hash) = (Words::new(RECORDS, self.row), flow.hash(&KEYS));
        let cpu = |queue| {
            let at = queue * words.sets + words.set_of(hash);
            let set: FlowSet = program::read(&self.loaded.maps.flows, at).expect("it is read");
            words.find(&set.words, hash).map(|way| words.cpu(set.words[way]))
        };
        (0..self.queues).filter_map(cpu).collect()
    }

    /// What a queue has sent to a CPU.
    pub(super) fn sent(&self, queue: u32, cpu: u32) -> u32 {
        let at = queue * self.row + cpu;
        let sent: Sent = program::read(&self.loaded.maps.sent, at).expect("it is read");
        sent.packets
    }

    /// What the CPU has taken of the queue.
    pub(super) fn taken(&self, queue: u32, cpu: u32) -> u32 {
        let at = cpu * self.queues + queue;
        let taken: Taken = program::read(&self.loaded.maps.taken, at).expect("it is read");
        taken.packets
    }
}

/// CPUs that this process may run on, two at most.
pub(super) fn cpus() -> Vec<u32> {
    let lanes = LaneMap::detect().expect("the CPUs are known");
    lanes.allowed().iter().take(2).map(|cpu| cpu as u32).collect()
}

/// Has the calling thread run on this CPU.
pub(super) fn pin(cpu: u32) {
    lanes::pin(cpu as usize).expect("the CPU is open to this process");
}
