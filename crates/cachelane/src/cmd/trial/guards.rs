//! What must not get worse while a trial runs.

use std::str::FromStr;

use knobs::Process;
use sources::{MeasureSpec, Meter};
use trial::{Better, Guard};

/// How much worse than the baseline the measures that are guarded by default may get. They are counts
/// of rare events, which differ much by chance.
const LIMIT: f64 = 1.5;

/// What is guarded on every host that has it: of what there is, so that an arm that carries more may
/// have more of it.
const OF_HOSTS: [&str; 3] =
    ["tcp.retransmits/tcp.segments", "net.drops/net.packets", "softnet.drops/softnet.packets"];

/// The counters of each process that say that something went wrong, and by what they are taken; by
/// second where that is nothing.
const OF_PROCESSES: [(&str, &[&str], &str); 3] = [
    ("relay", &["reset", "no_backend", "connect_failed", "no_files"], "accepted"),
    ("steer", &["overflows", "stalls"], ""),
    ("lend", &["dropped", "disconnected", "evicted"], "lent"),
];

/// A guard as it is written: `tcp.retransmits <= 1.05`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GuardArg {
    spec: MeasureSpec,
    limit: f64,
}

impl FromStr for GuardArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "expected a measure, <= and a ratio to the baseline, such as \
                    'tcp.retransmits <= 1.05', or >= where more is better";
        let (measure, limit, worse) = match (text.rsplit_once("<="), text.rsplit_once(">=")) {
            (Some((measure, limit)), None) => (measure, limit, Better::Lower),
            (None, Some((measure, limit))) => (measure, limit, Better::Higher),
            _ => return Err(form.into()),
        };
        let spec: MeasureSpec = measure.trim().parse().map_err(|e| format!("{e}; {form}"))?;
        let limit: f64 = limit.trim().parse().map_err(|_| form.to_owned())?;
        if spec.better() != worse {
            let (sign, what) = match spec.better() {
                Better::Lower => ("<=", "less"),
                Better::Higher => (">=", "more"),
            };
            return Err(format!("of {spec} {what} is better: write {spec} {sign} {limit}"));
        }
        let is_worse = match worse {
            Better::Lower => limit >= 1.0,
            Better::Higher => limit > 0.0 && limit <= 1.0,
        };
        if !(is_worse && limit.is_finite()) {
            let range = match worse {
                Better::Lower => "1 or more, such as 1.05",
                Better::Higher => "above 0 and at most 1, such as 0.95",
            };
            return Err(format!("{limit}: expected a ratio to the baseline: {range}"));
        }
        Ok(Self { spec, limit })
    }
}

impl GuardArg {
    /// The same over these measures, to which its own is added if it is not there. `before` measures
    /// stand in front of them.
    pub(super) fn among(&self, specs: &mut Vec<MeasureSpec>, before: usize) -> Guard {
        let there = specs.iter().position(|spec| *spec == self.spec);
        let index = there.unwrap_or_else(|| {
            specs.push(self.spec.clone());
            specs.len() - 1
        });
        Guard { measure: before + index, limit: self.limit }
    }
}

/// Those of this host and of the process under trial that can be read here and that the user does not
/// guard already. A process `is_elsewhere` if it is in another network namespace.
pub(super) fn by_default(
    process: Option<&Process>,
    is_elsewhere: bool,
    given: &[GuardArg],
    specs: &mut Vec<MeasureSpec>,
    before: usize,
) -> anyhow::Result<Vec<Guard>> {
    let mut texts: Vec<String> = match is_elsewhere {
        true => Vec::new(),
        false => OF_HOSTS.map(str::to_owned).to_vec(),
    };
    if let Some(process) = process {
        let of_process = OF_PROCESSES.iter().find(|(name, ..)| *name == process.kind);
        let (name, pid) = (&process.kind, process.pid);
        let of = |counter: &str| format!("counter:{name}.{counter}@{pid}");
        if let Some((_, counters, by)) = of_process {
            let by = if by.is_empty() { String::new() } else { format!("/{}", of(by)) };
            texts.extend(counters.iter().map(|counter| format!("{}{by},lower", of(counter))));
        }
    }
    let mut guards = Vec::new();
    for text in texts {
        let spec: MeasureSpec = text.parse()?;
        if given.iter().any(|guard| guard.spec.is_of_same(&spec)) {
            continue;
        }
        // A host without a device, or another version of the process, has not all.
        if let Err(error) = Meter::open(std::slice::from_ref(&spec)) {
            tracing::debug!("not guarded: {error}");
            continue;
        }
        guards.push(GuardArg { spec, limit: LIMIT }.among(specs, before));
    }
    Ok(guards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_are_read_as_they_are_written() {
        for (text, measure, limit) in [
            ("tcp.retransmits <= 1.05", "tcp.retransmits", 1.05),
            ("net.packets>=0.9", "net.packets", 0.9),
            ("cpu.busy/net.packets <= 1", "cpu.busy/net.packets", 1.0),
            (
                "prom:http://h/m:n{a=\"b<=c\"},lower <= 2",
                "prom:http://h/m:n{a=\"b<=c\"},lower",
                2.0,
            ),
        ] {
            let guard: GuardArg = text.parse().unwrap();
            assert_eq!(guard, GuardArg { spec: measure.parse().unwrap(), limit }, "{text}");
        }
        for (text, expected) in [
            ("tcp.retransmits", "expected a measure, <="),
            ("tcp.retransmits >= 0.9", "less is better: write tcp.retransmits <= 0.9"),
            ("net.packets <= 1.1", "more is better: write net.packets >= 1.1"),
            ("tcp.retransmits <= 0.9", "1 or more"),
            ("net.packets >= 1.5", "at most 1"),
            ("tcp.retransmits <= x", "expected a measure, <="),
            ("tcp.retransmits <= inf", "1 or more"),
            ("tcp.retransmit <= 1.1", "did you mean tcp.retransmits?"),
        ] {
            let error = text.parse::<GuardArg>().unwrap_err();
            assert!(error.contains(expected), "{text}: '{error}' lacks '{expected}'");
        }
    }

    #[test]
    fn a_guarded_measure_is_measured_once() {
        let mut specs: Vec<MeasureSpec> = vec!["cpu.busy".parse().unwrap()];
        let guard = |text: &str| text.parse::<GuardArg>().unwrap();
        let first = guard("tcp.retransmits <= 2").among(&mut specs, 1);
        let again = guard("tcp.retransmits <= 3").among(&mut specs, 1);
        assert_eq!((first.measure, again.measure, specs.len()), (2, 2, 2));
        assert_eq!(guard("cpu.busy <= 2").among(&mut specs, 1).measure, 1);
    }

    #[test]
    fn every_guarded_counter_is_one() {
        let names: Vec<(&str, Vec<&str>)> = vec![
            ("relay", relay::Stats::FIELDS.iter().map(|field| field.0).collect()),
            ("steer", steer::Counters::FIELDS.iter().map(|field| field.0).collect()),
            ("lend", lend::LenderCounters::FIELDS.iter().map(|field| field.0).collect()),
        ];
        for (process, known) in names {
            let (_, guarded, by) = OF_PROCESSES.iter().find(|(name, ..)| *name == process).unwrap();
            for counter in guarded.iter().chain([by]).filter(|counter| !counter.is_empty()) {
                assert!(known.contains(counter), "{process}.{counter}");
            }
        }
    }
}
