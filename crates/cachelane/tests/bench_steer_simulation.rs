//! `cachelane bench steer --simulate` says everywhere that it simulates, and what it was given.

use std::process::{Command, Output};

fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachelane"));
    command.args(["bench", "steer", "--simulate", "--rounds", "2"]).args(args);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const SMALL: [&str; 6] = ["--machine", "2x8/4,1x4/1", "--window", "10ms", "--receives", "1000000"];

#[test]
fn json_has_every_case_of_both_values_of_the_knob_by_a_name_that_says_simulation() {
    let output = simulate(&[&SMALL[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["schema"], &json["experiment"]), (&1.into(), &"steer simulation".into()));
    let named = |list: &str, name: &str| {
        let found = json[list].as_array().unwrap().iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no '{name}' in {json}")).clone()
    };
    for machine in ["2x8/4", "1x4/1"] {
        for arm in ["on", "off"] {
            for what in [
                "records written",
                "evictions",
                "filtered, same lane",
                "flow moves",
                "in consumer's lane",
            ] {
                let name = format!("simulation {machine}, {arm}: {what}");
                assert_eq!(named("cases", &name)["runs"].as_array().unwrap().len(), 2);
            }
        }
        for what in ["records", "flow moves"] {
            named("ratios", &format!("simulation {machine}: {what}, on / off"));
        }
    }
    for one in json["cases"].as_array().unwrap().iter().chain(json["ratios"].as_array().unwrap()) {
        assert!(one["name"].as_str().unwrap().starts_with("simulation "), "{one}");
        assert_eq!(one["bar"], serde_json::Value::Null, "nothing is claimed: {one}");
    }
    // A lane of one CPU filters nothing.
    let ratio = named("ratios", "simulation 1x4/1: records, on / off");
    assert_eq!(ratio["median"], 1.0);
    let ratio = named("ratios", "simulation 2x8/4: records, on / off");
    assert!(ratio["median"].as_f64().unwrap() < 0.8, "{ratio}");
}

#[test]
fn the_table_says_simulation_above_and_in_each_row() {
    let output = simulate(&SMALL);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(lines[0].starts_with("simulation: "), "{lines:?}");
    let rows = lines.iter().filter(|line| line.contains("4/1") || line.contains("8/4"));
    assert!(rows.clone().count() >= 24, "{lines:?}");
    for row in rows {
        assert!(row.contains("simulation") && !row.contains('…'), "{row}");
    }
}

#[test]
fn what_comes_out_is_the_seed_s() {
    let run = |seed| simulate(&[&SMALL[..], &["--json", "--seed", seed]].concat()).stdout;
    assert_eq!(run("4"), run("4"));
    assert_ne!(run("4"), run("5"));
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_what_was_expected() {
    for (args, expected) in [
        (&["--machine", "2x10/4"][..], "10 CPUs of a socket do not divide into lanes of 4"),
        (&["--machine", "2x10"], "expected SOCKETSxCPUS/LANE"),
        (&["--machine", "64x64/8"], "expected at most 1024 CPUs"),
        (&["--threads", "0"], "simulation: 0 threads: expected 1 or more"),
        (&["--threads", "9", "--connections", "8"], "at least one for each of 9 threads"),
        (&["--records", "1000"], "1000 records: expected a power of two"),
        (&["--queues", "5000"], "5000 queues: expected 1 to 256"),
        (&["--moves", "2"], "moves 2: expected 0 to 1"),
        (&["--in-lane", "-1"], "in_lane -1: expected 0 to 1"),
        (&["--receives", "0"], "expected 1 to 1000000000"),
        (&["--window", "2h"], "expected 1 to 1000000000"),
    ] {
        let output = simulate(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{args:?}");
    }
}
