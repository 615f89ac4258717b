//! The tables, the parse and the rules of the BPF programs, in plain Rust.
//!
//! For checking the programs (the tests run both on the same random input and compare everything
//! after every step) and for simulating machines that are not there. Written from
//! the programs' description, not translated from them. It has no threads: what the programs read
//! of each other's tables is here as it is at that moment.

mod flow;
mod packet;
mod parts;
mod rules;
#[cfg(test)]
mod tests;

pub use flow::{Protocol, Tuple};
pub use packet::parse;
pub use parts::{CPUS_MAX, Count, FlowSet, Passed, Poll, Polling, Target, Verdict};
pub use rules::{Lane, RecordAction, Sight, WAYS, Words, is_delivered, record_rule, victim};

pub use crate::program::{Limits, Shape};
use crate::{Counters, Reason};
use parts::passed_bit;

/// All that the programs keep.
#[derive(Clone, Debug)]
pub struct Model {
    shape: Shape,
    words: Words,
    records: Vec<[u32; WAYS]>,
    /// By queue and set.
    flows: Vec<FlowSet>,
    /// By queue and CPU.
    counts: Vec<Count>,
    /// By CPU: packets taken of all queues, modulo 2^32.
    worked: Vec<u32>,
    /// By queue and CPU.
    sights: Vec<Sight>,
    targets: Vec<Target>,
    /// By queue.
    passed: Vec<Passed>,
    /// By CPU.
    polling: Vec<Polling>,
    llc_affinity: bool,
    /// In ticks.
    now: u64,
    /// When the process last had looked after the host.
    renewed: u64,
    counters: Counters,
}

impl Model {
    /// Empty tables, and no targets.
    pub fn new(shape: Shape) -> Self {
        let (cpus, queues) = (shape.cpus as usize, shape.queues as usize);
        let words = Words::new(shape.records, shape.cpus);
        let sets = words.sets as usize;
        Self {
            words,
            records: vec![[0; WAYS]; sets],
            flows: vec![FlowSet::default(); sets * queues],
            counts: vec![Count::default(); cpus * queues],
            worked: vec![0; cpus],
            sights: vec![Sight::default(); cpus * queues],
            targets: vec![Target::default(); CPUS_MAX as usize],
            passed: vec![Passed::default(); queues],
            polling: vec![Polling::default(); cpus],
            llc_affinity: false,
            now: 0,
            renewed: 0,
            counters: Counters::default(),
            shape,
        }
    }

    /// Where flows can be sent from now on.
    pub fn set_target(&mut self, cpu: u32, target: Target) {
        self.targets[cpu as usize] = target;
    }

    /// What flows can be sent to.
    pub fn target(&self, cpu: u32) -> Target {
        self.targets[cpu as usize]
    }

    /// Whether a record is rewritten only when its flow's consumer left the lane.
    pub fn set_llc_affinity(&mut self, on: bool) {
        self.llc_affinity = on;
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A local socket received or sent on `cpu`; the tuple is that of the packets that it
    /// receives.
    pub fn record(&mut self, tuple: &Tuple, cpu: u32) -> RecordAction {
        self.record_hash(tuple.hash(&self.shape.hash_keys), cpu)
    }

    /// The same of a flow whose hash is known.
    pub fn record_hash(&mut self, hash: u32, cpu: u32) -> RecordAction {
        self.counters.receives += 1;
        let word = self.words.word(hash, cpu);
        let set = &mut self.records[self.words.set_of(hash) as usize];
        let Some(way) = self.words.find(set, hash) else {
            let empty = set.iter().position(|word| *word == 0);
            self.counters.collisions += u64::from(set[0] != 0);
            self.counters.evicted += u64::from(empty.is_none());
            self.counters.written += 1;
            set[empty.unwrap_or_else(|| victim(set, hash))] = word;
            return RecordAction::New;
        };
        let recorded = self.words.cpu(set[way]);
        let named = self.targets[recorded as usize];
        let (there, here) = (named.active.then_some(named.lane), self.targets[cpu as usize].lane);
        let action = record_rule(recorded, there, cpu, here, self.llc_affinity);
        match action {
            RecordAction::Right => self.counters.unchanged += 1,
            RecordAction::SameLane => self.counters.same_lane += 1,
            RecordAction::Write | RecordAction::New => {
                self.counters.written += 1;
                set[way] = word;
            }
        }
        action
    }

    /// A packet arrives in a queue, whose program runs on `here`.
    pub fn packet(&mut self, packet: &[u8], queue: u32, here: u32) -> Verdict {
        match parse(packet) {
            Ok(_) if queue >= self.shape.queues => self.kernel(Reason::Queue),
            Ok(tuple) => self.steer(tuple.hash(&self.shape.hash_keys), queue, here),
            Err(reason) => self.kernel(reason),
        }
    }

    /// A packet of a flow whose hash is known arrives in a queue, whose program runs on `here`.
    pub fn steer(&mut self, hash: u32, queue: u32, here: u32) -> Verdict {
        let arrival = Arrival { hash, queue, here };
        let (wanted, reason) = self.wanted(hash, here);
        let set = &self.flows[self.at(arrival)];
        let place = self.words.find(&set.words, hash);
        let from = place.map(|way| self.words.cpu(set.words[way]));
        let stays = wanted.is_some() && wanted == from;
        let (to, reason) = match wanted.and_then(|cpu| self.against(cpu, queue, stays)) {
            Some(why) => (None, why),
            None => (wanted, reason),
        };
        match (place, to) {
            (Some(way), Some(cpu)) if stays => match self.is_reachable(cpu) {
                true => self.send(arrival, way, cpu),
                false => self.leave_cpu(arrival, way, None, Reason::Unsent),
            },
            (Some(way), to) => self.leave_cpu(arrival, way, to, reason),
            (None, Some(cpu)) => self.leave_kernel(arrival, cpu),
            (None, None) => self.pass(arrival, reason),
        }
    }

    /// Why no packet may be sent to a CPU now, if none may: the first of a tick looks, and those
    /// for which there seems to be no room, or whose flow is not there.
    fn against(&mut self, cpu: u32, queue: u32, stays: bool) -> Option<Reason> {
        if cpu >= self.shape.cpus {
            return Some(Reason::Unsent);
        }
        let (at, limits, now) = (self.row(cpu, queue), self.shape.limits, self.now);
        let sent = self.counts[at].sent;
        let known = self.sights[at];
        if stays && known.open == now && known.waiting(sent) < limits.room.cast_signed() {
            return None;
        }
        self.look(cpu, queue);
        let sent = self.counts[at].sent;
        let sight = &mut self.sights[at];
        let why = match sight.takes(sent, stays, now, &limits) {
            _ if lease_over(now, self.renewed, &limits) >= 0 => Some(Reason::Lease),
            false => Some(Reason::Busy),
            true => None,
        };
        sight.open = if why.is_none() { now } else { 0 };
        why
    }

    fn look(&mut self, cpu: u32, queue: u32) {
        let (at, asleep) = (self.row(cpu, queue), self.target(cpu).asleep);
        let worked = self.worked(cpu, queue);
        let (count, limits) = (&mut self.counts[at], &self.shape.limits);
        let begins = self.sights[at].look(count, worked, asleep, self.now, limits);
        self.counters.stalls += u64::from(begins);
    }

    /// Whether flows wait no longer for what they have at a CPU.
    fn gives_up(&mut self, cpu: u32, queue: u32) -> bool {
        self.look(cpu, queue);
        let (at, limits, now) = (self.row(cpu, queue), self.shape.limits, self.now);
        self.is_left(cpu)
            || lease_over(now, self.renewed, &limits) >= i64::from(limits.patience)
            || self.sights[at].is_given_up(self.counts[at].sent, now, &limits)
    }

    /// The packet's flow takes the kernel path so far, and is to go to a CPU.
    fn leave_kernel(&mut self, arrival: Arrival, cpu: u32) -> Verdict {
        let Some(way) = self.room(arrival) else {
            self.counters.held += 1;
            return self.pass(arrival, Reason::Order);
        };
        if !self.is_reachable(cpu) {
            return self.pass(arrival, Reason::Unsent);
        }
        self.counters.moves += 1;
        self.send(arrival, way, cpu)
    }

    /// The packet's flow is at a place of its set, and is to go to another CPU, or to take the kernel
    /// path.
    fn leave_cpu(
        &mut self,
        arrival: Arrival,
        way: usize,
        to: Option<u32>,
        reason: Reason,
    ) -> Verdict {
        let from = self.words.cpu(self.flows[self.at(arrival)].words[way]);
        let early = self.shape.keep_order && !self.is_delivered_at(arrival, way);
        let held = early && !self.gives_up(from, arrival.queue);
        self.counters.held += u64::from(held);
        self.counters.released += u64::from(early && !held);
        let to = if held { Some(from) } else { to };
        match to.filter(|cpu| self.is_reachable(*cpu)) {
            Some(cpu) => {
                self.counters.moves += u64::from(!held);
                self.send(arrival, way, cpu)
            }
            None => {
                let at = self.at(arrival);
                self.flows[at].forget(way);
                self.pass(arrival, if to.is_some() { Reason::Unsent } else { reason })
            }
        }
    }

    /// A packet was taken by the CPU that it had been sent to.
    pub fn taken(&mut self, cpu: u32, queue: u32) {
        let left = self.is_left(cpu);
        let target = &mut self.targets[cpu as usize];
        // A thread that takes does not sleep.
        (target.thread, target.asleep) = (!left, false);
        let worked = &mut self.worked[cpu as usize];
        *worked = worked.wrapping_add(1);
        let count = self.count_mut(cpu, queue);
        count.taken = count.taken.wrapping_add(1);
    }

    /// What a CPU has taken of all queues, as one of them sees it.
    pub fn worked(&self, cpu: u32, queue: u32) -> u32 {
        match self.shape.queues {
            1 => self.count(cpu, queue).taken,
            _ => self.worked[cpu as usize],
        }
    }

    /// Whether a CPU is no target any more, and flows wait no longer for what they have there.
    fn is_left(&self, cpu: u32) -> bool {
        let target = self.target(cpu);
        !target.active && !target.thread
    }

    /// A CPU's queue had no room for packets that were sent from `here`.
    pub fn lost(&mut self, here: u32, cpu: u32, packets: u32) {
        let queue = self.polling[here as usize].queue;
        let count = self.count_mut(cpu, queue);
        count.sent = count.sent.wrapping_sub(packets);
        self.counters.overflows += u64::from(packets);
    }

    /// A NAPI poll is over on `here`.
    pub fn polled(&mut self, here: u32, poll: Poll) {
        let id = self.poll_id(here);
        let polling = &mut self.polling[here as usize];
        let Some(queue) = polling.passed.take() else { return };
        polling.number = polling.number.wrapping_add(1);
        let busy_poll = poll.budget != poll.weight;
        let full = poll.work >= poll.budget;
        let leaves_some = busy_poll || (full && self.shape.gro_outlasts_poll);
        if !leaves_some {
            self.passed[queue as usize].done = id;
        }
    }

    /// Where the flow of this hash is to go, and why to the kernel if no CPU takes it.
    fn wanted(&self, hash: u32, here: u32) -> (Option<u32>, Reason) {
        let set = &self.records[self.words.set_of(hash) as usize];
        let Some(way) = self.words.find(set, hash) else { return (None, Reason::Unknown) };
        match self.words.cpu(set[way]) {
            cpu if cpu == here => (None, Reason::Here),
            cpu => (self.targets[cpu as usize].active.then_some(cpu), Reason::Target),
        }
    }

    /// A place for a flow that leaves the kernel path: a free one, or that of a flow that has
    /// nothing underway. None if there is none, or one of its packets may wait in GRO.
    fn room(&self, arrival: Arrival) -> Option<usize> {
        let (word, bit) = passed_bit(arrival.hash);
        let passed = self.passed[arrival.queue as usize];
        let waits = passed.bits[word] & bit != 0 && !passed.is_over(self.poll_id(arrival.here));
        if self.shape.keep_order && waits {
            return None;
        }
        let set = &self.flows[self.at(arrival)];
        let empty = set.words.iter().position(|word| *word == 0);
        empty.or_else(|| {
            let way = victim(&set.words, arrival.hash);
            self.is_delivered_at(arrival, way).then_some(way)
        })
    }

    /// Whether all that the flow at this place of the set has at its CPU is delivered, so that none
    /// of it can be overtaken. A CPU that is no target any more holds nobody once its thread has
    /// nothing.
    fn is_delivered_at(&self, arrival: Arrival, way: usize) -> bool {
        let set = &self.flows[self.at(arrival)];
        let cpu = self.words.cpu(set.words[way]);
        let (target, count) = (self.target(cpu), self.count(cpu, arrival.queue));
        let (short_ticks, tail) = (self.shape.gro_outlasts_poll, set.tails[way]);
        let taken = count.taken.wrapping_sub(tail).cast_signed() >= 0;
        (taken && self.is_left(cpu)) || is_delivered(count.taken, tail, target.asleep, short_ticks)
    }

    /// The poll that a CPU is in, as no other CPU's is called; never 0.
    fn poll_id(&self, cpu: u32) -> u32 {
        self.polling[cpu as usize].number << 11 | (cpu + 1)
    }

    /// Whether packets can be sent to a CPU.
    fn is_reachable(&self, cpu: u32) -> bool {
        self.targets[cpu as usize].entry && cpu < self.shape.cpus
    }

    fn send(&mut self, arrival: Arrival, way: usize, cpu: u32) -> Verdict {
        let Arrival { hash, queue, here } = arrival;
        if self.shape.queues > 1 {
            self.polling[here as usize].queue = queue;
        }
        let count = self.count_mut(cpu, queue);
        count.sent = count.sent.wrapping_add(1);
        let tail = count.sent;
        let (at, word) = (self.at(arrival), self.words.word(hash, cpu));
        (self.flows[at].words[way], self.flows[at].tails[way]) = (word, tail);
        self.counters.steered += 1;
        Verdict::Cpu(cpu)
    }

    /// A packet of a flow takes the kernel path.
    fn pass(&mut self, arrival: Arrival, reason: Reason) -> Verdict {
        let (word, bit) = passed_bit(arrival.hash);
        let poll = self.poll_id(arrival.here);
        let passed = &mut self.passed[arrival.queue as usize];
        if passed.is_over(poll) {
            passed.bits = [0; 4];
        }
        passed.last = poll;
        passed.bits[word] |= bit;
        self.polling[arrival.here as usize].passed = Some(arrival.queue);
        self.kernel(reason)
    }

    fn kernel(&mut self, reason: Reason) -> Verdict {
        self.counters.kernel[reason as usize] += 1;
        Verdict::Kernel(reason)
    }

    fn at(&self, arrival: Arrival) -> usize {
        (arrival.queue * self.words.sets + self.words.set_of(arrival.hash)) as usize
    }

    fn count(&self, cpu: u32, queue: u32) -> Count {
        self.counts[self.row(cpu, queue)]
    }

    fn count_mut(&mut self, cpu: u32, queue: u32) -> &mut Count {
        let at = self.row(cpu, queue);
        &mut self.counts[at]
    }

    fn row(&self, cpu: u32, queue: u32) -> usize {
        (queue * self.shape.cpus + cpu) as usize
    }
}

/// Ticks since the lease is over; negative before, and if there is none.
fn lease_over(now: u64, renewed: u64, limits: &Limits) -> i64 {
    match limits.lease {
        0 => -1,
        lease => now.wrapping_sub(renewed).cast_signed() - i64::from(lease),
    }
}

/// A packet of a flow, by a queue, on a CPU.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    hash: u32,
    queue: u32,
    here: u32,
}
