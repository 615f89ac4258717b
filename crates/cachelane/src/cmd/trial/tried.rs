//! The subject of a trial: sets arms and measures windows.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sources::{Command, Meter};
use trial::{Better, BoxError, Measure, Sample, Value};

use super::args::Args;
use super::arms::{Candidate, InForce, Left};
use crate::run;

/// What the number of the user's command is called.
pub(super) const COMMAND: &str = "command";

/// How often to look whether something ends the trial.
const LOOK: Duration = Duration::from_millis(100);

/// How long the user's command may take beyond its window.
const LIMIT: Duration = Duration::from_secs(60);

/// How much longer than planned a window may take before it says nothing: twice the time, and this.
const LATE: Duration = Duration::from_millis(500);

/// What is tried, and what measures it.
///
/// An error ends the trial, but not by way of the engine, which would lose what was measured: it is
/// kept in `failure`, the window is void, and whoever runs the trial breaks it off.
pub(super) struct Tried {
    in_force: InForce,
    meter: Meter,
    /// Of one measure: the share of the work that ran under the value in force.
    exposure: Option<Meter>,
    command: Option<Command>,
    measures: Vec<Measure>,
    failure: Rc<RefCell<Option<anyhow::Error>>>,
}

impl Tried {
    pub(super) fn new(
        in_force: InForce,
        meter: Meter,
        candidate: &Candidate,
        args: &Args,
        failure: Rc<RefCell<Option<anyhow::Error>>>,
    ) -> anyhow::Result<Self> {
        let exposure = candidate.exposure();
        let exposure =
            exposure.map(|text| anyhow::Ok(Meter::open(&[text.parse()?])?)).transpose()?;
        let command = match args.command.is_empty() {
            true => None,
            false => Some(Command::new(args.command.iter().cloned(), LIMIT)?),
        };
        let number = command.as_ref().map(|_| {
            let better = args.better.unwrap_or(Better::Higher);
            Measure::new(COMMAND, args.unit.clone().unwrap_or_default(), better)
        });
        let pid = candidate.process().map(|process| process.pid);
        let named = meter.measures().into_iter().map(|measure| match pid {
            Some(pid) => Measure { name: without_pid(&measure.name, pid), ..measure },
            None => measure,
        });
        let measures = number.into_iter().chain(named).collect();
        Ok(Self { in_force, meter, exposure, command, measures, failure })
    }

    /// All measures but so many, and the command's number, are there for their guards alone.
    pub(super) fn only_guards_after(&mut self, chosen: usize) {
        let before = chosen + usize::from(self.command.is_some());
        self.measures.iter_mut().skip(before).for_each(|measure| measure.only_guarded = true);
    }

    /// What a reader of the figures must know.
    pub(super) fn notes(&self) -> Vec<String> {
        self.meter.notes()
    }

    /// Ends it: an arm stays, or what was before is restored.
    pub(super) fn end(&mut self, keep: Option<usize>) -> anyhow::Result<Left> {
        self.in_force.end(keep)
    }

    fn window(&mut self, window: Duration) -> anyhow::Result<Sample> {
        let begin = Instant::now();
        let (start, start_exposed) = self.read()?;
        let (number, middle) = match self.command.clone() {
            Some(command) => {
                let mut lost = None;
                let in_force = &mut self.in_force;
                let number = command.start(window)?.finish(|| {
                    lost = in_force.keep_alive().err();
                    lost.is_some() || run::is_asked_to_end()
                });
                if let Some(lost) = lost {
                    return Err(lost);
                }
                match number {
                    Err(_) if run::is_asked_to_end() => return Ok(stop()),
                    number => (Some(number?), None),
                }
            }
            None => {
                self.wait(begin + window / 2)?;
                let middle = self.meter.read()?;
                self.wait(begin + window)?;
                (None, Some(middle))
            }
        };
        let took = begin.elapsed();
        let (end, end_exposed) = self.read()?;
        let read_back = self.in_force.read_back()?;
        if run::is_asked_to_end() {
            return Ok(stop());
        }
        let setting = match read_back {
            Some((value, false)) => {
                let reason = format!("it is {value} though nobody else has set it");
                return Ok(Sample { setting: Some(value), ..void(&reason) });
            }
            read_back => read_back.map(|(value, _)| value),
        };
        if number.is_none() && took > 2 * window + LATE {
            return Ok(void(&format!("it took {took:.1?}: this process was stopped or starved")));
        }
        let values = match self.values(&start, &end, number) {
            Ok(values) => values,
            Err(reason) => return Ok(Sample { setting, ..void(&reason) }),
        };
        let early = middle.and_then(|middle| self.values(&start, &middle, None).ok());
        let exposure = match (&self.exposure, start_exposed, end_exposed) {
            (Some(meter), Some(start), Some(end)) => share(meter, &start, &end),
            _ => None,
        };
        Ok(Sample { values, early, exposure, setting, ..Sample::default() })
    }

    fn read(&mut self) -> anyhow::Result<(sources::Reading, Option<sources::Reading>)> {
        // A source may take its time.
        self.in_force.keep_alive()?;
        let exposed = self.exposure.as_mut().map(Meter::read).transpose()?;
        Ok((self.meter.read()?, exposed))
    }

    /// All measures between two readings, the command's number first.
    fn values(
        &self,
        from: &sources::Reading,
        to: &sources::Reading,
        number: Option<f64>,
    ) -> Result<Vec<Value>, String> {
        let values = self.meter.values(from, to).into_iter();
        let values = values.map(|value| value.map_err(|error| error.to_string()));
        number.map(Value::from).map(Ok).into_iter().chain(values).collect()
    }

    /// Waits until then, or until somebody asks for the end.
    fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        while !run::is_asked_to_end() {
            self.in_force.keep_alive()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
        Ok(())
    }

    /// What it gives, or nothing, and why is kept.
    fn kept<T>(&self, result: anyhow::Result<T>) -> Option<T> {
        let keep = |error| {
            self.failure.borrow_mut().get_or_insert(error);
        };
        result.map_err(keep).ok()
    }
}

impl trial::Subject for Tried {
    fn measures(&self) -> Vec<Measure> {
        self.measures.clone()
    }

    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        let set = self.in_force.set(arm);
        self.kept(set);
        Ok(())
    }

    fn settle(&mut self, duration: Duration) {
        if self.failure.borrow().is_none() {
            let waited = self.wait(Instant::now() + duration);
            self.kept(waited);
        }
    }

    fn measure(&mut self, window: Duration) -> Result<Sample, BoxError> {
        if self.failure.borrow().is_some() {
            return Ok(stop());
        }
        let sample = self.window(window);
        Ok(self.kept(sample).unwrap_or_else(stop))
    }
}

/// The name of a measure where what is of this process does not say so: its PID is another one on each host,
/// and records of several hosts are combined by name.
fn without_pid(name: &str, pid: u32) -> String {
    let of = format!("@{pid}");
    let part = |part: &str| match part.strip_suffix(&of) {
        // A number after another's name is a CPU or a device.
        Some(left) if left.starts_with("counter:") || left.starts_with("process.") => {
            left.to_owned()
        }
        _ => part.to_owned(),
    };
    name.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Of a window that was cut short.
fn stop() -> Sample {
    Sample { stop: true, ..Sample::default() }
}

fn void(reason: &str) -> Sample {
    Sample { void: Some(reason.to_owned()), ..Sample::default() }
}

/// Which share of the work ran under the value in force; none if there was no work.
fn share(meter: &Meter, start: &sources::Reading, end: &sources::Reading) -> Option<f64> {
    match meter.values(start, end).into_iter().next()? {
        // The two are not read at one moment.
        Ok(Value::Part(part)) if part.den > 0.0 => Some(part.ratio().min(1.0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_process_under_trial_does_not_say_its_pid() {
        for (name, expected) in [
            ("cpu.busy/counter:relay.bytes@15", "cpu.busy/counter:relay.bytes"),
            ("process.cpu@15/counter:lend.lent@15", "process.cpu/counter:lend.lent"),
            ("counter:relay.bytes@1", "counter:relay.bytes@1"),
            ("counter:relay.bytes@115", "counter:relay.bytes@115"),
            ("cpu.busy@15/net.bytes@15", "cpu.busy@15/net.bytes@15"),
        ] {
            assert_eq!(without_pid(name, 15), expected);
        }
    }
}
