//! Limits on open files: each case in a process of its own, which is this program again.

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind as Io, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use cachelane_relay::{Config, Engine, ErrorKind, Relay};
use common::*;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, setrlimit};

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
fn when_open_files_run_out_connections_go_on_and_clients_are_told() {
    let name = "when_open_files_run_out_connections_go_on_and_clients_are_told";
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
            // None is closed before all are told: the relay would have its file.
            let late: Vec<_> = late.into_iter().map(TcpStream::from).collect();
            for client in &late {
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                expect_reset(client);
            }
            let turned_away = || rig.relay.stats().turned_away;
            await_that("they are counted", || turned_away() == 4);
            pairs.iter().for_each(converse);
            drop(hoard);
            part(rig.pair());
            pairs.into_iter().for_each(part);
        }
    });
}

/// A relay in a process of its own, with few open files; its peers are in this one.
struct Elsewhere {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Elsewhere {
    fn start(test: &str, backend: SocketAddr) -> Elsewhere {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, backend.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let asks = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Elsewhere { process, asks, answers }
    }

    /// The child's side: tells of the relay, a line for each that it reads.
    fn serve(backend: SocketAddr, files: u64) {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let budget = Config::MIN_BUDGET;
        let relay = Relay::start(Config { budget, ..config(Engine::Splice, &[backend]) }).unwrap();
        for _ in std::io::stdin().lines() {
            let stats = relay.stats();
            let (addr, most) = (relay.addrs()[0], relay.max_connections());
            println!("relay: {addr} {most} {} {}", stats.no_files, stats.pipes_short);
        }
    }

    /// Where it listens, its most connections, and how often files and pipes ran out.
    fn ask(&mut self) -> (SocketAddr, usize, u64, u64) {
        writeln!(self.asks).unwrap();
        for line in (&mut self.answers).lines() {
            if let Some((_, said)) = line.unwrap().split_once("relay: ") {
                let mut words = said.split(' ');
                let mut number = || words.next().unwrap().parse().ok();
                let addr = said.split(' ').next().unwrap().parse().unwrap();
                let _: Option<u64> = number();
                let [most, files, pipes] = std::array::from_fn(|_| number().unwrap());
                return (addr, most as usize, files, pipes);
            }
        }
        panic!("the relay's process ended");
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// As many as the kernel takes without waiting.
fn stuff(mut to: &TcpStream) {
    to.set_nonblocking(true).unwrap();
    loop {
        match to.write(&[5; 64 * 1024]) {
            Ok(_) => {}
            Err(e) if e.kind() == Io::WouldBlock => break,
            Err(e) => panic!("a write failed: {e}"),
        }
    }
    to.set_nonblocking(false).unwrap();
}

#[test]
fn as_many_connections_as_were_promised_fit_though_both_directions_of_each_are_stuck() {
    let name = "as_many_connections_as_were_promised_fit_though_both_directions_of_each_are_stuck";
    if let Ok(addr) = std::env::var(CHILD) {
        return Elsewhere::serve(addr.parse().unwrap(), 400);
    }
    let (listener, addr) = backend();
    let mut relay = Elsewhere::start(name, addr);
    let (at, most, ..) = relay.ask();
    assert!(most > 50, "only {most} of 400 files' worth");
    let pairs: Vec<_> =
        (0..most).map(|_| Pair { client: connect(at), backend: accept(&listener) }).collect();
    let mut pipes_short = 0;
    await_that("pipes ran out", || {
        for pair in &pairs {
            stuff(&pair.client);
            stuff(&pair.backend);
        }
        pipes_short = relay.ask().3;
        pipes_short > most as u64
    });
    assert_eq!(relay.ask().2, 0, "files ran out with {most} connections");
    // And the next client waits for one of them to go.
    let next = connect(at);
    assert!(try_accept(&listener, std::time::Duration::from_millis(100)).is_none());
    drop(pairs);
    converse(&Pair { client: next, backend: accept(&listener) });
    assert_eq!(relay.ask().2, 0);
}
