//! Where packets come from, and the network that they come over.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use frames::{Accounting, FramePool, LaneCache};
use lab::{End, Lab, LinkOptions, Process};
use lend::Distributor;
use xsk::{Attach, Device, Packet, Program, ProgramOptions, Socket, SocketOptions, Umem};

use super::worker::{BATCH, Outcome, Worker, run};
use super::{WORKERS, Who};
use crate::bench::command::{self, PATIENCE};
use crate::bench::experiment::{Absent, ensure_root};
use crate::bench::lend::books::Ledger;
use crate::bench::lend::lending::{QUOTA, SIZE, fill, lend, ports, shared_pool};

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    Memory,
    /// The same, with workers on the data thread's CPU as well: they meet at the lock.
    MemorySpread,
    Veth,
}

/// What the measurements of one feed have in common.
pub(super) struct Net {
    feed: Feed,
    /// The data thread's CPU.
    feeding: usize,
    /// The workers'.
    working: Vec<usize>,
    link: Option<[End; 2]>,
    lab: Lab,
}

impl Net {
    pub(super) fn build(feed: Feed, cpus: &[usize]) -> anyhow::Result<Net> {
        let lab = Lab::new("bench-lend")?;
        let link = match feed {
            Feed::Memory | Feed::MemorySpread => None,
            Feed::Veth => {
                ensure_root()?;
                let link = lab.link(&lab.host("a")?, &lab.host("b")?, LinkOptions::default())?;
                Some([link.a, link.b])
            }
        };
        let working = match feed {
            Feed::MemorySpread => cpus.to_vec(),
            Feed::Memory | Feed::Veth => vec![cpus[cpus.len() - 1]],
        };
        Ok(Net { feed, feeding: cpus[0], working, link, lab })
    }

    /// A rate that no machine holds.
    pub(super) fn too_much(&self) -> f64 {
        match self.feed {
            Feed::Memory | Feed::MemorySpread => 40e6,
            Feed::Veth => 2e6,
        }
    }

    /// Four flows to four workers.
    pub(super) fn measure(&self, who: Who, rate: f64, window: Duration) -> anyhow::Result<Outcome> {
        let pool = shared_pool()?;
        let mut cache = pool.cache(0)?;
        let (accounting, ledger) = match who {
            Who::Lend(accounting) => (accounting, None),
            Who::Ledger(locking) => {
                let ledger = Ledger::new(locking, QUOTA * WORKERS as u32);
                (Accounting::Counters, Some(ledger))
            }
        };
        let (lender, mut distributor, mut borrowers) =
            lend(&pool, accounting, WORKERS, self.lab.dir(), &mut cache)?;
        let first = ports(&mut distributor, &mut borrowers, &mut cache)?;
        let worker = |borrower| Worker::new(borrower, ledger.clone());
        let workers: Vec<_> = borrowers.into_iter().map(worker).collect();
        let outcome = match &self.link {
            None => {
                fill_all(&pool, &mut cache, first);
                let feed = move || from_memory(cache, distributor, rate, window);
                run(workers, self.feeding, &self.working, feed)
            }
            Some([from, to]) => {
                let mut receiver = Receiver::new(&pool, to, cache)?;
                let send = || self.send(from, first, rate, window);
                let feed = move || receiver.run(distributor, send()?, rate);
                run(workers, self.feeding, &self.working, feed)
            }
        }?;
        lender.close();
        pool.close().map_err(|leak| anyhow::anyhow!("frames were lost: {leak}"))?;
        Ok(outcome)
    }

    /// Starts a sender of four flows at a rate.
    fn send(&self, from: &End, first: u16, rate: f64, window: Duration) -> anyhow::Result<Process> {
        let last = first + WORKERS as u16 - 1;
        let count = (rate * window.as_secs_f64()).ceil();
        let args = format!(
            "xsk send {} --json --size {SIZE} --sport {first}-{last} --rate {rate:.0} \
             --count {count} --cpus {}",
            from.device, self.feeding
        );
        command::start(&self.lab, &from.host, &args, Stdio::piped())
    }
}

/// Writes a packet into every frame: of each flow as many.
fn fill_all(pool: &FramePool, cache: &mut LaneCache, first: u16) {
    let mut frames = Vec::new();
    cache.get_bulk(pool.area().frames() as usize, &mut frames);
    for (number, frame) in frames.iter_mut().enumerate() {
        fill(pool.area(), frame, first + (number % WORKERS) as u16);
    }
    cache.put_bulk(&mut frames);
}

/// Hands out packets that are in memory at a rate, as a device does that interrupts every
/// [`INTERRUPT`]; how many were due, and in which time. What cannot be handed out in time is lost.
fn from_memory(
    mut cache: LaneCache,
    mut distributor: Distributor,
    rate: f64,
    window: Duration,
) -> anyhow::Result<(u64, f64)> {
    /// How much a device keeps for a thread that is late.
    const QUEUE: u64 = 16_384;
    let (mut frames, mut packets) = (Vec::new(), Vec::new());
    let (mut due, mut done, mut next) = (0, 0, Duration::ZERO);
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        if elapsed >= window {
            break;
        }
        if elapsed >= next {
            next = elapsed + INTERRUPT;
            due = (elapsed.as_secs_f64() * rate) as u64;
            done = done.max(due.saturating_sub(QUEUE));
        }
        distributor.collect(&mut cache);
        let now = (due - done).min(BATCH as u64) as usize;
        if now == 0 {
            std::hint::spin_loop();
            continue;
        }
        done += now as u64;
        cache.get_bulk(now, &mut frames);
        packets.extend(frames.drain(..).map(|frame| Packet::new(frame, SIZE as u32)));
        distributor.lend_burst(&mut packets, &mut cache, done < due);
        cache.maintain();
    }
    let seconds = start.elapsed().as_secs_f64();
    drain(&mut distributor, &mut cache)?;
    Ok((due, seconds))
}

/// How far apart a device's interrupts are when it is busy: what drivers set by default is 8 to
/// 50 microseconds (`rx-usecs` of ethtool).
const INTERRUPT: Duration = Duration::from_micros(50);

/// Waits until the workers have returned everything.
fn drain(distributor: &mut Distributor, cache: &mut LaneCache) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while distributor.on_loan() > 0 {
        ensure!(Instant::now() < until, "{} frames do not come back", distributor.on_loan());
        distributor.collect(cache);
        std::thread::yield_now();
    }
    Ok(())
}

/// The data thread's queue of the veth.
struct Receiver {
    socket: Socket,
    cache: LaneCache,
    _program: Program,
}

impl Receiver {
    fn new(pool: &FramePool, to: &End, mut cache: LaneCache) -> anyhow::Result<Receiver> {
        let open = move || {
            let device = Device::find(&to.device)?;
            let umem = Umem::new(pool.clone())?;
            let options = SocketOptions::default().tx_size(0);
            let mut socket = Socket::bind(&umem, &device, 0, &options)?;
            socket.fill(&mut cache, usize::MAX);
            let options = ProgramOptions::default().attach(Attach::Native);
            let mut program = Program::attach(&device, &options)?;
            program.insert(&socket)?;
            anyhow::Ok(Receiver { socket, cache, _program: program })
        };
        to.host.run(open)?
    }

    /// Hands out what comes until the sender has ended and nothing is left.
    fn run(
        &mut self,
        mut distributor: Distributor,
        mut sending: Process,
        rate: f64,
    ) -> anyhow::Result<(u64, f64)> {
        let (mut packets, mut quiet) = (Vec::new(), 0);
        // Twenty milliseconds in which nothing came after the sender's end.
        while quiet < 20 {
            distributor.collect(&mut self.cache);
            self.socket.fill(&mut self.cache, usize::MAX);
            let count = self.socket.receive(&mut packets, BATCH);
            if count > 0 {
                distributor.lend_burst(&mut packets, &mut self.cache, count == BATCH);
                quiet = 0;
            } else if !self.socket.wait(Some(Duration::from_millis(1)))? {
                quiet += u32::from(sending.try_wait()?.is_some());
            }
            self.cache.maintain();
        }
        drain(&mut distributor, &mut self.cache)?;
        sent(sending, rate)
    }
}

/// How many packets were due, and in which time: more than were sent where the sender was late.
fn sent(sending: Process, rate: f64) -> anyhow::Result<(u64, f64)> {
    let report = command::report(sending, Duration::ZERO)?;
    let sent = report["tx"]["packets"].as_u64().context("its report has no packets")?;
    let seconds = report["active_seconds"].as_f64();
    let seconds = seconds.ok_or_else(|| Absent("nothing was sent".into()))?;
    // By a hundredth it may be late.
    Ok((sent.max((seconds * rate * 0.99) as u64), seconds.max(1e-3)))
}
