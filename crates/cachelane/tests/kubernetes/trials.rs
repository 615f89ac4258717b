//! A trial on a share of the nodes: what the Job runs there, and its results combined.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use lab::Lab;
use lab::testing::{comes_true, root};
use serde_json::Value;

use crate::common::clients::{Storm, echo};
use crate::common::{Place, text};
use crate::manifests::{Manifests, configuration};
use crate::node::{Node, Running};

/// Between two connections of a client.
const PAUSE: Duration = Duration::from_millis(10);

/// The Job's arguments, but for times: windows and blocks as few and as short as can be.
fn shortened(args: Vec<String>) -> Vec<String> {
    let short = |arg: String| match arg.split_once('=') {
        Some(("--for", _)) => "--blocks=6".to_owned(),
        Some(("--window", _)) => "--window=200ms".to_owned(),
        _ => arg,
    };
    let short: Vec<_> = args.iter().cloned().map(short).collect();
    assert_eq!(args.iter().filter(|arg| !short.contains(arg)).count(), 2, "{args:?}");
    short
}

#[test]
fn root_logs_of_trials_on_three_nodes_are_combined_as_they_are() {
    if !root("root_logs_of_trials_on_three_nodes_are_combined_as_they_are") {
        return;
    }
    let lab = Lab::new("trials").expect("a lab");
    let (daemons, trials) = (Manifests::of(""), Manifests::of("trial"));
    let (daemon, trial) = (daemons.pod("DaemonSet"), trials.pod("Job"));
    let args = shortened(trial.args());
    let nodes: Vec<(Node, Running, Storm)> = ["one", "two", "three"]
        .into_iter()
        .map(|name| {
            let host = lab.host(name).expect("a host");
            let to = host.run(echo).expect("the host");
            let node = Node::new(host.clone(), &configuration(&to.to_string()));
            let running = node.start(&daemon);
            let is_ready = daemon.probe("readinessProbe");
            let container = running.container();
            assert!(comes_true(|| container.exec(&is_ready).success()), "{}", running.log());
            // With a pause, so that ports last.
            let addr = ([127, 0, 0, 1], 8080).into();
            let storm = host.run(|| Storm::paced(addr, PAUSE)).expect("the host");
            (node, running, storm)
        })
        .collect();
    let logs: Vec<String> = thread::scope(|scope| {
        let (trial, args) = (&trial, &args);
        let all: Vec<_> =
            nodes.iter().map(|(node, ..)| scope.spawn(move || node.log(trial, args))).collect();
        let ended = all.into_iter().map(|one| one.join().expect("no panic"));
        ended
            .map(|(status, log)| {
                // Six blocks may not be able to tell.
                assert!([Some(0), Some(5)].contains(&status.code()), "{status}: {log}");
                log
            })
            .collect()
    });
    let ids: BTreeSet<String> = logs
        .iter()
        .map(|log| {
            let record: Value = serde_json::from_str(log).unwrap_or_else(|e| panic!("{e}: {log}"));
            record["host"]["id"].as_str().expect("a machine id was there").to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 3, "{ids:?}");

    // As kubectl logs prints them, one after the other.
    let place = Place::new();
    fs::write(place.path().join("trial.log"), logs.concat()).expect("a file");
    let combined = place.command(&["trial", "combine", "trial.log", "--json"]).output();
    let combined = combined.expect("it runs");
    assert!([Some(0), Some(5)].contains(&combined.status.code()), "{combined:?}");
    let object: Value = serde_json::from_slice(&combined.stdout).expect("JSON");
    let sources = object["sources"].as_array().expect("sources");
    assert_eq!(sources.len(), 3, "{object}");
    for (at, source) in sources.iter().enumerate() {
        assert_eq!(source["name"], format!("trial.log:{}", at + 1), "{source}");
    }
    let table = place.command(&["trial", "combine", "trial.log"]).output().expect("it runs");
    let all = "cpu.busy/counter:relay.bytes: 3 hosts, which differ by";
    assert!(text(&table.stdout).contains(all), "{}", text(&table.stdout));

    for (_, mut running, storm) in nodes {
        let tally = storm.end();
        assert!(tally.served > 0 && tally.refused == 0, "{tally:?}");
        running.container().signal("TERM");
        assert_eq!(running.ended(), Some(0), "{}", running.log());
    }
}
