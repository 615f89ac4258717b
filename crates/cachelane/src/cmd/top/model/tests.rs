use super::*;
use crate::cmd::top::testing::{process, relay, said, sample};

fn model(samples: impl IntoIterator<Item = Sample>) -> Model {
    let mut model = Model::default();
    samples.into_iter().for_each(|sample| model.take(sample));
    model
}

fn only(model: &Model) -> &Track {
    assert_eq!(model.tracks.len(), 1);
    model.tracks.values().next().unwrap()
}

fn silent(ms: u64) -> Answer {
    Answer::Silent { why: "it does not answer".into(), since: Duration::from_millis(ms) }
}

#[test]
fn a_rate_goes_by_the_time_between_two_answers() {
    let model = model([0, 1000, 3000].map(|ms| sample(ms, vec![relay(8080, ms, 5)])));
    let track = only(&model);
    assert_eq!(track.rates, [Some(10.0), Some(5000.0), None]);
    assert_eq!(track.main_rate(), Some(5000.0));
    assert_eq!(track.share, Some(0.5));
    assert_eq!(Vec::from(track.history.clone()), [None, Some(5000.0), Some(5000.0)]);
    assert_eq!(model.own, Some(0.01));
}

#[test]
fn an_answer_that_came_late_is_counted_over_its_own_time() {
    let mut second = relay(1, 1000, 5);
    // Read half a second later than the CPUs.
    let late = said(1500, &[("relay.bytes", true, 7500)]);
    second.answer = Answer::Said(late);
    let first = process("relay :1", 1, 0, Answer::Said(said(0, &[("relay.bytes", true, 0)])));
    let model = model([sample(0, vec![first]), sample(1000, vec![second])]);
    assert_eq!(only(&model).rates, [Some(5000.0)]);
}

#[test]
fn a_counter_that_begins_anew_has_no_rate_and_then_its_own() {
    let at = |ms, bytes| {
        let answer = Answer::Said(said(ms, &[("relay.bytes", true, bytes)]));
        sample(ms, vec![process("relay", 1, ms, answer)])
    };
    let mut model = model([at(0, 10_000), at(1000, 20)]);
    assert_eq!(only(&model).rates, [None]);
    model.take(at(2000, 120));
    assert_eq!(only(&model).rates, [Some(100.0)]);
}

#[test]
fn a_process_with_the_id_of_another_begins_anew() {
    let mut second = relay(1, 1000, 5000);
    second.key.started = Some(2);
    let model = model([sample(0, vec![relay(1, 0, 5)]), sample(1000, vec![second])]);
    assert_eq!(only(&model).rates, [None; 3]);
    assert_eq!(only(&model).share, None);
}

#[test]
fn a_gauge_that_falls_and_a_counter_that_cannot_be_read_have_no_rate() {
    let at = |ms, open, bytes| {
        let mut said = said(ms, &[("x.bytes", true, 7), ("x.open", false, open)]);
        said.values[0] = bytes;
        sample(ms, vec![process("x", 1, ms, Answer::Said(said))])
    };
    let mut model = model([at(0, 9, Some(7)), at(1000, 3, None)]);
    assert_eq!(only(&model).rates, [None, None]);
    assert_eq!(only(&model).said.as_ref().unwrap().value("x.open"), Some(3));
    model.take(at(2000, 3, Some(9)));
    assert_eq!(only(&model).rates, [None, None]);
}

#[test]
fn a_counter_is_found_by_its_name_when_others_come() {
    let first = said(0, &[("x.b", true, 100)]);
    let second = said(1000, &[("x.a", true, 7), ("x.b", true, 150)]);
    let at = |ms, said| sample(ms, vec![process("x", 1, ms, Answer::Said(said))]);
    assert_eq!(only(&model([at(0, first), at(1000, second)])).rates, [None, Some(50.0)]);
}

#[test]
fn a_silent_process_keeps_what_it_said_and_has_a_gap_in_its_history() {
    let mut quiet = relay(1, 2000, 5);
    quiet.answer = silent(1500);
    let samples = [sample(0, vec![relay(1, 0, 5)]), sample(1000, vec![relay(1, 1000, 5)])];
    let mut model = model(samples.into_iter().chain([sample(2000, vec![quiet])]));
    let track = only(&model);
    assert_eq!(track.silent(), Some(("it does not answer", Duration::from_millis(1500))));
    assert_eq!(track.main_rate(), Some(5000.0));
    assert_eq!(track.history.back(), Some(&None));
    model.take(sample(5000, vec![relay(1, 5000, 5)]));
    assert_eq!(only(&model).silent(), None);
    assert_eq!(only(&model).main_rate(), Some(5000.0));
    model.take(sample(6000, vec![]));
    assert!(model.tracks.is_empty());
}

#[test]
fn the_cpus_are_shared_out_and_one_that_comes_waits_for_its_second_sample() {
    let mut later = sample(1000, vec![]);
    later.cpus.push(Cpu { cpu: 2, user: 77, ..Cpu::default() });
    let model = model([sample(0, vec![]), later]);
    let [busy, idle] = model.cpus[..] else { panic!("{:?}", model.cpus) };
    assert_eq!((busy.user, busy.system, busy.softirq), (0.25, 0.25, 0.5));
    assert_eq!((idle.cpu, idle.busy()), (1, 0.0));
}

#[test]
fn what_is_asked_for_between_two_samples_changes_no_rate() {
    let mut model = model([0, 1000].map(|ms| sample(ms, vec![relay(1, ms, 5)])));
    let mut between = sample(1010, vec![relay(1, 1010, 99)]);
    let Answer::Said(said) = &mut between.processes[0].answer else { panic!("{between:?}") };
    said.knobs[0].value = "copy".into();
    model.take(between);
    assert_eq!(only(&model).main_rate(), Some(5000.0));
    assert_eq!(only(&model).knobs[0].value, "copy");
    assert_eq!(model.at, Duration::from_millis(1000));
}

#[test]
fn listeners_and_backends_have_rates_of_their_own() {
    let at = |ms: u64, up: u64| {
        let end = |addr: &str, is_backend| End {
            addr: addr.into(),
            is_backend,
            bytes_up: up,
            ..End::default()
        };
        let mut said = said(ms, &[]);
        // The listener and the backend have one address.
        said.relays =
            vec![Relay { prefix: "relay".into(), ends: vec![end("a", false), end("a", true)] }];
        sample(ms, vec![process("relay", 1, ms, Answer::Said(said))])
    };
    let model = model([at(0, 0), at(1000, 50)]);
    let rates: Vec<_> = only(&model).ends.iter().map(|end| (end.end.is_backend, end.up)).collect();
    assert_eq!(rates, [(false, Some(50.0)), (true, Some(50.0))]);
}

#[test]
fn histories_are_bounded() {
    let model = model((0..300).map(|s| sample(s * 1000, vec![relay(1, s * 1000, 5)])));
    let track = only(&model);
    assert_eq!(track.history.len(), HISTORY);
    assert_eq!(track.history_of("relay.bytes").unwrap().len(), HISTORY);
    assert!(track.history_of("relay.connections").is_none());
}
