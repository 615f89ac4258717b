//! What traffic was seen to do. Silent where nobody watched.

use super::table;
use crate::{Facts, Found, Watch};

/// Events that it takes to speak of shares.
const LEAST: u64 = 1000;

/// Hundredths from which a share is worth a look.
const PERCENT: u64 = 10;

table! { Traffic:
    "CL048" Warning far_consumers ["steer"]
        "Consumers run in other lanes than their packets"
        costs "each of these packets is fetched from another lane's cache when it is read";
    "CL049" Warning far_frees ["frames"]
        "Packet buffers are freed in other lanes than they were allotted in"
        costs "each of them takes the allocator's cache lines to another lane, and back for the next \
               packet";
}

fn far_consumers(facts: &Facts) -> Option<Found> {
    let watch = facts.watch().filter(|_| facts.has_lanes())?;
    let evidence = share(
        watch,
        watch.receives_other_lane,
        watch.receives,
        "receives were by a \
        consumer in another lane than the softirq that delivered",
    )?;
    let card = facts.cards().next().map_or("IFACE", |card| &card.name);
    Some(Found {
        evidence: vec![evidence],
        command: format!("cachelane steer {card} --check"),
        check: "cachelane trial steer.llc_affinity --arms off,on".into(),
    })
}

fn far_frees(facts: &Facts) -> Option<Found> {
    let watch = facts.watch().filter(|_| facts.has_lanes())?;
    let evidence = share(
        watch,
        watch.frees_other_lane,
        watch.frees,
        "packet buffers were freed in \
        another lane than they were allotted in",
    )?;
    Some(Found {
        evidence: vec![evidence],
        command: "sysctl -w net.core.skb_defer_max=128".into(),
        check: "cachelane trial sysctl:net.core.skb_defer_max --arms 64,128,0".into(),
    })
}

/// The sentence, if there were enough events and enough of them are so.
fn share(watch: &Watch, part: u64, all: u64, what: &str) -> Option<String> {
    let much = all >= LEAST && part.saturating_mul(100) >= all.saturating_mul(PERCENT);
    let percent = part as f64 / all.max(1) as f64 * 100.0;
    much.then(|| format!("{percent:.0} % of {all} {what}, in {:.0} s", watch.seconds))
}
