//! Watching what traffic does: by raw tracepoints where sockets receive and where buffers are freed.
//!
//! | event | tracepoint | the packet comes from |
//! |---|---|---|
//! | a consumer receives | `sock_recv_length` (Linux 6.3); before, `tcp_rcv_space_adjust` | the CPU that last delivered to the socket |
//! | a buffer is freed | `consume_skb`, `kfree_skb` | the CPU that allotted it (Linux 5.19) |
//!
//! Of these tracepoints only the arguments are used that they have had in every version. The kernel
//! tells of no free where the consumer of a TCP socket, or of a UDP socket since Linux 6.18, frees a
//! buffer as it reads. If another CPU allotted the buffer, it goes back there (`skb_defer_max`), and
//! is seen when it is freed at home.
//!
//! A program looks at one event in [`EVERY`](Watch::EVERY), and each CPU writes only its own counts.
//! Nothing is pinned: the programs go with their descriptors, however the process ends.

use std::ffi::CStr;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use bpf::{Link, Map, Program};
use lanes::LaneMap;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::Context as _;
use crate::{Error, ErrorKind, Result, Watch};

include!(concat!(env!("OUT_DIR"), "/watch.skel.rs"));

use skel::constants;
use skel::types::counts as Counts;

/// Watches the traffic of the whole machine, for as long as this is there.
#[derive(Debug)]
pub struct Watching {
    counts: Map,
    since: Instant,
    not_seen: Vec<String>,
    #[cfg(feature = "measure")]
    programs: Programs,
    _links: Vec<Link>,
}

#[derive(Debug)]
struct Programs {
    received: Program,
    taken: Program,
    consumed: Program,
    dropped: Program,
    knows_home: Program,
}

impl Watch {
    /// Of so many events one is looked at, at random.
    pub const EVERY: u64 = constants::EVERY as u64;
}

impl Watching {
    /// Starts to watch, by these lanes.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] without CAP_BPF and CAP_PERFMON, [`ErrorKind::Unsupported`] if
    /// the kernel does not load the programs (it may not describe its types, or be locked down), and
    /// what the system reports.
    pub fn start(lanes: &LaneMap) -> Result<Self> {
        Self::without(lanes, &[])
    }

    /// As on a kernel without these tracepoints.
    fn without(lanes: &LaneMap, absent: &[&CStr]) -> Result<Self> {
        let (programs, counts) = load(lanes).map_err(|error| refused(&error))?;
        let (mut links, mut not_seen) = (Vec::new(), Vec::new());
        let mut attach = |program: &Program, tracepoint: &CStr| -> Result<bool> {
            let attached = match absent.contains(&tracepoint) {
                true => Err(io::ErrorKind::NotFound.into()),
                false => program.attach_tracepoint(tracepoint),
            };
            match attached {
                Ok(link) => links.push(link),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => {
                    let what = format_args!("cannot attach to the tracepoint {tracepoint:?}");
                    return Err(error).context(what);
                }
            }
            Ok(true)
        };
        if !attach(&programs.received, c"sock_recv_length")? {
            not_seen.push(match attach(&programs.taken, c"tcp_rcv_space_adjust")? {
                true => {
                    "what UDP sockets receive: the kernel has no tracepoint sock_recv_length \
                         (Linux 6.3)"
                }
                false => "what sockets receive: the kernel has no tracepoint for it",
            });
        }
        let no_home = "where packet buffers are freed: the kernel does not note where they were \
                       allotted (Linux 5.19)";
        match programs.knows_home.run(&mut 0_u64).context("cannot run a BPF program")? {
            0 => not_seen.push(no_home),
            _ => {
                let [consumed, dropped] = [
                    attach(&programs.consumed, c"consume_skb")?,
                    attach(&programs.dropped, c"kfree_skb")?,
                ];
                if !consumed || !dropped {
                    not_seen.push("where packet buffers are freed: the kernel lacks a tracepoint");
                }
            }
        }
        let not_seen = not_seen.into_iter().map(str::to_owned).collect();
        Ok(Self {
            counts,
            since: Instant::now(),
            not_seen,
            #[cfg(feature = "measure")]
            programs,
            _links: links,
        })
    }

    /// What this kernel does not let it see, and why.
    pub fn not_seen(&self) -> &[String] {
        &self.not_seen
    }

    /// Goes on for as long since it was started, and ends.
    ///
    /// # Errors
    /// What the system reports.
    pub fn until(self, time: Duration) -> Result<Watch> {
        thread::sleep(time.saturating_sub(self.since.elapsed()));
        self.so_far()
    }

    /// What was counted since it was started.
    ///
    /// # Errors
    /// What the system reports.
    pub fn so_far(&self) -> Result<Watch> {
        let of = |event: u32| self.counts.sum::<Counts>(&event).context("cannot read the counts");
        let received = of(constants::EVENT_RECEIVE)?;
        let freed = [of(constants::EVENT_CONSUME)?, of(constants::EVENT_DROP)?];
        let sum = |count: fn(&Counts) -> u64| freed.iter().map(count).sum::<u64>();
        Ok(Watch {
            seconds: self.since.elapsed().as_secs_f64(),
            receives: Watch::EVERY * received.looked,
            receives_other_lane: Watch::EVERY * received.other_lane,
            receives_other_lane_local: Watch::EVERY * received.local,
            frees: Watch::EVERY * sum(|counts| counts.looked),
            frees_other_lane: Watch::EVERY * sum(|counts| counts.other_lane),
        })
    }

    /// What the programs at receives have cost so far, and those at frees, while the kernel's
    /// statistics were on.
    ///
    /// # Errors
    /// What the system reports.
    #[cfg(feature = "measure")]
    pub fn run_times(&self) -> Result<[bpf::RunTime; 2]> {
        let Programs { received, taken, consumed, dropped, .. } = &self.programs;
        let read = || -> io::Result<_> {
            let receives = received.run_time()? + taken.run_time()?;
            Ok([receives, consumed.run_time()? + dropped.run_time()?])
        };
        read().context("cannot read a program's statistics")
    }
}

/// The programs, and the map of what they count.
fn load(lanes: &LaneMap) -> Result<(Programs, Map), bpf::Error> {
    bpf::load(|storage| {
        let mut open = skel::WatchSkelBuilder::default().open(storage)?;
        if let Some(fixed) = &mut open.maps.rodata_data {
            for (cpu, lane) in fixed.lane_of.iter_mut().enumerate() {
                *lane = lanes.lane_of(cpu).map_or(constants::NO_LANE as u16, |lane| lane.0);
            }
        }
        let skel = open.load()?;
        let programs = Programs {
            received: Program::of(&skel.progs.cachelane_received)?,
            taken: Program::of(&skel.progs.cachelane_taken)?,
            consumed: Program::of(&skel.progs.cachelane_consumed)?,
            dropped: Program::of(&skel.progs.cachelane_dropped)?,
            knows_home: Program::of(&skel.progs.knows_home)?,
        };
        Ok((programs, Map::of(&skel.maps.counts)?))
    })
}

/// Programs that the kernel did not load.
fn refused(error: &bpf::Error) -> Error {
    match error.is_permission() {
        true => Error::new(
            ErrorKind::NotPermitted,
            format!("loading the programs that watch needs CAP_BPF and CAP_PERFMON: {error}"),
        ),
        false => Error::new(
            ErrorKind::Unsupported,
            format!("the kernel does not load the programs that watch: {error:#}"),
        ),
    }
}

#[cfg(test)]
mod tests;
