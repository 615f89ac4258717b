//! BPF tokens: what the command can do as root of a user namespace, such as a container's, to which the
//! host delegates BPF.

#[path = "../common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Output;

use common::{PROGRAM, Place, text};
use lab::testing::root;
use serde_json::Value;

/// Runs a script with the command as `$0`, where BPF is delegated to it.
fn with_tokens(place: &Place, script: &[&str]) -> Output {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokens/in_user_namespace.py");
    let mut command = place.wrapped("python3".as_ref(), &[python, "sh"]);
    command.args(script).env("CACHELANE_RUNTIME_DIR", place.path().join("run"));
    command.output().expect("it runs")
}

/// Whether this is root on a kernel that has tokens.
fn is_possible(test: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 9) {
        println!("skipped: {test}: needs Linux 6.9, for BPF tokens");
        return false;
    }
    root(test)
}

/// A counter in what `knob list --counters` prints: process, PID, name, value.
fn counter(said: &str, name: &str) -> u64 {
    let mut rows = said.lines().map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&name));
    let value = row.and_then(|row| row.get(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {said}"))
}

#[test]
fn root_a_relay_a_lender_and_steering_work_with_tokens() {
    if !is_possible("root_a_relay_a_lender_and_steering_work_with_tokens") {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokens/members.sh");
    let script = std::fs::read_to_string(Path::new(script)).expect("a script");
    let place = Place::new();
    let output = with_tokens(&place, &["-c", &script, PROGRAM]);
    let (said, log) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}\n{log}");
    for member in ["relay.web", "lend.dns", "steer.in"] {
        let line = said.lines().find(|line| line.starts_with(member));
        assert!(line.is_some_and(|line| line.contains(" running ")), "{member}: {said}\n{log}");
    }
    let packets = said.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let packets = packets.and_then(|end| end["packets"].as_u64());
    assert!(packets.is_some_and(|packets| packets > 20), "{said}\n{log}");
    assert!(counter(said, "relay.bytes_redirected") > 7000, "{said}\n{log}");
}

#[test]
fn root_a_bridge_is_refused_where_the_kernel_does_not_tell_of_other_programs() {
    if !is_possible("root_a_bridge_is_refused_where_the_kernel_does_not_tell_of_other_programs") {
        return;
    }
    let script = "ip link add br0 type bridge; ip link add web type veth peer name far; \
                  ip link set web master br0; exec \"$0\" bridge br0";
    let output = with_tokens(&Place::new(), &["-c", script, PROGRAM]);
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{log}");
    assert!(
        log.contains("port 'web' has needs CAP_NET_ADMIN in the host's user namespace"),
        "{log}"
    );
}

#[test]
fn root_without_a_token_an_error_says_what_is_missing() {
    if !root("root_without_a_token_an_error_says_what_is_missing") {
        return;
    }
    let place = Place::new();
    let script = "exec \"$0\" relay --listen 127.0.0.1:80 --to 127.0.0.1:81 --engine sockmap";
    let args = ["-Urnm", "sh", "-c", script, PROGRAM];
    let output = place.wrapped("unshare".as_ref(), &args).output().expect("it runs");
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{log}");
    assert!(log.contains("/sys/fs/bpf with delegate_cmds"), "{log}");
}
