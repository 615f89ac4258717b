//! The manual as a book: no page is missing from it, no link leads nowhere, and what is made from the
//! command is what the command says.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use common::pages::{self, Page};
use common::{PROGRAM, text};

/// What `scripts/book` names instead of linking to it, since it is not in the book.
const OUTSIDE: [&str; 8] = [
    "bench/",
    "clients/",
    "crates/",
    "examples/",
    "packaging/",
    "scripts/",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
];

#[test]
fn every_page_of_docs_is_in_the_summary_once() {
    let listed: Vec<String> = pages::all().into_iter().skip(1).map(|page| page.path).collect();
    let mut once = BTreeSet::new();
    for path in &listed {
        assert!(once.insert(path.clone()), "docs/SUMMARY.md lists {path} twice");
    }
    let mut there = BTreeSet::new();
    gather(Path::new("docs"), &mut there);
    there.remove("docs/SUMMARY.md");
    let missing: Vec<_> = there.difference(&once).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks a line for {missing:?}");
}

/// The pages in a folder and those below it.
fn gather(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(pages::repository().join(dir)).expect("a folder") {
        let path = dir.join(entry.expect("an entry").file_name());
        if pages::repository().join(&path).is_dir() {
            gather(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.insert(path.to_str().expect("text").into());
        }
    }
}

#[test]
fn every_link_leads_somewhere_in_the_repository_and_in_the_book() {
    let mut wrong = Vec::new();
    for page in pages::all() {
        for link in links(&page) {
            wrong.extend(
                follow(&page, &link).err().map(|why| format!("{}: {link}: {why}", page.path)),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What stands in the round brackets of its links and images.
fn links(page: &Page) -> Vec<String> {
    let prose = page.prose();
    let rests = prose.split("](").skip(1);
    rests.filter_map(|rest| rest.split(')').next()).map(Into::into).collect()
}

fn follow(page: &Page, link: &str) -> Result<(), String> {
    if link.starts_with("https://") {
        return Ok(());
    }
    let (path, anchor) =
        link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = match path {
        "" => page.path.clone(),
        path => normal(&Path::new(&page.path).with_file_name(path)),
    };
    if !pages::repository().join(&target).exists() {
        return Err(format!("there is no {target}"));
    }
    let is_outside =
        OUTSIDE.iter().any(|one| format!("{target}/").starts_with(one) || target == *one);
    if page.path.starts_with("docs/") && !target.starts_with("docs/") && !is_outside {
        return Err("it is neither in the book nor one that scripts/book knows".into());
    }
    match anchor {
        Some(anchor) if !anchors(&pages::read(&target)).contains(anchor) => {
            Err(format!("{target} has no heading for #{anchor}"))
        }
        _ => Ok(()),
    }
}

/// A path without `..`.
fn normal(path: &Path) -> String {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(normal.pop(), "{} is outside of all", path.display()),
            part => normal.push(part),
        }
    }
    normal.to_str().expect("text").into()
}

/// The anchors of a page's headings: letters, digits, `-` and `_` in lower case, and `-` for a space.
fn anchors(page: &Page) -> BTreeSet<String> {
    let prose = page.prose();
    let headings = prose.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        heading
            .chars()
            .filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter))
            .collect()
    };
    headings.map(anchor).collect()
}

/// `CACHELANE_WRITE=1 cargo test -p cachelane --test book` writes it anew.
#[test]
fn the_page_of_commands_is_what_their_help_says() {
    let mut page = "# Commands\n\n\
        What `cachelane COMMAND --help-all` prints, for all commands. `cachelane man DIR` writes the same as\n\
        manual pages, with every option by example. What the options are good for is on the pages of the mechanisms.\n"
        .to_owned();
    describe(&[], &mut page);
    is_as_written("docs/reference/commands.md", &page);
}

fn describe(command: &[&str], page: &mut String) {
    let help = said(&[command, &["--help-all"]].concat());
    let name = [&["cachelane"], command].concat().join(" ");
    *page += &format!("\n## {name}\n\n```text\n{}\n```\n", help.trim_end());
    let (_, rest) = help.split_once("\nCommands:\n").unwrap_or_default();
    let (rest, _) = rest.split_once("\n\n").unwrap_or((rest, ""));
    // The name of a command is indented by two, what it does by more.
    let names = rest.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !name.is_empty() && *name != "help") {
        describe(&[command, &[name]].concat(), page);
    }
}

/// `CACHELANE_WRITE=1 cargo test -p cachelane --test book` writes it anew.
#[test]
fn the_page_of_the_configuration_is_what_the_command_says() {
    let page = format!(
        "# Configuration\n\n\
         All keys of the files that `cachelane up` reads, with what each means and is where it is not set:\n\
         what `cachelane config default` prints. [Everything from one file](../up.md) says how files are laid\n\
         over each other, and what happens when one changes.\n\n```text\n{}\n```\n",
        said(&["config", "default"]).trim_end()
    );
    is_as_written("docs/reference/config.md", &page);
}

#[test]
fn the_page_of_knobs_has_every_knob_that_a_configuration_can_set() {
    let page = pages::read("docs/knobs.md").text;
    let default = said(&["config", "default"]).replace("\n# ", " ");
    let knobs = default.split(" knob ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let knobs: BTreeSet<&str> = knobs.filter(|name| name.contains('.')).collect();
    assert!(knobs.len() >= 7, "{knobs:?}");
    for knob in knobs {
        assert!(page.contains(&format!("\n| `{knob}` |")), "docs/knobs.md has no line for {knob}");
    }
}

fn said(args: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(args).env_remove("COLUMNS").output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    text(&output.stdout).into()
}

fn is_as_written(path: &str, page: &str) {
    let file = pages::repository().join(path);
    if std::env::var_os("CACHELANE_WRITE").is_some() {
        fs::write(&file, page).expect("it is written");
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "{path} is not what the command says: write it anew (CACHELANE_WRITE=1)"
    );
}

#[test]
fn a_link_to_nothing_is_found() {
    let page = |text: &str| Page { path: "docs/up.md".into(), text: text.into() };
    for (link, why) in [
        ("nowhere.md", "there is no docs/nowhere.md"),
        ("trial.md#nowhere", "docs/trial.md has no heading for #nowhere"),
        ("../Cargo.toml", "it is neither in the book nor one that scripts/book knows"),
    ] {
        let page = page(&format!("see [this]({link})\n```text\n[not](this)\n```\n"));
        assert_eq!(links(&page), [link]);
        assert_eq!(follow(&page, link), Err(why.into()));
    }
    assert_eq!(follow(&page(""), "trial.md#how-it-goes"), Ok(()));
    assert_eq!(follow(&page(""), "../packaging/systemd/cachelane.service"), Ok(()));
}
