//! Two users, one of them hostile: real processes, which are this test program run again as
//! somebody else.
#![allow(unsafe_code)]

mod common;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use cachelane_lend::LenderOptions;
use cachelane_lend::layout::{GROUP_SHIFT, Hello};
use common::part::{Part, playing, ready_for_ever};
use common::*;
use zerocopy::IntoBytes as _;

const HOSTILE: u32 = 65_534;
const HONEST: u32 = 65_533;

/// Not a test: what the processes do that the others start.
#[test]
fn play_a_part() {
    let Some((part, socket)) = playing() else { return };
    let socket = &*socket;
    let user = if part.starts_with("honest") { HONEST } else { HOSTILE };
    // SAFETY: it takes a number; the C library changes all threads.
    assert_eq!(unsafe { libc::setuid(user) }, 0);
    match &*part {
        "hostile: joins and keeps all" => {
            for _ in 0..4 {
                let socket = socket.to_owned();
                std::thread::spawn(move || join_and_keep(&socket));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        "hostile: says nothing" => {
            let socket = socket.to_owned();
            std::thread::spawn(move || say_nothing(&socket));
            std::thread::sleep(Duration::from_millis(200));
        }
        "honest: eight" => {
            let eight: Vec<_> = (0..8).map(|_| join(socket)).collect();
            std::mem::forget(eight);
        }
        "honest: slow" => {
            for _ in 0..4 {
                let connection = dial(socket).unwrap();
                std::thread::sleep(Duration::from_millis(200));
                say(&connection, hello("slow", 1, false).as_bytes()).unwrap();
                let (welcome, _) = answer(&connection).unwrap().expect("an answer");
                assert_eq!((welcome.status, reason(&welcome)), (0, String::new()));
            }
        }
        "hostile: leaves twice and keeps its memories" => {
            for _ in 0..2 {
                let borrower =
                    RawBorrower::connect(socket, &hello("keeps", 1024, false)).expect("joined");
                std::mem::forget((borrower.area, borrower.out));
            }
        }
        "honest: is told to come later" => {
            let refused =
                RawBorrower::connect(socket, &hello("late", 8, false)).map(drop).unwrap_err();
            assert_eq!((refused.status, reason(&refused).contains("later")), (5, true));
        }
        "hostile: thirty-two" => {
            let all: Vec<_> = (0..32).map(|_| join(socket)).collect();
            std::mem::forget(all);
        }
        "honest: one" => std::mem::forget(join(socket)),
        "honest: four workers and a mirror" | "hostile: four workers and a mirror" => {
            let workers: Vec<_> = (0..4).map(|_| join(socket)).collect();
            let mirror = RawBorrower::connect(socket, &hello("mirror", 0, true));
            std::mem::forget((workers, mirror.unwrap_or_else(|e| panic!("{}", reason(&e)))));
            let refused = RawBorrower::connect(socket, &hello("sixth", 0, false));
            let said = reason(&refused.map(drop).unwrap_err());
            let share = "has 0 left of 5120 (--user-share 60)";
            assert!(said.starts_with("asked for 1024 loans") && said.ends_with(share), "{said}");
        }
        "hostile: mirrors" => {
            for status in [0, 0, 3] {
                let mirror = RawBorrower::connect(socket, &hello("mirror", 8, true));
                assert_eq!(mirror.as_ref().map_or_else(|refused| refused.status, |_| 0), status);
                std::mem::forget(mirror);
            }
            let refused = RawBorrower::connect(socket, &in_group("group")).map(drop).unwrap_err();
            assert_eq!(
                (refused.status, reason(&refused).contains("mirrors and groups")),
                (3, true)
            );
            std::mem::forget(RawBorrower::connect(socket, &hello("no mirror", 8, false)));
        }
        "hostile: mirrors of what others get" => {
            let refused = RawBorrower::connect(socket, &in_group("group")).map(drop).unwrap_err();
            assert_eq!((refused.status, reason(&refused).contains("--private")), (8, true));
            let refused =
                RawBorrower::connect(socket, &hello("mirror", 8, true)).map(drop).unwrap_err();
            assert_eq!((refused.status, reason(&refused).contains("--private")), (8, true));
            std::mem::forget(RawBorrower::connect(socket, &hello("no mirror", 8, false)));
        }
        part => panic!("{part}"),
    }
    ready_for_ever()
}

fn in_group(name: &str) -> Hello {
    Hello { version_max: 3, flags: 7 << GROUP_SHIFT, ..hello(name, 8, false) }
}

fn join(socket: &Path) -> RawBorrower {
    RawBorrower::connect(socket, &hello("eight", 0, false))
        .unwrap_or_else(|e| panic!("{}", reason(&e)))
}

/// Joins, and leaves every other time, but for the memories.
fn join_and_keep(socket: &Path) {
    let mut joined = 0;
    loop {
        let Ok(borrower) = RawBorrower::connect(socket, &hello("hostile", 0, false)) else {
            continue;
        };
        match joined % 3 {
            0 => std::mem::forget(borrower),
            1 => std::mem::forget(borrower.out),
            _ => {
                let [_, _, back] = borrower.memories;
                std::mem::forget(back);
            }
        }
        joined += 1;
    }
}

/// Connects as often as it can, and keeps three hundred connections.
fn say_nothing(socket: &Path) {
    let mut all: Vec<OwnedFd> = Vec::new();
    loop {
        all.extend(dial(socket));
        if all.len() > 300 {
            all.remove(0);
        }
    }
}

/// A lender that everybody may borrow from; none without root.
fn rig(set: impl FnOnce(&mut LenderOptions)) -> Option<Rig> {
    if !lab::testing::root(std::thread::current().name().unwrap_or_default()) {
        return None;
    }
    let rig = Rig::new(8192, 1, |options| {
        (options.mode, options.quota, options.joins_per_second) = (0o666, 64, 100);
        set(options);
    });
    let dir = rig.socket.parent().unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(rig)
}

#[test]
fn root_one_user_cannot_take_the_joins_slots_loans_and_memory_of_another() {
    let Some(mut rig) = rig(|_| {}) else { return };
    let hostile = Part::play("hostile: joins and keeps all", &rig.socket);
    let honest = std::thread::scope(|scope| {
        let socket = rig.socket.clone();
        let honest = scope.spawn(move || Part::play("honest: eight", &socket));
        while !honest.is_finished() {
            rig.collect();
            std::thread::sleep(Duration::from_millis(1));
        }
        honest.join().expect("all of eight joined")
    });
    let start = Instant::now();
    rig.until("a second is over", |_| start.elapsed() > Duration::from_secs(1));
    let of = |uid| rig.lender.borrowers().iter().filter(|each| each.uid == uid).count() as u64;
    let counters = rig.lender.counters();
    assert_eq!(of(HONEST), 8);
    assert!(rig.lender.standing().lingering > 0 && rig.lender.refusals().user > 0, "{counters:?}");
    assert!(of(HOSTILE) + rig.lender.standing().lingering <= 32, "{counters:?}");
    assert!(counters.joined <= 8 + 32, "what it holds counts: {counters:?}");
    // What it has is free once it is gone.
    drop(hostile);
    rig.until("nothing lingers", |rig| rig.lender.standing().lingering == 0);
    drop(Part::play("hostile: joins and keeps all", &rig.socket));
    drop(honest);
    rig.close_empty();
}

#[test]
fn root_a_user_is_refused_what_is_beyond_its_share_and_root_is_not() {
    let Some(mut rig) = rig(|options| (options.user_share, options.borrowers) = (10, 40)) else {
        return;
    };
    // Four of forty.
    let hostile = Part::play("hostile: joins and keeps all", &rig.socket);
    rig.until("it has its share", |rig| {
        let now = rig.lender.standing();
        rig.lender.refusals().user > 0 && now.borrowers + now.lingering == 4
    });
    let ours: Vec<_> = (0..32).map(|_| rig.connect("ours", 0)).collect();
    drop((ours, hostile));
    rig.close_empty();
}

#[test]
fn root_each_of_two_users_has_four_workers_and_a_mirror_with_what_the_command_sets_up() {
    if !lab::testing::root("root_each_of_two_users_has_four_workers_and_a_mirror") {
        return;
    }
    // As `cachelane lend --socket-mode 0666` has it: frames, reserve, and all else by default.
    let rig = Rig::new(13_312, 1, |options| {
        (options.mode, options.reserve, options.joins_per_second) = (0o666, 3072, 100);
    });
    let dir = rig.socket.parent().unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let parts = ["hostile", "honest"]
        .map(|user| Part::play(&format!("{user}: four workers and a mirror"), &rig.socket));
    assert_eq!(rig.lender.borrowers().len(), 10);
    drop(parts);
    rig.close_empty();
}

#[test]
fn root_whoever_says_nothing_makes_room_for_other_users_that_are_slow() {
    let Some(rig) = rig(|_| {}) else { return };
    let hostile = Part::play("hostile: says nothing", &rig.socket);
    drop(Part::play("honest: slow", &rig.socket));
    assert!(rig.lender.refusals().busy > 64, "{:?}", rig.lender.counters());
    drop(hostile);
    rig.close_empty();
}

#[test]
fn root_a_user_has_two_mirrors_and_root_as_many_as_it_wants() {
    let Some(rig) = rig(|_| {}) else { return };
    let hostile = Part::play("hostile: mirrors", &rig.socket);
    assert_eq!(rig.lender.borrowers().len(), 3);
    assert_eq!((rig.lender.refusals().user, rig.lender.refusals().total()), (2, 2));
    let ours: Vec<_> = (0..4).map(|_| rig.mirror("ours", 8)).collect();
    drop((ours, hostile));
    rig.close_empty();
}

#[test]
fn root_where_borrowers_are_apart_no_user_has_a_mirror_but_root() {
    let Some(rig) = rig(|options| options.private = true) else { return };
    let hostile = Part::play("hostile: mirrors of what others get", &rig.socket);
    assert_eq!(rig.lender.borrowers().len(), 1);
    assert_eq!(rig.lender.refusals().user, 2);
    let ours = rig.mirror("ours", 8);
    drop((ours, hostile));
    rig.close_empty();
}

#[test]
fn root_a_user_with_many_borrowers_gets_no_more_flows_than_one_with_one() {
    let Some(mut rig) = rig(|_| {}) else { return };
    let honest = Part::play("honest: one", &rig.socket);
    let hostile = Part::play("hostile: thirty-two", &rig.socket);
    rig.collect();
    // A packet of each flow; what is over a quota is dropped, and counted.
    for first in (0..8192).step_by(256) {
        rig.lend(0, first..first + 256);
    }
    let got = |uid| -> u64 {
        let all = rig.lender.borrowers();
        let its = all.iter().filter(|each| each.uid == uid);
        its.map(|each| each.lent + each.dropped).sum()
    };
    let (honest_got, hostile_got) = (got(HONEST), got(HOSTILE));
    assert_eq!(honest_got + hostile_got, 8192);
    assert!((3600..=4600).contains(&honest_got), "{honest_got} of 8192");
    drop((honest, hostile));
    rig.close_empty();
}

#[test]
fn root_whoever_left_and_keeps_memory_is_never_forgotten_and_users_come_later_when_there_are_many()
{
    let Some(mut rig) = rig(|options| options.watched = 2) else { return };
    let hostile = Part::play("hostile: leaves twice and keeps its memories", &rig.socket);
    rig.until("both linger", |rig| rig.lender.standing().lingering == 2);
    drop(Part::play("honest: is told to come later", &rig.socket));
    assert_eq!(rig.lender.refusals().user, 1);
    // Root is not limited.
    drop(rig.connect("ours", 8));
    drop(hostile);
    drop(Part::play("honest: one", &rig.socket));
    rig.close_empty();
}

#[test]
fn root_an_area_that_is_kept_counts_for_as_long_as_it_is_kept() {
    // Frames for eight such areas.
    let set = |options: &mut LenderOptions| (options.private, options.quota) = (true, 1024);
    let Some(mut rig) = rig(set) else { return };
    let hostile = Part::play("hostile: leaves twice and keeps its memories", &rig.socket);
    rig.until("both linger", |rig| rig.lender.standing().lingering == 2);
    let ours: Vec<_> = (0..6).map(|_| rig.connect("ours", 0)).collect();
    let refused = rig.refusal(&hello("ours", 0, false));
    let said = "asked for 1024 loans, 0 are left (2048 are kept by those that left)";
    assert_eq!(reason(&refused), said);
    drop(hostile);
    rig.until("nothing lingers", |rig| rig.lender.standing().lingering == 0);
    drop((rig.connect("ours", 0), ours));
    rig.close_empty();
}
