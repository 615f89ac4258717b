//! The forwarding table: whole, one by one, and as it changes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::UdpSocket;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{LIMIT, Rig, kernel::add_watched};
use crate::host::ROOM;
use crate::host::{Reader, Watch};
use crate::state::{Key, Mac, State};
use crate::{Change, Entry, EntryKind, ErrorKind};

#[test]
fn root_entries_of_every_kind_are_read_and_announced_in_order() {
    let test = "root_entries_of_every_kind_are_read_and_announced_in_order";
    let Some(rig) = Rig::new(test) else { return };
    rig.run(|reader, state| {
        let (bridge, p0) = (state.bridge.index, state.ports[0].index);
        let entry = |key, kind| Entry { key, port: p0, kind, sticky: false, kernel_only: false };
        let cases = [
            ("dev p0 master dynamic", entry(ours(0), EntryKind::Ageing)),
            ("dev p0 master static", entry(ours(1), EntryKind::Static)),
            ("dev p0 master permanent", entry(ours(2), EntryKind::Local)),
            ("dev p0 master extern_learn", entry(ours(3), EntryKind::Static)),
            (
                "dev p0 master static sticky",
                Entry { sticky: true, ..entry(ours(4), EntryKind::Static) },
            ),
            ("dev br0 self permanent", Entry { port: bridge, ..entry(ours(5), EntryKind::Local) }),
        ];
        let mut watch = Watch::new(bridge, ROOM).expect("a watch");
        for (how, entry) in &cases {
            rig.step(&format!("bridge fdb add {} {how}", entry.key.mac));
        }
        add_watched(p0, ours(6).mac);
        let watched = Entry { kernel_only: true, ..entry(ours(6), EntryKind::Static) };
        let mut expected: Vec<_> = cases.iter().map(|(_, entry)| *entry).collect();
        expected.push(watched);
        // A device's own list of addresses is no part of the table.
        rig.step(&format!("bridge fdb add {} dev p0 self", ours(7)));

        let announced = drain_ours(&mut watch);
        assert_eq!(announced, expected.iter().map(|e| Change::Set(*e)).collect::<Vec<_>>());
        assert_eq!(read(reader, bridge), by_key(&expected));
        for entry in &expected {
            let found = reader.station(bridge, entry.key).expect("an answer");
            assert_eq!(found, Some(*entry));
        }
        assert_eq!(reader.station(bridge, ours(7)).expect("an answer"), None);
    });
}

#[test]
fn root_locked_entries_are_the_kernel_s_alone() {
    let Some(rig) = Rig::new("root_locked_entries_are_the_kernel_s_alone") else { return };
    rig.run(|reader, state| {
        rig.step("bridge link set dev p0 locked on");
        rig.step("set p0 mab on");
        let mut watch = Watch::new(state.bridge.index, ROOM).expect("a watch");
        rig.step(&format!("a: ip link set eth0 address {}", ours(1)));
        // Asks for the hardware address of that one, by a broadcast.
        let (from, to) = (rig.bridge.members[0].socket(0), rig.bridge.members[1].socket(9));
        let sent = rig.a.run(|| UdpSocket::bind(from)?.send_to(b"?", to));
        sent.expect("a thread in the host").expect("sending");
        let expected = Entry {
            key: ours(1),
            port: state.ports[0].index,
            kind: EntryKind::Ageing,
            sticky: false,
            kernel_only: true,
        };
        assert_eq!(await_change(&mut watch, ours(1)), Change::Set(expected));
        assert_eq!(reader.station(state.bridge.index, ours(1)).expect("an answer"), Some(expected));
    });
}

#[test]
fn root_notifications_come_to_what_the_kernel_has() {
    let Some(rig) = Rig::new("root_notifications_come_to_what_the_kernel_has") else { return };
    let mut random = SmallRng::seed_from_u64(1);
    rig.run(|reader, state| {
        let mut watch = Watch::new(state.bridge.index, ROOM).expect("a watch");
        let mut mirror = HashMap::new();
        for round in 0..5 {
            let mut commands = String::new();
            for _ in 0..500 {
                let (mac, port) = (ours(random.random_range(0..40)), random.random_range(0..2));
                let command = match random.random_range(0..4) {
                    0 => format!("del {mac} dev p{port} master"),
                    1 => format!("replace {mac} dev p{port} master static"),
                    2 => format!("replace {mac} dev p{port} master static sticky"),
                    _ => format!("replace {mac} dev p{port} master dynamic"),
                };
                writeln!(commands, "fdb {command}").expect("a string");
            }
            batch(&rig, commands);
            for change in drain_ours(&mut watch) {
                match change {
                    Change::Set(entry) => mirror.insert(entry.key, entry),
                    Change::Removed(key) => mirror.remove(&key),
                };
            }
            assert!(!mirror.is_empty());
            assert_eq!(mirror, read(reader, state.bridge.index), "after round {round}");
        }
    });
}

#[test]
fn root_lost_notifications_are_reported_once_and_leave_nothing_stale() {
    let test = "root_lost_notifications_are_reported_once_and_leave_nothing_stale";
    let Some(rig) = Rig::new(test) else { return };
    rig.run(|_, state| {
        let mut watch = Watch::new(state.bridge.index, 8 << 10).expect("a watch");
        add_many(&rig, 0..500);
        let lost = watch.drain(&mut Vec::new()).expect_err("they cannot all have fitted");
        assert_eq!(lost.kind(), ErrorKind::Overrun);
        assert_eq!(drain_ours(&mut watch), []);
        add_many(&rig, 500..501);
        let (_, entry) = many(500, state);
        assert_eq!(drain_ours(&mut watch), [Change::Set(entry)]);
    });
}

#[test]
fn root_a_long_table_is_read_whole() {
    let Some(rig) = Rig::new("root_a_long_table_is_read_whole") else { return };
    rig.run(|reader, state| {
        add_many(&rig, 0..20_000);
        let begin = Instant::now();
        let table = read(reader, state.bridge.index);
        println!("20,000 entries in {:?}", begin.elapsed());
        let expected: HashMap<_, _> = (0..20_000).map(|n| many(n, state)).collect();
        assert_eq!(table.len(), expected.len());
        assert!(table == expected);
    });
}

#[test]
fn root_tables_of_other_bridges_stay_apart() {
    let Some(rig) = Rig::new("root_tables_of_other_bridges_stay_apart") else { return };
    rig.step("ip link add br1 type bridge");
    rig.step("ip link add v0 type veth peer name v1");
    rig.step("ip link set v0 master br1");
    rig.run(|reader, state| {
        let mut watch = Watch::new(state.bridge.index, ROOM).expect("a watch");
        rig.step(&format!("bridge fdb add {} dev v0 master static", ours(1)));
        assert_eq!(drain_ours(&mut watch), []);
        assert_eq!(read(reader, state.bridge.index), HashMap::new());
        let other = reader.state("br1").expect("the other's state").bridge.index;
        assert_eq!(read(reader, other).len(), 1);
    });
}

/// The addresses of these tests.
fn ours(number: u32) -> Key {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([0x06, 0xaa, a, b, c, d]).into()
}

fn is_ours(key: &Key) -> bool {
    key.mac.0.starts_with(&[0x06, 0xaa])
}

fn key_of(change: &Change) -> Key {
    match change {
        Change::Set(entry) => entry.key,
        Change::Removed(key) => *key,
    }
}

/// What was announced of the addresses of these tests; the hosts have some of their own to tell.
fn drain_ours(watch: &mut Watch) -> Vec<Change> {
    let mut changes = Vec::new();
    watch.drain(&mut changes).expect("nothing is lost");
    changes.retain(|change| is_ours(&key_of(change)));
    changes
}

fn by_key(entries: &[Entry]) -> HashMap<Key, Entry> {
    let found: HashMap<_, _> = entries.iter().map(|entry| (entry.key, *entry)).collect();
    assert_eq!(found.len(), entries.len(), "an address twice");
    found
}

/// The kernel's entries of these tests.
fn read(reader: &mut Reader, bridge: u32) -> HashMap<Key, Entry> {
    let mut entries = reader.stations(bridge).expect("the table");
    entries.retain(|entry| is_ours(&entry.key));
    by_key(&entries)
}

/// Static entries on p0 and p1 in turn.
fn add_many(rig: &Rig, numbers: std::ops::Range<u32>) {
    let mut commands = String::new();
    for n in numbers {
        let add = format_args!("fdb add {} dev p{} master static", ours(n), n % 2);
        writeln!(commands, "{add}").expect("a string");
    }
    batch(rig, commands);
}

fn many(n: u32, state: &State) -> (Key, Entry) {
    let port = state.ports[n as usize % 2].index;
    let kind = EntryKind::Static;
    (ours(n), Entry { key: ours(n), port, kind, sticky: false, kernel_only: false })
}

/// Commands of `bridge`; those that the kernel refuses are passed over.
fn batch(rig: &Rig, commands: String) {
    let bridge = rig.host().command("bridge").args(["-force", "-batch", "-"]);
    bridge.stderr(std::process::Stdio::null()).input(commands).output().expect("bridge runs");
}

/// The next change of this address's entry.
fn await_change(watch: &mut Watch, key: Key) -> Change {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let mut changes = Vec::new();
        watch.drain(&mut changes).expect("nothing is lost");
        if let Some(change) = changes.into_iter().find(|change| key_of(change) == key) {
            return change;
        }
        let fds = watch.fds();
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).expect("polling");
    }
    panic!("nothing about {key}");
}
