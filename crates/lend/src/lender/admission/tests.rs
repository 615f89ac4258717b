use proptest::prelude::*;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::*;

fn situation() -> Situation {
    Situation {
        accounting: Accounting::Counters,
        free_slot: Some(3),
        borrowers: 3,
        left: 4096,
        kept: 0,
        channels: 2,
        quota: 1024,
        is_busy: false,
        private: false,
        user: None,
    }
}

fn user() -> UserSituation {
    UserSituation {
        uid: 1000,
        borrowers: 1,
        most_borrowers: 32,
        all_borrowers: 64,
        left: 1 << 50,
        has: 0,
        most_loans: 1 << 51,
        all_loans: 1 << 52,
        kept: 0,
        is_busy: false,
        is_crowded: false,
        mirrors: 1,
        groups: BTreeSet::new(),
    }
}

fn hello() -> Hello {
    let mut hello =
        Hello { magic: MAGIC, version_min: 2, version_max: 2, flags: 0, quota: 0, name: [0; 48] };
    hello.name[..3].copy_from_slice(b"web");
    hello
}

#[test]
fn a_user_has_few_mirrors_and_none_of_a_lender_whose_borrowers_are_apart() {
    let ask = |flags, private, user| {
        decide(&Hello { flags, ..hello() }, &Situation { private, user, ..situation() })
    };
    let full = || Some(UserSituation { mirrors: MIRRORS, ..user() });
    assert!(ask(HELLO_MIRROR, false, Some(user())).is_ok());
    let refusal = ask(HELLO_MIRROR, false, full()).unwrap_err();
    assert_eq!((refusal.status, refusal.user), (Status::Full, true));
    assert_eq!(refusal.reason, "user 1000 has 2 mirrors and groups, of 2");
    let refusal = ask(HELLO_MIRROR, true, Some(user())).unwrap_err();
    assert_eq!((refusal.status, refusal.user), (Status::Denied, true));
    assert!((1..96).contains(&refusal.reason.len()), "{}", refusal.reason);
    // Others may, and who asks for none is not meant.
    assert!(ask(HELLO_MIRROR, true, None).is_ok());
    assert!(ask(0, true, full()).is_ok());
}

#[test]
fn a_group_counts_as_a_mirror_and_once_for_all_of_a_users_borrowers_in_it() {
    let ask = |group: u32, private, has: &[u16]| {
        let hello = Hello { version_max: 3, flags: group << GROUP_SHIFT, ..hello() };
        let user = UserSituation { groups: has.iter().copied().collect(), ..user() };
        let situation = Situation { private, user: Some(user), ..situation() };
        decide(&hello, &situation).map_err(|refusal| (refusal.status, refusal.reason))
    };
    // There is a mirror already.
    for (group, has) in [(7, &[] as &[u16]), (7, &[7]), (0, &[7])] {
        assert!(ask(group, false, has).is_ok(), "{group} {has:?}");
    }
    let full = "user 1000 has 2 mirrors and groups, of 2";
    assert_eq!(ask(8, false, &[7]), Err((Status::Full, full.into())));
    let denied = "no groups but 0 for user 1000: it would see what others get (--private)";
    assert_eq!(ask(7, true, &[]), Err((Status::Denied, denied.into())));
    assert!(ask(0, true, &[]).is_ok());
}

#[test]
fn who_asks_for_what_there_is_gets_it() {
    type Change = fn(&mut Hello, &mut Situation);
    let terms =
        Terms { version: 2, slot: 3, quota: 1024, mirror: false, group: 0, name: "web".into() };
    let cases: [(&str, Change, Terms); 11] = [
        ("no wishes", |_, _| {}, terms.clone()),
        ("a quota", |hello, _| hello.quota = 7, Terms { quota: 7, ..terms.clone() }),
        ("more than anybody gets", |hello, _| hello.quota = 5000, terms.clone()),
        ("all that is left", |_, situation| situation.left = 2048, terms.clone()),
        (
            "newer versions too",
            |hello, _| hello.version_max = 9,
            Terms { version: 3, ..terms.clone() },
        ),
        ("older versions too", |hello, _| hello.version_min = 0, terms.clone()),
        ("a mirror", |hello, _| hello.flags = 1, Terms { mirror: true, ..terms.clone() }),
        (
            "a group",
            |hello, _| (hello.version_max, hello.flags) = (3, 0xffff_0000),
            Terms { version: 3, group: u16::MAX, ..terms.clone() },
        ),
        (
            "no name",
            |hello, _| hello.name[0] = 0,
            Terms { name: "borrower 3".into(), ..terms.clone() },
        ),
        (
            "a name that is no text, and moves cursors",
            |hello, _| hello.name = *b"\x1b[2Jweb\xff\0not this 123456789012345678901234567890",
            Terms { name: "?[2Jweb\u{fffd}".into(), ..terms.clone() },
        ),
        (
            "a name that turns what follows around",
            |hello, _| hello.name[..9].copy_from_slice("a\u{202e}b\u{2069}c".as_bytes()),
            Terms { name: "a?b?c".into(), ..terms.clone() },
        ),
    ];
    for (what, change, terms) in cases {
        let (mut hello, mut situation) = (hello(), situation());
        change(&mut hello, &mut situation);
        assert_eq!(decide(&hello, &situation), Ok(terms), "{what}");
    }
}

#[test]
fn who_cannot_join_is_told_why() {
    type Change = fn(&mut Hello, &mut Situation);
    let cases: [(Change, Status, &str); 14] = [
        (|hello, _| hello.magic += 1, Status::Invalid, "that is not a hello"),
        (|hello, _| hello.version_min = 3, Status::Invalid, "that is not a hello"),
        (
            |hello, _| (hello.version_min, hello.version_max) = (4, 5),
            Status::Version,
            "the borrower speaks versions 4 to 5, the lender 2 to 3",
        ),
        (
            |hello, _| (hello.version_min, hello.version_max) = (0, 0),
            Status::Version,
            "the borrower speaks versions 0 to 0, the lender 2 to 3",
        ),
        (|hello, _| hello.flags = 6, Status::Invalid, "flags 0x6: version 2 has 0x1 only"),
        (
            |hello, _| hello.flags = 0x1_0000,
            Status::Invalid,
            "flags 0x10000: version 2 has 0x1 only",
        ),
        (
            |hello, _| (hello.version_max, hello.flags) = (3, 0x1_0001),
            Status::Invalid,
            "a mirror gets everything, and is in no group",
        ),
        (
            |hello, situation| {
                (hello.version_max, hello.flags) = (3, 0x1_0000);
                situation.accounting = Accounting::Ledgers;
            },
            Status::Mirror,
            "no groups but 0 while a ledger is kept for each borrower (lend.autorelease is on)",
        ),
        (
            |_, situation| situation.is_busy = true,
            Status::Busy,
            "too many have joined in the last second: later",
        ),
        (
            |_, situation| situation.free_slot = None,
            Status::Full,
            "there are 3 borrowers, and no more can be",
        ),
        (
            |hello, situation| {
                (hello.flags, situation.accounting) = (1, Accounting::Ledgers);
            },
            Status::Mirror,
            "no mirrors while a ledger is kept for each borrower (lend.autorelease is on)",
        ),
        (
            |_, situation| situation.left = 2047,
            Status::Quota,
            "asked for 2048 loans, 2047 are left (a smaller --quota, or more --frames to lend)",
        ),
        (
            |hello, situation| (hello.quota, situation.left) = (1, 1),
            Status::Quota,
            "asked for 2 loans, 1 are left (a smaller --quota, or more --frames to lend)",
        ),
        (
            |hello, situation| {
                (hello.quota, situation.quota, situation.channels) = (u32::MAX, 65_536, u32::MAX);
            },
            Status::Quota,
            "asked for 281474976645120 loans, 4096 are left (a smaller --quota, or more --frames to lend)",
        ),
    ];
    for (change, status, reason) in cases {
        let (mut hello, mut situation) = (hello(), situation());
        change(&mut hello, &mut situation);
        assert_eq!(decide(&hello, &situation), Err(Refusal::new(status, reason)));
    }
}

#[test]
fn a_user_that_has_its_share_is_told_that_and_the_option() {
    type Change = fn(&mut UserSituation);
    let cases: [(Change, Status, &str); 5] = [
        (
            |user| user.is_busy = true,
            Status::Busy,
            "user 1000 has joined too often in the last second: later (--user-share)",
        ),
        (
            |user| user.borrowers = 32,
            Status::Full,
            "user 1000 has 32 borrowers, of 32 (--user-share 52)",
        ),
        (
            |user| {
                (user.left, user.has, user.most_loans, user.all_loans) = (2047, 2049, 4096, 8192)
            },
            Status::Quota,
            "asked for 2048 loans, user 1000 has 2047 left of 4096 (--user-share 51)",
        ),
        (
            |user| (user.left, user.has, user.most_loans, user.all_loans) = (0, 4096, 4096, 4096),
            Status::Quota,
            "asked for 2048 loans, user 1000 has 0 left of 4096 (more --frames)",
        ),
        (
            |user| (user.left, user.kept, user.most_loans) = (0, 4096, 4096),
            Status::Quota,
            "asked for 2048 loans, user 1000 has 0 left, 4096 kept by those that left",
        ),
    ];
    for (change, status, reason) in cases {
        let (mut situation, mut user) = (situation(), user());
        assert!(
            decide(&hello(), &Situation { user: Some(user.clone()), ..situation.clone() }).is_ok()
        );
        change(&mut user);
        situation.user = Some(user);
        let refusal = Refusal { user: true, ..Refusal::new(status, reason) };
        assert_eq!(decide(&hello(), &situation), Err(refusal.clone()));
        // Also where nobody gets anything: it is what this user can change.
        (situation.free_slot, situation.left, situation.is_busy) = (None, 0, true);
        assert_eq!(decide(&hello(), &situation), Err(refusal));
    }
}

proptest! {
    #[test]
    fn whatever_is_said_the_terms_are_within_what_there_is(
        mut bytes in any::<[u8; 64]>(),
        is_hello in any::<bool>(),
        (left, quota, channels) in (0_u64..10_000, 1_u32..5000, 1_u32..8),
    ) {
        if is_hello {
            bytes[..8].copy_from_slice(hello().as_bytes().first_chunk::<8>().unwrap());
            let flags = u32::from(bytes[8]) & 1;
            bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        }
        let hello = Hello::read_from_bytes(&bytes).unwrap();
        let situation = Situation { left, quota, channels, ..situation() };
        match decide(&hello, &situation) {
            Ok(terms) => {
                prop_assert!((1..=quota).contains(&terms.quota));
                prop_assert!(u64::from(terms.quota) * u64::from(channels) <= left);
                prop_assert!(!terms.name.is_empty() && !terms.name.chars().any(char::is_control));
            }
            Err(refusal) => prop_assert!(!refusal.reason.is_empty() && refusal.reason.len() < 96),
        }
    }
}
