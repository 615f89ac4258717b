use std::fs;

use super::*;

const NONE: Rotation = Rotation { size: None, time: None, files: None };

fn time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789)
}

#[test]
fn a_packet_is_written_with_its_time_and_length_and_cut_at_the_snaplen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let mut capture = create(&path, NONE, Format::Pcap, 5).expect("a header");
    capture.packet(time(), &[b"abc"]).unwrap();
    capture.packet(time(), &[b"abc", b"defg", b"h"]).unwrap();
    capture.finish().unwrap();
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!([word(0), word(16), word(20)], [0xa1b2_3c4d, 5, 1]);
    assert_eq!([word(24), word(28), word(32), word(36)], [1_700_000_000, 123_456_789, 3, 3]);
    assert_eq!(bytes[40..43], *b"abc");
    assert_eq!([word(51), word(55)], [5, 8]);
    assert_eq!(bytes[59..], *b"abcde");
}

/// The blocks of a pcapng file: of each, its type and what is in it.
fn blocks(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut rest = bytes;
    let mut blocks = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        let len = word(4) as usize;
        assert!(len.is_multiple_of(4) && word(len - 4) as usize == len, "{len}");
        blocks.push((word(0), rest[8..len - 4].to_vec()));
        rest = &rest[len..];
    }
    blocks
}

#[test]
fn pcapng_has_the_device_what_was_lost_and_how_much_there_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pcapng");
    let mut capture = create(&path, NONE, Format::Pcapng, 5).expect("a header");
    capture.packet(time(), &[b"abc"]).unwrap();
    capture.lost(7);
    capture.packet(time(), &[b"abc", b"defg", b"h"]).unwrap();
    capture.lost(9);
    capture.finish().unwrap();
    let blocks = blocks(&fs::read(path).unwrap());
    let types: Vec<u32> = blocks.iter().map(|block| block.0).collect();
    assert_eq!(types, [0x0a0d_0d0a, 1, 6, 6, 5]);
    let numbers = |values: &[u32]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>();
    let nanoseconds = 1_700_000_000_123_456_789_u64;
    let [high, low] = [(nanoseconds >> 32) as u32, nanoseconds as u32];
    assert_eq!(blocks[2].1, [&numbers(&[0, high, low, 3, 3])[..], b"abc\0"].concat());
    // What is lost is told once, and by the packet after it.
    let lost = [&4_u16.to_ne_bytes()[..], &8_u16.to_ne_bytes(), &7_u64.to_ne_bytes(), &[0; 4]];
    let second = [&numbers(&[0, high, low, 5, 8])[..], b"abcde\0\0\0", &lost.concat()].concat();
    assert_eq!(blocks[3].1, second);
    let (received, dropped) = (&blocks[4].1[40..48], &blocks[4].1[52..60]);
    assert_eq!((received, dropped), (&11_u64.to_ne_bytes()[..], &9_u64.to_ne_bytes()[..]));
}

#[test]
fn what_was_lost_is_counted_in_the_file_that_was_written_then() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Rotation { size: Some(4096), ..NONE };
    let path = folder.path().join("x.pcapng");
    let mut capture = create(&path, rotation, Format::Pcapng, 262_144).expect("a file");
    for lost in [3, 4, 4, 10] {
        capture.packet(time(), &[&[7; 3500]]).unwrap();
        capture.lost(lost);
    }
    capture.finish().unwrap();
    let mut counted = Vec::new();
    for (path, bytes) in sizes(folder.path()) {
        assert!(bytes <= 4096, "{path:?}: {bytes}");
        let statistics = blocks(&fs::read(path).unwrap()).pop().unwrap().1;
        counted.push(u64::from_ne_bytes(statistics[52..60].try_into().unwrap()));
    }
    assert_eq!(counted, [3, 1, 0, 6]);
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let full = create("/dev/full".as_ref(), NONE, Format::Pcap, 99).map(drop).unwrap_err();
    assert_eq!(full.to_string(), "cannot write /dev/full");
}

/// A capture of the device eth7.
fn create(
    path: &Path,
    rotation: Rotation,
    format: Format,
    snaplen: u32,
) -> anyhow::Result<Capture> {
    let origin = Origin { snaplen, device: Some("eth7".into()), filter: None };
    Capture::create(path, rotation, format, origin)
}

/// The files in a folder by name, with how many bytes each has.
fn sizes(folder: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut sizes: Vec<_> =
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect();
    sizes.sort();
    sizes
}

#[test]
fn a_file_is_complete_before_the_next_and_no_larger_than_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Rotation { size: Some(4096), ..NONE };
    let mut capture =
        create(&folder.path().join("x.pcap"), rotation, Format::Pcap, 262_144).expect("a file");
    // 24 bytes of header, and ten records of 400 bytes.
    for _ in 0..25 {
        capture.packet(time(), &[&[7; 384]]).unwrap();
    }
    let there: Vec<u64> = sizes(folder.path()).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(there, [4024, 4024, 24], "the last one is not flushed yet");
    // One that has no room in any file, between others.
    capture.packet(time(), &[&[7; 5000]]).unwrap();
    capture.packet(time(), &[&[7; 384]]).unwrap();
    capture.finish().unwrap();
    let there: Vec<u64> = sizes(folder.path()).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(there, [4024, 4024, 2024, 5040, 424]);
}

#[test]
fn a_file_that_is_old_makes_room_for_another_if_it_has_packets() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Rotation { time: Some(Duration::from_secs(3600)), files: Some(2), ..NONE };
    let mut capture =
        create(&folder.path().join("x.pcap"), rotation, Format::Pcap, 262_144).expect("a file");
    let mut now = Instant::now();
    let mut turn = |capture: &mut Capture, minutes: u64| {
        now += Duration::from_secs(60 * minutes);
        capture.turn(now).unwrap();
        sizes(folder.path()).into_iter().map(|(_, bytes)| bytes).collect::<Vec<u64>>()
    };
    assert_eq!(turn(&mut capture, 61), [24], "nothing came");
    capture.packet(time(), &[&[7; 84]]).unwrap();
    assert_eq!(turn(&mut capture, 59), [24], "an hour after the last look");
    assert_eq!(turn(&mut capture, 2), [124, 24]);
}

#[test]
fn a_folder_that_goes_is_an_error_and_what_was_written_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Rotation { size: Some(4096), ..NONE };
    let path = folder.path().join("x.pcap");
    let mut capture = create(&path, rotation, Format::Pcap, 262_144).expect("a file");
    capture.packet(time(), &[&[7; 4000]]).unwrap();
    fs::rename(folder.path(), folder.path().with_extension("elsewhere")).unwrap();
    let refused = capture.packet(time(), &[&[7; 4000]]).unwrap_err();
    assert!(refused.to_string().starts_with("cannot write "), "{refused}");
    let elsewhere = folder.path().with_extension("elsewhere");
    let there: Vec<u64> = sizes(&elsewhere).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(there, [4040], "what was written is whole");
    capture.finish().expect("nothing is left");
    fs::remove_dir_all(elsewhere).unwrap();
}

#[test]
fn values_that_are_too_small_are_refused() {
    assert_eq!(rotate_size("100M"), Ok(100 << 20));
    assert_eq!(rotate_size("4095").unwrap_err(), "'4095' is too small (expected at least 4K)");
    assert_eq!(rotate_time("1h"), Ok(Duration::from_secs(3600)));
    assert_eq!(rotate_time("0s").unwrap_err(), "'0s' is too short (expected at least 100ms)");
}
