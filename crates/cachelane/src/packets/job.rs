//! A run of a command with sockets of AF_XDP, once all is built: the control socket, the threads,
//! the live line, and what came of it as text and as JSON.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use frames::{AlienFree, FramePool};
use knobs::Registry;
use serde_json::{Map, Value, json};
use xsk::ProgramCounters;

use super::frames_knob::{self, COUNTERS, PLACES};
use super::live;
use super::meter::{DROPS, RINGS, Totals, traffic};
use super::session::{Outcome, Sample, Session, Show, Work};
use super::setup::{Built, Plan, SharedProgram};
use crate::counters::{object, values};
use crate::describe;
use crate::exit::Exit;
use crate::figures::named;
use crate::run::control;

/// What a command does with its sockets.
pub(crate) struct Job<'a> {
    /// What its control socket says it is: `xsk` or `lend`.
    pub(crate) process: &'static str,
    /// `send`, `drop`, `forward` or `lend`.
    pub(crate) command: &'static str,
    /// What it says once everything runs.
    pub(crate) announcement: String,
    /// Fields of the JSON at the end.
    pub(crate) fields: Vec<(&'static str, Value)>,
    pub(crate) beside: &'a dyn Beside,
}

/// What a command has beside its sockets.
pub(crate) trait Beside {
    /// Adds its knobs and counters.
    ///
    /// # Errors
    /// A name that the registry holds already.
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

    /// What came of it.
    fn add_to(&self, _more: &mut More) {}
}

/// Nothing.
impl Beside for () {}

/// What a command adds to the outcome: lines for people, fields for programs.
#[derive(Debug, Default)]
pub(crate) struct More {
    pub(crate) lines: Vec<String>,
    pub(crate) fields: Map<String, Value>,
    /// Something was found that should not be.
    pub(crate) findings: bool,
}

impl Built {
    /// Runs a thread for each place until the count is reached, the time is up or a signal comes,
    /// takes everything down, and prints what came of it.
    ///
    /// # Errors
    /// What ended it, if something failed; that it cannot be printed.
    pub(crate) fn run(
        self,
        plan: &Plan<'_>,
        threads: Vec<Work>,
        job: Job<'_>,
        quiet: bool,
    ) -> anyhow::Result<Exit> {
        let session = Session::new(threads.len(), plan.args.count)?;
        let beside = job.beside;
        let server = control::open(job.process, |registry| {
            session.meters.register(registry)?;
            beside.register(registry)?;
            frames_knob::register(&self.pool, registry)
        });
        let threads = plan.places.iter().copied().zip(threads).collect();
        let run = (&plan.args.run, quiet);
        let shown = Shown { pool: &self.pool, job: &job };
        let outcome = session.run("xsk", threads, &job.announcement, &shown, run);
        let program = sum(&self.programs);
        drop((server, self.programs));
        let (pool, alien_free) = (self.pool.counters(), self.pool.alien_free());
        let frames = self.pool.area().frames();
        let leak = self.pool.close().err();
        let leaked = leak.as_ref().map_or(0, |leak| leak.frames);
        let mut more = More { lines: self.in_force, ..More::default() };
        more.fields.insert("queues".into(), plan.queues.clone().into());
        more.fields.insert("sockets".into(), more.lines.clone().into());
        more.fields.extend(job.fields.into_iter().map(|(name, value)| (name.into(), value)));
        beside.add_to(&mut more);
        let interfaces = plan.sides.iter().map(|side| side.device.name()).collect();
        let found = Found {
            command: job.command,
            interfaces,
            outcome: &outcome,
            program,
            pool,
            alien_free,
            frames,
            leaked,
        };
        let text = match plan.args.run.json {
            true => format!("{}\n", found.object(more.fields)),
            false => found.summary(more.lines),
        };
        if let Some(leak) = &leak {
            tracing::error!("{leak}");
        }
        let failed = leak.is_some() || more.findings;
        outcome.finish(&text, if failed { Exit::Failed } else { Exit::Ok })
    }
}

/// What is shown while it runs.
struct Shown<'a> {
    pool: &'a FramePool,
    job: &'a Job<'a>,
}

impl Show for Shown<'_> {
    fn line(&self, sample: &Sample, width: usize) -> String {
        live::line(sample, &self.pool.census(), self.job.beside.words().as_deref(), width)
    }

    fn object(&self, sample: &Sample) -> Value {
        let Totals { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = sample.totals;
        let traffic = |packets, bytes, (pps, bits)| traffic(packets, bytes, Some(pps), Some(bits));
        let mut object = json!({
            "schema": 1,
            "command": self.job.command,
            "event": "interval",
            "seconds": sample.seconds.as_secs_f64(),
            "rx": traffic(rx_packets, rx_bytes, sample.rx()),
            "tx": traffic(tx_packets, tx_bytes, sample.tx()),
            "drops": object(&DROPS, &sample.totals),
            "frames": object(&PLACES, &self.pool.census()),
            "rings": object(&RINGS, &sample.totals),
        });
        self.job.beside.fields().into_iter().for_each(|(name, value)| object[name] = value);
        object
    }

    fn ending(&self) {
        self.job.beside.ending();
    }
}

/// What came of it.
struct Found<'a> {
    command: &'static str,
    interfaces: Vec<&'a str>,
    outcome: &'a Outcome,
    program: Option<[u64; PROGRAM.len()]>,
    pool: frames::Counters,
    alien_free: AlienFree,
    frames: u32,
    /// Frames that did not come back.
    leaked: u32,
}

impl Found<'_> {
    fn object(&self, more: Map<String, Value>) -> Value {
        let totals = self.outcome.totals();
        let mut object = json!({
            "schema": 1,
            "command": self.command,
            "event": "end",
            "interfaces": self.interfaces,
            "ended_by": self.outcome.ended.name(),
            "seconds": self.outcome.seconds,
            "active_seconds": totals.active().as_secs_f64(),
            "rx": totals.object(totals.rx_packets, totals.rx_bytes),
            "tx": totals.object(totals.tx_packets, totals.tx_bytes),
            "drops": object(&DROPS, &totals),
            "alien_free": self.alien_free.name(),
            "pool": object(&COUNTERS, &self.pool),
            "frames": {"total": self.frames, "leaked": self.leaked},
        });
        if let Some(error) = &self.outcome.error {
            object["error"] = describe(error).into();
        }
        if let Some(program) = &self.program {
            let program = PROGRAM.iter().zip(program).map(|((name, ..), n)| (*name, n));
            object["program"] = json!(program.collect::<BTreeMap<_, _>>());
        }
        more.into_iter().for_each(|(name, value)| object[name] = value);
        object
    }

    fn summary(&self, more: Vec<String>) -> String {
        let totals = self.outcome.totals();
        let mut lines = Vec::new();
        for (what, packets, bytes) in [
            ("received", totals.rx_packets, totals.rx_bytes),
            ("sent", totals.tx_packets, totals.tx_bytes),
        ] {
            if packets > 0 {
                lines.push(totals.text(what, packets, bytes));
            }
        }
        if lines.is_empty() {
            lines.push(format!("no packets in {:.2} s", self.outcome.seconds));
        }
        lines.extend(more);
        lines.push(match named(values(&DROPS, &totals)) {
            none if none.is_empty() => "no drops".into(),
            drops => format!("drops: {drops}"),
        });
        if let Some(program) = self.program {
            let left = PROGRAM.iter().zip(program).skip(1).filter(|(_, n)| *n > 0);
            let left: Vec<_> = left.map(|((_, what, _), n)| format!("{n} {what}")).collect();
            if !left.is_empty() {
                lines.push(format!("left to the kernel: {}", left.join(", ")));
            }
        }
        lines.push(match (self.leaked, self.frames) {
            (0, all) => format!("all {all} frames came back"),
            (leaked, all) => format!("{leaked} of {all} frames did not come back"),
        });
        lines.join("\n") + "\n"
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
        let program = program.lock().unwrap_or_else(PoisonError::into_inner);
        program.counters().ok().map(|counters| PROGRAM.map(|(_, _, read)| read(&counters)))
    };
    let all = programs.iter().filter_map(counters);
    all.reduce(|sum, one| std::array::from_fn(|at| sum[at] + one[at]))
}
