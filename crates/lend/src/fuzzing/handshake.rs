//! The lender's half of the handshake.

use std::mem::discriminant;

use frames::Accounting;
use zerocopy::FromBytes as _;

use crate::layout::Hello;
use crate::lender::admission::{Situation, UserSituation, decide};
use crate::wire::{Received, pair, peek, receive};

/// Any bytes as the message of a handshake; the last few say what the lender has to give.
///
/// # Panics
/// If anything is as it must not be.
pub fn handshake(bytes: &[u8]) {
    let (message, rest) = bytes.split_at(bytes.len().saturating_sub(8));
    let &[left, quota, channels, slot, borrowers, flags, ..] = rest else { return };
    let (ours, theirs) = pair();
    if message.is_empty() || rustix::io::write(&theirs, message).is_err() {
        return;
    }
    let peeked = peek::<Hello>(&ours).expect("a message");
    let received = receive::<Hello>(&ours).expect("a message");
    assert_eq!(discriminant(&peeked), discriminant(&received));
    let Ok(hello) = Hello::read_from_bytes(message) else {
        assert!(matches!(received, Received::Garbage), "{} bytes were taken", message.len());
        return;
    };
    assert!(matches!(received, Received::Message(_, descriptors) if descriptors.is_empty()));
    let situation = Situation {
        accounting: if flags & 1 == 0 { Accounting::Counters } else { Accounting::Ledgers },
        free_slot: (slot < 64).then_some(slot),
        borrowers: borrowers.into(),
        left: u64::from(left) * 16,
        kept: u64::from(slot / 64) * 16,
        channels: channels.max(1).into(),
        quota: u32::from(quota).max(1) * 8,
        is_busy: flags & 2 != 0,
        private: flags & 16 != 0,
        user: (flags & 4 != 0).then(|| UserSituation {
            uid: u32::MAX,
            borrowers: borrowers.into(),
            most_borrowers: 3,
            all_borrowers: 64,
            left: left.into(),
            has: u64::from(slot) << 20,
            most_loans: u64::from(u32::MAX),
            all_loans: u64::from(u32::MAX),
            kept: u64::from(borrowers / 4) << 20,
            is_busy: flags & 8 != 0,
            is_crowded: flags & 32 != 0,
            mirrors: usize::from(flags >> 7),
            groups: (flags & 64 != 0).then_some(7).into_iter().collect(),
        }),
    };
    match decide(&hello, &situation) {
        Ok(terms) => {
            assert!((2..=3).contains(&terms.version));
            assert_eq!(Some(terms.slot), situation.free_slot);
            assert!((1..=situation.quota).contains(&terms.quota));
            assert!(u64::from(terms.quota) * u64::from(situation.channels) <= situation.left);
            assert!(!terms.mirror || terms.group == 0);
            assert!(terms.version == 3 || terms.group == 0);
            let shares_frames = terms.mirror || terms.group != 0;
            assert!(!shares_frames || situation.accounting == Accounting::Counters);
            assert!(!terms.name.is_empty() && !terms.name.chars().any(char::is_control));
            assert!(!situation.is_busy);
            let may_see_all = situation.user.as_ref().is_none_or(|user| {
                let has_one = user.groups.contains(&terms.group);
                has_one || !situation.private && user.mirrors + user.groups.len() < 2
            });
            assert!(!shares_frames || may_see_all);
            let has_share = situation
                .user
                .is_some_and(|user| user.is_busy || user.is_crowded || user.borrowers >= 3);
            assert!(!has_share);
        }
        Err(refusal) => assert!((1..96).contains(&refusal.reason.len()), "{refusal:?}"),
    }
}
