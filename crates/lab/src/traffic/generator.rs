//! Small frames, made inside the kernel and counted and dropped there: for measuring what
//! forwarding a packet costs, where a sender with sockets would cost more than what is measured.

mod object;
mod sink;

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use bpf::Program;
use parking_lot::Mutex;

use super::{check_cpus, pin};
use crate::{Error, Host, Mac, Result};
pub(super) use object::index;
use object::{Programs, constants};
pub use sink::FrameSink;

/// Bytes of a frame, without the checksum that a wire would add: the least that Ethernet has.
pub const FRAME_LEN: usize = 60;

/// The frames' addresses.
const SOURCE: Ipv4Addr = Ipv4Addr::from_bits(constants::SOURCE);
const TARGET: Ipv4Addr = Ipv4Addr::from_bits(constants::TARGET);
/// How many one run of the program makes.
const BATCH: u64 = constants::BATCH as u64;
/// Runs a system call of a thread that goes on until it is stopped: a few milliseconds of work.
const RUNS: u64 = 256;

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
/// Frames that a CPU's backlog has no room for are refused, and counted as such.
#[derive(Clone, Debug)]
pub struct FrameGenerator {
    host: Host,
    device: String,
    programs: Arc<Programs>,
    frame: [u8; FRAME_LEN],
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
        let programs = Programs::load()?;
        let settings = [
            (constants::PORT, index(host, device)?),
            (constants::SOURCES, from.count),
            (constants::FIRST_SOURCE, from.end()),
            (constants::TARGETS, to.count),
            (constants::FIRST_TARGET, to.end()),
        ];
        for (setting, value) in settings {
            programs.put(setting, value).map_err(|e| Error::io("setting up the generator", e))?;
        }
        let frame = frame(from.first, to.first);
        Ok(Self { host: host.clone(), device: device.into(), programs: Arc::new(programs), frame })
    }

    /// Injects so many frames from the calling thread's CPU. Not while other threads inject.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the kernel refuses, as it does where the
    /// device is gone.
    pub fn inject(&self, frames: u64) -> Result<()> {
        let made = || self.counters().map(|counters| counters.injected + counters.refused);
        let until = made()? + frames;
        let programs = &self.programs;
        self.host.run(|| {
            // A signal cuts a run short; what was made tells what is left.
            loop {
                match until.saturating_sub(made()?) {
                    0 => return Ok(()),
                    few @ 1..BATCH => self.make(&programs.inject_one, few)?,
                    many => self.make(&programs.inject_batch, many / BATCH)?,
                }
            }
        })?
    }

    /// Injects as fast as it goes, from one thread for each element of `cpus`: pinned to that CPU
    /// or, for none, where the scheduler puts it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) for a CPU that cannot be pinned to, or without
    /// threads.
    pub fn start(&self, cpus: &[Option<usize>]) -> Result<Injection> {
        check_cpus(&cpus.iter().copied().flatten().collect::<Vec<_>>())?;
        let mut injection = Injection { shared: Arc::default(), threads: Vec::new() };
        for cpu in cpus {
            let (generator, shared) = (self.clone(), injection.shared.clone());
            let cpu: Vec<usize> = cpu.iter().copied().collect();
            let thread = self.host.spawn_thread("inject-frames", move || {
                // A CPU that is not there has been refused.
                let mut going = pin(&cpu, 0);
                // Relaxed: a run more or less does not matter.
                while going.is_ok() && !shared.stop.load(Relaxed) {
                    going = generator.make(&generator.programs.inject_batch, RUNS);
                }
                if let Err(error) = going {
                    *shared.failed.lock() = Some(error);
                }
            })?;
            injection.threads.push(thread);
        }
        Ok(injection)
    }

    /// What has been made since the generator was.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn counters(&self) -> Result<FrameCounters> {
        let get =
            |count| self.programs.read(count).map_err(|e| Error::io("reading the generator", e));
        Ok(FrameCounters { injected: get(constants::INJECTED)?, refused: get(constants::REFUSED)? })
    }

    fn make(&self, program: &Program, runs: u64) -> Result<()> {
        let times = i32::try_from(runs).unwrap_or(i32::MAX).unsigned_abs();
        match program.repeat(&self.frame, times, 0) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                Err(Error::io(format!("injecting frames into {}", self.device), error))
            }
            _ => Ok(()),
        }
    }
}

/// What a [`FrameGenerator`] has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounters {
    /// Frames that the device received.
    pub injected: u64,
    /// Frames that the CPU's backlog had no room for, or that the device did not take.
    pub refused: u64,
}

/// Threads that inject, until dropped.
#[derive(Debug)]
pub struct Injection {
    shared: Arc<Injecting>,
    threads: Vec<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Injecting {
    stop: AtomicBool,
    failed: Mutex<Option<Error>>,
}

impl Injection {
    /// Stops it.
    ///
    /// # Errors
    /// That of a thread that could not go on until now.
    pub fn stop(self) -> Result<()> {
        let shared = self.shared.clone();
        drop(self);
        let failed = shared.failed.lock().take();
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        // Relaxed: joining the threads orders everything else.
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has been printed, and a drop could not say more.
            let _ = thread.join();
        }
    }
}

pub(super) fn frame(from: Mac, to: Mac) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame.copy_from_slice(&udp_frame(FRAME_LEN, [from, to], [SOURCE, TARGET]));
    frame
}

/// Ethernet, IPv4 and UDP, and zeros up to the length; from the first address to the second.
pub(super) fn udp_frame(size: usize, macs: [Mac; 2], addresses: [Ipv4Addr; 2]) -> Vec<u8> {
    const IP: usize = 14;
    const UDP: usize = IP + 20;
    let mut frame = vec![0; size];
    frame[..6].copy_from_slice(&macs[1].0);
    frame[6..12].copy_from_slice(&macs[0].0);
    frame[12..IP].copy_from_slice(&[0x08, 0x00]);
    let length = ((size - IP) as u16).to_be_bytes();
    // Version and header length, then don't-fragment, time to live and protocol.
    frame[IP..IP + 4].copy_from_slice(&[0x45, 0, length[0], length[1]]);
    frame[IP + 6..IP + 10].copy_from_slice(&[0x40, 0, 64, 17]);
    frame[IP + 12..IP + 16].copy_from_slice(&addresses[0].octets());
    frame[IP + 16..UDP].copy_from_slice(&addresses[1].octets());
    let sum = checksum(&frame[IP..UDP]);
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    // Both ports discard; without a checksum, as IPv4 allows.
    frame[UDP..UDP + 4].copy_from_slice(&[0, 9, 0, 9]);
    frame[UDP + 4..UDP + 6].copy_from_slice(&((size - UDP) as u16).to_be_bytes());
    frame
}

/// The checksum of an IPv4 header whose own checksum is zero.
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
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

    #[test]
    fn frames_have_a_header_that_sums_to_nothing() {
        let frame = frame(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        assert_eq!(checksum(&frame[14..34]), 0);
        assert_eq!(
            (&frame[..6], &frame[6..12]),
            (&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 1][..])
        );
        assert_eq!(u16::from_be_bytes([frame[16], frame[17]]) as usize, FRAME_LEN - 14);
        assert_eq!(u16::from_be_bytes([frame[38], frame[39]]) as usize, FRAME_LEN - 34);
    }
}
