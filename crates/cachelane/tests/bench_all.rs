//! `cachelane bench all` and `bench results`: what is kept, when, and what is said of it. What they
//! measure here is nothing to go by.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{PROGRAM, Place, ends_within, says, text};
use lab::testing::{comes_true, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The files in a place, but for those that it comes with.
fn files(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != "tmp" && name != "cachelane").collect();
    names.sort_unstable();
    names
}

/// The page of a bundle in this place.
fn page(place: &Place, bundle: &str) -> String {
    let output = place.command(&["bench", "results", bundle]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn root_a_bundle_has_the_machine_and_every_ratio_and_makes_a_page() {
    if !root("root_a_bundle_has_the_machine_and_every_ratio_and_makes_a_page") {
        return;
    }
    let place = Place::new();
    fs::write(place.path().join("it.json"), "what was there before").unwrap();
    let args = ["bench", "all", "--only", "doctor", "--rounds", "1", "--window", "50ms"];
    let args = [&args[..], &["--json", "--bundle", "it.json"]].concat();
    let output = place.command(&args).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("bench all: takes about "), "{stderr}");

    let bundle = read(&place.path().join("it.json"));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), bundle);
    assert_eq!((&bundle["schema"], &bundle["incomplete"]), (&1.into(), &Value::Null));
    let command = "cachelane bench all --only doctor --rounds 1 --window 50ms";
    assert_eq!(bundle["command"], command);
    let machine = &bundle["machine"];
    for (field, is_right) in [
        ("kernel", machine["kernel"].is_string()),
        ("cpus", machine["cpus"].as_u64() > Some(0)),
        ("lanes", machine["lanes"].as_str().is_some_and(|lanes| lanes.contains('0'))),
        ("memory", machine["memory"].as_u64() > Some(0)),
        ("hypervisor", machine["hypervisor"].is_boolean()),
        ("pmu", machine["pmu"] == true || machine["no_pmu"].is_string()),
    ] {
        assert!(is_right, "{field} in {machine:#}");
    }
    let [entry] = bundle["experiments"].as_array().unwrap().as_slice() else { panic!("{bundle}") };
    assert_eq!(
        (&entry["name"], &entry["rounds"], &entry["short"]),
        (&"doctor".into(), &1.into(), &true.into())
    );
    let output = &entry["output"];
    let ratios = entry["parts"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|part| part["ratios"].as_array().unwrap());
    let page = page(&place, "it.json");
    for ratio in ratios {
        let name = ratio["name"].as_str().unwrap();
        let found = output["ratios"].as_array().unwrap().iter().find(|one| one["name"] == name);
        let absent = output["absent"].as_array().into_iter().flatten();
        let absent = absent.filter(|said| said.as_str().unwrap().starts_with(name)).count();
        assert_eq!(usize::from(found.is_some()) + absent, 1, "{name} in {output:#}");
        if let Some(found) = found {
            assert!(found["verdict"].is_string(), "{found}");
        }
        assert!(page.contains(&format!("\n| {name} | ")), "{name} in {page}");
    }
    assert!(page.contains("(short)"), "{page}");
    assert_eq!(files(&place), ["it.json"]);
}

#[test]
fn an_interrupted_run_keeps_what_it_has() {
    let (place, nothing) = (Place::new(), Place::new());
    let args = ["-v", "bench", "all", "--only", "frames,lend", "--rounds", "1000"];
    let args = [&args[..], &["--window", "1ms", "--bundle", "it.json"]].concat();
    // Without a compiler, so that nothing has to be built.
    let mut bench = place.command(&args);
    let (child, _stderr) = says(bench.env("PATH", nothing.path()), "round 2 of 1000");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = ends_within(child, Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("\nended early: interrupted\n"), "{said}");
    assert!(said.ends_with("lend:\n\nwas not begun\n"), "{said}");

    let bundle = read(&place.path().join("it.json"));
    assert_eq!(bundle["incomplete"], true);
    let [frames, lend] = bundle["experiments"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!(frames["output"]["incomplete"], true);
    let runs = frames["output"]["cases"].as_array().unwrap().iter();
    assert!(runs.filter_map(|case| case["runs"].as_array()).any(|runs| !runs.is_empty()));
    assert_eq!((&lend["output"], &lend["seconds"]), (&Value::Null, &Value::Null));
    assert!(page(&place, "it.json").contains("\n1. the run ended before it\n"));
    assert_eq!(files(&place), ["it.json"]);
}

#[test]
fn what_cannot_run_does_not_end_the_others_and_a_killed_run_has_kept_it() {
    let place = Place::new();
    let args = ["bench", "all", "--only", "relay,frames", "--rounds", "1000"];
    let mut bench = place.unprivileged(&[&args[..], &["--bundle", "it.json"]].concat());
    let mut child = bench.spawn().unwrap();
    let file = place.path().join("it.json");
    assert!(comes_true(|| file.exists()), "the first one has failed");
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(&output.stderr).contains("bench all: relay: "), "{output:?}");
    let bundle = read(&file);
    let [relay, frames] = bundle["experiments"].as_array().unwrap().as_slice() else { panic!() };
    assert!(relay["error"].is_string() && relay["seconds"].is_number(), "{bundle:#}");
    assert_eq!((&frames["error"], &frames["seconds"]), (&Value::Null, &Value::Null));
    assert_eq!((&bundle["incomplete"], files(&place)), (&true.into(), vec!["it.json".to_owned()]));
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let place = Place::new();
    for (file, code, reason) in [
        ("tmp", 2, "cannot write tmp: a folder; expected a file's name"),
        ("/dev/null", 2, "cannot write /dev/null: no regular file; expected a file's name"),
        ("none/it.json", 1, "cannot write none/it.json: No such file"),
        ("/proc/it.json", 1, "cannot write /proc/it.json: "),
    ] {
        let output = place.command(&["bench", "all", "--bundle", file]).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{file}: {stderr}");
        assert!(stderr.starts_with(&format!("cachelane: {reason}")), "{stderr}");
    }
    assert!(files(&place).is_empty());
}

#[test]
fn files_that_are_no_bundles_are_refused_by_name() {
    let place = Place::new();
    fs::write(place.path().join("half"), "{\"schema\":1,").unwrap();
    fs::write(place.path().join("bytes"), [0xff, 0xfe]).unwrap();
    for (file, code, reason) in [
        ("half", 2, "half: no bundle, or a damaged one: EOF while parsing"),
        ("bytes", 2, "bytes: not UTF-8; expected a bundle"),
        ("/dev/zero", 2, "/dev/zero: more than 67108864 bytes; expected a bundle"),
        ("none", 1, "cannot read none: No such file"),
    ] {
        let output = place.command(&["bench", "results", file]).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(code), ""),
            "{file}: {stderr}"
        );
        assert!(stderr.starts_with(&format!("cachelane: {reason}")), "{stderr}");
    }
}

/// `CACHELANE_WRITE=1 cargo test -p cachelane --test bench_all` writes it anew.
#[test]
fn the_page_of_results_is_what_the_bundles_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = fs::read_dir(root.join("bench/results")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_bundle = |path: &PathBuf| path.to_string_lossy().ends_with(".bundle.json");
    let mut bundles: Vec<_> = paths.filter(is_bundle).collect();
    bundles.sort_unstable();
    let output =
        std::process::Command::new(PROGRAM).args(["bench", "results"]).args(&bundles).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = root.join("docs/results.md");
    if std::env::var_os("CACHELANE_WRITE").is_some() {
        fs::write(&page, &output.stdout).unwrap();
    }
    let written = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        written == text(&output.stdout),
        "docs/results.md is not what 'cachelane bench results' makes of bench/results/*.bundle.json: \
         write it anew (CACHELANE_WRITE=1)"
    );
}
