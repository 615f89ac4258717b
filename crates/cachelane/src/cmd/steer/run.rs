//! While it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use steer::{Counters, LOOK, Obstacle, Plan, Reason, Steering};

use super::check::{self, against};
use super::machine::Machine;
use super::report::Report;
use super::{Args, Prepared};
use crate::exit::Exit;
use crate::member;
use crate::run::{Ended, Followed, Foreground, open_control};

/// How soon it is noticed that the device is gone, or that somebody has set what stands against
/// steering it.
const LOOK_AT_DEVICE: Duration = Duration::from_secs(1);
/// How often the records are looked at.
const LOOK_AT_RECORDS: Duration = Duration::from_secs(10);

/// Steers until a signal ends it, the time is up, or the device is gone.
pub(super) fn run(prepared: Prepared, args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let Prepared { device, machine, options, plan } = prepared;
    let mut foreground = Foreground::new()?;
    check::warn(&plan);
    let steering = Arc::new(Steering::attach(&device, machine.lanes(), &options)?);
    member::has_attached();
    let name = args.name.or(&format!("steer {device}"));
    let control = open_control("steer", name, |knobs| steer::register(&steering, knobs));
    tracing::info!(
        "steering flows of {device} to CPUs {} in lanes {}, {} records",
        steering.targets(),
        machine.lanes(),
        options.records
    );
    let mut running = Running {
        steering: &steering,
        machine,
        settings: Settings::new(plan),
        report: Report::new(&steering, args.json, quiet),
        crowd: Crowd { records: options.records, before: Counters::default() },
        looked_at_device: Instant::now(),
        looked_at_records: Instant::now(),
    };
    steering.go_before()?;
    let ended = foreground.follow(args.until.time, &mut running);
    running.report.end(ended.as_ref().copied().unwrap_or(Ended::Error))?;
    drop((control, steering));
    ended.map(|_| Exit::Ok)
}

/// The steering while it runs, and all that is looked after.
struct Running<'a> {
    steering: &'a Steering,
    machine: Machine,
    settings: Settings,
    report: Report<'a>,
    crowd: Crowd,
    looked_at_device: Instant,
    looked_at_records: Instant,
}

impl Followed for Running<'_> {
    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        let Running { steering, machine, settings, report, crowd, .. } = self;
        let now = Instant::now();
        let mut looked = follow_machine(steering, machine, settings);
        if now >= self.looked_at_device + LOOK_AT_DEVICE {
            self.looked_at_device = now;
            still_there(steering)?;
            settings.look(steering, machine);
        }
        report.turn()?;
        looked &= settings.known;
        if now >= self.looked_at_records + LOOK_AT_RECORDS {
            self.looked_at_records = now;
            crowd.warn(steering);
        }
        // Last: it says that all of this was done, from when it was begun.
        if looked {
            steering.look(now)?;
        }
        Ok(Some(LOOK))
    }

    fn log(&mut self) -> anyhow::Result<()> {
        self.report.status()
    }
}

/// Whether many packets were to be sent to another CPU meanwhile, and none could be.
fn finds_no_way(before: &Counters, now: &Counters) -> bool {
    const MANY: u64 = 100;

    let unsent = |counters: &Counters| counters.kernel[Reason::Unsent as usize];
    unsent(now).wrapping_sub(unsent(before)) >= MANY && now.steered == before.steered
}

/// Flows that find no place among the records.
struct Crowd {
    records: u32,
    before: Counters,
}

impl Crowd {
    /// Warns if flows displace each other often.
    fn warn(&mut self, steering: &Steering) {
        /// Of receives; each costs a record, and a packet its way.
        const OFTEN: f64 = 0.01;

        let Ok(now) = steering.counters() else { return };
        let evicted = now.evicted.wrapping_sub(self.before.evicted);
        let receives = now.receives.wrapping_sub(self.before.receives);
        let no_way = finds_no_way(&self.before, &now);
        self.before = now;
        if no_way {
            let device = steering.device();
            tracing::warn!(
                "no packet of {device} could be sent to another CPU: its driver may leave no room \
                 before packets (metadata), which is needed with several queues (with one it is \
                 not: `ethtool -L {device} combined 1`)"
            );
        }
        if evicted as f64 > OFTEN * receives as f64 {
            let records = self.records;
            tracing::warn!(
                "{evicted} of {receives} receives displaced another flow's record: there are \
                 more flows than {records} records are for (expected a larger --records)"
            );
        }
    }
}

fn still_there(steering: &Steering) -> anyhow::Result<()> {
    let device = steering.device();
    // Not what they are at the start, answers to what the user gave: so they are texts here.
    match steering.is_attached() {
        Ok(true) => Ok(()),
        Ok(false) => bail!("somebody took the program off {device}: its packets are the kernel's"),
        Err(error) => bail!("steering has ended: {error}"),
    }
}

/// Whether the steering is as the machine is now.
fn follow_machine(steering: &Steering, machine: &mut Machine, settings: &Settings) -> bool {
    let lanes = match machine.changed() {
        Ok(None) => return true,
        Ok(Some(lanes)) => lanes,
        Err(error) => {
            tracing::warn!("cannot follow the machine's CPUs: {error}");
            return false;
        }
    };
    if settings.has_stopped() {
        machine.followed(lanes);
        return true;
    }
    match steering.follow(&lanes) {
        Ok(()) => {
            let targets = steering.targets();
            tracing::info!("CPUs changed: steering to CPUs {targets} in lanes {lanes}");
            machine.followed(lanes);
            true
        }
        Err(error) => {
            tracing::error!("CPUs changed: {error}");
            false
        }
    }
}

/// What somebody sets while it runs. What stands against steering then stops it, as it would have
/// been refused at the start, and it goes on when that is gone.
struct Settings {
    /// What was forced at the start, by name, stays forced.
    forced: Vec<&'static str>,
    queues: u32,
    /// What it has stopped for.
    against: Vec<Obstacle>,
    /// Whether the last look at them succeeded, and what it found was followed.
    known: bool,
    /// When they are looked at again.
    next: Instant,
}

impl Settings {
    fn new(plan: Plan) -> Settings {
        let forced = plan.obstacles.iter().map(Obstacle::id).collect();
        Settings {
            forced,
            queues: plan.queues,
            against: Vec::new(),
            known: true,
            next: Instant::now(),
        }
    }

    fn has_stopped(&self) -> bool {
        !self.against.is_empty()
    }

    fn look(&mut self, steering: &Steering, machine: &Machine) {
        /// Where thousands of devices are above it, a look takes a while: a hundredth of a CPU is
        /// spent on it at most.
        const SHARE: u32 = 100;
        /// But soon enough.
        const LATEST: Duration = Duration::from_secs(10);

        if Instant::now() < self.next {
            return;
        }
        let before = cpu_time();
        self.known = self.follow(steering, machine);
        let took = cpu_time().saturating_sub(before);
        self.next = Instant::now() + (took * SHARE).min(LATEST);
    }

    /// Whether the steering is as the settings are now.
    fn follow(&mut self, steering: &Steering, machine: &Machine) -> bool {
        let now = match steer::inspect(steering.device(), machine.lanes()) {
            Ok(now) => now,
            Err(error) => {
                if self.known {
                    tracing::warn!("cannot look at {}: {error}", steering.device());
                }
                return false;
            }
        };
        let Plan { device, queues, .. } = &now;
        let is_ours = |obstacle: &Obstacle| matches!(obstacle, Obstacle::Program { .. });
        let counts =
            |obstacle: &Obstacle| !is_ours(obstacle) && !self.forced.contains(&obstacle.id());
        let against: Vec<Obstacle> = now.obstacles.iter().filter(|o| counts(o)).cloned().collect();
        for news in against.iter().filter(|obstacle| !self.against.contains(obstacle)) {
            let news = self::against(news, steering.device());
            tracing::warn!("{device}: not steered until this is gone: {news}");
        }
        // Without a CPU to send to, every flow goes to the kernel path, each when it may.
        let lanes = machine.lanes();
        let followed = match (self.has_stopped(), against.is_empty()) {
            (false, false) => steering.follow(&lanes.all_offline()),
            (true, true) => steering.follow(lanes).inspect(|()| {
                tracing::info!("{device}: steered again");
            }),
            _ => Ok(()),
        };
        match &followed {
            Ok(()) => self.against = against,
            Err(error) => tracing::error!("{device}: {error}"),
        }
        if *queues > self.queues {
            let more = queues - self.queues;
            tracing::warn!("{device}: {more} more receive queues now, left alone until restarted");
        }
        self.queues = *queues;
        followed.is_ok()
    }
}

/// What this thread has run for, whatever else the machine does.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_find_no_way_are_many_and_all_there_are() {
        let counters = |unsent, steered| {
            let mut counters = Counters::default();
            counters.steered = steered;
            counters.kernel[Reason::Unsent as usize] = unsent;
            counters
        };
        for (unsent, steered, no_way) in
            [(100, 0, true), (99, 0, false), (100_000, 1, false), (0, 0, false)]
        {
            let before = counters(7, 40);
            let now = counters(7 + unsent, 40 + steered);
            assert_eq!(finds_no_way(&before, &now), no_way, "{unsent}, {steered}");
        }
    }
}
