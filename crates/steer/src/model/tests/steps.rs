//! What happens to the programs and their model alike.

use proptest::prelude::*;

use super::packets::{Dress, dresses};
use crate::model::Poll;

/// Something that happens. CPUs, queues, flows and places of records are numbered modulo how many
/// there are.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Packet {
        flow: u8,
        dress: Dress,
        queue: u32,
        here: u32,
        metadata: usize,
    },
    Record {
        flow: u8,
        cpu: u32,
    },
    /// As a CPU's thread does, so on a CPU that is there.
    Take {
        here: u32,
        queue: u32,
    },
    /// The CPU has taken so many more than were sent, or fewer.
    Taken {
        cpu: u32,
        queue: u32,
        ahead: i32,
    },
    Lose {
        here: u32,
        cpu: u32,
        packets: u32,
        other_map: bool,
    },
    Poll {
        here: u32,
        poll: Poll,
    },
    Target {
        cpu: u32,
        active: bool,
        lane: u32,
        asleep: bool,
    },
    Entry {
        here: u32,
        there: bool,
    },
    Affinity(bool),
    /// So many ticks pass.
    Time(u64),
    Renew,
    Word {
        slot: u32,
        word: u32,
    },
}

pub(super) fn steps() -> impl Strategy<Value = Step> {
    let metadata = prop_oneof![3 => Just(0_usize), 1 => (0_usize..=8).prop_map(|words| words * 4)];
    let packet = (any::<u8>(), dresses(), 0..3_u32, 0..2_u32, metadata).prop_map(
        |(flow, dress, queue, here, metadata)| Step::Packet { flow, dress, queue, here, metadata },
    );
    let record = (any::<u8>(), any::<u32>()).prop_map(|(flow, cpu)| Step::Record { flow, cpu });
    let take = (any::<u32>(), any::<u32>()).prop_map(|(here, queue)| Step::Take { here, queue });
    let ahead = prop_oneof![8 => -9..=0_i32, 1 => 1..=2, 2 => 70..=74, 1 => any::<i32>()];
    let taken = (any::<u32>(), any::<u32>(), ahead).prop_map(|(cpu, queue, ahead)| Step::Taken {
        cpu,
        queue,
        ahead,
    });
    let lose = (any::<u32>(), any::<u32>(), 0..9_u32, prop::bool::weighted(0.2))
        .prop_map(|(here, cpu, packets, other_map)| Step::Lose { here, cpu, packets, other_map });
    // What is at such an address cannot be read: the budget of its NAPI is 0.
    let poll =
        (any::<u32>(), -1..=1_i32, prop::bool::weighted(0.1)).prop_map(|(here, work, busy)| {
            let poll = Poll { work, budget: i32::from(busy), weight: 0 };
            Step::Poll { here, poll }
        });
    let target = (any::<u32>(), prop::bool::weighted(0.8), 0..2_u32, any::<bool>())
        .prop_map(|(cpu, active, lane, asleep)| Step::Target { cpu, active, lane, asleep });
    let entry = (any::<u32>(), prop::bool::weighted(0.7))
        .prop_map(|(here, there)| Step::Entry { here, there });
    let word = (any::<u32>(), any::<u32>()).prop_map(|(slot, word)| Step::Word {
        slot,
        word: if word & 7 == 0 { 0 } else { word & !(1 << 30) | 1 << 31 },
    });
    let time = prop_oneof![6 => 0..=2_u64, 2 => 7..=9_u64, 1 => 19..=31_u64].prop_map(Step::Time);
    prop_oneof![
        30 => packet, 20 => record, 6 => take, 10 => taken, 3 => lose, 20 => poll, 6 => target,
        1 => entry, 3 => any::<bool>().prop_map(Step::Affinity), 6 => word, 6 => time,
        6 => Just(Step::Renew)
    ]
}
