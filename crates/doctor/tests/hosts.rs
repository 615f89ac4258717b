//! What is found on which host, and what it hangs on.

mod common;

use std::collections::BTreeSet;
use std::fs;

use cachelane_doctor::{Severity, find, findings};
use common::{Made, fixtures, found, hosts};

#[test]
fn each_host_has_what_its_first_line_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, expected) in hosts() {
        let host = Made::new(&name).look();
        assert_eq!(host.not_seen, [""; 0], "{name}");
        let found: BTreeSet<String> = found(&host.facts).into_iter().map(str::to_owned).collect();
        if found != expected {
            wrong.push(format!("{name}: found {found:?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_finding_has_a_host_where_it_is_found() {
    let all: BTreeSet<String> = hosts().into_iter().flat_map(|(_, finds)| finds).collect();
    let without: Vec<&str> =
        findings().map(|finding| finding.id).filter(|id| !all.contains(*id)).collect();
    assert!(without.is_empty(), "found nowhere: {without:?}");
    let unknown: Vec<&String> = all.iter().filter(|id| find(id).is_none()).collect();
    assert!(unknown.is_empty(), "no such findings: {unknown:?}");
}

#[test]
fn every_finding_goes_away_with_the_least_change() {
    let text = fs::read_to_string(fixtures().join("near.txt")).expect("a file");
    let mut tried = BTreeSet::new();
    for block in text.split("\n\n").map(str::trim).filter(|block| !block.starts_with('#')) {
        let (head, lines) = block.split_once('\n').expect("a head and a change");
        let (id, name) = head.split_once(' ').expect("an id and a host");
        let mut made = Made::new(name);
        assert!(found(&made.look().facts).contains(id), "{id} is not found on {name}");
        made.change(lines);
        assert!(!found(&made.look().facts).contains(id), "{head}: still found after\n{lines}");
        tried.insert(id.to_owned());
    }
    let all: BTreeSet<String> = findings().map(|finding| finding.id.to_owned()).collect();
    assert_eq!(tried, all, "each finding has a change");
}

#[test]
fn what_is_found_is_said_in_full() {
    for (name, _) in hosts() {
        let facts = Made::new(&name).look().facts;
        for finding in findings() {
            let Some(found) = finding.check(&facts) else { continue };
            let all = found.evidence.iter().chain([&found.command, &found.check]);
            for text in all {
                assert!(!text.trim().is_empty(), "{name} {finding:?}: {found:?}");
                assert!(
                    !text.contains("  ") && !text.contains('\n'),
                    "{name} {finding:?}: {text:?}"
                );
            }
            assert!(!found.evidence.is_empty() && !finding.mechanisms.is_empty(), "{finding:?}");
            assert!(found.check.starts_with("cachelane "), "{finding:?}: {}", found.check);
        }
    }
}

#[test]
fn ids_count_up_and_titles_differ() {
    let ids: Vec<String> = findings().map(|finding| finding.id.to_owned()).collect();
    let expected: Vec<String> = (1..=ids.len()).map(|number| format!("CL{number:03}")).collect();
    assert_eq!(ids, expected);
    assert!(ids.len() >= 30);
    let titles: BTreeSet<&str> = findings().map(|finding| finding.title).collect();
    assert_eq!(titles.len(), ids.len(), "two findings of one title");
    assert!(Severity::Info < Severity::Warning && Severity::Warning < Severity::Problem);
}

#[test]
fn a_thousand_devices_are_not_a_thousand_lines() {
    let mut made = Made::new("quiet");
    made.change("sys/class/net/veth{0-999}/napi_defer_hard_irqs 2");
    let found = find("CL024").and_then(|finding| finding.check(&made.look().facts));
    let found = found.expect("they have no timer");
    assert_eq!(found.evidence.len(), 13, "{:?}", found.evidence);
    assert_eq!(found.evidence[12], "and 988 more");
}

#[test]
fn what_helps_follows_from_what_traffic_does() {
    let found = |lines: &str, id: &str| {
        let mut made = Made::new("pod");
        made.change(lines);
        find(id).and_then(|finding| finding.check(&made.look().facts)).expect("it is found")
    };
    let steered = found("", "CL048");
    assert!(steered.command.starts_with("cachelane steer "), "{steered:?}");
    assert_eq!(steered.evidence.len(), 1, "{steered:?}");
    let local = found("json /watch/receives_other_lane_local 8000", "CL048");
    assert!(local.command.contains("in one lane"), "{local:?}");
    assert!(local.evidence[1].starts_with("89 % of these"), "{local:?}");
    let newer = found("", "CL049");
    assert_eq!(newer.command, "sysctl -w net.core.skb_defer_max=256");
    let older = found("proc/sys/kernel/osrelease 6.18.1", "CL049");
    assert!(older.command.contains("XPS"), "{older:?}");
}

#[test]
fn values_that_make_no_sense_are_said_and_not_guessed() {
    let mut made = Made::new("quiet");
    made.change("sys/class/net/eth0/mtu many\nsys/class/net/eth0/gro_flush_timeout -5");
    let host = made.look();
    assert_eq!(found(&host.facts), BTreeSet::new());
    let said = host.not_seen.join("\n");
    assert!(said.contains("/sys/class/net/eth0/mtu says \"many\""), "{said}");
    assert!(said.contains("gro_flush_timeout says \"-5\""), "{said}");
}
