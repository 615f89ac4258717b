use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;

const HOLD: Duration = Duration::from_secs(10);

/// A knob whose setter fails so often, and then takes 1 to 3.
fn entry(failures: u32) -> (Entry, Arc<AtomicU32>) {
    let (value, left) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
    let (shown, still) = (Arc::clone(&value), Arc::clone(&left));
    let get = move || Ok::<_, String>(shown.load(Relaxed));
    let set = move |new| {
        let fails = still.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Err("not now".to_owned());
        }
        value.store(new, Relaxed);
        Ok(())
    };
    let knob = Knob::choice("t.number", "a test", &[1, 2, 3], 1, get, set);
    let entry = Entry::new(knob);
    entry.hold("token", "test", HOLD).unwrap();
    entry.set("2", By::Holder("token"), None).unwrap();
    left.store(failures, Relaxed);
    (entry, left)
}

fn value(entry: &Entry) -> String {
    entry.knob.value().unwrap()
}

#[test]
fn a_hold_runs_out_at_its_time_and_a_renewal_moves_that() {
    let (entry, _) = entry(0);
    let first = entry.tend(Instant::now()).unwrap();
    entry.renew("token", HOLD * 2).unwrap();
    let renewed = entry.tend(first).expect("it goes on");
    assert!(renewed > first && renewed <= Instant::now() + HOLD * 2);
    assert_eq!(entry.tend(renewed), None);
    assert_eq!(value(&entry), "1");
    assert_eq!(entry.renew("token", HOLD).unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn nothing_but_tending_ends_a_hold_whose_time_is_over() {
    let (entry, _) = entry(0);
    let moment = Duration::from_nanos(1);
    for (what, done) in [
        ("hold", entry.hold("token", "test", moment)),
        ("set", entry.set("3", By::Holder("token"), None)),
        ("renew", entry.renew("token", moment)),
        ("renew again", entry.renew("token", moment)),
    ] {
        done.expect(what);
    }
    assert_eq!(entry.set("1", By::Anybody, None).unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(entry.hold("other", "test", HOLD).unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(entry.tend(Instant::now()), None);
    assert_eq!(value(&entry), "1");
}

#[test]
fn the_time_of_a_holders_own_setter_is_not_its_holds() {
    const TAKES: Duration = Duration::from_millis(5);
    let set = |_: u32| {
        let begun = Instant::now();
        while begun.elapsed() < TAKES {}
        Ok(())
    };
    let get = || Ok::<_, String>(1);
    let entry = Entry::new(Knob::choice("t.slow", "a test", &[1, 2], 1, get, set));
    entry.hold("token", "test", HOLD).unwrap();
    let before = entry.tend(Instant::now()).unwrap();
    entry.set("2", By::Holder("token"), None).unwrap();
    let after = entry.tend(Instant::now()).unwrap();
    assert!(after >= before + TAKES, "{:?}", after - before);
}

#[test]
fn to_ask_again_for_a_hold_renews_it() {
    let (entry, _) = entry(0);
    assert_eq!(entry.hold("token", "test", HOLD * 2).unwrap(), "1");
    assert!(entry.tend(Instant::now()).unwrap() > Instant::now() + HOLD);
    assert_eq!(entry.hold("other", "test", HOLD).unwrap_err().kind(), ErrorKind::Held);
}

#[test]
fn a_setter_that_fails_is_tried_again_at_ever_longer_times_and_then_given_up() {
    for (failures, restored) in [(RETRIES, "1"), (RETRIES + 1, "2")] {
        let (entry, left) = entry(failures);
        let end = entry.tend(Instant::now()).unwrap();
        let mut next = Some(end);
        let mut pauses = Vec::new();
        while let Some(now) = next {
            next = entry.tend(now);
            pauses.extend(next.map(|next| (next - now).as_secs()));
        }
        assert_eq!((value(&entry).as_str(), left.load(Relaxed)), (restored, 0));
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert!(entry.info().held.is_none());
    }
}

#[test]
fn a_knob_whose_setter_runs_is_looked_at_again() {
    let (entry, _) = entry(0);
    let end = entry.tend(Instant::now()).unwrap();
    let setting = entry.setting.lock();
    assert_eq!(entry.tend(end), Some(end + BUSY_PAUSE));
    drop(setting);
    assert_eq!(entry.tend(end), None);
    assert_eq!(value(&entry), "1");
}
