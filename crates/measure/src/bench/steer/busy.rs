//! Datagrams on a machine that has much else to do, against kernel RFS.
//!
//! Programs spin on all CPUs. A sender on the first CPU sends datagrams, each with its time, to a consumer on
//! the last one. Both are ordinary programs and wait for their turns beside those that spin, whoever
//! steers; what differs is how the packets get to the consumer's socket.

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
use crate::bench::experiment::{Absent, Measure, Now, Part, Step, Time, Turns};

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
        .stage(|(), found| {
            let switch = Switch::new(Box::new(Hosts::new()?), found)?;
            let there = switch.arms();
            let arms: Vec<Arm> = ARMS.into_iter().filter(|arm| there.contains(arm)).collect();
            let sockets = Sockets::new(switch.hosts())?;
            let outcomes = arms.iter().map(|_| Outcome::default()).collect();
            Ok(Box::new(Busy { switch, arms, sockets, outcomes }))
        })
}

/// Both arms.
struct Busy {
    switch: Switch<Box<Hosts>>,
    arms: Vec<Arm>,
    sockets: Sockets,
    /// By arm, of this round.
    outcomes: Vec<Outcome>,
}

impl Measure for Busy {
    fn steps(&self) -> Vec<Step> {
        let step = |arm: &Arm| Step {
            name: format!("busy machine, {}", arm.name()),
            gives: vec![(case("lost", *arm), ""), (case("p99", *arm), "s")],
        };
        self.arms.iter().map(step).collect()
    }

    fn turns(&self) -> Turns {
        Turns::ThereAndBack
    }

    fn measure(&mut self, step: usize, now: &mut Now<'_>) -> anyhow::Result<Vec<f64>> {
        self.switch.set(self.arms[step])?;
        let more = self.sockets.exchange(self.switch.hosts(), now.window / 2)?;
        let outcome = &mut self.outcomes[step];
        outcome.sent += more.sent;
        outcome.delays.extend(more.delays);
        if !now.is_last_turn {
            return Ok(Vec::new());
        }
        let mut outcome = std::mem::take(outcome);
        let p99 = outcome.p99().ok_or_else(|| Absent("nothing came".into()))?;
        let lost = outcome.sent.saturating_sub(outcome.delays.len() as u64);
        Ok(vec![lost as f64 / outcome.sent as f64, p99.as_secs_f64()])
    }

    fn notes(&self) -> Vec<String> {
        let spinners = spinners(self.switch.hosts());
        vec![format!(
            "busy machine: {spinners} programs that spin, by turns on all CPUs; {BURST} datagrams \
             a millisecond from one CPU to a consumer on another. Lost is the share that did not \
             come; p99 is from before a datagram was sent until its consumer had it, the \
             consumer's wait for its turn included."
        )]
    }
}

fn spinners(hosts: &Hosts) -> usize {
    SPINNERS.max((hosts.cpus().len() * 3).div_ceil(2))
}

fn case(measure: &str, arm: Arm) -> String {
    format!("busy machine, {measure}, {}", arm.name())
}

impl Outcome {
    fn p99(&mut self) -> Option<Duration> {
        self.delays.sort_unstable();
        self.delays.get(self.delays.len() * 99 / 100).copied()
    }
}

/// The two ends of one flow.
struct Sockets {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Sockets {
    fn new(hosts: &Hosts) -> anyhow::Result<Sockets> {
        let bind = |end: &lab::End| end.host.run(|| UdpSocket::bind(end.socket(0)));
        let (sender, receiver) = (bind(&hosts.client)??, bind(hosts.end())??);
        sender.connect(receiver.local_addr()?)?;
        receiver.connect(sender.local_addr()?)?;
        receiver.set_read_timeout(Some(LOOK))?;
        set_socket_recv_buffer_size_force(&receiver, BUFFER)?;
        Ok(Sockets { sender, receiver })
    }

    fn exchange(&self, hosts: &Hosts, time: Duration) -> anyhow::Result<Outcome> {
        let (first, last) = (hosts.cpus().first(), hosts.cpus().iter().max());
        let (first, last) = first.zip(last).context("no CPU is open to this process")?;
        let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        let end = start + time;
        thread::scope(|scope| {
            let over = End(&over);
            let spinning = over.0;
            let cpus: Vec<usize> = hosts.cpus().iter().collect();
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
            let sent = sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
            let delays =
                receiving.join().map_err(|_| anyhow::anyhow!("the consumer panicked"))??;
            Ok(Outcome { sent, delays })
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
