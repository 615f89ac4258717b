//! XDP and AF_XDP, and what stands against steering, in the words of `steer` and `xsk`.

use super::table;
use super::words::{again, list, quote, remedy};
use crate::{Device, Facts, Found, Release, Said};

/// `NETDEV_XDP_ACT_BASIC` and `NETDEV_XDP_ACT_XSK_ZEROCOPY` of linux/netdev.h.
const BASIC: u64 = 1;
const ZERO_COPY: u64 = 1 << 3;

/// The largest MTU whose packets fit into a frame of a page: less the headroom of XDP
/// (`XDP_PACKET_HEADROOM`) and an Ethernet header with a VLAN tag.
const LARGEST_MTU: u32 = 4096 - 256 - 18;

/// The first kernel where the packets of one call can be set (`XDP_MAX_TX_SKB_BUDGET`).
const TX_BUDGET: Release = Release(6, 17);

table! { Xdp:
    "CL031" Problem program_on_whole_packets ["steer" "xsk" "lend"]
        "An XDP program is on a device that receives whole packets"
        costs "bulk TCP through the device falls to about a thousandth: the program drops what it \
               cannot take";
    "CL032" Warning bond_or_vlan ["steer"]
        "A bond or a VLAN stands against steering a card"
        costs "the card's flows cannot be steered without reordering or losing their tags";
    "CL033" Info not_steered ["steer"]
        "Something else stands against steering a card"
        costs "the card's flows stay where its queues put them";
    "CL034" Info small_send_batches ["xsk"]
        "AF_XDP in copy mode sends at most 32 packets a call"
        costs "at more than a million packets a second, a sender spends much of its time in calls";
    "CL035" Info long_packets ["xsk" "lend"]
        "A card's packets do not fit into one frame of AF_XDP"
        costs "a socket without multi-buffer is refused, and one with it handles a packet in parts";
    "CL036" Info no_zero_copy ["xsk" "lend"]
        "A card's driver has no zero-copy AF_XDP"
        costs "the kernel copies each packet, which limits a queue to a fraction of the card's rate";
}

fn program_on_whole_packets(facts: &Facts) -> Option<Found> {
    let broken = |device: &Device| -> Option<Said> {
        let programs = facts.answer(device)?.xdp_programs;
        facts.steer_says(device, "whole-packets").filter(|_| programs > 0).cloned()
    };
    let found: Vec<(&Device, Said)> =
        facts.devices.iter().filter_map(|device| Some((device, broken(device)?))).collect();
    let evidence = found.iter().map(|(device, said)| {
        format!("{} has an XDP program. {}", device.name, quote(&device.name, said))
    });
    let (device, said) = found.first()?;
    let off = format!("ip link set {} xdp off", device.name);
    Found::if_any(
        evidence.collect(),
        || format!("{}; or without the program: {off}", remedy(said, "a network card")),
        || again("CL031"),
    )
}

fn bond_or_vlan(facts: &Facts) -> Option<Found> {
    against(facts, "CL032", |said| matches!(said.id.as_str(), "several-devices" | "vlan-offload"))
}

/// Where a card has a queue for each CPU, nobody wants to.
fn not_steered(facts: &Facts) -> Option<Found> {
    let others = ["no-native-xdp", "rps", "gro-timeout", "shared-napi", "xdp-program"];
    against(facts, "CL033", |said| others.contains(&said.id.as_str()))
}

/// Cards that would gain by steering, and what of this keeps them from it.
fn against(facts: &Facts, id: &str, is_meant: impl Fn(&Said) -> bool) -> Option<Found> {
    let cards = facts.cards().filter(|card| facts.has_lanes() && card.rx.len() < facts.online());
    let found: Vec<(&Device, &Said)> = cards
        .flat_map(|card| {
            let said = facts.answer(card).map(|answer| &answer.against_steering);
            said.into_iter().flatten().map(move |said| (card, said))
        })
        .filter(|(_, said)| is_meant(said))
        .collect();
    let (card, said) = found.first()?;
    Found::if_any(
        found.iter().map(|(card, said)| quote(&card.name, said)).collect(),
        || remedy(said, &format!("cachelane steer {} --check", card.name)),
        || match &said.remedy {
            Some(_) => "cachelane trial steer.llc_affinity --arms off,on".into(),
            None => again(id),
        },
    )
}

fn small_send_batches(facts: &Facts) -> Option<Found> {
    let release = facts.kernel.release.filter(|release| *release < TX_BUDGET)?;
    let copies = |card: &&Device| {
        facts
            .answer(card)
            .and_then(|answer| answer.xdp_features)
            .is_some_and(|can| can & ZERO_COPY == 0)
    };
    let cards: Vec<&Device> = facts.cards().filter(copies).collect();
    let evidence =
        cards.iter().map(|card| format!("Linux {release}, and {} has copy mode only", card.name));
    let first = cards.first()?;
    Found::if_any(
        evidence.collect(),
        || format!("Linux {TX_BUDGET} or newer; a card with zero-copy AF_XDP"),
        || format!("cachelane xsk send {} --json, before and after", first.name),
    )
}

fn long_packets(facts: &Facts) -> Option<Found> {
    let long = |card: &&Device| card.mtu.is_some_and(|mtu| mtu > LARGEST_MTU);
    let cards: Vec<&Device> = facts.cards().filter(long).collect();
    let evidence = cards.iter().map(|card| {
        let mtu = card.mtu.unwrap_or_default();
        format!("{}: MTU {mtu}, and a frame of 4096 bytes takes {LARGEST_MTU}", card.name)
    });
    let first = cards.first()?;
    Found::if_any(
        evidence.collect(),
        || format!("multi-buffer (Linux 6.6), or ip link set {} mtu {LARGEST_MTU}", first.name),
        || format!("cachelane xsk drop {} --json, before and after", first.name),
    )
}

fn no_zero_copy(facts: &Facts) -> Option<Found> {
    let lacks = |card: &&Device| {
        let features = facts.answer(card).and_then(|answer| answer.xdp_features);
        features.is_some_and(|can| can & BASIC != 0 && can & ZERO_COPY == 0)
    };
    let cards: Vec<&Device> = facts.cards().filter(lacks).collect();
    let evidence = cards.iter().map(|card| {
        let driver = card.driver.as_deref().unwrap_or("unknown");
        format!("{}: driver {driver} runs XDP programs, and has no zero-copy for AF_XDP", card.name)
    });
    Found::if_any(
        evidence.collect(),
        || "a newer kernel where it has zero-copy for this driver, or another card".into(),
        || {
            let names = list(cards.iter().map(|card| &card.name));
            format!("cachelane xsk drop {names} --json, before and after")
        },
    )
}
