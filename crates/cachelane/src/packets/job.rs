//! A run of a command with sockets of AF_XDP, once all is built: the control socket, the threads,
//! the live line, and what came of it as text and as JSON.

use frames::{Census, Counters, FramePool};
use knobs::Registry;
use serde_json::{Map, Value, json};
use xsk::{Program, ProgramCounters};

use super::live;
use super::meter::{Drops, OnQueue, Rings, Totals, Traffic, traffic};
use super::options::{CommonArgs, Place};
use super::session::{Outcome, Sample, Session, Show, Work};
use super::setup::{Built, Plan, SharedProgram};
use crate::counters::{named, object};
use crate::describe;
use crate::exit::Exit;
use crate::figures::drops;
use crate::run::open_control;

/// What a command does with its sockets.
pub(crate) struct Job<'a> {
    /// What its control socket says it is: `xsk` or `lend`.
    pub(crate) process: &'static str,
    /// `send`, `drop`, `forward` or `lend`.
    pub(crate) command: &'static str,
    /// What it says once everything runs.
    pub(crate) announcement: String,
    pub(crate) beside: &'a dyn Beside,
}

/// What a command has beside its sockets.
pub(crate) trait Beside {
    /// Adds its knobs and counters.
    fn register(&self, _registry: &Registry) -> Result<(), knobs::Error> {
        Ok(())
    }

    /// A part of the live line.
    fn words(&self) -> Option<String> {
        None
    }

    /// Fields of each interval's JSON.
    fn fields(&self) -> Map<String, Value> {
        Map::new()
    }

    /// The threads are about to end.
    fn ending(&self) {}

    /// Adds what came of it.
    fn add_to(&self, _report: &mut Report) {}
}

/// Fields of the JSON at the end.
impl Beside for [(&'static str, Value); 1] {
    fn add_to(&self, report: &mut Report) {
        self.iter().for_each(|(name, value)| report.fields[name] = value.clone());
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// For people.
    pub(crate) lines: Vec<String>,
    /// For programs: an object.
    pub(crate) fields: Value,
    /// Something was found that should not be.
    pub(crate) findings: bool,
}

/// What a run is made on.
pub(crate) struct Ground<'a> {
    pub(crate) args: &'a CommonArgs,
    pub(crate) devices: Vec<&'a str>,
    /// None where the kernel makes the packets.
    pub(crate) pool: Option<FramePool>,
    pub(crate) queues: &'a [u32],
    /// Where the threads run.
    pub(crate) places: &'a [Place],
    /// What is on the devices until the end; that of those who receive is counted.
    pub(crate) programs: Vec<SharedProgram>,
    pub(crate) idle_programs: Vec<Program>,
    /// How each way to send or receive was set up, in words.
    pub(crate) in_force: Vec<String>,
}

impl Built {
    /// Runs a thread for each place until the count is reached, the time is up or a signal comes,
    /// takes everything down, and prints what came of it.
    pub(crate) fn run(
        self,
        plan: &Plan<'_>,
        threads: Vec<Work>,
        job: Job<'_>,
        quiet: bool,
    ) -> anyhow::Result<Exit> {
        let ground = Ground {
            args: plan.args,
            devices: plan.interfaces.iter().map(|one| one.device.name()).collect(),
            pool: Some(self.pool),
            queues: &plan.queues,
            places: &plan.places,
            programs: self.programs,
            idle_programs: self.idle_programs,
            in_force: self.in_force,
        };
        ground.run(threads, job, quiet)
    }
}

impl Ground<'_> {
    /// As [`Built::run`].
    pub(crate) fn run(self, threads: Vec<Work>, job: Job<'_>, quiet: bool) -> anyhow::Result<Exit> {
        let session = Session::new(threads.len(), self.args.count, &self.args.run, quiet)?;
        let beside = job.beside;
        let does = format!("{} {}", job.command, self.devices.join(" "));
        let name = match job.process == job.command {
            true => does,
            false => format!("{} {does}", job.process),
        };
        let server = open_control(job.process, self.args.name.or(&name), |registry| {
            session.meters.register(registry)?;
            beside.register(registry)?;
            self.pool.as_ref().map_or(Ok(()), |pool| frames::register(pool, registry))
        });
        let threads = self.places.iter().copied().zip(threads).collect();
        let shown = Shown { pool: self.pool.as_ref(), job: &job };
        let outcome = session.run("xsk", threads, &job.announcement, &shown, &self.args.run);
        let mut report = Report::default();
        report.begin(job.command, &outcome);
        report.fields["interfaces"] = self.devices.into();
        report.fields["queues"] = self.queues.into();
        report.fields["sockets"] = self.in_force.clone().into();
        report.lines.extend(self.in_force);
        report.queues(&outcome);
        beside.add_to(&mut report);
        report.drops(&outcome.totals(), sum(&self.programs));
        drop((server, self.programs, self.idle_programs));
        report.end(self.pool);
        let text = match self.args.run.json {
            true => format!("{}\n", report.fields),
            false => report.lines.join("\n") + "\n",
        };
        outcome.finish(&text, if report.findings { Exit::Failed } else { Exit::Ok })
    }
}

impl Report {
    fn begin(&mut self, command: &str, outcome: &Outcome) {
        let totals = outcome.totals();
        self.fields = json!({
            "schema": 1,
            "command": command,
            "event": "end",
            "ended_by": outcome.ended.name(),
            "seconds": outcome.seconds,
            "active_seconds": totals.active().as_secs_f64(),
        });
        if let Some(error) = &outcome.error {
            self.fields["error"] = describe(error).into();
        }
        let Traffic { rx_packets, rx_bytes, tx_packets, tx_bytes } = totals.traffic;
        for (name, what, packets, bytes) in
            [("rx", "received", rx_packets, rx_bytes), ("tx", "sent", tx_packets, tx_bytes)]
        {
            self.fields[name] = totals.object(packets, bytes);
            if packets > 0 {
                self.lines.push(totals.text(what, packets, bytes));
            }
        }
        if self.lines.is_empty() {
            self.lines.push(format!("no packets in {:.2} s", outcome.seconds));
        }
    }

    /// What went through each queue.
    fn queues(&mut self, outcome: &Outcome) {
        let object = |OnQueue { device, queue, traffic }: &OnQueue| {
            let mut object = object(Traffic::FIELDS, traffic.values());
            object.insert("interface".into(), device.name().into());
            object.insert("queue".into(), (*queue).into());
            object
        };
        self.fields["by_queue"] = outcome.queues.iter().map(object).collect();
        if outcome.queues.len() < 2 {
            return;
        }
        for OnQueue { device, queue, traffic } in &outcome.queues {
            let Traffic { rx_packets, tx_packets, .. } = *traffic;
            let both = [(rx_packets, "received"), (tx_packets, "sent")];
            let both = both.into_iter().filter(|(packets, _)| *packets > 0);
            let words: Vec<_> = both.map(|(packets, what)| format!("{what} {packets}")).collect();
            self.lines.push(format!("queue {queue} of {device}: {}", words.join(", ")));
        }
    }

    /// What did not come through to the sockets.
    fn drops(&mut self, totals: &Totals, program: Option<[u64; PROGRAM.len()]>) {
        let dropped = totals.drops.values();
        self.fields["drops"] = object(Drops::FIELDS, dropped).into();
        self.lines.push(drops(named(Drops::FIELDS, dropped)));
        let Some(program) = program else { return };
        let mut left = Vec::new();
        for ((name, what, _), packets) in PROGRAM.iter().zip(program) {
            self.fields["program"][name] = packets.into();
            if packets > 0 && !what.is_empty() {
                left.push(format!("{packets} {what}"));
            }
        }
        if !left.is_empty() {
            self.lines.push(format!("left to the kernel: {}", left.join(", ")));
        }
    }

    /// Where the frames went, once nothing has any.
    fn end(&mut self, pool: Option<FramePool>) {
        let Some(pool) = pool else {
            self.fields["frames"] = json!({"total": 0, "leaked": 0});
            return;
        };
        self.fields["alien_free"] = pool.alien_free().name().into();
        self.fields["pool"] = object(Counters::FIELDS, pool.counters().values()).into();
        let total = pool.area().frames();
        let leak = pool.close().err();
        let leaked = leak.as_ref().map_or(0, |leak| leak.frames);
        self.fields["frames"] = json!({"total": total, "leaked": leaked});
        self.lines.push(match leaked {
            0 => format!("all {total} frames came back"),
            _ => format!("{leaked} of {total} frames did not come back"),
        });
        if let Some(leak) = leak {
            tracing::error!("{leak}");
            self.findings = true;
        }
    }
}

/// What is shown while it runs.
struct Shown<'a> {
    pool: Option<&'a FramePool>,
    job: &'a Job<'a>,
}

impl Shown<'_> {
    fn census(&self) -> Census {
        self.pool.map(FramePool::census).unwrap_or_default()
    }
}

impl Show for Shown<'_> {
    fn line(&self, sample: &Sample, width: usize) -> String {
        live::line(sample, &self.census(), self.job.beside.words().as_deref(), width)
    }

    fn object(&self, sample: &Sample) -> Value {
        let Traffic { rx_packets, rx_bytes, tx_packets, tx_bytes } = sample.totals.traffic;
        let traffic = |packets, bytes, (pps, bits)| traffic(packets, bytes, Some(pps), Some(bits));
        let mut object = json!({
            "schema": 1,
            "command": self.job.command,
            "event": "interval",
            "seconds": sample.seconds.as_secs_f64(),
            "rx": traffic(rx_packets, rx_bytes, sample.rx()),
            "tx": traffic(tx_packets, tx_bytes, sample.tx()),
            "drops": object(Drops::FIELDS, sample.totals.drops.values()),
            "frames": object(Census::FIELDS, self.census().values()),
            "rings": object(Rings::FIELDS, sample.totals.rings.values()),
        });
        self.job.beside.fields().into_iter().for_each(|(name, value)| object[name] = value);
        object
    }

    fn ending(&self) {
        self.job.beside.ending();
    }
}

type Packets = (&'static str, &'static str, fn(&ProgramCounters) -> u64);

/// What a program does with packets: a name, what is said where they are left to the kernel, and
/// how many.
const PROGRAM: [Packets; 6] = [
    ("redirected", "", |c| c.redirected),
    ("not_chosen", "not chosen", |c| c.not_chosen),
    ("no_socket", "without a socket", |c| c.no_socket),
    ("unattended", "while nobody looked at their socket", |c| c.unattended),
    ("malformed", "malformed", |c| c.malformed),
    ("fragment", "fragments", |c| c.fragment),
];

/// The counters of all programs, in that order; none if there is no program.
fn sum(programs: &[SharedProgram]) -> Option<[u64; PROGRAM.len()]> {
    let counters = |program: &SharedProgram| {
        let program = program.lock();
        program.counters().ok().map(|counters| PROGRAM.map(|(_, _, read)| read(&counters)))
    };
    let all = programs.iter().filter_map(counters);
    all.reduce(|sum, one| std::array::from_fn(|at| sum[at] + one[at]))
}
