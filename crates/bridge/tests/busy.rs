//! Rules hold at once where every CPU is busy, too.

mod common;

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use common::{Setup, with_fast_path};
use lab::traffic::{PacedFrames, Rule, Spinners};

/// SCHED_FIFO, as /proc shows it.
const FIFO: &str = "1";
/// How long each stretch of traffic is, at least.
const STRETCH: Duration = Duration::from_millis(500);

#[test]
fn root_rules_hold_at_once_on_a_busy_machine() {
    let test = "root_rules_hold_at_once_on_a_busy_machine";
    with_fast_path(test, &Setup { members: 2, ..Setup::default() }, |net| {
        net.introduce();
        let _busy = Spinners::start(6).unwrap();
        for rule in Rule::ALL {
            rule.prepare(&net.bridge).unwrap();
            for turn in 0..4 {
                net.until("frames go straight", |net| {
                    let before = net.counters().unwrap().straight;
                    net.talk(0, 1, 2);
                    net.pass();
                    net.counters().unwrap().straight > before
                });
                let [from, to] = [&net.bridge.members[0], &net.bridge.members[1]];
                let frames = PacedFrames::start(from, to, Duration::from_micros(200)).unwrap();
                sleep(STRETCH);
                let in_effect = rule.set(&net.bridge).unwrap();
                sleep(STRETCH);
                let last = frames.last().unwrap().expect("frames arrived");
                let late = last.saturating_duration_since(in_effect);
                assert!(late.is_zero(), "{}, {turn}: {late:?} late", rule.name());
                rule.clear(&net.bridge).unwrap();
            }
        }
    });
}

#[test]
fn root_the_thread_that_follows_has_a_real_time_priority() {
    let test = "root_the_thread_that_follows_has_a_real_time_priority";
    with_fast_path(test, &Setup { members: 2, ..Setup::default() }, |_net| {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let named = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        let bridges: Vec<String> = named.filter(|stat| stat.contains("(bridge)")).collect();
        assert!(!bridges.is_empty());
        for stat in bridges {
            // Behind the name: state, which is the third field of proc(5), and on.
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            let [priority, policy] = [fields[40 - 3], fields[41 - 3]];
            assert_eq!([priority, policy], ["1", FIFO]);
        }
    });
}
