//! `cachelane borrow --filter`: what it handles, and what it gives back at once.

use crate::common::text;
use crate::rig::{Rig, ends, flows, object, udp};

/// All tasks do the same: packets of flows 0 to 9 come, those of four match; then one in two parts, of
/// which the filter sees the first, and the length.
#[test]
fn packets_that_the_filter_does_not_match_are_given_back_and_counted() {
    const FILTER: &str = "udp src portrange 3-6 or greater 1800";
    for (task, more) in
        [("count", &[][..]), ("worker", &["--worker", "1"]), ("pcap", &["--pcap", "some.pcap"])]
    {
        let mut rig = Rig::new(|_| {});
        let child = rig.start(&[&["--json", "--filter", FILTER], more].concat(), 1);
        for _ in 0..10 {
            rig.lend(0, &flows(0..10, 100));
            rig.settle();
        }
        rig.lend(1, &[vec![udp(1, 1000), udp(2, 1000)], vec![udp(1, 500), udp(4, 500)]]);
        rig.settle();
        let file = rig.place.path().join("some.pcap");
        rig.end_lender();
        let output = ends(child);
        let end = object(&output);
        assert!(output.status.success(), "{output:?}");
        let expect = |name: &str, value: u64| assert_eq!(end[name], value, "{name}: {end:#}");
        expect("packets", 41);
        expect("filtered", 61);
        expect("bytes", 40 * 100 + 2000);
        assert_eq!((&end["task"], &end["filter"]), (&task.into(), &FILTER.into()), "{end:#}");
        assert_eq!(end["workers"][0]["filtered"], 61, "{end:#}");
        if task == "pcap" {
            let length = std::fs::metadata(file).expect("a capture").len();
            assert_eq!(length, 24 + 41 * 16 + 40 * 100 + 2000);
        }
        rig.end();
    }
}

#[test]
fn how_many_a_filter_does_not_match_is_said() {
    let mut rig = Rig::new(|_| {});
    let child = rig.start(&["--filter", "tcp"], 1);
    rig.lend(0, &flows(0..10, 100));
    rig.settle();
    rig.end();
    let said = ends(child);
    let said = text(&said.stdout);
    assert!(said.contains("no packets in "), "{said}");
    assert!(said.contains("10 packets given back that 'tcp' does not match\n"), "{said}");
}

#[test]
fn a_filter_that_cannot_be_used_is_named_before_anything_is_borrowed() {
    let rig = Rig::new(|_| {});
    let socket = rig.socket.to_str().expect("text");
    let run = |filter: &str, more: &[&str], set: &[(&str, &str)]| {
        let mut command =
            rig.place.command(&[&["borrow", socket, "--filter", filter], more].concat());
        command.envs(set.iter().copied()).output().expect("it runs")
    };
    for (filter, more, says) in [
        (
            "tcp prot 80",
            &[][..],
            &["--filter 'tcp prot 80'", "syntax error", "man pcap-filter"][..],
        ),
        ("", &[], &["--filter ''", "nothing is in it", "'tcp port 80'"]),
        ("inbound", &[], &["--filter 'inbound'", "the packet's type", "not in the packet"]),
        ("tcp", &["--", "tcpdump"], &["--filter", "cannot be used with"]),
    ] {
        let output = run(filter, more, &[]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        for part in says {
            assert!(text(&output.stderr).contains(part), "{part}: {output:?}");
        }
    }
    // As on a host without libpcap: the loader finds what is none.
    let folder = rig.place.path().join("none");
    std::fs::create_dir(&folder).expect("a folder");
    for name in ["libpcap.so.1", "libpcap.so.0.8"] {
        std::fs::write(folder.join(name), "none").expect("a file");
    }
    let output = run("tcp", &[], &[("LD_LIBRARY_PATH", folder.to_str().expect("text"))]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    for part in [
        "--filter: libpcap",
        "cannot be loaded",
        "libpcap.so.0.8",
        "install it (Debian: libpcap0.8",
    ] {
        assert!(text(&output.stderr).contains(part), "{part}: {output:?}");
    }
    // Nor has it the address of a name at all times.
    let output = run(&format!("host {}.invalid", "x".repeat(64)), &[], &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains(".invalid': unknown host '"), "{output:?}");
    assert!(rig.lender().borrowers().is_empty());
    rig.end();
}
