//! Lists of addresses of `cachelane relay` that are in files, and what it needs for addresses of others.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{Ended, Place, ends_within, says, text};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(30);

/// What the one relay of this place has counted of its listener.
fn listener(place: &Place) -> serde_json::Value {
    let shown = place.command(&["relay", "--stats", "--json"]);
    let shown = within(shown, place).output().expect("it runs").stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
    shown["relays"][0]["statistics"]["listeners"][0].clone()
}

fn within(mut command: std::process::Command, place: &Place) -> std::process::Command {
    command.env("CACHELANE_RUNTIME_DIR", place.path().join("run"));
    command
}

/// Reads on until there is a line with these words.
fn line_with(log: &mut impl BufRead, words: &str) -> String {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(log.read_line(&mut line).expect("text") > 0, "no line with {words:?}");
    }
    line
}

/// Whether a client gets to the backend, rather than a reset.
fn is_served(relay: SocketAddr, backend: &TcpListener) -> bool {
    let client = TcpStream::connect(relay);
    let reset = |e: std::io::Error| assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
    let Ok(mut client) = client.map_err(reset) else { return false };
    client.set_read_timeout(Some(Duration::from_millis(5))).expect("an option");
    loop {
        // Whichever comes first.
        if backend.accept().is_ok() {
            return true;
        }
        match client.read(&mut [0]) {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => {
                reset(e);
                return false;
            }
            Ok(n) => panic!("{n} bytes from nowhere"),
        }
    }
}

#[test]
fn a_list_is_read_again_on_sighup_and_a_bad_one_changes_nothing_and_says_where() {
    let place = Place::new();
    let list = place.path().join("deny");
    fs::write(&list, "127.0.0.0/8\n").expect("a file");
    let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
    backend.set_nonblocking(true).expect("an option");
    let to = backend.local_addr().expect("an address").to_string();
    let args = ["relay", "--listen", "127.0.0.1:0", "--to", &to, "--deny", "@deny"];
    let (child, log) = says(&mut within(place.command(&args), &place), "relaying ");
    let (relay, mut log) = (Ended(child), BufReader::new(log));
    let hang_up = || kill_process(Pid::from_child(&relay.0), Signal::HUP).expect("it is there");
    let addr = listener(&place)["addr"].as_str().expect("an address").parse().expect("one of IP");
    assert!(!is_served(addr, &backend));
    let refused = line_with(&mut log, "was refused");
    assert!(refused.contains("client 127.0.0.1:"), "{refused}");
    assert_eq!(listener(&place)["refused"], 1);

    fs::write(&list, "127.0.0.0/8\n127.0.0.0/99\n").expect("a file");
    hang_up();
    let said = line_with(&mut log, "stay as they were");
    assert!(said.contains("deny:2: '127.0.0.0/99'"), "{said}");
    assert!(!is_served(addr, &backend));

    fs::write(&list, "10.0.0.0/8\n").expect("a file");
    hang_up();
    let said = line_with(&mut log, "were read again");
    assert!(said.contains("1 entries"), "{said}");
    assert!(is_served(addr, &backend));
}

#[test]
fn a_bad_list_is_an_error_at_the_start_that_says_where() {
    let place = Place::new();
    fs::write(place.path().join("proxies"), "10.0.0.0/8\n# more\nproxy1\n").expect("a file");
    for (args, code, named) in [
        (vec!["--allow", "10.0.0.0/40"], 2, "'10.0.0.0/40' is no network"),
        (vec!["--deny", "@missing"], 2, "missing: No such file"),
        (vec!["--accept-proxy", "--proxy-from", "@proxies"], 2, "proxies:3: 'proxy1'"),
        (vec!["--proxy-from", "10.0.0.1"], 2, "--accept-proxy"),
    ] {
        let all = ["relay", "--listen", "127.0.0.1:0", "--to", "192.0.2.1:80"];
        let all: Vec<&str> = all.into_iter().chain(args).chain(["--dry-run"]).collect();
        let child = within(place.command(&all), &place).spawn().expect("it starts");
        let output = ends_within(child, PATIENCE);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains(named), "{output:?}");
    }
}

#[test]
fn clients_own_addresses_as_sources_need_a_capability_which_is_named() {
    let place = Place::new();
    let all = ["relay", "--listen", "127.0.0.1:0", "--to", "192.0.2.1:80", "--source", "client"];
    let all: Vec<&str> = all.into_iter().chain(["--dry-run"]).collect();
    let child = within(place.unprivileged(&all), &place).spawn().expect("it starts");
    let output = ends_within(child, PATIENCE);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(text(&output.stderr).contains("source client needs the capability CAP_NET_ADMIN"));
}
