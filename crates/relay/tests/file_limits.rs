//! Limits on open files: each case in a process of its own, which is this program again.

mod common;

use std::fs::File;
use std::process::Command;

use cachelane_relay::{Config, Engine, ErrorKind, Relay};
use common::*;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, setrlimit};

const CHILD: &str = "RELAY_TEST_CHILD";

/// Runs `body` in a child with at most `files` open files; the test is `name`.
fn with_files(name: &str, files: u64, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).unwrap();
        return body();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_connection_limit_that_open_files_do_not_allow_is_refused() {
    let name = "a_connection_limit_that_open_files_do_not_allow_is_refused";
    with_files(name, 400, || {
        let (_listener, addr) = backend();
        let wanted = |n| Config { max_connections: n, ..config(Engine::Auto, &[addr]) };
        let error = Relay::start(wanted(Some(1000))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileLimit);
        for part in ["1000 connections", "400", "ulimit -n"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let possible = Relay::start(wanted(None)).unwrap().max_connections();
        assert!((1..200).contains(&possible), "{possible}");
        assert!(Relay::start(wanted(Some(possible))).is_ok());
        assert!(Relay::start(wanted(Some(possible + 1))).is_err());
    });
}

#[test]
fn too_few_open_files_for_one_connection_are_refused() {
    with_files("too_few_open_files_for_one_connection_are_refused", 60, || {
        let (_listener, addr) = backend();
        let error = Relay::start(config(Engine::Auto, &[addr])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileLimit, "{error}");
    });
}

#[test]
fn when_open_files_run_out_connections_go_on_and_accepting_resumes() {
    let name = "when_open_files_run_out_connections_go_on_and_accepting_resumes";
    with_files(name, 300, || {
        for engine in [Engine::Copy, Engine::Splice] {
            let rig = Rig::new(engine);
            let pairs: Vec<_> = (0..10).map(|_| rig.pair()).collect();
            let late: Vec<_> = (0..4)
                .map(|_| {
                    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
                })
                .collect();
            let mut hoard = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                hoard.push(file);
            }
            for socket in &late {
                rustix::net::connect(socket, &rig.relay.addrs()[0]).unwrap();
            }
            await_that("accepting failed", || rig.relay.stats().no_files > 0);
            pairs.iter().for_each(converse);
            drop(hoard);
            for _ in &late {
                accept(&rig.listener);
            }
            pairs.into_iter().for_each(part);
        }
    });
}
