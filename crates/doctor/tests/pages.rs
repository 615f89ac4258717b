//! Each finding has its page, and the list of findings is true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cachelane_doctor::findings;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings")
}

#[test]
fn every_finding_has_a_page_and_every_page_a_finding() {
    let files = fs::read_dir(docs()).expect("pages");
    let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
    let pages: BTreeSet<String> = names.filter(|name| name != "README.md").collect();
    let expected: BTreeSet<String> =
        findings().map(|finding| format!("{}.md", finding.id)).collect();
    assert_eq!(pages, expected);
}

#[test]
fn pages_have_the_findings_titles_and_say_all_there_is_to_say() {
    for finding in findings() {
        let head = format!("# {}: {}\n\n", finding.id, finding.title);
        assert!(finding.page.starts_with(&head), "{finding:?}: expected {head:?}");
        let heads: Vec<&str> =
            finding.page.lines().filter(|line| line.starts_with("## ")).collect();
        let expected = ["## How it is seen", "## What to do", "## Whether it helped", "## Sources"];
        assert_eq!(heads, expected, "{finding:?}");
        for part in finding.page.split("\n## ") {
            let (_, text) = part.split_once('\n').expect("a head and a text");
            assert!(text.trim().len() > 20, "{finding:?}: {part:?}");
        }
        let (_, helped) = finding.page.split_once("## Whether it helped").expect("checked");
        assert!(helped.contains("\n# cachelane "), "{finding:?}: no command");
        assert!(finding.page.lines().all(|line| line.chars().count() <= 160), "{finding:?}");
    }
}

#[test]
fn findings_that_pages_mention_are_there() {
    let ids: BTreeSet<&str> = findings().map(|finding| finding.id).collect();
    for finding in findings() {
        let words = finding.page.split(|c: char| !c.is_ascii_alphanumeric());
        let mentioned = words.filter(|word| word.len() == 5 && word.starts_with("CL"));
        let unknown: Vec<&str> = mentioned.filter(|id| !ids.contains(id)).collect();
        assert!(unknown.is_empty(), "{finding:?} mentions {unknown:?}");
    }
}

/// `CACHELANE_WRITE=1 cargo test -p cachelane-doctor --test pages` writes it anew.
#[test]
fn the_list_of_findings_is_true() {
    let mut list = "# Findings\n\n\
        `cachelane doctor` says which of these hold on a host; `cachelane doctor ID` prints a page.\n\
        How they are made: [Reading doctor](../ARCHITECTURE.md#reading-doctor).\n\n\
        | id | severity | subject | what | matters for |\n|---|---|---|---|---|\n"
        .to_owned();
    for finding in findings() {
        list += &format!(
            "| [{id}]({id}.md) | {} | {} | {} | {} |\n",
            finding.severity,
            finding.subject,
            finding.title,
            finding.mechanisms.join(", "),
            id = finding.id
        );
    }
    let path = docs().join("README.md");
    if std::env::var_os("CACHELANE_WRITE").is_some() {
        fs::write(&path, &list).expect("it is written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == list, "docs/findings/README.md differs from the findings: write it anew");
}
