//! Datagrams on a machine that has much else to do, against kernel RFS.
//!
//! Programs spin on all CPUs. A sender on the first CPU sends datagrams, each with its time, to a
//! consumer on the last one. Both are ordinary programs and wait for their turns beside those that
//! spin, whoever steers; what differs is how the packets get to the consumer's socket.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use trial::bench::Bar;

use super::arms::{Arm, Device, Kernel, Switch};
use super::hosts::Hosts;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time};
use crate::bench::found::Found;
use crate::bench::worker::join;

const RFS: Arm = Arm::Kernel(Kernel::Rfs, Device::Passing);
const ARMS: [Arm; 2] = [Arm::Steer, RFS];
/// Programs that spin, at least; on a machine of more CPUs three for two of them.
const SPINNERS: usize = 6;
/// Datagrams that are sent at once, every millisecond in which the sender has its turn: fewer than a
/// veth's ring holds (256), so that none is lost before somebody steers it.
const BURST: usize = 32;
/// Nothing is lost because the consumer waits for its turn.
const BUFFER: usize = 64 << 20;
/// After which nothing is under way any more.
const QUIET: Duration = Duration::from_secs(1);
/// How often those that wait look whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// What became of the datagrams of a round.
#[derive(Debug, Default)]
struct Outcome {
    sent: u64,
    delays: Vec<Duration>,
}

pub(super) fn part() -> Part<()> {
    let cases = |measure| [Arm::Steer, RFS].map(|arm| case(measure, arm));
    let ([lost, lost_rfs], [p99, p99_rfs]) = (cases("lost"), cases("p99"));
    let lost = Claim::difference("busy machine, lost: steer - kernel rfs", lost, lost_rfs);
    let p99 = Claim::ratio("busy machine, p99: steer / kernel rfs", p99, p99_rfs);
    let time = Time { once: 1.0, steps: 2 * ARMS.len(), windows: 0.5, more: 0.6 };
    let about = "Datagrams lost and late beside programs that spin, against kernel RFS";
    Part::new("busy", about, time)
        .claims([lost.bar(Bar::AtMost(0.0)), p99.bar(Bar::AtMost(1.1))])
        .stage(|(), found| measure(found))
}

/// Both arms.
fn measure(found: &mut Found) -> anyhow::Result<Measure<'static>> {
    let mut switch = Switch::new(Box::new(Hosts::new()?), found)?;
    let arms = switch.those_of(ARMS);
    let sockets = Sockets::new(switch.hosts())?;
    let spinners = spinners(switch.hosts());
    let step = |arm: &Arm| Step {
        name: format!("busy machine, {}", arm.name()),
        gives: vec![(case("lost", *arm), ""), (case("p99", *arm), "s")],
    };
    let slice = move |arm: &Arm, outcome: &mut Outcome, now: &mut Now<'_>| {
        switch.set(*arm)?;
        sockets.exchange(switch.hosts(), now.window / 2, outcome)
    };
    let figures = |_: &Arm, Outcome { sent, mut delays }: Outcome| {
        delays.sort_unstable();
        let p99 = delays.get(delays.len() * 99 / 100);
        let p99 = p99.ok_or_else(|| Absent("nothing came".into()))?;
        let lost = sent.saturating_sub(delays.len() as u64);
        Ok(vec![lost as f64 / sent as f64, p99.as_secs_f64()])
    };
    Ok(Measure::there_and_back(arms, step, slice, figures).note(format!(
        "busy machine: {spinners} programs that spin, by turns on all CPUs; {BURST} datagrams a \
         millisecond from one CPU to a consumer on another. Lost is the share that did not come; \
         p99 is from before a datagram was sent until its consumer had it, the consumer's wait \
         for its turn included."
    )))
}

fn spinners(hosts: &Hosts) -> usize {
    SPINNERS.max((hosts.cpus.len() * 3).div_ceil(2))
}

fn case(measure: &str, arm: Arm) -> String {
    format!("busy machine, {measure}, {}", arm.name())
}

/// The two ends of one flow.
struct Sockets {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Sockets {
    fn new(hosts: &Hosts) -> anyhow::Result<Sockets> {
        let bind = |end: &lab::End| end.host.run(|| UdpSocket::bind(end.socket(0)));
        let (sender, receiver) = (bind(&hosts.client)??, bind(&hosts.end)??);
        sender.connect(receiver.local_addr()?)?;
        receiver.connect(sender.local_addr()?)?;
        receiver.set_read_timeout(Some(LOOK))?;
        set_socket_recv_buffer_size_force(&receiver, BUFFER)?;
        Ok(Sockets { sender, receiver })
    }

    fn exchange(&self, hosts: &Hosts, time: Duration, outcome: &mut Outcome) -> anyhow::Result<()> {
        let (first, last) = (hosts.cpus.first(), hosts.cpus.iter().max());
        let (first, last) = first.zip(last).context("no CPU is open to this process")?;
        let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        let end = start + time;
        thread::scope(|scope| {
            let over = End(&over);
            let spinning = over.0;
            let cpus: Vec<usize> = hosts.cpus.iter().collect();
            for cpu in cpus.into_iter().cycle().take(spinners(hosts)) {
                scope.spawn(move || {
                    // Unpinned they would leave CPUs idle to somebody who is.
                    let _ = lanes::pin(cpu);
                    while !spinning.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let sent = &sent;
            let sending = scope.spawn(move || self.send(first, start, end, sent));
            let receiving = scope.spawn(move || self.receive(last, start, end, sent));
            outcome.sent += join(sending)?;
            outcome.delays.extend(join(receiving)?);
            Ok(())
        })
    }

    fn send(
        &self,
        cpu: usize,
        start: Instant,
        end: Instant,
        sent: &AtomicU64,
    ) -> anyhow::Result<u64> {
        lanes::pin(cpu)?;
        while Instant::now() < end {
            for _ in 0..BURST {
                self.sender.send(&(start.elapsed().as_nanos() as u64).to_ne_bytes())?;
                sent.fetch_add(1, Relaxed);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(sent.load(Relaxed))
    }

    /// Receives until all has come, or nothing more does.
    fn receive(
        &self,
        cpu: usize,
        start: Instant,
        end: Instant,
        sent: &AtomicU64,
    ) -> anyhow::Result<Vec<Duration>> {
        lanes::pin(cpu)?;
        let (mut delays, mut last) = (Vec::new(), Instant::now());
        loop {
            let mut bytes = [0; 8];
            match self.receiver.recv(&mut bytes) {
                Ok(_) => {
                    let at = Duration::from_nanos(u64::from_ne_bytes(bytes));
                    // Of the slice before, if it came so late.
                    if let Some(delay) = start.elapsed().checked_sub(at) {
                        delays.push(delay);
                    }
                    last = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let all = delays.len() as u64 >= sent.load(Relaxed);
                    let quiet = last.elapsed() > QUIET;
                    if Instant::now() > end + LOOK && (all || quiet) {
                        return Ok(delays);
                    }
                }
                Err(error) => return Err(error).context("the consumer"),
            }
        }
    }
}

/// Ends those that spin.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
