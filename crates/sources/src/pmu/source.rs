//! Events as quantities: counters that run on every CPU for as long as the source lives.

use std::io;

use lanes::LaneMap;
use perf_event::{CountAndTime, Counter};

use super::event::{Code, find};
use super::{on_all, refused};
use crate::source::Source;
use crate::value::{Nature, Part};
use crate::{Error, ErrorKind, Kind, Quantity, Result, Value};

/// Below this share of the time, the figures are said to be extrapolated.
const WHOLE: f64 = 0.99;

/// Events, all counted on the CPUs that were online at the start.
pub(crate) struct Events {
    quantities: Vec<Quantity>,
    events: Vec<Counted>,
}

/// An event on all CPUs.
struct Counted {
    name: String,
    cpus: Vec<Cpu>,
    /// As if it had been counted all the time.
    total: f64,
    /// How often it was not counted for a while.
    gaps: u32,
}

/// An event on one CPU, and what it last said.
struct Cpu {
    number: usize,
    counter: Counter,
    last: CountAndTime,
}

impl Events {
    /// Starts counting.
    pub(crate) fn open(names: &[String]) -> Result<Self> {
        let unknown = |error: lanes::Error| Error::new(ErrorKind::Io, error.to_string());
        let online: Vec<usize> = LaneMap::detect().map_err(unknown)?.online().iter().collect();
        let events = names.iter().map(|name| Counted::start(name, &online));
        let events = events.collect::<Result<_>>()?;
        let quantities = names.iter().map(|name| Self::quantity(name)).collect();
        Ok(Self { quantities, events })
    }

    /// An event as a quantity.
    pub(crate) fn quantity(name: &str) -> Quantity {
        Quantity {
            name: format!("pmu:{name}"),
            unit: name.into(),
            help: "events on all CPUs, of all processes and the kernel".into(),
            kind: Kind::Total,
        }
    }
}

impl Source for Events {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn read(&mut self) -> Result<Vec<Value>> {
        self.events.iter_mut().map(|event| event.read()).collect()
    }

    fn note(&self) -> Option<String> {
        let shared = self.events.iter().filter_map(|event| {
            let share = event.share();
            let percent = share * 100.0;
            (share < WHOLE).then(|| {
                format!(
                    "pmu:{} was counted {percent:.0} % of the time and extrapolated",
                    event.name
                )
            })
        });
        let shared: Vec<String> = shared.collect();
        (!shared.is_empty()).then(|| shared.join("; "))
    }
}

impl Counted {
    fn start(name: &str, online: &[usize]) -> Result<Self> {
        let failed = |error: io::Error| {
            let kind = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => ErrorKind::NotPermitted,
                _ => ErrorKind::Absent,
            };
            Error::new(kind, format!("pmu:{name}: {}", refused(&error)))
        };
        let unknown = |reason| Error::new(ErrorKind::Unknown, format!("pmu:{name}: {reason}"));
        let counters = match find(name).map_err(unknown)? {
            Code::Hardware(event) => on_all(online, event),
            Code::Software(event) => on_all(online, event),
            Code::Raw(event) => on_all(online, event),
        };
        let counters = online.iter().zip(counters.map_err(failed)?);
        let cpus = counters.map(|(&number, mut counter)| {
            counter.enable()?;
            let last = counter.read_count_and_time()?;
            Ok(Cpu { number, counter, last })
        });
        let cpus = cpus.collect::<io::Result<_>>().map_err(failed)?;
        Ok(Self { name: name.into(), cpus, total: 0.0, gaps: 0 })
    }

    /// The total until now. The time between two readings is scaled by itself: the share of it in
    /// which the counter ran differs from one to the next.
    fn read(&mut self) -> Result<Value> {
        let mut stopped = None;
        for cpu in &mut self.cpus {
            let now = cpu.counter.read_count_and_time().map_err(|error| {
                Error::io(format!("pmu:{} on CPU {}", self.name, cpu.number), error)
            })?;
            match grown(cpu.last, now) {
                Some(grown) => self.total += grown,
                None => stopped = Some(cpu.number),
            }
            cpu.last = now;
        }
        let Some(cpu) = stopped else {
            // After a gap it is another total: the difference to one from before would lack events.
            let of = format!("unbroken count {}", self.gaps + 1);
            let part = Part { of, value: self.total, nature: Nature::Fixed };
            return Ok(Value::Total(vec![part]));
        };
        self.gaps += 1;
        Err(Error::void(format!(
            "pmu:{} was not counted on CPU {cpu}: it is offline, or others use its counters",
            self.name
        )))
    }

    /// The share of the time in which it was counted.
    fn share(&self) -> f64 {
        let sum =
            |time: fn(&CountAndTime) -> u64| self.cpus.iter().map(|cpu| time(&cpu.last)).sum();
        let (running, enabled): (u64, u64) =
            (sum(|last| last.time_running), sum(|last| last.time_enabled));
        running as f64 / enabled.max(1) as f64
    }
}

/// By how much a count grew, had it run all the time; none if it did not run at all.
fn grown(before: CountAndTime, now: CountAndTime) -> Option<f64> {
    let enabled = now.time_enabled.checked_sub(before.time_enabled)?;
    let running = now.time_running.checked_sub(before.time_running).filter(|time| *time > 0)?;
    let count = now.count.checked_sub(before.count)?;
    Some(count as f64 * (enabled as f64 / running as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::value::Amount;

    #[test]
    fn a_shared_counter_is_extrapolated_for_each_stretch_by_itself() {
        let at =
            |count, time_enabled, time_running| CountAndTime { count, time_enabled, time_running };
        assert_eq!(grown(at(0, 0, 0), at(10, 100, 100)), Some(10.0));
        assert_eq!(grown(at(10, 100, 100), at(20, 200, 150)), Some(20.0));
        assert_eq!(grown(at(10, 100, 100), at(10, 200, 100)), None, "it never ran");
        assert_eq!(grown(at(10, 100, 100), at(10, 100, 100)), None, "its CPU is offline");
        assert_eq!(grown(at(10, 100, 100), at(9, 200, 200)), None);
    }

    #[test]
    fn root_events_of_all_cpus_are_counted() {
        if !lab::testing::root("root_events_of_all_cpus_are_counted") {
            return;
        }
        // What the kernel counts itself is there in virtual machines too.
        let mut source = Events::open(&["page-faults".into()]).unwrap();
        let before = source.read().unwrap();
        const PAGES: usize = 1000;
        let mut block = vec![0u8; PAGES * rustix::param::page_size()];
        block.iter_mut().step_by(rustix::param::page_size()).for_each(|byte| *byte = 1);
        std::hint::black_box(&block);
        let after = source.read().unwrap();
        let grown = after[0].since(&before[0], Duration::from_secs(1)).unwrap();
        // The kernel may map the block by larger pages.
        assert!(matches!(grown, Amount::Number(faults) if faults >= 1.0), "{grown:?}");
        assert_eq!(source.note(), None, "software events are not shared out");
    }

    #[test]
    fn an_event_is_counted_here_or_the_reason_is_said() {
        let missing = Events::open(&["zzz".into()]).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::Unknown);
        assert!(missing.to_string().contains("expected cycles"), "{missing}");
        match Events::open(&["cycles".into()]) {
            Err(error) => assert!(error.to_string().starts_with("pmu:cycles: "), "{error}"),
            Ok(mut source) => {
                let before = source.read().unwrap();
                let sum: u64 = (0..1_000_000).map(std::hint::black_box).sum();
                let after = source.read().unwrap();
                let grown = after[0].since(&before[0], Duration::from_secs(1)).unwrap();
                assert!(matches!(grown, Amount::Number(cycles) if cycles > 1e5), "{grown:?} {sum}");
            }
        }
    }
}
