//! `cachelane borrow` against a lender in this process.

mod capture;
#[path = "../common/mod.rs"]
mod common;
mod filter;
mod libpcap;
mod rig;

use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{ends_within, text};
use frames::Accounting;
use lab::testing::{comes_true, root};
use lend::Distributor;
use rig::{Rig, SOON, ends, error, flows, object, udp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn a_quota_that_is_cut_is_said() {
    let mut rig = Rig::new(|_| {});
    for (asked, is_cut) in [("5000", true), ("32", false)] {
        let child = rig.start(&["--quota", asked, "--for", "100ms"], 1);
        let output = ends(child);
        let said = text(&output.stderr).contains("--quota 5000: the lender gives 32 at most");
        assert_eq!(said, is_cut, "{output:?}");
        let until = Instant::now() + SOON;
        while !rig.lender().borrowers().is_empty() && Instant::now() < until {
            rig.collect();
        }
    }
    rig.end();
}

#[test]
fn packets_do_not_go_to_a_terminal() {
    let rig = Rig::new(|_| {});
    let line = format!("{} borrow {} --pcap -", common::PROGRAM, rig.socket.display());
    // It gives the command a terminal of its own, and its exit code is the command's.
    let mut script = std::process::Command::new("script");
    let output = match script.args(["-qec", &line, "/dev/null"]).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return eprintln!("skipped: packets_do_not_go_to_a_terminal: needs the program script");
        }
        output => output.expect("it runs"),
    };
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stdout).contains("stdout, which is a terminal"), "{output:?}");
    assert!(rig.lender().borrowers().is_empty());
    rig.end();
}

#[test]
fn packets_bytes_and_drops_are_counted_until_the_lender_ends() {
    for more in [&[][..], &["--spin", "--name", "me", "--quota", "20"]] {
        let mut rig = Rig::new(|_| {});
        let child = rig.start(&[&["--json"], more].concat(), 1);
        let quota = if more.is_empty() { 32 } else { 20 };
        let [status] = &rig.lender().borrowers()[..] else { panic!("one") };
        assert_eq!(status.name, if more.is_empty() { "count" } else { "me" });
        for _ in 0..10 {
            rig.lend(0, &flows(0..10, 100));
            rig.lend(1, &flows(0..5, 60));
            rig.settle();
        }
        // At once more than its quota.
        rig.lend(1, &flows(0..40, 60));
        rig.settle();
        rig.end();
        let output = ends(child);
        assert!(text(&output.stderr).contains("the lender has ended"), "{output:?}");
        let counted = object(&output);
        let expect = |name: &str, value: u64| assert_eq!(counted[name], value, "{name}: {counted}");
        expect("packets", 150 + quota);
        expect("bytes", 10 * (1000 + 300) + quota * 60);
        expect("dropped", 40 - quota);
        expect("quota", quota);
        expect("channels", 2);
        assert_eq!((&counted["task"], &counted["ended_by"]), (&"count".into(), &"lender".into()));
    }
}

#[test]
fn it_stops_after_exactly_so_many_packets() {
    let mut packets = flows(0..6, 100);
    packets.push(vec![udp(6, 2048), vec![7; 100]]);
    let bytes_of =
        |packets: &[Vec<Vec<u8>>]| -> usize { packets.iter().flatten().map(Vec::len).sum() };
    // In the middle of what was lent at once; a packet of two parts is one.
    for (args, count) in [(&[][..], "6"), (&["--spin"], "7"), (&["--pcap", "x"], "17")] {
        let mut rig = Rig::new(|_| {});
        let mut child = rig.start(&[&["--json", "--count", count], args].concat(), 1);
        let count: usize = count.parse().expect("a number");
        assert!(comes_true(|| {
            rig.lend(0, &packets);
            rig.collect();
            child.try_wait().expect("its status").is_some()
        }));
        let counted = object(&ends(child));
        let (whole, rest) = (count / packets.len(), &packets[..count % packets.len()]);
        let bytes = whole * bytes_of(&packets) + bytes_of(rest);
        assert_eq!((&counted["packets"], &counted["ended_by"]), (&count.into(), &"count".into()));
        assert_eq!(counted["bytes"], bytes, "{counted}");
        rig.settle();
        rig.end();
    }
    // Three workers together.
    let mut rig = Rig::new(|_| {});
    let mut child = rig.start(&["--json", "--count", "1000", "--worker", "3"], 3);
    assert!(comes_true(|| {
        rig.collect();
        rig.lend(0, &flows(0..20, 100));
        rig.lend(1, &flows(20..40, 100));
        child.try_wait().expect("its status").is_some()
    }));
    let counted = object(&ends(child));
    assert_eq!((&counted["packets"], &counted["ended_by"]), (&1000.into(), &"count".into()));
    rig.settle();
    rig.end();
}

#[test]
fn one_that_reconnects_counts_on_with_the_next_lender_and_waits_for_the_first() {
    let mut rig = Rig::new(|_| {});
    rig.end_lender();
    let socket = rig.socket.to_str().expect("text").to_owned();
    let args = ["borrow", &socket, "--json", "--reconnect", "--worker", "2", "--group", "9"];
    let mut child = rig.place.command(&args).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(50));
    assert!(child.try_wait().expect("its status").is_none(), "{:?}", error(child));
    const ROUNDS: u64 = 3;
    for _ in 0..ROUNDS {
        rig.start_again();
        rig.joined(2);
        assert!(rig.lender().borrowers().iter().all(|borrower| borrower.group == 9));
        rig.lend(0, &flows(0..30, 100));
        rig.settle();
        // At once more than the quotas.
        rig.lend(1, &flows(0..80, 100));
        rig.settle();
        rig.end_lender();
    }
    rig.start_again();
    rig.joined(2);
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = ends(child);
    let counted = object(&output);
    let [packets, dropped] = ["packets", "dropped"].map(|name| counted[name].as_u64().expect(name));
    assert_eq!(packets + dropped, ROUNDS * 110, "{counted}");
    assert!(dropped >= ROUNDS * 16 && packets >= ROUNDS * 62, "{counted}");
    assert_eq!((&counted["reconnects"], &counted["group"]), (&(2 * ROUNDS).into(), &9.into()));
    rig.end();
}

#[test]
fn workers_that_have_no_room_beside_the_first_are_refused_at_once() {
    // Two channels of 512 frames, and 32 loans for each borrower in both: eight have room.
    let mut rig = Rig::new(|_| {});
    let socket = rig.socket.to_str().expect("text").to_owned();
    let args = ["borrow", &socket, "--reconnect", "--worker", "9"];
    let mut command = rig.place.command(&args);
    let mut child = command.spawn().expect("it starts");
    assert!(comes_true(|| {
        rig.collect();
        child.try_wait().expect("its status").is_some()
    }));
    let output = child.wait_with_output().expect("it ended");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("the lender refuses: asked for 64 loans, 0 are left"), "{said}");
    rig.end();
}

#[test]
fn root_one_that_was_evicted_comes_back_although_its_user_may_have_one_borrower_only() {
    const NAME: &str =
        "root_one_that_was_evicted_comes_back_although_its_user_may_have_one_borrower_only";
    if !root(NAME) {
        return;
    }
    let mut rig = Rig::new(|options| {
        (options.mode, options.user_share) = (0o666, 1);
        options.evict_after = Some(Duration::from_millis(300));
    });
    let socket = rig.socket.to_str().expect("text").to_owned();
    let command = rig.place.unprivileged(&["borrow", &socket, "--json", "--reconnect"]);
    let child = rig.run(command, 1);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).expect("it runs");
    assert!(comes_true(|| {
        rig.lend(0, &flows(0..40, 100));
        rig.collect();
        rig.lender().counters().evicted == 1
    }));
    kill_process(pid, Signal::CONT).expect("it runs");
    rig.joined(1);
    kill_process(pid, Signal::INT).expect("it runs");
    let counted = object(&ends(child));
    assert_eq!((&counted["reconnects"], &counted["packets"]), (&1.into(), &32.into()), "{counted}");
    assert_eq!(counted["dropped"], rig.lender().counters().dropped, "{counted}");
    rig.end();
}

#[test]
fn people_get_a_summary_and_a_line_a_worker() {
    let mut rig = Rig::new(|_| {});
    let child = rig.start(&["--worker", "3", "--name", "w"], 3);
    let mut names: Vec<_> = rig.lender().borrowers().into_iter().map(|each| each.name).collect();
    names.sort();
    assert_eq!(names, ["w-0", "w-1", "w-2"]);
    for _ in 0..5 {
        rig.lend(0, &flows(0..30, 64));
        rig.settle();
        // No rate is said of what comes within a millisecond.
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.end();
    let output = ends(child);
    let said = text(&output.stdout);
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["worker", "packets", "bytes", "rate", "dropped"], "{said}");
    let packets: Vec<u64> = (1..4).map(|at| lines[at][1].parse().expect("a number")).collect();
    assert_eq!(packets.iter().sum::<u64>(), 150, "{said}");
    assert!(packets.iter().all(|&packets| packets > 0 && packets % 5 == 0), "whole flows: {said}");
    assert!(said.contains("received 150 packets, 9600 bytes in "), "{said}");
    assert!(said.ends_with("no drops\n"), "{said}");
}

/// A record of a capture file: its time, its length on the wire, its bytes.
pub(crate) type Record = (Duration, u32, Vec<u8>);

pub(crate) fn parse_pcap(bytes: &[u8]) -> (u32, Vec<Record>) {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!((word(0), word(4), word(20)), (0xa1b2_3c4d, 0x0004_0002, 1), "the header");
    let (mut at, mut records) = (24, Vec::new());
    while at < bytes.len() {
        let (time, len) = (Duration::new(word(at).into(), word(at + 4)), word(at + 8) as usize);
        records.push((time, word(at + 12), bytes[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    (word(16), records)
}

#[test]
fn a_capture_file_has_every_packet_as_it_was_and_its_time() {
    let mut rig = Rig::new(|_| {});
    let file = rig.place.path().join("file.pcap");
    let child = rig.start(&["--pcap", "file.pcap"], 1);
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let mut packets = flows(0..8, 90);
    packets.push(vec![udp(9, 2048), vec![7; 2048], vec![8; 100]]);
    packets.extend(flows(10..12, 60));
    rig.lend(0, &packets);
    rig.settle();
    rig.end_lender();
    let after = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let output = ends(child);
    assert!(text(&output.stdout).contains("received 11 packets"), "{output:?}");
    assert!(text(&output.stdout).ends_with("written to file.pcap\n"), "{output:?}");
    let (snaplen, records) = parse_pcap(&std::fs::read(file).expect("the file"));
    assert_eq!(snaplen, 262_144);
    let expected: Vec<Vec<u8>> = packets.iter().map(|parts| parts.concat()).collect();
    assert_eq!(records.iter().map(|record| record.2.clone()).collect::<Vec<_>>(), expected);
    for (time, len, bytes) in &records {
        assert!((before..=after).contains(time), "{time:?}");
        assert_eq!(*len as usize, bytes.len());
    }
    rig.end();
}

#[test]
fn a_capture_on_stdout_can_be_followed_and_is_whole_after_a_signal() {
    let mut rig = Rig::new(|_| {});
    let mut child = rig.start(&["--pcap", "-", "--snaplen", "70"], 1);
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut captured = vec![0; 24];
    stdout.read_exact(&mut captured).expect("the header");
    for _ in 0..3 {
        rig.lend(0, &flows(0..2, 100));
        // What was lent can be read before there is more.
        let mut records = [0; 2 * (16 + 70)];
        stdout.read_exact(&mut records).expect("two records");
        captured.extend(records);
    }
    rig.settle();
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = ends(child);
    stdout.read_to_end(&mut captured).expect("the end");
    let (snaplen, records) = parse_pcap(&captured);
    assert_eq!((snaplen, records.len()), (70, 6));
    assert!(records.iter().all(|(_, len, bytes)| (*len, bytes.len()) == (100, 70)));
    assert_eq!(records[1].2, udp(1, 100)[..70]);
    let said = text(&output.stderr);
    assert!(said.contains("received 6 packets, 600 bytes"), "{said}");
    rig.end();
}

#[test]
fn when_nobody_reads_the_capture_any_more_it_ends() {
    let mut rig = Rig::new(|_| {});
    let mut child = rig.start(&["--pcap", "-"], 1);
    drop(child.stdout.take());
    // A process that another test starts may have the pipe until it runs its program.
    assert!(comes_true(|| {
        rig.collect();
        rig.lend(0, &flows(0..1, 100));
        child.try_wait().expect("it is a child").is_some()
    }));
    let output = ends(child);
    assert!(!text(&output.stderr).contains("rror"), "{output:?}");
    rig.settle();
    rig.end();
}

#[test]
fn intervals_are_lines_of_json_and_a_signal_ends_it() {
    let mut rig = Rig::new(|_| {});
    let mut child = rig.start(&["--json", "--interval", "10ms", "--worker", "1"], 1);
    rig.lend(0, &flows(0..4, 100));
    rig.settle();
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    let mut line = next();
    while line["packets"] != 4 {
        line = next();
    }
    assert_eq!((&line["event"], &line["bytes"]), (&"interval".into(), &400.into()), "{line}");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    while line["event"] == "interval" {
        line = next();
    }
    let (by, task) = (&line["ended_by"], &line["task"]);
    assert_eq!((by, task), (&"signal".into(), &"worker".into()), "{line}");
    assert_eq!(line["workers"][0]["packets"], 4, "{line}");
    ends(child);
    rig.end();
}

#[test]
fn a_reader_that_has_stopped_does_not_hold_up_a_signal() {
    let mut rig = Rig::new(|_| {});
    let mut child = rig.start(&["--json", "--interval", "10ms"], 1);
    let unread = child.stdout.take().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&unread, 4096).expect("a small pipe");
    let mut before = 0;
    // Until it is full.
    assert!(comes_true(|| {
        std::thread::sleep(Duration::from_millis(100));
        let held = rustix::io::ioctl_fionread(&unread).expect("a pipe");
        std::mem::replace(&mut before, held) == held && held > 0
    }));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = ends(child);
    assert!(!text(&output.stderr).contains("rror"), "{output:?}");
    drop(unread);
    rig.end();
}

#[test]
fn the_time_ends_it() {
    let rig = Rig::new(|_| {});
    let socket = rig.socket.to_str().expect("text");
    let output = rig.place.command(&["borrow", socket, "--for", "20ms", "--json"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(object(&output)["ended_by"], "time");
    rig.end();
}

#[test]
fn a_mirror_gets_everything_beside_others() {
    let mut rig = Rig::new(|_| {});
    let one = rig.start(&["--json"], 1);
    let all = rig.start(&["--json", "--mirror"], 2);
    for _ in 0..3 {
        rig.lend(1, &flows(0..20, 60));
        rig.settle();
    }
    rig.end();
    for child in [one, all] {
        assert_eq!(object(&ends(child))["packets"], 60);
    }
}

#[test]
fn what_cannot_be_done_is_named_with_its_exit_code() {
    let rig = Rig::new(|options| options.accounting = Accounting::Ledgers);
    let lend = rig.socket.to_str().expect("text");
    let long = "x".repeat(49);
    let cases: [(&[&str], i32, &[&str]); 19] = [
        (&["nowhere"], 1, &["nowhere: there is no such socket: is the lender running?"]),
        (&[lend, "--mirror"], 1, &[lend, "the lender refuses: "]),
        (&[lend, "--name", &long], 2, &[&long, "at most 48 bytes"]),
        (&[lend, "--json", "--pcap", "-"], 2, &["--json", "--pcap -"]),
        (&[lend, "--count", "0"], 2, &["--count", "0 is not in 1.."]),
        (&[lend, "--rotate-size", "1M"], 2, &["--pcap <FILE>"]),
        (&[lend, "--pcap", "x", "--files", "3"], 2, &["--rotate-size", "--rotate-time"]),
        (&[lend, "--pcap", "x", "--rotate-time", "1h", "--files", "1"], 2, &["1 is not in 2.."]),
        (&[lend, "--pcap", "x", "--rotate-size", "99"], 2, &["'99' is too small", "4K"]),
        (&[lend, "--pcap", "x", "--rotate-time", "soon"], 2, &["--rotate-time", "500ms, 5s, 1h"]),
        (&[lend, "--pcap", "-", "--rotate-size", "1M"], 2, &["--rotate-size", "--pcap -"]),
        (&[lend, "--pcap", "x/", "--rotate-time", "1h"], 2, &["--pcap x/ is a folder"]),
        (&[lend, "--pcap", "no/x", "--rotate-time", "1h"], 1, &["cannot write no/x_00001_"]),
        (&[lend, "--worker", "2", "--pcap", "x"], 2, &["--worker", "--pcap"]),
        (&[lend, "--worker", "0"], 2, &["0 is not in 1..=64"]),
        (&[lend, "--snaplen", "9"], 2, &["--pcap <FILE>"]),
        (&[lend, "--quota", "0"], 2, &["--quota"]),
        (&[lend, "--interval", "1ms"], 2, &["too short"]),
        (&[lend, "--pcap", "no/such/folder"], 1, &["cannot write no/such/folder", "No such file"]),
    ];
    for (args, code, parts) in cases {
        let output = rig.place.command(&[&["borrow"], args].concat()).output().expect("it runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part} is missing: {said}");
        }
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    rig.end();
}

#[test]
fn root_it_needs_no_privilege_but_to_open_the_socket() {
    if !root("root_it_needs_no_privilege_but_to_open_the_socket") {
        return;
    }
    for (mode, code) in [(0o600, 4), (0o666, 0)] {
        let mut rig = Rig::new(|options| options.mode = mode);
        let socket = rig.socket.to_str().expect("text").to_owned();
        let mut command = rig.place.unprivileged(&["borrow", &socket, "--json"]);
        let child = command.spawn().expect("it starts");
        if code == 0 {
            let until = Instant::now() + SOON;
            while !rig.distributors.iter().all(Distributor::is_wanted) {
                assert!(Instant::now() < until, "{}", error(child));
                rig.collect();
                std::thread::yield_now();
            }
            assert_eq!(rig.lender().borrowers()[0].uid, 65_534);
            rig.lend(0, &flows(0..9, 60));
            rig.settle();
            rig.end_lender();
        }
        let output = ends_within(child, SOON);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        match code {
            0 => assert_eq!(object(&output)["packets"], 9),
            _ => assert!(text(&output.stderr).contains("Permission denied"), "{output:?}"),
        }
    }
}
