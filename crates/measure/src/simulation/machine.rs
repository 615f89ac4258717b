//! A machine's CPUs and lanes.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use steer::model::{CPUS_MAX, Lane};

/// Sockets of CPUs in lanes, all alike. Written `2x128/16`: two sockets with 128 CPUs each, in
/// lanes of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    sockets: u32,
    cpus_of_socket: u32,
    cpus_of_lane: u32,
}

impl Machine {
    /// CPUs in all.
    pub fn cpus(&self) -> u32 {
        self.sockets * self.cpus_of_socket
    }

    /// Lanes in all.
    pub fn lanes(&self) -> u32 {
        self.cpus() / self.cpus_of_lane
    }

    /// CPUs of each lane.
    pub fn cpus_of_lane(&self) -> u32 {
        self.cpus_of_lane
    }

    /// The lane that a CPU is in. CPUs of a lane have numbers in a row.
    pub fn lane_of(&self, cpu: u32) -> Lane {
        cpu / self.cpus_of_lane
    }

    /// The share of moves that stay in the lane if threads are moved by the scheduler's periodic
    /// balancing alone.
    ///
    /// Linux balances each scheduling domain every so many milliseconds as it has CPUs
    /// (`balance_interval` in kernel/sched/topology.c): the lane, the socket, all sockets. A move by
    /// the lane's domain stays in the lane, one by a larger domain goes to another lane. Domains of
    /// the same CPUs are one, and of one CPU there is none.
    pub fn balanced_in_lane(&self) -> f64 {
        let mut domains = vec![self.cpus_of_lane, self.cpus_of_socket, self.cpus()];
        domains.dedup();
        let rate = |cpus: &u32| if *cpus > 1 { 1.0 / f64::from(*cpus) } else { 0.0 };
        let all: f64 = domains.iter().map(rate).sum();
        if all > 0.0 { rate(&self.cpus_of_lane) / all } else { 1.0 }
    }
}

impl FromStr for Machine {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parse = || {
            let (sockets, rest) = text.split_once('x')?;
            let (cpus, lane) = rest.split_once('/')?;
            Some((sockets.parse().ok()?, cpus.parse().ok()?, lane.parse().ok()?))
        };
        let (sockets, cpus_of_socket, cpus_of_lane) = parse().with_context(|| {
            format!(
                "machine '{text}': expected SOCKETSxCPUS/LANE, such as 2x128/16 for two sockets \
                 with 128 CPUs each, in lanes of 16"
            )
        })?;
        let machine = Self { sockets, cpus_of_socket, cpus_of_lane };
        let least = sockets.min(cpus_of_socket).min(cpus_of_lane);
        ensure!(least > 0, "machine {machine}: expected at least 1 of each");
        ensure!(
            cpus_of_socket.is_multiple_of(cpus_of_lane),
            "machine {machine}: {cpus_of_socket} CPUs of a socket do not divide into lanes of \
             {cpus_of_lane}"
        );
        let cpus = sockets.checked_mul(cpus_of_socket);
        let few = cpus.is_some_and(|cpus| cpus <= CPUS_MAX);
        ensure!(few, "machine {machine}: expected at most {CPUS_MAX} CPUs");
        Ok(machine)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}/{}", self.sockets, self.cpus_of_socket, self.cpus_of_lane)
    }
}
