//! An RPC server whose threads move from CPU to CPU, and its clients, on two wire-like hosts.
//!
//! 64 threads serve 8 connections each, from one epoll a thread: small requests and small answers.
//! All clients are one thread, pinned to the first CPU; on a veth its sends are what interrupts of
//! a network card are, so that CPU is the one of the interrupt. It keeps a request in flight on
//! each connection, so the host is as busy as can be.
//!
//! A thread of the server is pinned to a CPU and, after so many answers, moves to the next
//! ([`Moves`]). The scheduler has no say in where it runs, so that it moves as often whatever steers
//! its packets; what is compared is what follows the threads, not how they were placed.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::ensure;
use lab::traffic::{EchoCounters, EchoOptions, EchoServer, ExchangeWindow, Moves};
use lab::traffic::{RrOptions, RrSession};
use lab::{End, Lab, LinkOptions};
use lanes::{CpuSet, LaneMap};
use steer::{LOOK, SteerOptions, Steering};
use xsk::{Attach, Device, Hook};

use crate::bench::exchanges::unbroken;
use crate::bench::experiment::Absent;

pub(crate) const THREADS: usize = 64;
pub(crate) const CONNECTIONS: usize = 512;
/// Bytes of a request, and of an answer.
const MESSAGE: usize = 64;
/// How long what should be there in milliseconds is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// After what steers was exchanged: a packet lost meanwhile has been sent again, which takes TCP
/// 200 ms.
const SETTLE: Duration = Duration::from_millis(300);
/// An exchange that takes longer waits for a packet to be sent again.
const STUCK: Duration = Duration::from_millis(150);

/// The server, its clients, and the link between them. Exchanges go on for as long as it is there.
#[derive(Debug)]
pub(crate) struct Rpc {
    // Dropped in this order.
    session: RrSession,
    server: EchoServer,
    hosts: Hosts,
}

/// Two wire-like hosts, the second of which has consumers.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(super) client: End,
    /// The device at which packets arrive.
    pub(super) end: End,
    /// The CPUs that consumers are on.
    pub(super) cpus: CpuSet,
    lanes: LaneMap,
    _lab: Lab,
}

/// Which lanes the steering is told that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// All CPUs in one.
    One,
    /// As many as CPUs.
    PerCpu,
}

/// Steering, and a thread that looks after it as often as the command does, at its priority.
#[derive(Debug)]
pub(crate) struct Attended {
    steering: Arc<Steering>,
    over: Arc<AtomicBool>,
    looks: Option<JoinHandle<()>>,
}

impl Attended {
    fn new(steering: Steering) -> Attended {
        let (steering, over) = (Arc::new(steering), Arc::new(AtomicBool::new(false)));
        let (looked_at, ended) = (Arc::clone(&steering), Arc::clone(&over));
        let looks = thread::spawn(move || {
            // Without it, or without a look, the lease ends the steering, which the figures show.
            let _ = looked_at.go_before();
            // Relaxed: it stands for itself.
            while !ended.load(Relaxed) && looked_at.look(Instant::now()).is_ok() {
                thread::park_timeout(LOOK);
            }
        });
        Attended { steering, over, looks: Some(looks) }
    }
}

impl Deref for Attended {
    type Target = Steering;

    fn deref(&self) -> &Steering {
        &self.steering
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(looks) = self.looks.take() {
            looks.thread().unpark();
            let _ = looks.join();
        }
    }
}

/// That this process can have the two hosts, and something to measure on them.
pub(crate) fn ensure_possible() -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, Absent("test hosts need root".into()));
    let many = LaneMap::detect()?.allowed().len() > 1;
    ensure!(many, Absent("threads cannot move: one CPU is open to this process".into()));
    Ok(())
}

impl Rpc {
    /// Builds the hosts and waits until each connection is served. A thread of the server stays on
    /// its CPU for `stay` answers; where it looks, it does so at each receive where the packet was
    /// processed.
    pub(crate) fn start(stay: u64, look: bool, connections: usize) -> anyhow::Result<Rpc> {
        Rpc::with_threads(THREADS, stay, look, connections)
    }

    /// The same with so many threads in the server, among which the connections are divided evenly.
    pub(super) fn with_threads(
        threads: usize,
        stay: u64,
        look: bool,
        connections: usize,
    ) -> anyhow::Result<Rpc> {
        let hosts = Hosts::new()?;
        let Hosts { client, end, cpus, .. } = &hosts;
        let options = EchoOptions {
            threads,
            request: MESSAGE,
            per_thread: Some(connections / threads),
            moves: Some(Moves { cpus: cpus.iter().collect(), every: stay }),
            look,
            ..EchoOptions::default()
        };
        let server = EchoServer::start(&end.host, end.socket(7000), options)?;
        let options =
            RrOptions { connections, request: MESSAGE, cpu: cpus.first(), ..RrOptions::default() };
        let session = RrSession::start(&client.host, server.address(), &options)?;
        let until = Instant::now() + PATIENCE;
        while server.counters().open < connections as u64 {
            ensure!(Instant::now() < until, "the server does not take all connections");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Rpc { session, server, hosts })
    }

    /// What the server has counted.
    pub(crate) fn counters(&self) -> EchoCounters {
        self.server.counters()
    }

    /// Waits until exchanges go on as they will, after a change of what steers; not for ever: on a
    /// machine that has much else to do, they always take long.
    pub(crate) fn settle(&self) {
        let until = Instant::now() + 2 * SETTLE;
        while self.session.measure(SETTLE).longest_pending > STUCK && Instant::now() < until {}
    }

    /// What is exchanged in this time.
    pub(crate) fn measure(&self, time: Duration) -> anyhow::Result<ExchangeWindow> {
        unbroken(self.session.measure(time), "the server")
    }
}

impl Hosts {
    /// As many CPUs for the consumers as are open to this process.
    pub(super) fn new() -> anyhow::Result<Hosts> {
        ensure_possible()?;
        let lanes = LaneMap::detect()?;
        let lab = Lab::new("bench-steer")?;
        let [client, server] = [lab.host("client")?, lab.host("server")?];
        let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let link = lab.link(&client, &server, options)?;
        let cpus = lanes.allowed().clone();
        Ok(Hosts { client: link.a, end: link.b, cpus, lanes, _lab: lab })
    }

    /// The machine as if it had these lanes.
    pub(crate) fn lanes(&self, lanes: Lanes) -> anyhow::Result<LaneMap> {
        let between = if lanes == Lanes::One { "," } else { "|" };
        let cpus: Vec<_> = self.lanes.online().iter().map(|cpu| cpu.to_string()).collect();
        Ok(self.lanes.with_override(&cpus.join(between))?)
    }

    /// Steers its flows, as the command does.
    pub(crate) fn steer(&self, lanes: Lanes, llc_affinity: bool) -> anyhow::Result<Attended> {
        let lanes = self.lanes(lanes)?;
        let options = SteerOptions { llc_affinity, ..SteerOptions::default() };
        let attach = || -> anyhow::Result<Steering> {
            let device = Device::find(&self.end.device)?;
            Ok(Steering::attach(&device, &lanes, &options)?)
        };
        Ok(Attended::new(self.end.host.run(attach)??))
    }

    /// Puts the program on the device that lets everything pass.
    pub(crate) fn pass(&self, program: &lab::PassProgram) -> anyhow::Result<Hook> {
        use std::os::fd::AsFd as _;

        let attach = || -> anyhow::Result<Hook> {
            let device = Device::find(&self.end.device)?;
            Ok(Hook::attach(&device, program.as_fd(), Attach::Native, true)?)
        };
        self.end.host.run(attach)?
    }
}

impl Deref for Rpc {
    type Target = Hosts;

    fn deref(&self) -> &Hosts {
        &self.hosts
    }
}

impl Lanes {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Lanes::One => "one lane",
            Lanes::PerCpu => "a lane per cpu",
        }
    }
}
