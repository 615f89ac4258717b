//! What a process calls a counter, as Prometheus calls it: by rule, so that a counter that is added to a
//! mechanism is shown without a change here.
//!
//! `relay.accepted` becomes `cachelane_relay_accepted`, and the encoder adds `_total` to what only grows.
//! A name of Prometheus ends with its unit, if that is one that can be converted: bytes and seconds. So the
//! unit moves to the end, and is there once: `relay.bytes_up`, in bytes, becomes `cachelane_relay_up_bytes`.
//! All other units, such as packets, say what is counted, which the help says as well.

use prometheus_client::registry::Unit;

/// Counters of which the last word is one of several reasons or places: they are one family with a label.
const GROUPS: [Group; 6] = [
    Group::new("bridge.kernel", "reason", "Packets left to the kernel path."),
    Group::new("lend.offences", "reason", "What borrowers did that they may not do."),
    Group::new("lend.refused", "reason", "Connections of borrowers that were refused."),
    Group::new("steer.kernel", "reason", "Packets left to the kernel path."),
    Group::new("xsk.drops", "reason", "Packets that the kernel dropped."),
    Group::new("xsk.rings", "ring", "Frames in the rings of the sockets."),
];

/// The label for a relay that is one service of several in its process: `relay.SERVICE.accepted`.
pub(super) const SERVICE: &str = "service";

/// Units that the name of a family ends with.
const UNITS: [(&str, Unit); 2] = [("bytes", Unit::Bytes), ("seconds", Unit::Seconds)];

/// First words of the families that no process's counters are of.
const OURS: [&str; 5] = ["build", "exporter", "knob", "lane", "process"];

/// The longest name that is taken from a process.
const LONGEST: usize = 100;

struct Group {
    prefix: &'static str,
    label: &'static str,
    help: &'static str,
}

impl Group {
    const fn new(prefix: &'static str, label: &'static str, help: &'static str) -> Group {
        Group { prefix, label, help }
    }
}

/// A family, and the label by which one of its counters is told from the others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Without its unit and `_total`.
    pub(super) family: String,
    pub(super) unit: Option<Unit>,
    pub(super) label: Option<(&'static str, String)>,
    /// Of the family, where it is not that of the counter.
    pub(super) help: Option<&'static str>,
}

/// What a counter of this name and unit is called; none if it is no name of a counter.
pub(super) fn named(name: &str, unit: &str) -> Option<Named> {
    if name.len() > LONGEST || !is_name(name) {
        return None;
    }
    for Group { prefix, label, help } in &GROUPS {
        if let Some(last) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')) {
            let (family, unit) = family(prefix, unit);
            let label = Some((*label, last.to_owned()));
            return Some(Named { family, unit, label, help: Some(help) });
        }
    }
    let (name, service) = match service(name) {
        Some((service, last)) => (format!("relay.{last}"), Some(service)),
        None => (name.to_owned(), None),
    };
    let (family, unit) = family(&name, unit);
    let label = service.map(|service| (SERVICE, service.to_owned()));
    Some(Named { family, unit, label, help: None })
}

/// The service and the last word of a relay's counter, if it is one service of several.
pub(super) fn service(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("relay.")?.rsplit_once('.')
}

/// Moves the unit to the end, where the encoder writes it.
fn family(name: &str, unit: &str) -> (String, Option<Unit>) {
    let words = name.split(['.', '_']);
    match UNITS.into_iter().find(|(known, _)| *known == unit) {
        Some((word, unit)) => {
            let rest: Vec<_> = words.filter(|one| *one != word).collect();
            (format!("cachelane_{}", rest.join("_")), Some(unit))
        }
        None => (format!("cachelane_{}", words.collect::<Vec<_>>().join("_")), None),
    }
}

/// As the registry of a process wants them; what answers may be any program of another user.
fn is_name(name: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_lowercase();
    let word = |word: &str| {
        word.as_bytes().first().is_some_and(letter)
            && word.bytes().all(|byte| letter(&byte) || byte.is_ascii_digit() || byte == b'_')
    };
    let is_ours = |first: &str| OURS.contains(&first);
    name.contains('.')
        && name.split('.').all(word)
        && !name.split(['.', '_']).next().is_some_and(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_follows_from_that_of_the_counter_and_its_unit() {
        for (name, unit, family, suffix) in [
            ("relay.bytes", "bytes", "cachelane_relay", Some(Unit::Bytes)),
            ("relay.bytes_up", "bytes", "cachelane_relay_up", Some(Unit::Bytes)),
            (
                "relay.sockmap_trimmed",
                "bytes",
                "cachelane_relay_sockmap_trimmed",
                Some(Unit::Bytes),
            ),
            ("relay.accepted", "connections", "cachelane_relay_accepted", None),
            ("xsk.rx_packets", "packets", "cachelane_xsk_rx_packets", None),
        ] {
            let found = named(name, unit).unwrap();
            assert_eq!((found.family.as_str(), found.unit), (family, suffix), "{name}");
            assert_eq!(found.label, None, "{name}");
        }
    }

    #[test]
    fn reasons_are_one_family() {
        let found = named("bridge.kernel.unknown_source", "packets").unwrap();
        assert_eq!(found.family, "cachelane_bridge_kernel");
        assert_eq!(found.label, Some(("reason", "unknown_source".to_owned())));
        assert!(found.help.is_some());
        let found = named("relay.web.bytes_up", "bytes").unwrap();
        assert_eq!(found.family, "cachelane_relay_up");
        assert_eq!(found.label, Some(("service", "web".to_owned())));
        assert_eq!(service("relay.a.b.accepted"), Some(("a.b", "accepted")));
    }

    #[test]
    fn what_is_no_name_is_left_out() {
        let long = format!("a.{}", "b".repeat(LONGEST));
        for name in [
            "",
            "relay",
            "relay.",
            "a b.c",
            "a.b\n# TYPE x counter",
            "a.\"b",
            "A.b",
            "process.up",
            "knob_x.y",
            &long,
        ] {
            assert_eq!(named(name, "bytes"), None, "{name}");
        }
    }
}
