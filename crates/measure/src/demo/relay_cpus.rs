//! The knob `relay.cpus`, flipped while a stream flows: the relay's worker and its connection on
//! a CPU of their own (on), or on the CPU that the sender uses (off).

use anyhow::ensure;
use knobs::Client;
use lab::traffic::{BulkOptions, BulkSession};
use lanes::LaneMap;

use super::Ready;
use super::stage::Stage;
use crate::bench::Absent;

const KNOB: &str = "relay.cpus";

pub(super) fn set_up(stage: &Stage) -> anyhow::Result<Ready<'_>> {
    let none = || Absent("there is one CPU, so no other one to forward on".into());
    let Places { senders, other, lane } = Places::choose(&LaneMap::detect()?).ok_or_else(none)?;
    let to = stage.bulk.address();
    let relay = stage.relay(to, &format!("--engine auto --cpus {senders}"))?;
    let mut knobs = Client::connect(&relay.control)?;
    let arms = format!(
        "one running relay carries a bulk stream while its knob is flipped; off: forwarding on \
         the sender's CPU, {senders}; on: on CPU {other}, in {lane}."
    );
    let begin = move || {
        // The whole of it, which runs until this is dropped.
        let relay = &relay;
        let options = BulkOptions { client_cpus: vec![senders], ..BulkOptions::default() };
        Ok(BulkSession::start(&stage.host, relay.addr, &options)?)
    };
    let set = move |_: &mut _, on| {
        let cpu = if on { other } else { senders }.to_string();
        let in_force = knobs.set(KNOB, &cpu)?;
        ensure!(in_force == cpu, "{KNOB} is {in_force} after it was set to {cpu}");
        Ok(())
    };
    Ok(Ready::kept(arms, begin, set, |session, window| {
        Ok(session.measure(&stage.bulk, window)?.rate())
    }))
}

/// Where the sender is, and where forwarding can be instead.
#[derive(Debug, PartialEq)]
struct Places {
    senders: usize,
    other: usize,
    /// Which lane the other one is in, for people.
    lane: &'static str,
}

impl Places {
    /// The first CPU, and the next one of its lane, where it has one.
    fn choose(map: &LaneMap) -> Option<Places> {
        let senders = map.allowed().first()?;
        let others = || map.allowed().iter().filter(|&cpu| cpu != senders);
        let near = others().find(|&cpu| map.same_lane(cpu, senders));
        let (other, lane) = match near {
            Some(cpu) => (cpu, "the same lane"),
            None => (others().next()?, "another lane"),
        };
        Some(Places { senders, other, lane })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(lanes: &str, allowed: &str) -> Option<Places> {
        let root = std::env::temp_dir().join(format!("demo-cpus-{}", std::process::id()));
        let cpu = root.join("cpu");
        std::fs::create_dir_all(&cpu).unwrap();
        for file in ["online", "present", "possible"] {
            std::fs::write(cpu.join(file), "0-7\n").unwrap();
        }
        for number in 0..8 {
            std::fs::create_dir_all(cpu.join(format!("cpu{number}"))).unwrap();
        }
        let map = LaneMap::from_sysfs(&root, Some(&allowed.parse().unwrap()));
        std::fs::remove_dir_all(&root).unwrap();
        Places::choose(&map.unwrap().with_override(lanes).unwrap())
    }

    #[test]
    fn forwarding_moves_within_the_lane_where_it_can() {
        let places = |senders, other, lane| Some(Places { senders, other, lane });
        for (lanes, allowed, expected) in [
            ("0-3|4-7", "0-7", places(0, 1, "the same lane")),
            ("0,4|1-3,5-7", "0-7", places(0, 4, "the same lane")),
            ("0-3|4-7", "3,6", places(3, 6, "another lane")),
            ("0-3|4-7", "2", None),
        ] {
            assert_eq!(choose(lanes, allowed), expected, "{lanes} {allowed}");
        }
    }
}
