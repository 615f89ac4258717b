//! What `cachelane xsk send` does when it is stopped, and when files, readers and devices go.

mod common;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::tcpdump::Tcpdump;
use common::xsk::{Running, Scene, number};
use common::{says, text};
use lab::testing::{comes_true, root};
use lab::{Link, LinkOptions};
use rustix::process::Signal;
use serde_json::Value;

/// The longest packets take two frames.
const SIZES: [usize; 3] = [64, 3000, 1500];

/// Packets that each have their number all through them.
fn frames(count: u32) -> Vec<Vec<u8>> {
    let frame = |number: u32| {
        let mut bytes = [&[0xff; 12][..], &[0x88, 0xb5]].concat();
        let size = SIZES[number as usize % SIZES.len()];
        bytes.extend(number.to_be_bytes().iter().cycle().take(size - bytes.len()));
        bytes
    };
    (0..count).map(frame).collect()
}

/// A capture file of these, each recorded so many seconds after the one before.
fn pcap(frames: &[Vec<u8>], seconds: u32) -> Vec<u8> {
    let head = [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, 1].map(u32::to_le_bytes);
    let mut file = head.concat();
    for (number, frame) in (0..).zip(frames) {
        let len = frame.len() as u32;
        file.extend([number * seconds, 0, len, len].map(u32::to_le_bytes).concat());
        file.extend(frame);
    }
    file
}

/// The packets of such a file, as far as they are whole.
fn recorded(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).expect("a file");
    let (mut rest, mut frames) = (file.get(24..).unwrap_or_default(), Vec::new());
    while let Some((head, data)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(head[8..12].try_into().expect("four bytes")) as usize;
        let Some((frame, after)) = data.split_at_checked(len) else { break };
        frames.push(frame.to_vec());
        rest = after;
    }
    frames
}

/// A link on which packets of all sizes go, and a file.
fn wide(name: &str, bytes: &[u8]) -> (Scene, Link, String) {
    let scene = Scene::new(name);
    let options = LinkOptions { mtu: 4000, ..LinkOptions::default() };
    let link = scene.join(&scene.host("a"), &scene.host("b"), options);
    let path = file(&scene, bytes);
    (scene, link, path)
}

fn file(scene: &Scene, bytes: &[u8]) -> String {
    let path = scene.place.path().join("sent.pcap");
    fs::write(&path, bytes).expect("a file");
    path.to_str().expect("text").to_owned()
}

fn replay<'a>(link: &'a Link, path: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["xsk", "send", &link.a.device, "--pcap", path, "--multi-buffer", "--json"];
    [&args[..], more].concat()
}

/// What it printed at its end, which was well.
fn object(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Where a process waits in the kernel.
fn waits_in(pid: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default()
}

#[test]
fn root_a_file_that_is_stopped_in_the_middle_was_sent_in_whole_packets() {
    if !root("root_a_file_that_is_stopped_in_the_middle_was_sent_in_whole_packets") {
        return;
    }
    let frames = frames(100);
    let (scene, link, path) = wide("stopfile", &pcap(&frames, 0));
    for signal in [Signal::INT, Signal::TERM] {
        let seen = Tcpdump::start(&scene, &link.b, i32::MAX as u64, "ether proto 0x88b5");
        let args = replay(&link, &path, &["--rate", "2k", "--loop", "0"]);
        let sender = scene.start(&link.a.host, &args, "sending");
        let sent = || scene.counter(&sender, "xsk.tx_packets");
        assert!(comes_true(|| sent() > 250));
        sender.signal(Signal::STOP);
        let state = || fs::read_to_string(format!("/proc/{}/stat", sender.pid()));
        assert!(comes_true(|| state().is_ok_and(|stat| stat.contains(") T "))));
        thread::sleep(Duration::from_millis(500));
        sender.signal(Signal::CONT);
        let before = sent();
        assert!(comes_true(|| sent() > before + 250), "it does not go on");
        let ended = object(&sender.end(signal));
        assert_eq!(ended["ended_by"], "signal", "{ended:#}");
        assert_eq!(number(&ended, "/frames/leaked"), 0, "{ended:#}");
        // It is late by as long as it was stopped, and makes nothing up for that.
        assert!(ended["late_us"]["max"].as_f64().expect("a time") > 450e3, "{ended:#}");
        let count = number(&ended, "/tx/packets") as usize;
        let file = scene.place.path().join("seen.pcap");
        assert!(comes_true(|| recorded(&file).len() >= count), "{ended:#}");
        drop(seen);
        let seen = recorded(&file);
        assert_eq!(seen.len(), count, "{ended:#}");
        let wrong = seen.iter().zip(frames.iter().cycle()).position(|(seen, sent)| seen != sent);
        assert_eq!(wrong, None, "{ended:#}");
        let bytes: usize = seen.iter().map(Vec::len).sum();
        assert_eq!(number(&ended, "/tx/bytes"), bytes as u64, "{ended:#}");
    }
}

#[test]
fn root_a_sender_that_waits_for_its_next_packet_ends_at_once() {
    if !root("root_a_sender_that_waits_for_its_next_packet_ends_at_once") {
        return;
    }
    // The second is due in an hour.
    let (scene, link, path) = wide("stopwait", &pcap(&frames(2), 3600));
    for signal in [Signal::INT, Signal::TERM] {
        let sender = scene.start(&link.a.host, &replay(&link, &path, &[]), "sending");
        assert!(comes_true(|| scene.counter(&sender, "xsk.tx_packets") == 1));
        let ended = object(&sender.end(signal));
        assert_eq!((number(&ended, "/tx/packets"), &ended["ended_by"]), (1, &"signal".into()));
    }
    // So does one that waits for more of a pipe, or for its beginning.
    for begins in [0, 3_u32] {
        let mut command = scene.command(&replay(&link, "-", &[]));
        command.stdin(Stdio::piped());
        let (mut child, _log) = link
            .a
            .host
            .run(move || {
                let (child, log) = says(&mut command, "sending");
                (child, Box::new(log) as Box<dyn std::io::Read + Send>)
            })
            .expect("the host");
        let mut writer = child.stdin.take().expect("a pipe");
        if begins > 0 {
            writer.write_all(&pcap(&frames(begins), 0)).expect("a reader");
        }
        let sender = Running(Some(child));
        let sent = || scene.counter(&sender, "xsk.tx_packets");
        assert!(comes_true(|| sent() == u64::from(begins)), "{begins}: {}", sent());
        let ended = object(&sender.end(Signal::INT));
        assert_eq!(number(&ended, "/tx/packets"), u64::from(begins), "{ended:#}");
        assert_eq!(ended["ended_by"], "signal", "{ended:#}");
    }
}

#[test]
fn root_a_file_that_is_cut_while_it_is_read_is_sent_as_far_as_it_goes() {
    if !root("root_a_file_that_is_cut_while_it_is_read_is_sent_as_far_as_it_goes") {
        return;
    }
    // More than is read ahead, and so slowly that it is cut before it was read to there.
    let (frames, mut left) = (frames(12_000), 14 << 20);
    let (scene, link, path) = wide("stopcut", &pcap(&frames, 0));
    let file = File::options().write(true).open(&path).expect("it is there");
    let sender = scene.start(&link.a.host, &replay(&link, &path, &["--rate", "2k"]), "sending");
    file.set_len(left).expect("it is shorter");
    left -= 24;
    let lens = frames.iter().map(|frame| 16 + frame.len() as u64);
    let whole = lens.take_while(|len| left.checked_sub(*len).inspect(|now| left = *now).is_some());
    let whole = whole.count() as u64;
    let ended = object(&sender.ends());
    assert_eq!((number(&ended, "/tx/packets"), &ended["ended_by"]), (whole, &"done".into()));
    // One that is read again and is empty ends that.
    fs::write(&path, pcap(&frames[..10], 0)).expect("a file");
    let args = replay(&link, &path, &["--rate", "2k", "--loop", "0"]);
    for len in [24, 0] {
        fs::write(&path, pcap(&frames[..10], 0)).expect("a file");
        let sender = scene.start(&link.a.host, &args, "sending");
        assert!(comes_true(|| scene.counter(&sender, "xsk.tx_packets") > 30));
        file.set_len(len).expect("it is shorter");
        let output = sender.ends();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let ended: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let error = ended["error"].as_str().expect("an error");
        assert!(error.contains(&format!("--pcap {path}: ")), "{len}: {error}");
        let why = ["neither pcap nor pcapng", "no packets in it any more"];
        assert!(why.iter().any(|why| error.contains(why)), "{len}: {error}");
    }
}

#[test]
fn root_figures_go_to_a_pipe_as_long_as_somebody_reads_it() {
    if !root("root_figures_go_to_a_pipe_as_long_as_somebody_reads_it") {
        return;
    }
    let scene = Scene::new("stopcsv");
    let link = scene.link("a", "b");
    let path = scene.place.path().join("csv");
    let made = Command::new("mkfifo").arg(&path).status().expect("it runs");
    assert!(made.success());
    let csv = path.to_str().expect("text");
    let args = ["xsk", "send", &link.a.device, "--rate", "1k", "--csv", csv, "--json"];
    let args = [&args[..], &["--interval", "10ms"]].concat();
    let spawn = || {
        let mut command = scene.command(&args);
        Running(Some(
            link.a.host.run(move || command.spawn()).expect("the host").expect("it starts"),
        ))
    };
    // Nobody reads, and a signal ends it.
    for signal in [Signal::INT, Signal::TERM] {
        let sender = spawn();
        let opens = |at: &str| at.contains("wait_for_partner") || at.contains("fifo_open");
        assert!(comes_true(|| opens(&waits_in(&sender.pid()))));
        let output = sender.end(signal);
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{output:?}");
    }
    // The reader goes.
    let sender = spawn();
    let mut lines = BufReader::new(File::open(&path).expect("a pipe")).lines();
    let first = lines.next().expect("names").expect("text");
    assert!(first.starts_with("seconds,"), "{first}");
    drop(lines);
    let output = sender.ends();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains(&format!("--csv {csv}: Broken pipe")), "{said}");
    // It stops reading, and a signal ends the sender all the same.
    let sender = spawn();
    let reader = File::open(&path).expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(reader.as_fd(), 8192).expect("root may");
    let waiting = || rustix::io::ioctl_fionread(&reader).expect("a pipe");
    assert!(comes_true(|| waiting() > 4096));
    // So long that it would be full.
    thread::sleep(Duration::from_secs(1));
    let output = sender.end(Signal::INT);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains(&format!("--csv {csv}: ")), "{output:?}");
}

#[test]
fn root_whoever_reads_lines_may_go() {
    if !root("root_whoever_reads_lines_may_go") {
        return;
    }
    let scene = Scene::new("stophead");
    let link = scene.link("a", "b");
    let args = ["xsk", "send", &link.a.device, "--rate", "1k", "--interval", "10ms", "--json"];
    let mut sender = scene.start(&link.a.host, &args, "sending");
    let child = sender.0.as_mut().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let first: Value =
        serde_json::from_str(&lines.next().expect("one").expect("text")).expect("JSON");
    assert_eq!(first["event"], "interval", "{first:#}");
    drop(lines);
    let output = sender.ends();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// What does not come back any more is lost, and what came before that is told.
#[test]
fn root_a_reflector_that_is_killed_loses_what_is_on_the_way() {
    if !root("root_a_reflector_that_is_killed_loses_what_is_on_the_way") {
        return;
    }
    let scene = Scene::new("stopreflect");
    let link = scene.link("a", "b");
    let reflect = ["xsk", "forward", &link.b.device, "--udp-port", "9"];
    let forward = scene.start(&link.b.host, &reflect, "forwarding");
    let mac = link.b.mac.to_string();
    let args = ["xsk", "send", &link.a.device, "--latency", "--dst-mac", &mac, "--rate", "1k"];
    let sender = scene.start(&link.a.host, &[&args[..], &["--json"]].concat(), "sending");
    let counter = |name: &str| scene.counter(&sender, name);
    assert!(comes_true(|| counter("xsk.rx_packets") > 100));
    assert!(!forward.end(Signal::KILL).status.success());
    let sent = counter("xsk.tx_packets");
    assert!(comes_true(|| counter("xsk.tx_packets") > sent + 100), "it does not go on");
    let ended = sender.object();
    let [sent, back, lost] =
        ["sent", "back", "lost"].map(|name| number(&ended, &format!("/latency/{name}")));
    assert!(back > 100 && lost > 100 && sent == back + lost, "{ended:#}");
    assert_eq!(number(&ended, "/frames/leaked"), 0, "{ended:#}");
}

/// A device that goes is missed by one that has nothing to send, too, and one that is only called
/// something else goes on.
#[test]
fn root_a_device_that_goes_ends_the_sender_which_names_it() {
    if !root("root_a_device_that_goes_ends_the_sender_which_names_it") {
        return;
    }
    let recording = pcap(&frames(2), 3600);
    let packets = ["--rate", "1k", "--engine", "socket"];
    for (at, (how, engine, says)) in [
        ("down", "socket", Some("Network is down")),
        ("renamed", "socket", None),
        ("moved", "socket", Some("queue 0: ")),
        ("deleted", "socket", Some("queue 0: ")),
        ("moved", "file", Some("no longer bound")),
        ("deleted", "file", Some("no longer bound")),
        ("renamed", "live", None),
        ("moved", "live", Some("gone")),
        ("deleted", "live", Some("gone")),
    ]
    .into_iter()
    .enumerate()
    {
        let scene = Scene::new(&format!("stopgone{at}"));
        let (link, path) = (scene.link("a", "b"), file(&scene, &recording));
        let (device, mac) = (link.a.device.as_str(), link.b.mac.to_string());
        let to = ["xsk", "send", device, "--json", "--dst-mac", &mac];
        let (args, least) = match engine {
            "socket" => ([&to[..], &packets].concat(), 100),
            "live" => ([&to[..], &["--engine", "live"]].concat(), 1000),
            _ => ([&to[..], &["--pcap", &path]].concat(), 1),
        };
        let drop = ["xsk", "drop", &link.b.device, "--udp-port", "9"];
        let _receiver = scene.start(&link.b.host, &drop, "receiving");
        let sender = scene.start(&link.a.host, &args, "sending");
        let sent = || scene.counter(&sender, "xsk.tx_packets");
        assert!(comes_true(|| sent() >= least), "{how} {engine}");
        let other = scene.host("other").namespace_path().expect("a test host has one");
        let more = match how {
            "down" => vec!["set", device, "down"],
            "renamed" => vec!["set", device, "name", "other0"],
            "moved" => vec!["set", device, "netns", other.to_str().expect("text")],
            _ => vec!["del", device],
        };
        link.a.host.ip([&["link"][..], &more].concat()).expect("ip");
        let Some(says) = says else {
            let before = sent();
            assert!(comes_true(|| sent() > before + 100), "{how} {engine}");
            sender.object();
            continue;
        };
        let output = sender.ends();
        assert_eq!(output.status.code(), Some(1), "{how} {engine}: {output:?}");
        let ended: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let error = ended["error"].as_str().expect("an error");
        assert!(error.contains(device) && error.contains(says), "{how} {engine}: {error}");
        assert_eq!(number(&ended, "/frames/leaked"), 0, "{how} {engine}: {ended:#}");
    }
}
