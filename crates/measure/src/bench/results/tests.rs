use super::*;
use crate::bench::bundle::tests::made;

fn page(bundles: impl IntoIterator<Item = Bundle>) -> String {
    let named = (1..).zip(bundles).map(|(number, bundle)| (format!("{number}.json"), bundle));
    markdown(&named.collect::<Vec<_>>())
}

#[track_caller]
fn assert_has(page: &str, line: &str) {
    assert!(page.lines().any(|found| found == line), "no line {line:?} in\n{page}");
}

#[test]
fn a_loss_is_said_as_a_gain_is() {
    let page = page([made()]);
    for line in [
        "| | claims met | not met | better | worse | inconclusive | absent |",
        "| 1 | 1 | 1 | 1 | 1 | 0 | 1 |",
        "| 1 | A \\| B | 4 | 2 by L3 | 8.0 GiB | 6.18.5 | 250 | yes | no | 0.1.0 | 2027-01-15, 62 seconds |",
        "1. `1.json`: `cachelane bench all`",
        "## relay",
        "- 1: 6 rounds of windows of 500ms; took 62 seconds",
        "| ratio | claim | 1: A \\| B, 4 CPUs, 2 lanes, Linux 6.18.5 |",
        "|---|---|---|",
        "| *bulk: One stream* | | |",
        "| rate: relay / peer | at least 2 | 2.50 [2.50, 2.50], better, met |",
        "| p99: relay / peer | at most 1.1 | 1.50 [1.50, 1.50], worse, not met |",
        "| fills: relay / peer |  | absent (1) |",
        "1. the CPU's counters: hidden",
    ] {
        assert_has(&page, line);
    }
}

#[test]
fn machines_stand_side_by_side_and_what_one_lacks_has_a_reason() {
    let mut other = made();
    other.machine.host.id = None;
    other.version = "0.2.0".into();
    let entry = &mut other.experiments[0];
    // Its claim has changed, and its run ended early.
    entry.parts[0].ratios[0].bar = Some(Bar::AtLeast(3.0));
    entry.error = Some("interrupted".into());
    let output = entry.output.as_mut().unwrap();
    output.ratios.remove(1);
    output.absent.clear();
    output.incomplete = true;
    output.notes = vec!["only here".into()];
    output.ratios[0].runs = 4;
    let mut third = made();
    third.experiments[0].name = "bridge".into();
    third.experiments[0].output = None;
    third.experiments[0].seconds = None;
    let page = page([made(), other, third]);
    for line in [
        "- 2: 6 rounds of windows of 500ms; took 62 seconds, incomplete: interrupted",
        "| rate: relay / peer | at least 2 | 2.50 [2.50, 2.50], better, met | absent (1) | absent (2) |",
        "| p99: relay / peer | at most 1.1 | 1.50 [1.50, 1.50], worse, not met | absent (3) | absent (2) |",
        "| fills: relay / peer |  | absent (4) | absent (3) | absent (2) |",
        "| rate: relay / peer | at least 3 | absent (5) | 2.50 [2.50, 2.50] (4 runs), better, met | absent (2) |",
        "1. cachelane 0.2.0 does not have it, or claims other",
        "2. not asked for",
        "3. interrupted",
        "- 2: only here",
        "- 3: 6 rounds of windows of 500ms; did not begin, incomplete",
    ] {
        assert_has(&page, line);
    }
    assert!(page.contains("\n| 3 (the machine of 1) | A"), "{page}");
    assert_eq!(page.matches("\n## ").count(), 3, "{page}");
}

#[test]
fn what_a_bundle_says_is_text_and_nothing_else() {
    let mut bundle = made();
    bundle.command = "x` | <b>".into();
    bundle.debug = true;
    let entry = &mut bundle.experiments[0];
    entry.parts[0].ratios[2].name = "<script>\n| [a](b) *".into();
    entry.error = Some("x".repeat(10_000));
    let page = page([bundle]);
    assert!(!page.contains("<script") && !page.contains("[a](b)"), "{page}");
    assert_has(&page, "| &lt;script> \\| \\[a\\](b) \\* |  | absent (1) |");
    assert_has(&page, "1. `1.json`: `x' / <b>`; a debug build, which is slow");
    assert!(page.lines().all(|line| line.chars().count() < 1000), "{page}");
}
