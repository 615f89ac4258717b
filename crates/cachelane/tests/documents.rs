//! Completions and manual pages, which are made from the command line itself.

mod common;

use std::fs;

use common::{PROGRAM, Place, text};

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

#[test]
fn the_version_with_v_says_what_a_report_needs_without_privileges_and_where_nothing_is_seen() {
    let place = Place::new();
    let version = env!("CARGO_PKG_VERSION");
    let run = |mut command: std::process::Command| {
        let output = command.output().expect("it runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        text(&output.stdout).to_owned()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's");
    let all = run(place.unprivileged(&["-vV"]));
    let lines: Vec<_> = all.lines().collect();
    assert_eq!(lines[0], format!("cachelane {version}"));
    assert!(
        lines[1..]
            .iter()
            .all(|line| line.split_once(": ").is_some_and(|(_, said)| !said.is_empty()))
    );
    let said = |key: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("{key} is missing: {all}"))
    };
    assert!(said("kernel").starts_with(release.trim()), "{all}");
    assert!(said("target").ends_with("-linux-gnu") && said("rustc").starts_with("1."), "{all}");
    assert!(said("libbpf").starts_with("1.") && said("libelf").contains("/libelf"), "{all}");
    assert!(!all.contains("commit") || said("commit").len() >= 40, "{all}");
    for same in [&["--version", "-v"][..], &["relay", "-V", "--verbose"]] {
        assert_eq!(run(place.command(same)).lines().next(), Some(lines[0]));
        assert_eq!(run(place.command(same)).lines().count(), lines.len());
    }
    let json: serde_json::Value =
        serde_json::from_str(&run(place.command(&["-V", "-v", "--json"]))).expect("JSON");
    assert_eq!((&json["schema"], &json["version"]), (&1.into(), &version.into()));
    assert_eq!(json.as_object().expect("an object").len(), lines.len() + 1);
    assert_eq!(json["libbpf"], said("libbpf"));
    // One line, for those who compare it.
    assert_eq!(run(place.command(&["--version"])), format!("cachelane {version}\n"));

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let hidden = "mount -t tmpfs none /sys && mount -t tmpfs none /proc && exec \"$0\" -vV";
    let args = ["-m", "-n", "--", "sh", "-c", hidden, PROGRAM];
    let hidden = run(place.wrapped("unshare".as_ref(), &args));
    assert_eq!(hidden.lines().count(), lines.len(), "{hidden}");
    for key in ["zlib", "btf", "lockdown", "bpf jit"] {
        assert!(hidden.contains(&format!("\n{key}: not seen")), "{key}: {hidden}");
    }
}

/// The release script puts the date behind the version.
#[test]
fn the_newest_changes_are_unreleased_or_of_this_version() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../CHANGELOG.md");
    let page = fs::read_to_string(page).expect("the changes");
    let newest = page.lines().find_map(|line| line.strip_prefix("## ")).expect("a head");
    if newest == "Unreleased" {
        return;
    }
    let (version, date) = newest.split_once(", ").expect("VERSION, DATE");
    assert_eq!(version, env!("CARGO_PKG_VERSION"), "{newest}");
    let digits = date.split('-').map(|part| part.len()).collect::<Vec<_>>();
    let is_date = date.chars().all(|c| c.is_ascii_digit() || c == '-');
    assert!(is_date && digits == [4, 2, 2], "{newest}: expected a date such as 2027-01-31");
}
