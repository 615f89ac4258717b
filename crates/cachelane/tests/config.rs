//! `cachelane config` as a user meets it.

mod common;

use std::fs;
use std::process::Output;
use std::time::Duration;

use common::{Place, ends_within, text};
use serde_json::Value;

fn run(place: &Place, args: &[&str]) -> Output {
    place.command(args).output().expect("it runs")
}

fn check(config: &str) -> (Option<i32>, String) {
    let place = Place::new();
    fs::write(place.path().join("up.toml"), config).expect("a file");
    let output = run(&place, &["config", "check", "-c", "up.toml"]);
    assert!(output.stderr.is_empty(), "{output:?}");
    (output.status.code(), text(&output.stdout).to_owned())
}

#[test]
fn everything_wrong_is_said_at_once_with_line_and_column() {
    let config = r#"lanes = 5
[relay.web]
listen = ":8080"
too = ["10.0.0.1:80"]
engine = "fast"
budget = "8X"
idle-timeout = 5
  accept-proxy = "yes"
[relay.b]
listen = [":8081", "nowhere at all"]
to = "127.0.0.1:1"
[relay.c]
to = "127.0.0.1:1"
send-proxy = true
send-proxy-v2 = true
[relay.d]
listen = ":9"
[bridg]
x = 1
[bridge.x]
names = ["br0", 7]
all = true
[steer.a]
interface = "eth1"
llc-affinity = "maybe"
priority = -3
[lend.x]
interface = "eth1"
socket-mode = 0o1777777
[lend."no name"]
[up]
silent-after = "soon"
[log]
level = "info,,=="
color = true
"#;
    let (code, said) = check(config);
    assert_eq!(code, Some(2));
    let expected = [
        "1:1: lanes is a number (expected a text)",
        "4:1: unknown key too of relay.web (did you mean to?)",
        "5:1: relay.web.engine: engine 'fast' is not known (expected copy, splice, sockmap or auto)",
        "6:1: relay.web.budget: '8X' is not a size (expected bytes, or a number with K, M or G)",
        "7:1: relay.web.idle-timeout: time unit needed, for example 5sec or 5ms (expected a time such \
         as 500ms, 5s, 1h)",
        "8:3: relay.web.accept-proxy is a text (expected true or false)",
        "10:20: relay.b.listen: ",
        "12:8: relay.c: send-proxy cannot be used with send-proxy-v2",
        "16:8: relay.d: to is missing",
        "18:2: unknown key bridg (did you mean bridge?)",
        "20:9: bridge.x: ",
        "25:1: steer.a.llc-affinity: 'maybe' is no such value (expected off, on)",
        "26:1: steer.a.priority: -3 is not in 0..=255",
        "29:1: lend.x.socket-mode: ",
        "30:7: name 'no name' of a lend (expected letters, digits, '-', '_' and '.', at most 60)",
        "32:1: up.silent-after 'soon': ",
        "34:1: log.level 'info,,=='",
        "35:1: unknown key color of log (expected level)",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        let line = line.strip_prefix("up.toml:").expect("the file");
        assert!(line.starts_with(expected), "{line}\nexpected {expected}");
    }
}

#[test]
fn what_only_one_may_have_is_said_by_name() {
    let (code, said) = check(
        "[relay.a]\nlisten = [\":1\", \":2\"]\nto = \"a:3\"\n[relay.b]\nlisten = \":2\"\nto = \"a:3\"\n\
         [steer.a]\ninterface = \"e\"\n[steer.b]\ninterface = \"e\"\n[lend.a]\ninterface = \"e\"\n\
         socket = \"s\"\n",
    );
    assert_eq!(code, Some(2));
    let expected = "up.toml:5:1: relay.b and relay.a both have listen :2, there at up.toml:2:17 (expected \
                    it in one of them)\n\
                    up.toml:10:1: steer.b and steer.a both have interface e, there at up.toml:8:1 (expected \
                    it in one of them)\n";
    assert_eq!(said, expected);
}

#[test]
fn members_whose_addresses_or_bridges_overlap_are_said_with_both_places() {
    let overlap = |config: &str, expected: &str| {
        let (code, said) = check(config);
        match expected {
            "" => {
                assert_eq!((code, said.contains("overlaps")), (Some(0), false), "{config}: {said}")
            }
            expected => {
                let expected = format!("up.toml:{expected} (expected one of them)\n");
                assert_eq!((code, said), (Some(2), expected), "{config}");
            }
        }
    };
    let relays = |one: &str, other: &str| {
        format!(
            "[relay.a]\nlisten = \"{one}\"\nto = \"a:3\"\n[relay.b]\nlisten = \"{other}\"\nto = \"a:3\"\n"
        )
    };
    for (one, other) in [
        (":81", "0.0.0.0:81"),
        ("0.0.0.0:81", "[::]:81"),
        ("[::1]:81", ":81"),
        ("0.0.0.0:81", "127.0.0.1:81"),
    ] {
        let expected = format!(
            "5:1: relay.b has listen {other}, which overlaps listen {one} of relay.a at up.toml:2:1"
        );
        overlap(&relays(one, other), &expected);
    }
    let same = "both have listen [::]:81, there at up.toml:2:1";
    assert!(check(&relays(":81", "[::]:81")).1.contains(same));
    for (one, other) in
        [("127.0.0.1:81", "127.0.0.2:81"), ("0.0.0.0:81", "[::1]:81"), (":81", ":82"), (":0", ":0")]
    {
        overlap(&relays(one, other), "");
    }
    overlap(
        "[metrics]\nlisten = \"127.0.0.1:81\"\n[relay.a]\nlisten = \":81\"\nto = \"a:3\"\n",
        "4:1: relay.a has listen :81, which overlaps listen 127.0.0.1:81 of metrics at up.toml:2:1",
    );
    overlap(
        "[relay.a]\nlisten = [\":81\", \"127.0.0.1:81\"]\nto = \"a:3\"\n",
        "2:18: relay.a has listen 127.0.0.1:81, which overlaps listen :81 of relay.a at up.toml:2:11",
    );
    overlap(
        "[bridge.a]\nnames = [\"x\", \"br*\"]\n[bridge.b]\nnames = [\"br0\"]\n",
        "4:10: bridge.b has names br0, which overlaps names br* of bridge.a at up.toml:2:15",
    );
    overlap(
        "[bridge.a]\nnames = \"br0\"\n[bridge.b]\nall = true\n",
        "4:1: bridge.b has all true, which overlaps names br0 of bridge.a at up.toml:2:1",
    );
    // Nobody can tell whether a bridge will have a name that both patterns are for.
    overlap("[bridge.a]\nnames = \"br*\"\n[bridge.b]\nnames = \"*0\"\n", "");
    overlap("[bridge.a]\nnames = [\"br*\", \"br0\", \"br0\"]\n", "");
    overlap("[bridge.a]\nnames = \"br0\"\n[bridge.b]\nall = true\nenabled = false\n", "");
}

/// What `config check` says of two addresses is what the kernel says of them.
#[test]
fn addresses_overlap_where_no_two_relays_can_listen_on_both() {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;

    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
    let port = free.expect("an address").port();
    let addrs = ["", "0.0.0.0", "[::]", "127.0.0.1", "127.0.0.2", "[::1]"];
    // A host may have no IPv6.
    let is_here = |addr: &&&str| {
        let addr = if addr.is_empty() { "[::]" } else { **addr };
        std::net::TcpListener::bind(format!("{addr}:0")).is_ok()
    };
    let addrs: Vec<_> = addrs.iter().filter(is_here).map(|addr| format!("{addr}:{port}")).collect();
    for one in &addrs {
        let args = ["relay", "--listen", one, "--to", "127.0.0.1:9", "--cpus", "0"];
        let started = place.command(&args).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut first = common::Ended(started);
        let mut log = BufReader::new(first.0.stderr.take().expect("its stderr")).lines();
        let listens = log.by_ref().map_while(Result::ok).any(|line| line.contains("relaying "));
        assert!(listens, "a relay on {one}");
        for other in &addrs {
            let config = format!(
                "[relay.a]\nlisten = \"{one}\"\nto = \"a:3\"\n[relay.b]\nlisten = \"{other}\"\nto = \"a:3\"\n"
            );
            let args =
                ["relay", "--dry-run", "--listen", other, "--to", "127.0.0.1:9", "--cpus", "0"];
            let refused = run(&place, &args);
            let is_refused = text(&refused.stderr).contains("Address already in use");
            assert_eq!(check(&config).0 == Some(2), is_refused, "{one} {other}: {refused:?}");
            assert_eq!(refused.status.success(), !is_refused, "{one} {other}: {refused:?}");
        }
    }
}

#[test]
fn a_nul_character_is_said_with_its_place() {
    let (code, said) = check(
        "lanes = \"a\\u0000\"\n[relay.a]\nlisten = [\":1\", \":2\\u0000\"]\nto = \"a:3\\u0000\"\n\
         [log]\nlevel = \"\\u0000info\"\n",
    );
    assert_eq!(code, Some(2));
    let expected = "up.toml:1:1: lanes: a NUL character (\\u0000) is in it (expected a text without)\n\
                    up.toml:3:17: relay.a.listen: a NUL character (\\u0000) is in it (expected a text \
                    without)\n\
                    up.toml:4:1: relay.a.to: a NUL character (\\u0000) is in it (expected a text without)\n\
                    up.toml:6:1: log.level: a NUL character (\\u0000) is in it (expected a text without)\n";
    assert_eq!(said, expected);
}

fn lend(name: &str, filter: &str) -> String {
    format!("[lend.{name}]\ninterface = \"{name}\"\nsocket = \"{name}\"\nfilter = \"{filter}\"\n")
}

#[test]
fn filters_are_compiled() {
    let right = lend("a", "tcp port 80 and net 10.0.0.0/8") + &lend("b", "-1 = 2 or not vlan");
    assert_eq!(check(&right), (Some(0), "up.toml: lend.a, lend.b\n".into()));
    let (code, said) = check(&(lend("a", "tcp prot 80") + &lend("b", "udp") + &lend("c", " ")));
    assert_eq!(code, Some(2));
    let expected = [
        "up.toml:4:1: lend.a.filter 'tcp prot 80': ",
        "up.toml:12:1: lend.c.filter ' ': nothing is in it ",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected) && line.ends_with("man pcap-filter)"), "{said}");
    }
    assert!(lines[0].contains("syntax error"), "{said}");
    // All that is wrong is said at once.
    let (_, said) = check("[lend.a]\ninterfac = \"a\"\nfilter = \"inbound\"\nenabled = false\n");
    assert!(said.contains("2:1: unknown key") && said.contains("3:1: lend.a.filter"), "{said}");
    let (code, said) = check(&lend("a", &"port 1 or ".repeat(20_000)));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("4:1: lend.a.filter has 200000 bytes (expected less than"), "{said}");
    let many: String = (0..17).map(|n| lend(&format!("n{n}"), &format!("tcp port {n}"))).collect();
    let (code, said) = check(&(many + &lend("last", "tcp prot 80")));
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.starts_with("up.toml:72:1: lend.last.filter "), "{said}");
}

#[test]
fn filters_that_cannot_be_compiled_here_are_said_not_to_be_checked() {
    let place = Place::new();
    let run = |config: &str, more: &[&str], folder: &str| {
        fs::write(place.path().join("up.toml"), config).expect("a file");
        let mut command = place.command(&[&["config", "check", "-c", "up.toml"], more].concat());
        let command = command.env("LD_LIBRARY_PATH", place.path().join(folder));
        // Twice what all filters of a file may take, and time to start.
        ends_within(command.spawn().expect("it starts"), Duration::from_secs(30))
    };
    // As on a host without libpcap: the loader finds what is none.
    fs::create_dir(place.path().join("none")).expect("a folder");
    for name in ["libpcap.so.1", "libpcap.so.0.8"] {
        fs::write(place.path().join("none").join(name), "none").expect("a file");
    }
    let output = run(&lend("a", "tcp"), &[], "none");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "up.toml: lend.a\n"));
    for words in ["up.toml:4:1: lend.a.filter is not checked: libpcap", "install it (Debian: "] {
        assert!(text(&output.stderr).contains(words), "{output:?}");
    }
    let json = run(&lend("a", "tcp"), &["--json"], "none").stdout;
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(
        (&json["errors"], json["unchecked"][0]["at"]["line"].as_u64()),
        (&serde_json::json!([]), Some(4))
    );
    // Nor has it the address of a name at all times. This is none for any resolver.
    let output = run(&lend("a", &format!("host {}.invalid", "x".repeat(64))), &[], ".");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "up.toml: lend.a\n"));
    assert!(text(&output.stderr).contains("not checked: unknown host"), "{output:?}");
    // One for which libpcap takes long hides nothing of the others.
    let ports: Vec<String> = (0..1000).map(|n| format!("port {n}")).collect();
    let slow = ports.join(" or ");
    let output = run(&(lend("a", &slow) + &lend("b", &slow) + &lend("c", "tcp prot")), &[], ".");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stdout).starts_with("up.toml:12:1: lend.c.filter "), "{output:?}");
    assert_eq!(
        text(&output.stderr)
            .matches("is not checked: it and the filters before it took libpcap more than 5s")
            .count(),
        2,
        "{output:?}"
    );
}

#[test]
fn a_right_one_is_summed_up() {
    let (code, said) = check(
        "[relay.web]\nlisten = \":8080\"\nto = [\"a:1\", \"b:2,check\"]\n[bridge.all]\nall = true\n\
         [relay.off]\nenabled = false\nlisten = \":8080\"\nto = \"a:1\"\n[lend.x]\ninterface = \"e\"\n\
         socket = \"s\"\nsocket-mode = 0o660\nethertype = 0x88b5\nborrowers = 4\n[metrics]\n\
         listen = \"127.0.0.1:9\"\n",
    );
    let all = "up.toml: bridge.all, lend.x, metrics, relay.web\n";
    assert_eq!((code, said.as_str()), (Some(0), all));
}

#[test]
fn later_files_are_laid_over_earlier_ones_and_flags_over_all() {
    let place = Place::new();
    let write = |name: &str, text: &str| fs::write(place.path().join(name), text).expect("a file");
    write(
        "first.toml",
        "[relay.web]\nlisten = \":1\"\nto = [\"a:1\"]\nengine = \"copy\"\nbudget = \"1M\"\n",
    );
    fs::create_dir(place.path().join("more")).expect("a folder");
    write(
        "more/20.toml",
        "[relay.web]\nengine = \"splice\"\n[relay.b]\nlisten = \":2\"\nto = \"c:1\"\n",
    );
    write("more/10.toml", "[relay.web]\nengine = \"sockmap\"\nto = [\"b:1\", \"c:2\"]\n");
    write("more/not-this.conf", "[relay.c]\n");
    let args = ["config", "dump", "-c", "first.toml", "-c", "more", "--set", "relay.web.budget=2M"];
    let output = run(&place, &args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = "[relay.b]\nlisten = \":2\" # more/20.toml:4:1\nto = \"c:1\" # more/20.toml:5:1\n\n\
                    [relay.web]\nbudget = \"2M\" # --set\nengine = \"splice\" # more/20.toml:2:1\n\
                    listen = \":1\" # first.toml:2:1\nto = [\"b:1\", \"c:2\"] # more/10.toml:3:1\n";
    assert_eq!(text(&output.stdout), expected);
    // What is printed can be read again, and is the same.
    write("again.toml", expected);
    let again = run(&place, &["config", "dump", "-c", "again.toml"]);
    let values = |text: &str| {
        let value = |line: &str| line.split(" # ").next().unwrap_or_default().to_owned();
        text.lines().map(value).collect::<Vec<_>>()
    };
    assert_eq!(values(text(&again.stdout)), values(expected));
    let json = run(&place, &[&args[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let web = &json["config"]["relay"]["web"];
    assert_eq!(web["to"]["value"], serde_json::json!(["b:1", "c:2"]));
    assert_eq!(
        web["to"]["origin"],
        serde_json::json!({"file": "more/10.toml", "line": 3, "column": 1})
    );
    assert_eq!(web["budget"]["origin"]["flag"], "--set");
}

#[test]
fn what_cannot_be_read_is_said_by_name() {
    let place = Place::new();
    let fifo = place.wrapped("mkfifo".as_ref(), &["fifo"]).status().expect("it runs");
    assert!(fifo.success());
    fs::write(place.path().join("huge.toml"), "#".repeat((1 << 20) + 1)).expect("a file");
    fs::write(place.path().join("latin.toml"), b"# \xe9\n").expect("a file");
    for (args, says) in [
        (&["-c", "no-such.toml"][..], "no-such.toml: No such file"),
        (&["-c", "/dev/zero"], "/dev/zero: expected a regular file of at most 1 MiB"),
        (&["-c", "fifo"], "fifo: expected a regular file"),
        (&["-c", "huge.toml"], "huge.toml: expected a regular file of at most 1 MiB"),
        (&["-c", "latin.toml"], "latin.toml: stream did not contain valid UTF-8"),
        (&["--set", "relay.web"], "--set: 'relay.web': expected KEY=VALUE"),
        (&["--set", "up.silent-after=soon"], "--set: up.silent-after 'soon': "),
        (&["--set", "relay.a.listen=x", "--set", "relay=3"], "--set: relay is a number"),
    ] {
        let output = run(&place, &[&["config", "check"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(text(&output.stdout).contains(says), "{args:?}: {output:?}");
    }
    let json = run(&place, &["config", "check", "-c", "no-such.toml", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["errors"].as_array().map(Vec::len), Some(1), "{json}");
}

#[test]
fn the_default_file_is_right_and_has_every_key_of_the_schema() {
    let place = Place::new();
    let default = run(&place, &["config", "default"]);
    let default = text(&default.stdout);
    fs::write(place.path().join("up.toml"), default).expect("a file");
    let checked = run(&place, &["config", "check", "-c", "up.toml"]);
    assert_eq!(text(&checked.stdout), "up.toml: nothing to run\n");
    let schema = run(&place, &["config", "schema"]);
    let schema: Value = serde_json::from_slice(&schema.stdout).expect("JSON");
    for kind in ["bridge", "lend", "relay", "steer"] {
        let part = default.split(&format!("#[{kind}.NAME]\n")).nth(1).expect(kind);
        let part = part.split("\n\n").next().expect(kind);
        let mut keys: Vec<_> = part
            .lines()
            .filter_map(|line| line.strip_prefix('#')?.split_once(" = ").map(|(key, _)| key))
            .filter(|key| !key.contains(' '))
            .collect();
        keys.sort_unstable();
        let properties = &schema["properties"][kind]["additionalProperties"]["properties"];
        let mut known: Vec<_> =
            properties.as_object().expect(kind).keys().map(String::as_str).collect();
        known.sort_unstable();
        assert_eq!(keys, known, "{kind}");
        for (key, property) in properties.as_object().expect(kind) {
            assert!(
                property["description"].as_str().is_some_and(|text| text.len() > 10),
                "{kind}.{key}"
            );
        }
        assert!(!known.contains(&"dry-run") && !known.contains(&"name"), "{known:?}");
    }
    let engine = &schema["properties"]["relay"]["additionalProperties"]["properties"]["engine"];
    assert_eq!(engine["default"], "auto", "{engine}");
    // Keys that are uncommented as they stand are read.
    let (before, relay) = default.split_once("#[relay.NAME]").expect("a table");
    let relay = relay.replacen("#engine = ", "engine = ", 1);
    let relay = relay.replacen("#listen = [\"ADDR\"]", "listen = [\":1\"]", 1);
    let relay = relay.replacen("#to = [\"ADDR[,OPTION...]\"]", "to = [\"a:2\"]", 1);
    let some = format!("{before}[relay.NAME]{relay}");
    fs::write(place.path().join("up.toml"), some).expect("a file");
    let checked = run(&place, &["config", "check", "-c", "up.toml"]);
    assert_eq!(text(&checked.stdout), "up.toml: relay.NAME\n");
}
