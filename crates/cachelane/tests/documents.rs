//! Completions and manual pages, which are made from the command line itself.

mod common;

use std::fs;

use common::{Place, text};

#[test]
fn every_shell_gets_completions_of_every_subcommand() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = place.command(&["completions", shell]).output().expect("it runs");
        assert!(output.status.success(), "{shell}: {output:?}");
        for word in ["demo", "relay", "steer", "knob", "bench", "completions", "man", "listen"] {
            assert!(text(&output.stdout).contains(word), "{shell} lacks {word}");
        }
    }
    let output = place.command(&["completions", "cmd"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn bash_accepts_its_completions() {
    let place = Place::new();
    let script = place.command(&["completions", "bash"]).output().expect("it runs").stdout;
    let file = place.path().join("completions.bash");
    fs::write(&file, script).expect("a file");
    let checked = std::process::Command::new("bash").arg("-n").arg(file).output();
    let checked = checked.expect("bash runs");
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

#[test]
fn every_subcommand_gets_a_manual_page() {
    let place = Place::new();
    let output = place.command(&["man", "made/pages"]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let dir = place.path().join("made/pages");
    for (page, word) in [
        ("cachelane.1", "cachelane\\-demo"),
        ("cachelane-doctor.1", "\\-\\-watch"),
        ("cachelane-bench-doctor.1", "\\-\\-rounds"),
        ("cachelane-demo.1", "\\-\\-quick"),
        ("cachelane-relay.1", "\\-\\-listen"),
        ("cachelane-steer.1", "\\-\\-llc\\-affinity"),
        ("cachelane-xsk.1", "cachelane\\-xsk\\-forward"),
        ("cachelane-xsk-send.1", "\\-\\-pattern"),
        ("cachelane-lend.1", "\\-\\-socket\\-mode"),
        ("cachelane-bench-lend.1", "\\-\\-rounds"),
        ("cachelane-borrow.1", "\\-\\-pcap"),
        ("cachelane-knob.1", "cachelane\\-knob\\-set"),
        ("cachelane-metrics.1", "\\-\\-once"),
        ("cachelane-top.1", "\\-\\-replay"),
        ("cachelane-bench-relay.1", "\\-\\-rounds"),
        ("cachelane-completions.1", "bash"),
        ("cachelane-man.1", "DIR"),
    ] {
        let text = fs::read_to_string(dir.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(text.contains(word), "{page} lacks {word}: {text}");
    }
    let hidden = dir.join("cachelane-bench-echo-server.1");
    assert!(!hidden.exists(), "hidden subcommands have no page");
}

#[test]
fn manual_pages_that_cannot_be_written_are_an_error_that_names_the_folder() {
    let place = Place::new();
    fs::write(place.path().join("file"), "").expect("a file");
    let output = place.command(&["man", "file/pages"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("cachelane: cannot write manual pages into file/pages: "), "{said}");
}
