use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The packet path's map, in memory, with room for so many.
#[derive(Debug)]
struct Map(BTreeMap<Key, (u32, u32, u32)>, usize);

impl StationMap for Map {
    fn set(&mut self, key: Key, station: Station) -> Result<bool> {
        if !self.0.contains_key(&key) && self.0.len() == self.1 {
            return Ok(false);
        }
        let flags = station.place & (STATION_AGELESS | STATION_FIXED);
        self.0.insert(key, (station.place & 1023, station.place >> STATION_SLOT_SHIFT, flags));
        Ok(true)
    }

    fn remove(&mut self, key: Key) -> Result<()> {
        self.0.remove(&key);
        Ok(())
    }
}

fn key(last: u8) -> Key {
    crate::state::Mac([2, 0, 0, 0, 0, last]).into()
}

fn entry(last: u8, port: u32) -> Entry {
    let kind = EntryKind::Ageing;
    Entry { key: key(last), port, kind, sticky: false, kernel_only: false }
}

fn mirror(capacity: u32) -> (Mirror, Map) {
    let (mut mirror, mut map) = (Mirror::new(capacity), Map(BTreeMap::new(), usize::MAX));
    mirror.set_ports(HashMap::from([(11, 1), (12, 2)]), &mut map).unwrap();
    (mirror, map)
}

#[test]
fn only_what_the_packet_path_may_use_is_mirrored() {
    let (mut mirror, mut map) = mirror(8);
    let entries = [
        entry(1, 11),
        Entry { kind: EntryKind::Static, ..entry(2, 12) },
        Entry { kind: EntryKind::Static, sticky: true, ..entry(3, 12) },
        Entry { kind: EntryKind::Local, ..entry(4, 11) },
        Entry { kernel_only: true, ..entry(5, 11) },
        entry(6, 99),
    ];
    mirror.rebuild(&entries, &mut map).unwrap();
    let held: Vec<_> =
        map.0.iter().map(|(key, (port, _, flags))| (key.mac.0[5], *port, *flags)).collect();
    assert_eq!(held, [(1, 1, 0), (2, 2, STATION_AGELESS), (3, 2, STATION_AGELESS | STATION_FIXED)]);
    assert_eq!(mirror.mapped, 3);
}

#[test]
fn a_station_that_becomes_the_kernels_leaves_the_table() {
    let (mut mirror, mut map) = mirror(8);
    for change in [
        Change::Set(Entry { kind: EntryKind::Local, ..entry(1, 11) }),
        Change::Set(Entry { kernel_only: true, ..entry(1, 11) }),
        Change::Set(entry(1, 99)),
        Change::Removed(key(1)),
    ] {
        mirror.apply(Change::Set(entry(1, 11)), &mut map).unwrap();
        assert!(map.0.contains_key(&key(1)));
        mirror.apply(change, &mut map).unwrap();
        assert!(map.0.is_empty(), "{change:?}");
    }
}

#[test]
fn what_finds_no_room_gets_in_when_another_leaves() {
    let (mut mirror, mut map) = mirror(2);
    let entries: Vec<Entry> = (1..=3).map(|last| entry(last, 11)).collect();
    mirror.rebuild(&entries, &mut map).unwrap();
    assert_eq!((mirror.mapped, mirror.left_out.len()), (2, 1));
    mirror.apply(Change::Removed(key(1)), &mut map).unwrap();
    assert_eq!((mirror.mapped, mirror.left_out.len()), (2, 0));
    assert!(map.0.contains_key(&key(3)));
}

#[test]
fn what_finds_its_buckets_full_gets_in_when_another_leaves() {
    let (mut mirror, mut map) = mirror(8);
    map.1 = 2;
    let entries: Vec<Entry> = (1..=4).map(|last| entry(last, 11)).collect();
    mirror.rebuild(&entries, &mut map).unwrap();
    assert_eq!((mirror.mapped, mirror.left_out.len()), (2, 2));
    let gone = *map.0.keys().next().unwrap();
    mirror.apply(Change::Removed(gone), &mut map).unwrap();
    assert_eq!((mirror.mapped, mirror.left_out.len(), map.0.len()), (2, 1, 2));
}

#[test]
fn an_address_in_two_vlans_is_two_stations() {
    let (mut mirror, mut map) = mirror(8);
    let [one, other] = [(10, 11), (20, 12)].map(|(vlan, port)| {
        let key = Key { vlan, ..key(1) };
        Entry { key, ..entry(1, port) }
    });
    mirror.rebuild(&[one, other], &mut map).unwrap();
    let held = |map: &Map| -> Vec<(u16, u32)> {
        map.0.iter().map(|(key, (port, _, _))| (key.vlan, *port)).collect()
    };
    assert_eq!(held(&map), [(10, 1), (20, 2)]);
    mirror.apply(Change::Removed(one.key), &mut map).unwrap();
    assert_eq!(held(&map), [(20, 2)]);
    assert_eq!((mirror.entry(one.key), mirror.entry(other.key)), (None, Some(&other)));
}

#[test]
fn stations_follow_their_ports() {
    let (mut mirror, mut map) = mirror(8);
    mirror.rebuild(&[entry(1, 11), entry(2, 12), entry(3, 13)], &mut map).unwrap();
    mirror.set_ports(HashMap::from([(12, 2), (13, 1)]), &mut map).unwrap();
    let held: Vec<_> = map.0.iter().map(|(key, (port, _, _))| (key.mac.0[5], *port)).collect();
    assert_eq!(held, [(2, 2), (3, 1)]);
}

proptest! {
    /// Whatever happens, the table holds exactly the usable entries of the kernel's table, no two
    /// of them in one slot, and a rebuild from the kernel's table changes nothing.
    #[test]
    fn the_table_is_the_usable_part_of_the_kernels(
        steps in proptest::collection::vec((0..12_u8, 10..14_u32, 0..6_u8), 1..200)
    ) {
        let (mut mirror, mut map) = mirror(64);
        let mut kernel = BTreeMap::new();
        for (last, port, what) in steps {
            let change = match what {
                0 => Change::Removed(key(last)),
                1 => Change::Set(Entry { kind: EntryKind::Local, ..entry(last, port) }),
                2 => Change::Set(Entry { kernel_only: true, ..entry(last, port) }),
                3 => Change::Set(Entry { kind: EntryKind::Static, ..entry(last, port) }),
                _ => Change::Set(entry(last, port)),
            };
            match change {
                Change::Set(entry) => kernel.insert(entry.key, entry),
                Change::Removed(key) => kernel.remove(&key),
            };
            mirror.apply(change, &mut map).unwrap();
            let usable = |e: &&Entry| {
                e.kind != EntryKind::Local && !e.kernel_only && (e.port == 11 || e.port == 12)
            };
            let expected: Vec<_> =
                kernel.values().filter(usable).map(|e| (e.key, e.port - 10)).collect();
            let held: Vec<_> = map.0.iter().map(|(key, (port, _, _))| (*key, *port)).collect();
            prop_assert_eq!(held, expected);
            let mut slots: Vec<u32> = map.0.values().map(|(_, slot, _)| *slot).collect();
            slots.sort_unstable();
            slots.dedup();
            prop_assert_eq!(slots.len(), map.0.len());
        }
        let before = map.0.clone();
        let entries: Vec<Entry> = kernel.into_values().collect();
        mirror.rebuild(&entries, &mut map).unwrap();
        prop_assert_eq!(map.0, before);
    }
}
