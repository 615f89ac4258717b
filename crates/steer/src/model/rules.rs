//! The decisions, and the words that say where flows are.

use super::{Count, Limits};

/// A lane's number.
pub type Lane = u32;

/// Words of a set: a flow's is in the set that its hash says, at any place.
pub const WAYS: usize = crate::program::WAYS as usize;

/// The bit that every word but the empty one has.
const USED: u32 = 1 << 31;

/// Packets after which those before have left a cpumap's thread: it takes 8 at a time, and
/// delivers at the latest after 64.
const DELIVERED_AFTER: i32 = 64 + 8;

/// What a queue has seen of a CPU that it sends packets to. Times are in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Packets that the CPU had taken at the last look, modulo 2^32.
    pub seen: u32,
    /// What the CPU had taken of all queues by then, modulo 2^32.
    pub worked: u32,
    /// The last look at which it had taken some since the one before, or had none to take.
    pub moved: u64,
    /// The last look at which it had taken none for too long; 0: never.
    pub stalled: u64,
    /// When a look last found that packets may be sent there; 0: may not.
    pub open: u64,
}

impl Sight {
    /// A look `now`, at a CPU that has taken `count` of this queue's packets, and `worked` of all
    /// queues'. A thread that `sleeps` has nothing that it could take: then what is missing for long
    /// never came there, and what is too much was sent before the count began; both are mended.
    /// True if the CPU is seen to stall, and was not before.
    pub fn look(
        &mut self,
        count: &mut Count,
        worked: u32,
        sleeps: bool,
        now: u64,
        limits: &Limits,
    ) -> bool {
        let moves = (count.taken, worked) != (self.seen, self.worked);
        let still = !moves && self.still(now) >= u64::from(limits.stall);
        (self.seen, self.worked) = (count.taken, worked);
        let has_all = self.waiting(count.sent) <= 0 || (still && sleeps);
        if has_all {
            count.sent = count.taken;
        }
        let stalls = still && !has_all;
        let begins = stalls && !self.is_away(now, limits);
        if stalls {
            self.stalled = now;
        } else if moves || has_all {
            self.moved = now;
        }
        begins
    }

    /// Whether packets may be sent there, after a look. Half of the room is for flows that are
    /// there: those that stay.
    pub fn takes(&self, sent: u32, stays: bool, now: u64, limits: &Limits) -> bool {
        let room = if stays { limits.room } else { limits.room.div_ceil(2) };
        !self.is_away(now, limits) && self.waiting(sent) < room.cast_signed()
    }

    /// Whether flows wait no longer for what they have there, after a look: it has taken nothing
    /// for too long, which is sooner where more would be lost.
    pub fn is_given_up(&self, sent: u32, now: u64, limits: &Limits) -> bool {
        let full = self.waiting(sent) >= limits.room.cast_signed();
        self.still(now) >= u64::from(if full { limits.stall } else { limits.patience })
    }

    /// Of the packets sent there, those that it had not taken at the last look.
    pub fn waiting(&self, sent: u32) -> i32 {
        sent.wrapping_sub(self.seen).cast_signed()
    }

    fn is_away(&self, now: u64, limits: &Limits) -> bool {
        self.stalled != 0 && now.wrapping_sub(self.stalled) < u64::from(limits.away)
    }

    fn still(&self, now: u64) -> u64 {
        now.wrapping_sub(self.moved)
    }
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordAction {
    /// It says this CPU already.
    Right,
    /// It says another CPU of the lane, and is left alone.
    SameLane,
    /// It says another lane's CPU, or one that is gone, and is written.
    Write,
    /// There was none, and it is written.
    New,
}

/// What becomes of the record of CPU `recorded`, if the flow's consumer runs on `cpu`, in the lane
/// `here`. `there` is the lane of `recorded`, none if flows cannot be sent there.
pub fn record_rule(
    recorded: u32,
    there: Option<Lane>,
    cpu: u32,
    here: Lane,
    llc_affinity: bool,
) -> RecordAction {
    match there {
        _ if recorded == cpu => RecordAction::Right,
        Some(lane) if llc_affinity && lane == here => RecordAction::SameLane,
        _ => RecordAction::Write,
    }
}

/// What the words of all tables have in common.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Sets of words: a power of two.
    pub sets: u32,
    /// The bits that are a CPU.
    cpu_bits: u32,
}

impl Words {
    /// For so many words, a power of two and at least [`WAYS`], and CPUs below `cpus`.
    pub fn new(words: u32, cpus: u32) -> Self {
        Self { sets: words / WAYS as u32, cpu_bits: cpus.next_power_of_two() - 1 }
    }

    /// The set of a hash.
    pub fn set_of(self, hash: u32) -> u32 {
        hash % self.sets
    }

    /// The word of a hash that says this CPU.
    pub fn word(self, hash: u32, cpu: u32) -> u32 {
        hash & !self.cpu_bits | USED | cpu
    }

    /// The CPU that a word says.
    pub fn cpu(self, word: u32) -> u32 {
        word & self.cpu_bits
    }

    /// Where in a set the word of this hash is. What is behind an empty word is not there.
    pub fn find(self, set: &[u32; WAYS], hash: u32) -> Option<usize> {
        let ours = self.word(hash, 0);
        let mut words = set.iter().take_while(|word| **word != 0);
        words.position(|word| word & !self.cpu_bits == ours)
    }
}

/// Who has to make room in a full set: whoever, but not always the same.
pub fn victim(set: &[u32; WAYS], hash: u32) -> usize {
    let all = set.iter().fold(hash, |all, word| all ^ word);
    // Fibonacci hashing.
    (all.wrapping_mul(0x9e37_79b9) >> 29) as usize
}

/// Whether packet number `tail` and those before are delivered on a CPU that has taken so many. A
/// thread that `sleeps` has nothing in hand; with `short_ticks`, of a millisecond or less, one that
/// does not may have anything.
pub fn is_delivered(taken: u32, tail: u32, sleeps: bool, short_ticks: bool) -> bool {
    let since = taken.wrapping_sub(tail).cast_signed();
    since >= 0 && (sleeps || (since >= DELIVERED_AFTER && !short_ticks))
}
