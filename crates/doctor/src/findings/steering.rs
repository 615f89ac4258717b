//! The kernel's own steering: RPS, RFS and XPS.

use lanes::CpuSet;

use super::table;
use super::words::{at_once, count, rps_file, trial_of_file, trial_of_sysctl};
use crate::{Device, Facts, Found, RxQueue};

table! { Steering:
    "CL012" Warning rps_beside_queues ["steer"]
        "RPS is on for a card that has a receive queue for each CPU"
        costs "each packet is handed to a second CPU, with an interrupt between CPUs, though the card \
               has spread the packets already; and steering the same packets is refused";
    "CL013" Warning rps_across_lanes ["steer"]
        "RPS spreads a card's packets over several lanes"
        costs "packets are handled in lanes whose caches have neither their headers nor their \
               consumer";
    "CL014" Warning half_rfs ["steer"]
        "RFS is half configured, and does nothing"
        costs "packets are not handled where they are read, though somebody has asked for that";
    "CL015" Info small_rfs ["steer"]
        "RFS has fewer places for a card's flows than for sockets"
        costs "flows that share a place follow each other's consumers";
    "CL016" Warning xps_across_lanes ["frames" "xsk"]
        "CPUs of several lanes send by one transmit queue"
        costs "the queue's lock and its descriptors move between caches with every sender, though \
               there are queues enough for each lane to have its own";
    "CL017" Info no_xps ["frames"]
        "A card with several transmit queues has no XPS"
        costs "a flow's hash chooses the queue: senders of all lanes write to all queues";
}

fn rps_beside_queues(facts: &Facts) -> Option<Found> {
    let cards = facts.cards().filter(|card| has_queue_per_cpu(facts, card) && rps(card).is_some());
    off(&cards.collect::<Vec<_>>())
}

fn rps_across_lanes(facts: &Facts) -> Option<Found> {
    let spread = |card: &Device| -> Option<RxQueue> {
        let spread = |queue: &&RxQueue| facts.lanes_of(&queue.rps_cpus) > 1;
        card.rx.iter().find(spread).filter(|_| !has_queue_per_cpu(facts, card)).cloned()
    };
    let found: Vec<(&Device, RxQueue)> =
        facts.cards().filter_map(|card| Some((card, spread(card)?))).collect();
    let evidence = found.iter().map(|(card, queue)| {
        format!(
            "{}: queue {} has RPS on CPUs {}, in {} lanes",
            card.name,
            queue.number,
            queue.rps_cpus,
            facts.lanes_of(&queue.rps_cpus)
        )
    });
    let (card, queue) = found.first()?;
    let interrupts = card.interrupts.iter().filter_map(|one| one.effective.as_ref());
    let near = interrupts.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    let near = if near.is_empty() { &queue.rps_cpus } else { &near };
    let (path, mask) = (rps_file(&card.name, queue.number), facts.lane_near(near).to_mask());
    Found::if_any(
        evidence.collect(),
        || format!("echo {mask} > {path}: the lane of the queue's interrupt"),
        || at_once(&trial_of_file(&path, &queue.rps_cpus.to_mask(), &mask)),
    )
}

fn half_rfs(facts: &Facts) -> Option<Found> {
    let sockets = facts.sysctl("net.core.rps_sock_flow_entries")?;
    let queues = facts.cards().flat_map(|card| &card.rx).filter(|queue| queue.rps_flow_cnt > 0);
    let (queues, first) = (queues.count(), facts.cards().next()?);
    let file = format!("/sys/class/net/{}/queues/rx-0/rps_flow_cnt", first.name);
    let (evidence, command) = match (sockets, queues) {
        (1.., 0) => (
            format!(
                "net.core.rps_sock_flow_entries is {sockets}, and rps_flow_cnt is 0 on every queue \
                 of every card"
            ),
            format!(
                "echo {} > {file}, and likewise for each queue that is to be steered; or sysctl -w \
                 net.core.rps_sock_flow_entries=0",
                (sockets / first.rx.len().max(1) as u64).max(1)
            ),
        ),
        (0, 1..) => (
            format!(
                "rps_flow_cnt is set on {}, and net.core.rps_sock_flow_entries is 0",
                count(queues, "queue")
            ),
            "sysctl -w net.core.rps_sock_flow_entries=32768".into(),
        ),
        _ => return None,
    };
    let arms = if sockets > 0 { format!("{sockets},0") } else { "0,32768".into() };
    let check = at_once(&trial_of_sysctl("net.core.rps_sock_flow_entries", &arms));
    Some(Found { evidence: vec![evidence], command, check })
}

fn small_rfs(facts: &Facts) -> Option<Found> {
    let sockets = facts.sysctl("net.core.rps_sock_flow_entries").filter(|entries| *entries > 0)?;
    let sum = |card: &Device| card.rx.iter().map(|queue| queue.rps_flow_cnt).sum::<u64>();
    let cards: Vec<&Device> =
        facts.cards().filter(|card| (1..sockets).contains(&sum(card))).collect();
    let evidence = cards.iter().map(|card| {
        format!(
            "{}: rps_flow_cnt of its queues comes to {}, and net.core.rps_sock_flow_entries is {sockets}",
            card.name,
            sum(card)
        )
    });
    let card = cards.first()?;
    let each = (sockets / card.rx.len().max(1) as u64).max(1);
    let path = format!("/sys/class/net/{}/queues/rx-0/rps_flow_cnt", card.name);
    Found::if_any(
        evidence.collect(),
        || format!("echo {each} > {path}, and likewise for the card's other queues"),
        || {
            let now = card.rx[0].rps_flow_cnt.to_string();
            at_once(&trial_of_file(&path, &now, &each.to_string()))
        },
    )
}

fn xps_across_lanes(facts: &Facts) -> Option<Found> {
    let lanes = facts.cpus.lanes.lanes().len();
    let enough = |card: &&Device| lanes > 1 && card.tx.len() >= lanes;
    let found: Vec<_> = facts
        .cards()
        .filter(enough)
        .filter_map(|card| {
            let queue = card.tx.iter().find(|queue| facts.lanes_of(&queue.xps_cpus) > 1)?;
            Some((card, queue))
        })
        .collect();
    let evidence = found.iter().map(|(card, queue)| {
        format!(
            "{}: transmit queue {} is of CPUs {}, in {} lanes; it has {} queues for {lanes} lanes",
            card.name,
            queue.number,
            queue.xps_cpus,
            facts.lanes_of(&queue.xps_cpus),
            card.tx.len()
        )
    });
    let (card, queue) = found.first()?;
    let path = format!("/sys/class/net/{}/queues/tx-{}/xps_cpus", card.name, queue.number);
    let lane = facts.lane_near(&queue.xps_cpus).to_mask();
    Found::if_any(
        evidence.collect(),
        || format!("echo {lane} > {path}, and the CPUs of the other lanes to other queues"),
        || trial_of_file(&path, &queue.xps_cpus.to_mask(), &lane),
    )
}

fn no_xps(facts: &Facts) -> Option<Found> {
    if !facts.has_lanes() || facts.kernel.options.get("CONFIG_XPS").is_some_and(|set| set == "n") {
        return None;
    }
    let none = |card: &&Device| {
        let unset = card.tx.iter().all(|queue| queue.xps_cpus.is_empty() && !queue.by_rx_queue);
        card.tx.len() > 1 && unset
    };
    let cards: Vec<&Device> = facts.cards().filter(none).collect();
    let evidence = cards.iter().map(|card| {
        format!("{}: {} transmit queues, none with xps_cpus", card.name, card.tx.len())
    });
    let card = cards.first()?;
    let path = format!("/sys/class/net/{}/queues/tx-0/xps_cpus", card.name);
    let lane = facts.lane_near(&CpuSet::new()).to_mask();
    Found::if_any(
        evidence.collect(),
        || format!("echo {lane} > {path}, and each other lane's CPUs to other queues"),
        || trial_of_file(&path, "0", &lane),
    )
}

/// A queue of the card with RPS.
fn rps(card: &Device) -> Option<&RxQueue> {
    card.rx.iter().find(|queue| !queue.rps_cpus.is_empty())
}

fn has_queue_per_cpu(facts: &Facts, card: &Device) -> bool {
    card.rx.len() > 1 && card.rx.len() >= facts.online()
}

/// That RPS is on for these, and how to turn it off.
fn off(cards: &[&Device]) -> Option<Found> {
    let evidence = cards.iter().filter_map(|card| {
        let queue = rps(card)?;
        Some(format!(
            "{}: {} receive queues, and queue {} has RPS on CPUs {}",
            card.name,
            card.rx.len(),
            queue.number,
            queue.rps_cpus
        ))
    });
    let (card, queue) = cards.first().and_then(|card| Some((card, rps(card)?)))?;
    let path = rps_file(&card.name, queue.number);
    Found::if_any(
        evidence.collect(),
        || format!("echo 0 > {path}, and likewise for the card's other queues"),
        || at_once(&trial_of_file(&path, &queue.rps_cpus.to_mask(), "0")),
    )
}
