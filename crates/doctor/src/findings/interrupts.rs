//! Interrupts of cards, and who moves them.

use lanes::{CpuSet, Source};

use super::table;
use super::words::{at_once, list, trial_of_commands, trial_of_file};
use crate::{Device, Facts, Found, Interrupt};

table! { Interrupts:
    "CL008" Warning far_node ["steer" "xsk" "frames"]
        "A card interrupts CPUs of another NUMA node than its own"
        costs "every packet crosses between the nodes before anybody reads it, and its buffers are \
               allotted far from the card";
    "CL009" Warning one_cpu ["steer" "xsk"]
        "All queues of a card interrupt one CPU"
        costs "the card's queues share one CPU, as if there were one queue";
    "CL010" Info may_move ["steer"]
        "A card's interrupts may be moved between lanes"
        costs "when irqbalance moves one to another lane, its flows are cold there, and so is what \
               cachelane has learned of them";
    "CL011" Warning balanced_by_l2 ["steer"]
        "irqbalance takes the L2 cache for what CPUs share"
        costs "it spreads interrupts between L2 caches and knows nothing of lanes: it may move a \
               queue out of the lane of its consumers while the same lane has idle CPUs";
}

fn far_node(facts: &Facts) -> Option<Found> {
    let several_nodes =
        facts.cpus.lanes.online().iter().any(|cpu| facts.cpus.lanes.node_of(cpu).is_some());
    let found: Vec<(&Device, Vec<&Interrupt>)> = facts
        .cards()
        .filter(|card| several_nodes && card.node.is_some())
        .filter_map(|card| {
            let near = card.near.as_ref()?;
            let is_far = |at: &CpuSet| at.intersection(near).is_empty();
            let far =
                card.interrupts.iter().filter(|one| one.effective.as_ref().is_some_and(is_far));
            Some((card, far.collect()))
        })
        .filter(|(_, far): &(_, Vec<_>)| !far.is_empty())
        .collect();
    let evidence = found.iter().map(|(card, far)| {
        let near = card.near.as_ref().map(ToString::to_string).unwrap_or_default();
        let at = far.iter().filter_map(|one| one.effective.clone());
        let at = at.fold(CpuSet::new(), |all, cpus| all.union(&cpus));
        format!(
            "{}: node {} has CPUs {near}, and interrupts {} go to CPUs {at}",
            card.name,
            card.node.unwrap_or_default(),
            list(far.iter().map(|one| one.number)),
        )
    });
    let (card, interrupts) = found.first()?;
    let (near, interrupt) = (card.near.clone().unwrap_or_default(), interrupts.first()?);
    set(evidence.collect(), interrupt, &near.to_string())
}

fn one_cpu(facts: &Facts) -> Option<Found> {
    let the_cpu = |card: &Device| -> Option<usize> {
        let [first, _, ..] = &card.interrupts[..] else { return None };
        let at = first.effective.as_ref().filter(|cpus| cpus.len() == 1)?;
        let all = card.interrupts.iter().all(|one| one.effective.as_ref() == Some(at));
        at.first().filter(|_| all && card.rx.len() > 1 && facts.online() > 1)
    };
    let found: Vec<(&Device, usize)> =
        facts.cards().filter_map(|card| Some((card, the_cpu(card)?))).collect();
    let evidence = found.iter().map(|(card, cpu)| {
        format!(
            "{}: {} receive queues, and interrupts {} all go to CPU {cpu}",
            card.name,
            card.rx.len(),
            list(card.interrupts.iter().map(|one| one.number)),
        )
    });
    let (card, cpu) = found.first()?;
    let next = facts.cpus.lanes.online().iter().find(|other| other != cpu)?;
    set(evidence.collect(), card.interrupts.get(1)?, &next.to_string())
}

fn may_move(facts: &Facts) -> Option<Found> {
    if facts.irqbalance.is_none() || !facts.has_lanes() {
        return None;
    }
    let wide = |one: &&Interrupt| facts.lanes_of(&one.cpus) > 1;
    let found: Vec<(&Device, Vec<&Interrupt>)> = facts
        .cards()
        .map(|card| (card, card.interrupts.iter().filter(wide).collect::<Vec<_>>()))
        .filter(|(_, wide)| !wide.is_empty())
        .collect();
    let evidence = found.iter().map(|(card, wide)| {
        format!(
            "{}: irqbalance runs, and {} of {} interrupts may go to several lanes (interrupt {}: CPUs {})",
            card.name,
            wide.len(),
            card.interrupts.len(),
            wide[0].number,
            wide[0].cpus
        )
    });
    let (_, wide) = found.first()?;
    let one = wide.first()?;
    let lane = facts.lane_near(one.effective.as_ref().unwrap_or(&one.cpus));
    let found = set(evidence.collect(), one, &lane.to_string())?;
    let command = format!("{}, and irqbalance --banirq={}", found.command, one.number);
    Some(Found { command, ..found })
}

fn balanced_by_l2(facts: &Facts) -> Option<Found> {
    let daemon = facts.irqbalance.as_ref()?;
    let level =
        daemon.options.split("--deepestcache=").nth(1).or(daemon.options.split("-c ").nth(1));
    let level = level.and_then(|rest| rest.split_whitespace().next()?.parse::<u32>().ok());
    let by_l2 = facts.cpus.source == Source::L3
        && facts.has_lanes()
        && facts.cpus.several_l2
        && level.unwrap_or(2) < 3;
    if !by_l2 {
        return None;
    }
    Some(Found {
        evidence: vec![format!(
            "irqbalance runs, its configuration names no cache deeper than L2 (options {:?}), and a \
             lane has several L2 caches",
            daemon.options
        )],
        command: "add --deepestcache=3 to OPTIONS in /etc/default/irqbalance (IRQBALANCE_ARGS in \
                  /etc/sysconfig/irqbalance), then systemctl restart irqbalance"
            .into(),
        check: trial_of_commands(
            "systemctl stop irqbalance; irqbalance --oneshot --deepestcache=2",
            "systemctl stop irqbalance; irqbalance --oneshot --deepestcache=3",
        ),
    })
}

/// With the command that binds one of the interrupts to these CPUs.
fn set(evidence: Vec<String>, interrupt: &Interrupt, cpus: &str) -> Option<Found> {
    let path = format!("/proc/irq/{}/smp_affinity_list", interrupt.number);
    let now = interrupt.cpus.to_string();
    Found::if_any(
        evidence,
        || format!("echo {cpus} > {path}, and likewise for the others"),
        || at_once(&trial_of_file(&path, &now, cpus)),
    )
}
