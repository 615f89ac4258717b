//! `cachelane borrow PATH -- COMMAND`: programs that use libpcap, as they come.
//!
//! `reader.c` reads in each of the ways that libpcap has; the other programs are Debian's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use frames::Accounting;
use lab::testing::{comes_true, root};
use lend::Distributor;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Place, text};
use crate::rig::{Rig, ends, flows, udp};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/pcap");
/// What the reader asks for.
const SNAPLEN: usize = 2000;

/// Builds the reader.
fn reader(place: &Place) -> PathBuf {
    let program = place.path().join("reader");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/borrow/reader.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).args([source, "-lpcap"]);
    assert!(cc.status().expect("cc runs").success(), "the reader is not built");
    program
}

/// How the library comes into a program.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// As the command loads it.
    Preloaded,
    /// In libpcap's place.
    DropIn,
}

impl Rig {
    /// A program, with this in its libpcap.
    fn program(&self, way: Way, program: &Path, args: &[&str]) -> Command {
        let (socket, program) =
            (self.socket.to_str().expect("text"), program.to_str().expect("text"));
        match way {
            Way::Preloaded => {
                self.place.command(&[&["borrow", socket, "--", program], args].concat())
            }
            Way::DropIn => {
                let folder = self.place.path().join("lib");
                std::fs::create_dir_all(&folder).expect("a folder");
                let out = format!("OUT={}", folder.display());
                let flags = "CFLAGS=-O1 -Wall -Wextra -Werror";
                let make = ["--silent", "-C", SOURCES, &out, flags, "MAKEFLAGS="];
                assert!(Command::new("make").args(make).status().expect("make runs").success());
                let mut command = self.place.wrapped(program.as_ref(), args);
                command.env("LD_LIBRARY_PATH", folder);
                command.env("CACHELANE_LEND", format!("{socket},mirror"));
                command
            }
        }
    }

    /// The reader, by its arguments after the device.
    fn reads(&mut self, way: Way, args: &[&str]) -> Child {
        let reader = reader(&self.place);
        let mut command = self.program(way, &reader, &[&["cachelane"], args].concat());
        command.stdin(Stdio::piped());
        self.run(command, 1)
    }
}

/// As the reader sums up bytes.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

/// What the reader tells of these packets, but for their times.
fn told(packets: &[Vec<Vec<u8>>]) -> Vec<String> {
    let line = |parts: &Vec<Vec<u8>>| {
        let whole = parts.concat();
        let there = &whole[..whole.len().min(SNAPLEN)];
        format!("{} {} {}", whole.len(), there.len(), sum(there))
    };
    packets.iter().map(line).collect()
}

/// The lines of the reader: those of packets, without their times, which are of the last minute; those of
/// its end.
fn lines(output: &Output) -> (Vec<String>, Vec<String>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let said = text(&output.stdout).lines();
    let (packets, end): (Vec<&str>, Vec<&str>) =
        said.filter(|line| *line != "reads").partition(|line| line.split(' ').count() == 4);
    let packets = packets.into_iter().map(|line| {
        let (time, rest) = line.split_once(' ').expect("words");
        let (seconds, nanoseconds) = time.split_once('.').expect("a fraction");
        assert_eq!(nanoseconds.len(), 9, "{line}");
        let time =
            Duration::new(seconds.parse().expect("a number"), nanoseconds.parse().expect("one"));
        assert!(time <= now && now - time < Duration::from_secs(60), "{line}: now {now:?}");
        rest.to_owned()
    });
    (packets.collect(), end.into_iter().map(str::to_owned).collect())
}

#[test]
fn a_program_reads_every_packet_whole_in_each_of_libpcaps_ways() {
    let mut packets = flows(0..10, 100);
    // In two frames; and more than the reader wants.
    packets.push(vec![udp(10, 1500), vec![7; 300]]);
    packets.push(vec![udp(11, 2000), vec![8; 2000], vec![9; 1]]);
    packets.push(vec![udp(12, 60)]);
    for way in [Way::Preloaded, Way::DropIn] {
        for by in ["loop", "poll", "poll-one", "next"] {
            let mut rig = Rig::new(|_| {});
            let mut child = rig.reads(way, &[by, "13"]);
            let mut stdin = child.stdin.take().expect("a pipe");
            rig.lend(0, &packets[..5]);
            std::thread::sleep(Duration::from_millis(20));
            rig.lend(0, &packets[5..]);
            // Only one that reads packet by packet reads that.
            let _ = stdin.write_all(&b"\n".repeat(13));
            rig.settle();
            let output = ends(child);
            let (read, end) = lines(&output);
            assert_eq!(read, told(&packets), "{way:?} {by}: {output:?}");
            assert_eq!(end[0], "stats 13 0", "{way:?} {by}: {output:?}");
            rig.end();
        }
    }
}

#[test]
fn a_packet_that_was_asked_for_alone_is_a_loan_until_the_next_call() {
    let mut rig = Rig::new(|_| {});
    let mut child = rig.reads(Way::Preloaded, &["next", "2"]);
    let mut stdin = child.stdin.take().expect("a pipe");
    rig.lend(0, &flows(0..2, 100));
    // It holds the first, and has not given back the second.
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    said.read_line(&mut String::new()).expect("a packet");
    for left in [2, 1] {
        assert!(comes_true(|| {
            rig.collect();
            rig.distributors[0].on_loan() == left
        }));
        std::thread::sleep(Duration::from_millis(50));
        rig.collect();
        assert_eq!(rig.distributors[0].on_loan(), left);
        stdin.write_all(b"\n").expect("it reads");
    }
    rig.settle();
    ends(child);
    rig.end();
}

#[test]
fn what_a_command_starts_reads_too_whatever_it_does_with_low_descriptors() {
    let mut rig = Rig::new(|_| {});
    let reader = reader(&rig.place);
    let line = format!("{} cachelane loop 1 3</dev/null 4</dev/null 5<&-; true", reader.display());
    let command = rig.program(Way::Preloaded, "sh".as_ref(), &["-c", &line]);
    let child = rig.run(command, 1);
    rig.lend(0, &flows(0..1, 100));
    rig.settle();
    assert_eq!(lines(&ends(child)).0, told(&flows(0..1, 100)));
    rig.end();
}

#[test]
fn with_a_quota_of_one_a_program_that_waits_by_its_descriptor_goes_on() {
    let mut rig = Rig::new(|options| options.quota = 1);
    let child = rig.reads(Way::Preloaded, &["poll-one", "3"]);
    for flow in 0..3 {
        rig.lend(0, &flows(flow..flow + 1, 100));
        rig.settle();
    }
    assert_eq!(lines(&ends(child)).0, told(&flows(0..3, 100)));
    rig.end();
}

#[test]
fn a_filter_lets_through_what_it_says_and_drops_are_counted() {
    let mut rig = Rig::new(|_| {});
    let child = rig.reads(Way::Preloaded, &["loop", "2", "udp src port 7 or src port 9"]);
    rig.lend(0, &flows(0..20, 100));
    rig.settle();
    let (read, end) = lines(&ends(child));
    assert_eq!(
        (read, end[0].as_str()),
        (told(&[flows(7..8, 100), flows(9..10, 100)].concat()), "stats 2 0")
    );
    rig.end();

    // By bytes that the program does not want.
    let mut rig = Rig::new(|_| {});
    let child = rig.reads(Way::Preloaded, &["loop", "1", "ether[2050] = 9"]);
    let packets = [8, 9].map(|byte| vec![udp(1, 2000), vec![byte; 100]]);
    rig.lend(0, &packets);
    rig.settle();
    assert_eq!(lines(&ends(child)).0, told(&packets[1..]));
    rig.end();

    let mut rig = Rig::new(|_| {});
    let mut child = rig.reads(Way::Preloaded, &["next", "32"]);
    let mut stdin = child.stdin.take().expect("a pipe");
    // At once more than its quota.
    rig.lend(0, &flows(0..40, 100));
    stdin.write_all(&b"\n".repeat(32)).expect("it reads");
    rig.settle();
    let (read, end) = lines(&ends(child));
    assert_eq!((read, end[0].as_str()), (told(&flows(0..32, 100)), "stats 32 8"));
    rig.end();
}

#[test]
fn a_loop_is_broken_by_a_signal_and_by_another_thread_and_a_read_ends_after_its_time() {
    for way in ["signal", "thread"] {
        let mut rig = Rig::new(|_| {});
        let mut child = rig.reads(Way::Preloaded, &[way]);
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("that it reads");
        assert_eq!(line, "reads\n");
        // It waits, with nothing to read.
        std::thread::sleep(Duration::from_millis(50));
        match way {
            "signal" => kill_process(Pid::from_child(&child), Signal::USR1).expect("it runs"),
            _ => child.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads"),
        }
        let rest: Vec<_> = said.lines().map(|line| line.expect("text")).collect();
        assert_eq!(rest, ["stats 0 0", "-2 "], "{way}");
        ends(child);
        rig.end();
    }
    // What a handler has handed over counts; the next read says that it was broken.
    let mut rig = Rig::new(|_| {});
    let child = rig.reads(Way::Preloaded, &["handler"]);
    rig.lend(0, &flows(0..3, 100));
    let (read, end) = lines(&ends(child));
    assert_eq!((read, end), (told(&flows(0..1, 100)), vec!["stats 1 0".into(), "-2 ".into()]));
    rig.end();
    let mut rig = Rig::new(|_| {});
    let child = rig.reads(Way::Preloaded, &["timeout"]);
    let (_, end) = lines(&ends(child));
    assert_eq!(end, ["stats 0 0", "0 "]);
    rig.end();
}

/// The CPU time of a process, in hundredths of a second.
fn cpu_ticks(child: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    let (_, after) = stat.rsplit_once(") ").expect("its name");
    after.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_handle_that_reconnects_reads_on_from_the_next_lender() {
    for by in ["loop", "poll", "poll-one", "next"] {
        let mut rig = Rig::new(|_| {});
        let reader = reader(&rig.place);
        let socket = rig.socket.to_str().expect("text").to_owned();
        let reader = reader.to_str().expect("text");
        let args = ["borrow", &socket, "--reconnect", "--group", "3", "--", reader, "cachelane"];
        let mut command = rig.place.command(&[&args[..], &[by, "9"]].concat());
        let mut child = rig.run(command.stdin(Stdio::piped()), 1);
        let _ = child.stdin.take().expect("a pipe").write_all(&b"\n".repeat(9));
        assert_eq!(rig.lender().borrowers()[0].group, 3, "{by}");
        for round in 0..3 {
            rig.lend(0, &flows(round * 3..round * 3 + 3, 100));
            // One that was asked for alone is there until the next call.
            assert!(comes_true(|| {
                rig.collect();
                rig.distributors.iter().map(Distributor::on_loan).sum::<u32>() <= 1
            }));
            if round < 2 {
                rig.end_lender();
                // It notices, and tries in vain, without spinning.
                let before = cpu_ticks(&child);
                std::thread::sleep(Duration::from_millis(500));
                let spent = cpu_ticks(&child) - before;
                assert!(spent < 10, "{by}: {spent} hundredths of a second");
                rig.start_again();
                rig.joined(1);
            }
        }
        let output = ends(child);
        assert_eq!(lines(&output).0, told(&flows(0..9, 100)), "{by}: {output:?}");
        rig.end();
    }
}

#[test]
fn a_program_that_starts_before_its_lender_reads_what_that_lends() {
    for by in ["loop", "poll", "poll-one", "next"] {
        let mut rig = Rig::new(|_| {});
        rig.end_lender();
        let socket = rig.socket.to_str().expect("text").to_owned();
        let reader = reader(&rig.place);
        let reader = reader.to_str().expect("text");
        let args = ["borrow", &socket, "--reconnect", "--", reader, "cachelane", by, "3"];
        let mut command = rig.place.command(&args);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let _ = child.stdin.take().expect("a pipe").write_all(&b"\n".repeat(3));
        std::thread::sleep(Duration::from_millis(150));
        rig.start_again();
        rig.joined(1);
        rig.lend(0, &flows(0..3, 100));
        let output = ends(child);
        assert_eq!(lines(&output).0, told(&flows(0..3, 100)), "{by}: {output:?}");
        rig.end();
    }
}

#[test]
fn a_loop_is_broken_while_there_is_no_lender() {
    let mut rig = Rig::new(|_| {});
    let device = format!("cachelane:{},reconnect", rig.socket.display());
    let reader = reader(&rig.place);
    let command = rig.program(Way::Preloaded, &reader, &[&device, "signal"]);
    let mut child = rig.run(command, 1);
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    said.read_line(&mut String::new()).expect("that it reads");
    rig.end_lender();
    std::thread::sleep(Duration::from_millis(50));
    kill_process(Pid::from_child(&child), Signal::USR1).expect("it runs");
    let rest: Vec<_> = said.lines().map(|line| line.expect("text")).collect();
    assert_eq!(rest, ["stats 0 0", "-2 "]);
    ends(child);
    rig.end();
}

#[test]
fn a_program_is_told_that_its_lender_has_ended() {
    for way in ["loop", "poll", "next"] {
        let mut rig = Rig::new(|_| {});
        let mut child = rig.reads(Way::Preloaded, &[way, "5"]);
        let mut stdin = child.stdin.take().expect("a pipe");
        // Once it has one, it is open.
        rig.lend(0, &flows(0..1, 100));
        let _ = stdin.write_all(b"\n");
        rig.settle();
        rig.end_lender();
        let (read, end) = lines(&ends(child));
        assert_eq!(read, told(&flows(0..1, 100)), "{way}");
        let said = format!("-1 {}: the lender has ended", rig.socket.display());
        assert_eq!(end, ["stats 1 0", &said], "{way}");
        rig.end();
    }
}

#[test]
fn what_is_no_lender_is_named() {
    let rig = Rig::new(|options| options.accounting = Accounting::Ledgers);
    let reader = reader(&rig.place);
    let socket = rig.socket.to_str().expect("text");
    let cases = [
        ("cachelane:/nowhere", "No such device exists: /nowhere: No such file or directory"),
        (
            "cachelane:/x,fast",
            "fast (expected mirror, share, group=N, quota=N, name=NAME or reconnect)",
        ),
        ("cachelane:/x,quota=0", "quota=0 (expected a quota from 1 to 65536)"),
        ("cachelane:/x,quota=9x", "quota=9x (expected a quota from 1 to 65536)"),
        ("cachelane:", "no path (expected the path of a lender's socket)"),
        ("cachelane", "; a share of the flows: cachelane:PATH,share"),
        ("nosuchdevice", "No such device exists"),
    ];
    for (device, expected) in cases {
        let mut command = rig.program(Way::Preloaded, &reader, &[device, "loop"]);
        let output = command.output().expect("it runs");
        let said = text(&output.stdout);
        assert!(output.status.code() == Some(1) && said.contains(expected), "{device}: {output:?}");
    }
    let output = rig.place.wrapped(&reader, &["cachelane:/x", "loop"]).output().expect("it runs");
    assert!(!output.status.success(), "without the library there is no such device: {output:?}");

    let program = reader.to_str().expect("text");
    let plain = rig.place.path().join("plain");
    std::fs::write(&plain, "").expect("a file");
    std::fs::create_dir(rig.place.path().join("a,b")).expect("a folder");
    std::os::unix::fs::symlink(&rig.socket, rig.place.path().join("link")).expect("a link");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["nowhere", "--", program], 1, "no lender at nowhere"),
        (&["plain", "--", program], 2, "plain is no socket (expected a lender's)"),
        (&[socket, "--name", "a,b", "--", program], 2, "a path or --name with a comma"),
        (&[socket, "--", "no-such-program"], 1, "cannot run no-such-program: No such file"),
        (&[socket, "--pcap", "x", "--", program], 2, "--pcap"),
        (&[socket, "--json", "--", program], 2, "--json"),
        (&[socket, "--share"], 2, "COMMAND"),
    ];
    for (args, code, expected) in cases {
        let output = rig.place.command(&[&["borrow"], args].concat()).output().expect("it runs");
        let said = text(&output.stderr);
        assert!(
            output.status.code() == Some(code) && said.contains(expected),
            "{args:?}: {output:?}"
        );
    }
    rig.end();
}

/// The functions that a library has for others.
fn functions(library: &Path) -> Vec<String> {
    let nm =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm runs");
    let lines = text(&nm.stdout).lines().filter_map(|line| line.split_once(" T "));
    let names: Vec<_> = lines.map(|(_, name)| name.to_owned()).collect();
    assert!(!names.is_empty(), "{nm:?}");
    names
}

#[test]
fn in_libpcaps_place_is_every_function_of_the_installed_one() {
    let rig = Rig::new(|_| {});
    let reader = reader(&rig.place);
    rig.program(Way::DropIn, &reader, &[]);
    let found = Command::new("ldd").arg(&reader).output().expect("ldd runs");
    let line =
        text(&found.stdout).lines().find(|line| line.contains("libpcap.so")).expect("linked");
    let theirs = line.split_whitespace().nth(2).expect("a path");
    let ours = functions(&rig.place.path().join("lib/libpcap.so.0.8"));
    let mut missing = functions(theirs.as_ref());
    missing.retain(|name| !ours.contains(name));
    assert!(missing.is_empty(), "forward.c lacks {missing:?}");
    rig.end();
}

/// The packets of a capture file with times in nanoseconds, as the file has them.
fn packets_of(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).expect("a capture file");
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_ne_bytes(), "in nanoseconds");
    let (mut rest, mut packets) = (&bytes[24..], Vec::new());
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let length = u32::from_ne_bytes(*header[8..].first_chunk().expect("four bytes")) as usize;
        packets.push(after[..length].to_vec());
        rest = &after[length..];
    }
    packets
}

/// What these packets are, each as a whole.
fn whole(packets: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    packets.iter().map(|parts| parts.concat()).collect()
}

#[test]
fn tcpdump_captures_what_is_lent() {
    let mut rig = Rig::new(|_| {});
    let tcpdump = |rig: &Rig, args: &str| {
        let args: Vec<_> = args.split(' ').collect();
        rig.program(Way::Preloaded, "tcpdump".as_ref(), &args)
    };
    let listed = tcpdump(&rig, "-D").output().expect("tcpdump runs");
    for device in ["cachelane", &format!("cachelane:{}", rig.socket.display())] {
        let line = format!(".{device} (packets that cachelane lends)");
        assert!(text(&listed.stdout).contains(&line), "{line}: {listed:?}");
    }
    let args =
        "-i cachelane -c 13 --time-stamp-precision nano -Z root -w out.pcap udp and portrange 3-15";
    let child = {
        let command = tcpdump(&rig, args);
        rig.run(command, 1)
    };
    let mut packets = flows(0..15, 100);
    packets.push(vec![udp(15, 1500), vec![7; 300]]);
    rig.lend(0, &packets);
    rig.settle();
    let output = ends(child);
    assert!(text(&output.stderr).contains("0 packets dropped by kernel"), "{output:?}");
    assert_eq!(packets_of(&rig.place.path().join("out.pcap")), whole(&packets[3..]));
    rig.end();
}

#[test]
fn tshark_and_dumpcap_capture_what_is_lent() {
    let mut rig = Rig::new(|_| {});
    let args = "-i cachelane -c 5 -f udp -T fields -e udp.srcport";
    let args: Vec<_> = args.split(' ').collect();
    let command = rig.program(Way::Preloaded, "tshark".as_ref(), &args);
    let child = rig.run(command, 1);
    rig.lend(0, &flows(40..45, 100));
    rig.settle();
    let output = ends(child);
    assert_eq!(text(&output.stdout), "40\n41\n42\n43\n44\n", "{output:?}");
    rig.end();
}

#[test]
fn ngrep_finds_what_is_lent() {
    let mut rig = Rig::new(|_| {});
    let args = ["-d", "cachelane", "-n", "2", "-q", "-x", "", "udp", "src", "port", "50"];
    let command = rig.program(Way::Preloaded, "ngrep".as_ref(), &args);
    let child = rig.run(command, 1);
    rig.lend(0, &[flows(40..60, 100), flows(50..51, 100)].concat());
    rig.settle();
    let output = ends(child);
    let found = text(&output.stdout).matches("U 10.0.0.1:50 -> 10.0.0.2:53").count();
    assert_eq!(found, 2, "{output:?}");
    rig.end();
}

#[test]
fn root_a_program_needs_no_privileges_and_may_have_none_that_the_loader_respects() {
    const NAME: &str =
        "root_a_program_needs_no_privileges_and_may_have_none_that_the_loader_respects";
    if !root(NAME) {
        return;
    }
    let mut rig = Rig::new(|options| options.mode = 0o666);
    let reader = reader(&rig.place);
    let (socket, program) =
        (rig.socket.to_str().expect("text").to_owned(), reader.display().to_string());
    let args = ["borrow", &socket, "--share", "--", &program, "cachelane", "loop", "3"];
    let command = rig.place.unprivileged(&args);
    let child = rig.run(command, 1);
    assert_eq!(rig.lender().borrowers()[0].uid, 65_534);
    rig.lend(0, &flows(0..3, 100));
    rig.settle();
    assert_eq!(lines(&ends(child)).0, told(&flows(0..3, 100)));

    std::fs::set_permissions(&reader, std::os::unix::fs::PermissionsExt::from_mode(0o4755))
        .expect("it");
    let output = rig.place.unprivileged(&args).output().expect("it runs");
    let said = text(&output.stderr);
    let expected = format!("{program} is setuid or setgid, so that nothing can be loaded into it");
    assert!(output.status.code() == Some(2) && said.contains(&expected), "{output:?}");
    rig.end();
}
