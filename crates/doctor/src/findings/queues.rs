//! Queues of cards.

use lanes::CpuSet;

use super::words::{at_once, count, rps_file, trial_of_commands, trial_of_file};
use super::{multi_queue, table};
use crate::{Device, Facts, Found};

table! { Queues:
    "CL004" Warning one_queue ["steer"]
        "A card has one receive queue for several CPUs"
        costs "one CPU takes every packet of the card, and when it is full the others cannot help";
    "CL005" Warning unused_channels ["steer" "xsk"]
        "A card could have more receive queues than it uses"
        costs "fewer CPUs than possible take the card's packets";
    "CL006" Info queue_per_cpu ["steer"]
        "A card has a receive queue for each CPU"
        costs "nothing: the card spreads packets by itself, and steering has little to add unless \
               interrupts and consumers are in different lanes";
    "CL007" Warning fewer_than_lanes ["steer"]
        "A card has fewer receive queues than there are lanes"
        costs "consumers in the lanes without a queue get every packet from another lane";
}

fn one_queue(facts: &Facts) -> Option<Found> {
    let single = |card: &&Device| {
        matches!(&card.rx[..], [queue] if queue.rps_cpus.is_empty()) && facts.online() > 1
    };
    let cards: Vec<&Device> = facts.cards().filter(single).collect();
    let evidence = cards
        .iter()
        .map(|card| format!("{}: 1 receive queue, no RPS, {} CPUs", card.name, facts.online()));
    let first = cards.first()?;
    let lane = facts.lane_near(&at(first));
    let mask = lane.to_mask();
    let more = most(facts, first).filter(|most| *most > 1);
    Found::if_any(
        evidence.collect(),
        || match more {
            Some(most) => format!("ethtool -L {} combined {most}", first.name),
            None if facts.has_lanes() => format!("cachelane steer {} --check", first.name),
            None => format!("echo {mask} > {}", rps_file(&first.name, 0)),
        },
        || at_once(&trial_of_file(&rps_file(&first.name, 0), "0", &mask)),
    )
}

fn unused_channels(facts: &Facts) -> Option<Found> {
    let short = |card: &&Device| {
        let channels = facts.answer(card).and_then(|answer| answer.channels);
        channels.is_some_and(|channels| {
            (channels.receive as usize) < (channels.most as usize).min(facts.online())
        })
    };
    let cards: Vec<&Device> = facts.cards().filter(short).collect();
    let evidence = cards.iter().filter_map(|card| {
        let channels = facts.answer(card)?.channels?;
        Some(format!(
            "{}: {} of {} possible, for {} CPUs",
            card.name,
            count(channels.receive as usize, "receive queue"),
            channels.most,
            facts.online()
        ))
    });
    let first = cards.first()?;
    let channels = facts.answer(first)?.channels?;
    let most = channels.most.min(u32::try_from(facts.online()).unwrap_or(u32::MAX));
    let set = |number| format!("ethtool -L {} combined {number}", first.name);
    Found::if_any(
        evidence.collect(),
        || set(most),
        || trial_of_commands(&set(channels.receive), &set(most)) + " --settle 5s",
    )
}

fn queue_per_cpu(facts: &Facts) -> Option<Found> {
    let enough = |card: &&Device| facts.has_lanes() && card.rx.len() >= facts.online();
    let cards: Vec<&Device> = multi_queue(facts).filter(enough).collect();
    let evidence = cards.iter().map(|card| match facts.steer_says(card, "queue-per-cpu") {
        Some(said) => super::words::quote(&card.name, said),
        None => format!("{}: {} receive queues, {} CPUs", card.name, card.rx.len(), facts.online()),
    });
    let name = cards.first().map(|card| card.name.clone()).unwrap_or_default();
    Found::if_any(
        evidence.collect(),
        || format!("ethtool -x {name}, and the findings on interrupts"),
        || {
            trial_of_commands(
                &format!("ethtool -X {name} equal 1"),
                &format!("ethtool -X {name} default"),
            )
        },
    )
}

fn fewer_than_lanes(facts: &Facts) -> Option<Found> {
    let lanes = facts.cpus.lanes.lanes().len();
    let cards: Vec<&Device> = multi_queue(facts).filter(|card| card.rx.len() < lanes).collect();
    let evidence = cards
        .iter()
        .map(|card| format!("{}: {} receive queues, {lanes} lanes", card.name, card.rx.len()));
    let name = cards.first().map(|card| card.name.clone()).unwrap_or_default();
    Found::if_any(
        evidence.collect(),
        || {
            format!(
                "ethtool -L {name} combined {lanes} if it has as many, else cachelane steer {name}"
            )
        },
        || "cachelane trial steer.llc_affinity --arms off,on".into(),
    )
}

/// How many receive queues a card could have, if its driver says so.
fn most(facts: &Facts, card: &Device) -> Option<u32> {
    facts.answer(card)?.channels.map(|channels| channels.most)
}

/// The CPUs that a card interrupts, or is near.
fn at(card: &Device) -> CpuSet {
    let effective = card.interrupts.iter().filter_map(|one| one.effective.as_ref());
    let effective = effective.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    match effective.is_empty() {
        true => card.near.clone().unwrap_or_default(),
        false => effective,
    }
}
