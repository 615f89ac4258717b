//! `cachelane borrow --pcap`: capture files one after the other, and what they say.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab::testing::{comes_true, root};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{PROGRAM, ends_within, text};
use crate::parse_pcap;
use crate::rig::{Rig, SOON, ends, error, flows, object, udp};

/// The capture files in a folder, in the order of their names.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("it").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some()).collect();
    files.sort();
    files
}

/// How many packets tcpdump finds in a file, which it finds whole.
fn tcpdump(path: &Path) -> usize {
    let mut command = Command::new("tcpdump");
    let output = command.args(["-n", "-r"]).arg(path).output().expect("tcpdump runs");
    let said = text(&output.stderr);
    assert!(output.status.success() && !said.contains("truncated"), "{path:?}: {output:?}");
    text(&output.stdout).lines().count()
}

/// How many packets a file has, which is whole.
fn count(path: &Path) -> usize {
    parse_pcap(&std::fs::read(path).expect("a file")).1.len()
}

/// Interrupts a command, and waits for its success.
fn interrupt(child: Child) -> std::process::Output {
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    ends(child)
}

#[test]
fn files_that_follow_each_other_have_every_packet_and_can_be_read_meanwhile() {
    let mut rig = Rig::new(|_| {});
    let folder = rig.place.path().join("files");
    std::fs::create_dir(&folder).expect("a folder");
    let child = rig.start(&["--json", "--pcap", "files/x.pcap", "--rotate-size", "8K"], 1);
    let mut lent = 0;
    for _ in 0..20 {
        rig.lend(0, &flows(0..30, 100));
        rig.lend(1, &[vec![udp(30, 2048), vec![7; 52]]]);
        rig.settle();
        lent += 31;
        let files = captures(&folder);
        // Those before the last are complete.
        let complete = &files[..files.len() - 1];
        assert!(complete.iter().all(|path| count(path) > 0), "{files:?}");
    }
    let first = &captures(&folder)[0];
    assert_eq!(tcpdump(first), count(first));
    let output = interrupt(child);
    let files = captures(&folder);
    assert_eq!(files.iter().map(|path| count(path)).sum::<usize>(), lent);
    assert!(files.iter().all(|path| path.metadata().expect("a file").len() <= 8192));
    let bytes: usize = 20 * (30 * 116 + 2116);
    assert!((bytes / 8192 + 1..bytes / 5000).contains(&files.len()), "{files:?}");
    let end = object(&output);
    let (name, made) = (&end["file"], &end["files"]);
    assert_eq!((name, made), (&"files/x.pcap".into(), &files.len().into()), "{end}");
    let said = text(&output.stderr);
    for path in &files {
        let name = path.file_name().expect("a name").to_str().expect("text");
        assert!(said.contains(&format!("writing to files/{name}")), "{said}");
    }
    rig.end();
}

#[test]
fn a_ring_never_has_more_files_and_the_newest_have_the_newest_packets() {
    let mut rig = Rig::new(|_| {});
    let folder = rig.place.path().join("files");
    std::fs::create_dir(&folder).expect("a folder");
    let other = folder.join("x_00001_20200101000000.pcap");
    std::fs::write(&other, "of another run").expect("a file");
    let args = ["--pcap", "files/x.pcap", "--rotate-size", "4K", "--files", "3"];
    let child = rig.start(&args, 1);
    // Of 116 bytes in a file, of which 35 have room beside its header.
    for first in (0..600).step_by(20) {
        rig.lend(0, &flows(first..first + 20, 100));
        rig.settle();
        assert!(captures(&folder).len() <= 4);
    }
    let output = interrupt(child);
    assert!(text(&output.stdout).ends_with("written to 18 files, files/x_*.pcap\n"), "{output:?}");
    let mut files = captures(&folder);
    assert_eq!(files.remove(0), other);
    let read = |path: &PathBuf| parse_pcap(&std::fs::read(path).expect("a file")).1;
    let kept: Vec<Vec<u8>> = files.iter().flat_map(read).map(|record| record.2).collect();
    let newest: Vec<_> = (600 - 2 * 35 - 600 % 35..600).map(|flow| udp(flow as u16, 100)).collect();
    assert!(files.len() == 3 && kept == newest, "{files:?}: {} packets", kept.len());
    rig.end();
}

#[test]
fn a_file_ends_at_its_time_although_nothing_comes_and_while_there_is_no_lender() {
    let mut rig = Rig::new(|_| {});
    let folder = rig.place.path().join("files");
    std::fs::create_dir(&folder).expect("a folder");
    let args = ["--reconnect", "--pcap", "files/x.pcap", "--rotate-time", "100ms"];
    let child = rig.start(&args, 1);
    for files in 1..=2 {
        // There is one without packets, however long nothing comes.
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(captures(&folder).len(), files);
        rig.lend(0, &flows(0..9, 100));
        rig.settle();
        if files == 2 {
            rig.end_lender();
        }
        assert!(comes_true(|| captures(&folder).len() == files + 1));
        assert_eq!(count(&captures(&folder)[files - 1]), 9);
    }
    interrupt(child);
    assert_eq!(captures(&folder).len(), 3);
    rig.end();
}

#[test]
fn a_reader_of_packets_that_has_stopped_does_not_hold_up_a_signal() {
    let mut rig = Rig::new(|_| {});
    let mut child = rig.start(&["--pcap", "-"], 1);
    let unread = child.stdout.take().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&unread, 8192).expect("a small pipe");
    let held = || rustix::io::ioctl_fionread(&unread).expect("a pipe");
    rig.lend(0, &flows(0..30, 1400));
    assert!(comes_true(|| held() > 4096));
    // So long that it would be full.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("cannot write") && said.contains("nobody reads it"), "{said}");
    drop(unread);
    rig.end();
}

#[test]
fn a_folder_that_goes_ends_it_with_an_error() {
    let mut rig = Rig::new(|_| {});
    let folder = rig.place.path().join("files");
    std::fs::create_dir(&folder).expect("a folder");
    let mut child = rig.start(&["--pcap", "files/x.pcap", "--rotate-size", "4K"], 1);
    rig.lend(0, &flows(0..30, 100));
    rig.settle();
    let elsewhere = rig.place.path().join("elsewhere");
    std::fs::rename(&folder, &elsewhere).expect("it may be renamed");
    assert!(comes_true(|| {
        rig.collect();
        rig.lend(0, &flows(30..31, 100));
        child.try_wait().expect("its status").is_some()
    }));
    let output = child.wait_with_output().expect("its output");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write files/x_00002_"), "{said}");
    assert_eq!(captures(&elsewhere).iter().map(|path| count(path)).collect::<Vec<_>>(), [35]);
    rig.settle();
    rig.end();
}

/// Captures to a disk of this size until it is full; its packets as they are in the files then.
fn fill_disk(rig: &mut Rig, size: u32, args: &str) -> (std::process::Output, Vec<PathBuf>) {
    let (disk, out) = (rig.place.path().join("disk"), rig.place.path().join("out"));
    for folder in [&disk, &out] {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir(folder).expect("a folder");
    }
    let (socket, disk, to) = (rig.socket.display(), disk.display(), out.display());
    let script = format!(
        "mount -t tmpfs -o size={size} tmpfs {disk}; code=0; \
         {PROGRAM} borrow {socket} --json --pcap {disk}/x.pcap {args} || code=$?; \
         cp {disk}/* {to}; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let until = Instant::now() + SOON;
    while child.try_wait().expect("its status").is_none() {
        assert!(Instant::now() < until, "it does not end: {:?}", error(child));
        rig.collect();
        rig.lend(0, &flows(0..8, 1500));
    }
    rig.settle();
    (child.wait_with_output().expect("its output"), captures(&out))
}

#[test]
fn root_a_full_disk_ends_it_with_an_error_and_with_json_says_so_in_the_end_object() {
    let test = "root_a_full_disk_ends_it_with_an_error_and_with_json_says_so_in_the_end_object";
    if !root(test) {
        return;
    }
    let mut rig = Rig::new(|_| {});
    // In records of 1516 bytes: files end after a whole one, and there is none without a header.
    for (size, args, expected) in
        [(4096, "", &[2][..]), (12288, "--rotate-size 4K", &[2, 2, 2]), (16384, "", &[10])]
    {
        let (output, files) = fill_disk(&mut rig, size, args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let end = object(&output);
        assert_eq!((&end["event"], &end["ended_by"]), (&"end".into(), &"error".into()), "{end}");
        assert!(end["error"].as_str().is_some_and(|said| said.contains("No space left")), "{end}");
        assert_eq!(files.iter().map(|path| count(path)).collect::<Vec<_>>(), expected);
        assert_eq!(end["files"], expected.len(), "{end}");
    }
    rig.end();
}

#[test]
fn root_a_ring_makes_room_for_itself_on_a_disk_that_has_none() {
    if !root("root_a_ring_makes_room_for_itself_on_a_disk_that_has_none") {
        return;
    }
    let mut rig = Rig::new(|_| {});
    let args = "--rotate-size 4K --files 3 --count 101";
    let (output, files) = fill_disk(&mut rig, 12288, args);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(files.iter().map(|path| count(path)).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(object(&output)["files"], 51);
    rig.end();
}

/// What a program of Wireshark's says.
fn says(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("it runs");
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn wireshark_finds_the_device_the_host_and_the_losses_in_a_pcapng_file() {
    let mut rig = Rig::new(|options| options.device = "eth7".into());
    let args = ["--json", "--pcap", "x.pcapng", "--snaplen", "200", "--filter", "greater 1"];
    let child = rig.start(&args, 1);
    rig.lend(0, &flows(0..8, 100));
    rig.settle();
    // At once more than its quota: what comes then tells of it.
    rig.lend(0, &flows(0..40, 1000));
    rig.settle();
    rig.lend(0, &[vec![udp(9, 2048), vec![7; 51]]]);
    rig.settle();
    rig.lend(0, &flows(0..1, 61));
    rig.settle();
    let end = object(&interrupt(child));
    assert_eq!((&end["packets"], &end["dropped"]), (&42.into(), &8.into()), "{end}");
    let path = rig.place.path().join("x.pcapng");
    let file = path.to_str().expect("text");

    let fields = ["interface_name", "time_epoch", "len", "cap_len", "drop_count"];
    let fields = fields.map(|field| format!("-eframe.{field}"));
    let mut args = vec!["-r", file, "-Tfields"];
    args.extend(fields.iter().map(String::as_str));
    let said = says("tshark", &args);
    let packets: Vec<Vec<&str>> = said.lines().map(|line| line.split('\t').collect()).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    for packet in &packets {
        assert_eq!(packet[0], "eth7");
        let time: f64 = packet[1].parse().expect("a time");
        assert!((now - 60.0..=now).contains(&time), "{time}, now {now}");
    }
    let rest: Vec<[&str; 3]> = packets.iter().map(|p| [p[2], p[3], p[4]]).collect();
    assert_eq!(rest[..8], [["100", "100", ""]; 8]);
    assert_eq!(rest[8..40], [["1000", "200", ""]; 32]);
    assert_eq!(rest[40..], [["2099", "200", "8"], ["61", "61", ""]]);

    let said = says("capinfos", &[file]);
    let lines: Vec<String> =
        said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let version = env!("CARGO_PKG_VERSION");
    for expected in [
        "File type: Wireshark/... - pcapng",
        "Number of packets: 42",
        "Capture length = 200",
        "Time precision = nanoseconds (9)",
        "Name = eth7",
        "Filter string = greater 1",
        "Number of stat entries = 1",
        "Number of packets = 42",
        &format!("Capture application: cachelane {version}"),
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {said}");
    }
    assert!(lines.iter().any(|line| line.starts_with("Capture oper-sys: Linux ")), "{said}");
    // The file as blocks.
    let said = says("tshark", &["-X", "read_format:MIME Files Format", "-r", file, "-V"]);
    for expected in ["Received Packets: 50", "Dropped Packets: 8"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(tcpdump(&path), 42);
    rig.end();
}

#[test]
fn the_format_is_the_names_unless_it_is_given_and_each_file_of_a_rotation_has_its_own_counts() {
    for (name, args, is_pcapng) in [
        ("a.pcap", &[][..], false),
        ("a.PCAPNG", &[], true),
        ("a", &["--format", "pcapng"], true),
        ("a.pcapng", &["--format", "pcap"], false),
    ] {
        let mut rig = Rig::new(|_| {});
        let child = rig.start(&[&["--pcap", name], args].concat(), 1);
        rig.lend(0, &flows(0..3, 100));
        rig.settle();
        interrupt(child);
        let path = rig.place.path().join(name);
        let magic = std::fs::read(&path).expect("a file")[..4] == 0x0a0d_0d0a_u32.to_ne_bytes();
        assert_eq!((magic, tcpdump(&path)), (is_pcapng, 3), "{name} {args:?}");
        rig.end();
    }
    let mut rig = Rig::new(|_| {});
    let folder = rig.place.path().join("files");
    std::fs::create_dir(&folder).expect("a folder");
    let child = rig.start(&["--pcap", "files/x.pcapng", "--rotate-size", "8K"], 1);
    for _ in 0..10 {
        rig.lend(0, &flows(0..30, 100));
        rig.settle();
    }
    interrupt(child);
    let files = captures(&folder);
    let mut packets = 0;
    for path in &files {
        assert!(path.metadata().expect("a file").len() <= 8192, "{path:?}");
        let said = says("capinfos", &["-M", "-c", "-I", path.to_str().expect("text")]);
        assert!(said.contains("Number of stat entries = 1"), "{said}");
        packets += tcpdump(path);
    }
    assert_eq!(packets, 300, "{files:?}");
    rig.end();
}
