//! Small frames, made inside the kernel and counted and dropped there: for measuring what
//! forwarding a packet costs, where a sender with sockets would cost more than what is measured.

use std::{net::Ipv4Addr, os::fd::AsFd as _, sync::Arc};

use bpf::tcx::{self, Hook};

use super::{
    index,
    programs::{Programs, constants, repeat, udp_frame},
    threads::Threads,
};
use crate::{End, Error, Host, Mac, Result};

/// Bytes of a frame, without the checksum that a wire would add: the least that Ethernet has.
pub const FRAME_LEN: usize = 60;

/// The frames' addresses.
const SOURCE: Ipv4Addr = Ipv4Addr::from_bits(constants::SOURCE);
const TARGET: Ipv4Addr = Ipv4Addr::from_bits(constants::TARGET);
/// Runs a system call: a few milliseconds of work.
const RUNS: u32 = 256;

/// The stations that frames come from or go to: hardware addresses that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stations {
    /// The first one's address; the others' count up its last four bytes.
    pub first: Mac,
    /// How many there are, at least 1.
    pub count: u32,
}

impl Stations {
    /// The address of each.
    pub fn addresses(self) -> impl Iterator<Item = Mac> {
        let Mac([a, b, ..]) = self.first;
        (0..self.count).map(move |number| {
            let [c, d, e, f] = self.end().wrapping_add(number).to_be_bytes();
            Mac([a, b, c, d, e, f])
        })
    }

    /// The last four bytes of the first one's address.
    fn end(self) -> u32 {
        let Mac([_, _, c, d, e, f]) = self.first;
        u32::from_be_bytes([c, d, e, f])
    }
}

impl From<Mac> for Stations {
    fn from(first: Mac) -> Self {
        Self { first, count: 1 }
    }
}

/// Injects UDP frames of [`FRAME_LEN`] bytes into a host, as if one of its devices had received
/// them. Each has memory of its own and goes through the backlog of the CPU that makes it, as
/// what a veth's peer sends does.
///
/// Frames that a CPU's backlog has no room for, or that the device does not take, are not injected.
#[derive(Debug)]
pub struct FrameGenerator {
    host: Host,
    programs: Arc<Programs>,
    frame: Vec<u8>,
}

impl FrameGenerator {
    /// A generator of frames that `device` of `host` receives. Where there are several stations
    /// on a side, each frame picks one of them at random.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there is no such device, or no
    /// station on a side; [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted) without
    /// root; [`ErrorKind::Io`](crate::ErrorKind::Io) where BPF is not to be had.
    pub fn new(
        host: &Host,
        device: &str,
        from: impl Into<Stations>,
        to: impl Into<Stations>,
    ) -> Result<Self> {
        let (from, to) = (from.into(), to.into());
        if from.count == 0 || to.count == 0 {
            return Err(Error::invalid("0 stations: expected at least 1"));
        }
        let programs = Programs::load(&[
            (constants::DEVICE, index(host, device)?),
            (constants::SOURCES, from.count),
            (constants::FIRST_SOURCE, from.end()),
            (constants::TARGETS, to.count),
            (constants::FIRST_TARGET, to.end()),
        ])?;
        let frame = frame(from.first, to.first);
        Ok(Self { host: host.clone(), programs: Arc::new(programs), frame })
    }

    /// Injects as fast as it goes, from one thread for each element of `cpus`: pinned to that CPU
    /// or, for none, where the scheduler puts it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a CPU that cannot be pinned to;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) without threads.
    pub fn start(&self, cpus: &[Option<usize>]) -> Result<Injection> {
        let mut threads = Threads::new()?;
        for cpu in cpus {
            let (programs, frame) = (self.programs.clone(), self.frame.clone());
            threads.start(&self.host, "inject-frames", *cpu, move |stop| {
                while !stop.is_set() {
                    repeat(&programs.inject, &frame, RUNS, 0)?;
                }
                Ok(())
            })?;
        }
        Ok(Injection(threads))
    }

    /// Frames that the device has received since the generator was made.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn injected(&self) -> Result<u64> {
        self.programs.read(constants::INJECTED)
    }
}

/// Threads that inject, until dropped.
#[derive(Debug)]
pub struct Injection(Threads<Result<()>>);

impl Injection {
    /// Stops it.
    ///
    /// # Errors
    /// That of a thread that could not go on until now, as where the device is gone.
    pub fn stop(mut self) -> Result<()> {
        self.0.finish().into_iter().collect()
    }
}

/// Counts and drops the frames of [`FrameGenerator`]s that a device receives, and nothing else,
/// until it is dropped.
///
/// It is on the device's tcx hook, which does not change in which way it receives: an XDP program
/// would turn on its NAPI, and take it out of what is measured.
#[derive(Debug)]
pub struct FrameSink {
    programs: Programs,
    _link: bpf::Link,
}

impl FrameSink {
    /// A sink where `end` receives.
    ///
    /// # Errors
    /// As [`FrameGenerator::new`].
    pub fn attach(end: &End) -> Result<Self> {
        let programs = Programs::load(&[])?;
        let index = index(&end.host, &end.device)?;
        let link = end.host.run(|| tcx::attach(programs.sink.as_fd(), index, Hook::Ingress))?;
        let link = link.map_err(|e| Error::io(format!("a sink on {}", end.device), e))?;
        Ok(Self { programs, _link: link })
    }

    /// Frames that have arrived.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn arrived(&self) -> Result<u64> {
        self.programs.read(constants::ARRIVED)
    }
}

/// A frame between two stations.
pub(super) fn frame(from: Mac, to: Mac) -> Vec<u8> {
    udp_frame(FRAME_LEN, [from, to], [SOURCE, TARGET])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stations_count_up_their_last_four_bytes() {
        let stations = Stations { first: Mac([2, 0x63, 0, 0, 0, 0xff]), count: 3 };
        let addresses: Vec<String> = stations.addresses().map(|mac| mac.to_string()).collect();
        assert_eq!(addresses, ["02:63:00:00:00:ff", "02:63:00:00:01:00", "02:63:00:00:01:01"]);
    }
}
