use serde_json::{Value, json};
use trial::bench::{Bar, Case, RatioOut};
use trial::paired_ratio;

use super::*;
use crate::bench::list::ListedRatio;

/// A bundle of one experiment with a gain, a loss that misses its claim, and something absent.
pub(in crate::bench) fn made() -> Bundle {
    let host = Host {
        kernel: "6.18.5".into(),
        cpu: "A | B".into(),
        cpus: 4,
        hz: Some(250),
        memory: 8 << 30,
        id: Some("f".repeat(32)),
    };
    let claimed = |name: &str, bar| ListedRatio { name: name.into(), bar };
    let bars = [Some(Bar::AtLeast(2.0)), Some(Bar::AtMost(1.1)), None];
    let names = ["rate: relay / peer", "p99: relay / peer", "fills: relay / peer"];
    let ratios = names.into_iter().zip(bars).map(|(name, bar)| claimed(name, bar)).collect();
    let parts = vec![ListedPart { name: "bulk".into(), about: "One stream".into(), ratios }];
    let ratio = |name: &str, of: [f64; 6]| {
        RatioOut::new(name, &paired_ratio(&[1.0; 6], &of).expect("pairs"))
    };
    let mut output = BenchOutput::new("relay", host.clone());
    output.cases = vec![Case::new("relay", "B/s", vec![1.0; 6])];
    output.ratios = vec![
        ratio(names[0], [2.5; 6]).judged(trial::Better::Higher, 1.0).with_bar(Bar::AtLeast(2.0)),
        ratio(names[1], [1.5; 6]).judged(trial::Better::Lower, 1.0).with_bar(Bar::AtMost(1.1)),
    ];
    output.absent = vec!["fills: relay / peer: the CPU's counters: hidden".into()];
    let entry = Entry {
        name: "relay".into(),
        rounds: 6,
        window_s: 0.5,
        short: false,
        parts,
        seconds: Some(61.5),
        output: Some(output),
        error: None,
    };
    Bundle {
        schema: SCHEMA,
        version: "0.1.0".into(),
        debug: false,
        command: "cachelane bench all".into(),
        started: 1_800_000_000.0,
        seconds: 62.0,
        machine: Machine {
            host,
            lanes: "0-1|2-3".into(),
            lanes_from: "L3".into(),
            hypervisor: true,
            pmu: false,
            no_pmu: Some("hidden".into()),
        },
        experiments: vec![entry],
        incomplete: false,
    }
}

fn text(change: impl FnOnce(&mut Value)) -> String {
    let mut value = serde_json::to_value(made()).unwrap();
    change(&mut value);
    value.to_string()
}

#[test]
fn a_bundle_comes_back_as_it_was() {
    assert_eq!(Bundle::read(&text(|_| {})), Ok(made()));
    // What later versions add within the schema is no matter.
    assert_eq!(Bundle::read(&text(|value| value["more"] = 1.into())), Ok(made()));
    assert_eq!(made().machine.lane_count(), 2);
}

#[test]
fn what_is_no_usable_bundle_is_refused_with_the_reason() {
    let whole = text(|_| {});
    let output = json!(made().experiments[0].output);
    for (given, reason) in [
        (String::new(), "no bundle, or a damaged one: EOF"),
        (whole[..whole.len() / 2].into(), "no bundle, or a damaged one: EOF"),
        ("[1]".into(), "no bundle, or a damaged one: "),
        ("{}".into(), "something else, not a bundle; expected what 'cachelane bench all"),
        (json!({"schema": 1, "experiments": []}).to_string(), "something else, not a bundle"),
        (json!({"schema": 1, "plan": {}, "windows": []}).to_string(), "the record of a trial"),
        (output.to_string(), "the result of a single experiment, not a bundle"),
        (
            text(|value| {
                value["schema"] = 2.into();
                value["version"] = "0.9.0".into();
                value["machine"] = "of another form".into();
            }),
            "schema: 2; this cachelane reads 1; the bundle is newer: use a cachelane as new \
             (cachelane 0.9.0)",
        ),
        (
            text(|value| value["schema"] = 0.into()),
            "schema: 0; this cachelane reads 1; the bundle is older: run",
        ),
        (
            text(|value| value["schema"] = Value::Null),
            "schema: none; this cachelane reads 1; the bundle is older",
        ),
        (text(|value| value["experiments"][0]["output"]["schema"] = 7.into()), "schema: 7; "),
        (
            text(|value| value["started"] = Value::Null),
            "no bundle, or a damaged one: invalid type: null",
        ),
        (text(|value| value["started"] = 1e30.into()), "damaged: started: 1000"),
        (
            text(|value| {
                let again = value["experiments"][0].clone();
                value["experiments"].as_array_mut().unwrap().push(again);
            }),
            "damaged: experiment 'relay': twice; expected once",
        ),
        (
            text(|value| value["experiments"][0]["name"] = "bridge".into()),
            "damaged: experiment 'bridge': output of 'relay'; expected its own",
        ),
        (
            text(|value| value["experiments"][0]["output"]["ratios"][0]["low"] = 3.0.into()),
            "damaged: 'rate: relay / peer': a median outside of its interval",
        ),
    ] {
        let error = Bundle::read(&given).expect_err(&given).to_string();
        assert!(error.starts_with(reason), "{error}\nexpected {reason}");
    }
}

#[test]
fn a_ratio_that_is_absent_has_its_own_reason_first() {
    let mut entry = made().experiments.remove(0);
    assert_eq!(entry.why_absent("fills: relay / peer"), "the CPU's counters: hidden");
    assert_eq!(entry.why_absent("another"), "the bundle does not say why");
    entry.error = Some("interrupted".into());
    assert_eq!(entry.why_absent("another"), "interrupted");
    let not_begun = Entry { seconds: None, output: None, error: None, ..entry };
    assert_eq!(not_begun.why_absent("fills: relay / peer"), "the run ended before it");
}

#[test]
fn nothing_says_whose_machine_it_is() {
    let private = Private { host: "relay".into(), home: Some("/srv/jo".into()) };
    for (text, expected) in [
        ("relay: cannot run", "HOST: cannot run"),
        ("relays, relay-2, xrelay", "relays, relay-2, xrelay"),
        ("on relay, relay.example", "on HOST, HOST.example"),
        ("/home/eve/bin/cc and /home/é.f-1: no", "/home/USER/bin/cc and /home/USER: no"),
        ("'/home/eve' is full", "'/home/USER' is full"),
        ("/srv/jo/x", "~/x"),
        ("/home/", "/home/USER"),
    ] {
        assert_eq!(private.hide(text), expected, "{text}");
    }
    let nameless = Private { host: String::new(), home: None };
    assert_eq!(nameless.hide("as it is"), "as it is");
}

#[test]
fn what_is_hidden_in_a_reason_is_not_hidden_in_the_name_of_its_ratio() {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut bundle = made();
    let ratio = format!("{host} / peer");
    bundle.experiments[0].parts[0].ratios[0].name = ratio.clone();
    let mut output = bundle.experiments[0].output.take().unwrap();
    output.absent = vec![format!("{ratio}: {host} is slow")];
    output.notes = vec![format!("of {host}")];
    let outcome = Outcome { output, error: Some(anyhow::anyhow!("in /home/eve/x")) };
    let took = Duration::from_secs(1);
    assert!(bundle.add(0, Ok(outcome), took, took).is_some());
    let entry = &bundle.experiments[0];
    assert_eq!(entry.why_absent(&ratio), "HOST is slow");
    assert_eq!(entry.output.as_ref().unwrap().notes, ["of HOST"]);
    assert_eq!(entry.error.as_deref(), Some("in /home/USER/x"));
}
