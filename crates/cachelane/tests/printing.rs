//! Every command that prints, where nobody reads, where the disk is full, and what another process says.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

fn cachelane(dir: &Path, args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachelane"));
    command.args(args).env("CACHELANE_RUNTIME_DIR", dir).env("NO_COLOR", "1");
    command.stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Prints with a reader, without one and to a full disk.
fn check(dir: &Path, args: &[String]) {
    let line = args.join(" ");
    let read = cachelane(dir, args).output().unwrap();
    assert!(!read.stdout.is_empty(), "{line} prints nothing: {read:?}");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = cachelane(dir, args).stdout(writer).output().unwrap();
    assert_eq!(unread.status.code(), read.status.code(), "{line}: {}", stderr(&unread));
    assert!(!stderr(&unread).contains("panicked"), "{line}: {}", stderr(&unread));
    assert!(!stderr(&unread).contains("stdout"), "{line}: {}", stderr(&unread));

    // As `head -1` does it: it goes away in the middle.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = cachelane(dir, args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let _ = reader.read(&mut [0; 1]).unwrap();
    drop(reader);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), read.status.code(), "{line}: {said}");
    assert!(!said.contains("panicked") && !said.contains("stdout"), "{line}: {said}");

    let full = File::options().write(true).open("/dev/full").unwrap();
    let full = cachelane(dir, args).stdout(full).output().unwrap();
    assert_eq!(full.status.code(), Some(1), "{line}: {}", stderr(&full));
    let expected = "cachelane: cannot print to stdout: No space left on device";
    assert!(stderr(&full).contains(expected), "{line}: {}", stderr(&full));
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The subcommands of a command, as its help lists them.
fn subcommands(dir: &Path, of: &[String]) -> Vec<Vec<String>> {
    let args = [of, &["-h".into()]].concat();
    let help = cachelane(dir, &args).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| line.starts_with("  ")).filter_map(|line| {
        // A deeper indent goes on with the line before.
        line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next()
    });
    names.filter(|name| *name != "help").map(|name| [of, &[name.into()]].concat()).collect()
}

#[test]
fn help_and_versions_end_as_they_should_however_they_are_read() {
    let dir = TempDir::new().unwrap();
    let mut all = vec![Vec::new()];
    let mut looked = 0;
    while looked < all.len() {
        let more = subcommands(dir.path(), &all[looked]);
        all.extend(more);
        looked += 1;
    }
    assert!(all.len() > 20, "{all:?}");
    std::thread::scope(|scope| {
        let (dir, half) = (dir.path(), all.len() / 2);
        for part in [&all[..half], &all[half..]] {
            scope.spawn(move || {
                for command in part {
                    for flag in ["--help", "--version"] {
                        check(dir, &[&command[..], &[flag.into()]].concat());
                    }
                }
            });
        }
    });
}

/// All that prints without being root, and without a process that runs.
const PRINTS: &[&str] = &[
    "--version -v",
    "--version -v --json",
    "relay --dry-run --listen :8080 --to 127.0.0.1:1",
    "relay --stats",
    "relay --stats --json",
    "doctor CL001",
    "doctor --no-watch",
    "doctor --no-watch --json",
    "bridge --all --check",
    "bridge --all --check --json",
    "knob list",
    "knob list --json",
    "undo",
    "undo --json",
    "trial --list",
    "completions bash",
    "completions zsh",
    "completions fish",
];

#[cfg(feature = "measure")]
const MEASURES: &[&str] = &["bench --list", "bench --list --json"];
#[cfg(not(feature = "measure"))]
const MEASURES: &[&str] = &[];

#[test]
fn what_is_printed_ends_as_it_should_however_it_is_read() {
    let dir = TempDir::new().unwrap();
    PRINTS.iter().chain(MEASURES).for_each(|line| check(dir.path(), &words(line)));
}

#[test]
fn knobs_of_a_process_are_printed_in_the_same_way() {
    let dir = TempDir::new().unwrap();
    let relay = "relay --listen 127.0.0.1:0 --to 127.0.0.1:9 --name a";
    let mut relay = cachelane(dir.path(), &words(relay)).stderr(Stdio::null()).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while knobs::discover_in(dir.path()).unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "the relay does not start");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for line in [
        "knob list --counters",
        "knob list --counters --json",
        "knob get relay.engine",
        "knob get relay.engine --json",
        "knob set relay.engine copy",
        "knob set relay.engine copy --all --json",
    ] {
        check(dir.path(), &words(line));
    }
    relay.kill().unwrap();
    relay.wait().unwrap();
}

/// A process whose control socket has this name and gives this answer to whatever it is asked.
fn answering(dir: &Path, name: &str, answer: Value) {
    let listener = UnixListener::bind(dir.join(name)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            for _ in BufReader::new(&stream).lines().map_while(Result::ok) {
                // The command may have ended.
                let _ = writeln!(&stream, "{answer}");
            }
        }
    });
}

#[test]
fn what_a_process_says_does_nothing_to_a_terminal() {
    const EVIL: &str = "\u{1b}[2J\u{9b}5n";
    let dir = TempDir::new().unwrap();
    let knob_of = |name: &str| {
        json!({
            "name": name, "help": EVIL, "value": EVIL, "default": EVIL, "reach": "all_at_once",
            "values": {"text": EVIL}, "held": {"holder": EVIL, "ms": 1},
        })
    };
    let knobs = [knob_of("t.x"), knob_of(&format!("t.{EVIL}"))];
    let ok = json!({
        "process": "t", "name": EVIL, "pid": 7, "knobs": knobs, "counters": [],
        "answer": {"listeners": [{"addr": EVIL}], "backends": []}, "files": 0,
    });
    let error = json!({"kind": "refused", "message": EVIL});
    for name in ["t-7.sock", "t-8.sock"] {
        answering(dir.path(), name, json!({"schema": 1, "ok": ok}));
    }
    answering(dir.path(), "u-9.sock", json!({"schema": 1, "error": error}));
    for args in [
        "knob list --counters",
        "knob get t.x",
        "knob get t.y",
        "knob set t.x 1",
        "knob set t.x 1 --all",
        "relay --stats",
        "trial t.x=1,2 --measure cpu.busy",
    ] {
        let output = cachelane(dir.path(), &words(args)).output().unwrap();
        let all = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        let stays = |c: char| !c.is_control() || c == '\n';
        assert!(all.chars().all(stays), "{args}: {all:?}");
        assert!(all.contains("?[2J"), "{args}: {all:?}");
    }
}

#[test]
fn root_what_is_printed_of_devices_ends_as_it_should() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: root_what_is_printed_of_devices_ends_as_it_should: needs root");
        return;
    }
    let dir = TempDir::new().unwrap();
    for line in [
        "steer lo --check",
        "steer lo --check --json",
        "xsk send lo --dry-run",
        "xsk drop lo --dry-run",
        "lend lo --socket /tmp/cachelane-printing --dry-run",
    ] {
        check(dir.path(), &words(line));
    }
}

#[test]
fn an_error_that_nobody_can_read_keeps_its_exit_code() {
    let dir = TempDir::new().unwrap();
    for (line, code) in [
        ("relay --listen x --to y", 2),
        ("frobnicate", 2),
        ("knob get relay.engine", 1),
        ("relay --listen :0 --to 127.0.0.1:9 --max-connections 99999999", 3),
    ] {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let output = cachelane(dir.path(), &words(line)).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
    }
}
