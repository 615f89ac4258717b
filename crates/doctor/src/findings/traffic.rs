//! What traffic was seen to do. Silent where it was not watched.

use super::table;
use super::words::{again, at_once, trial_of_sysctl};
use crate::{Facts, Found, Release, Watch};

const DEFER: &str = "net.core.skb_defer_max";

/// The first kernel that defers the freeing of sent buffers, too.
const DEFERS_SENT: Release = Release(6, 19);

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
    let what = "receives were by a consumer in another lane than the softirq that delivered";
    let mut evidence = vec![share(watch, watch.receives_other_lane, watch.receives, what)?];
    let local = watch.receives_other_lane_local;
    if local > 0 {
        let percent = percent(local, watch.receives_other_lane);
        evidence.push(format!("{percent:.0} % of these were of what this host sent to itself"));
    }
    let card = facts.cards().next().map_or("IFACE", |card| &card.name);
    // Nothing steers what never leaves the host.
    let (command, check) = match local > watch.receives_other_lane / 2 {
        true => (
            "keep processes that talk to each other in one lane (taskset, AllowedCPUs=)".into(),
            again("CL048"),
        ),
        false => (
            format!("cachelane steer {card} --check"),
            "cachelane trial steer.llc_affinity --arms off,on".into(),
        ),
    };
    Some(Found { evidence, command, check })
}

fn far_frees(facts: &Facts) -> Option<Found> {
    let watch = facts.watch().filter(|_| facts.has_lanes())?;
    let what = "packet buffers were freed in another lane than they were allotted in";
    let evidence = share(watch, watch.frees_other_lane, watch.frees, what)?;
    let now = facts.sysctl(DEFER).unwrap_or(64);
    let more = now.saturating_mul(2).max(128);
    let (command, check) = match facts.kernel.release {
        Some(release) if release >= DEFERS_SENT => (
            format!("sysctl -w {DEFER}={more}"),
            at_once(&trial_of_sysctl(DEFER, &format!("{now},{more}"))),
        ),
        _ => (
            "bring consumers to their packets (CL048), and send by queues whose interrupts come to \
             the sender's lane (XPS, CL016, CL017)"
                .into(),
            again("CL049"),
        ),
    };
    Some(Found { evidence: vec![evidence], command, check })
}

/// The sentence, if there were enough events and enough of them are so.
fn share(watch: &Watch, part: u64, all: u64, what: &str) -> Option<String> {
    let much = all >= LEAST && part.saturating_mul(100) >= all.saturating_mul(PERCENT);
    let percent = percent(part, all);
    much.then(|| format!("{percent:.0} % of about {all} {what}, in {:.1} s", watch.seconds))
}

fn percent(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64 * 100.0
}
