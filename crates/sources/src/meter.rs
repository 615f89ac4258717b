//! Reading all that the measures of a trial need.

use std::collections::BTreeMap;
use std::time::Instant;

use trial::{Measure, Part};

use crate::pmu::Events;
use crate::prom::{Prom, Selector};
use crate::quantity::Family;
use crate::source::{self, Counters, Source};
use crate::spec::{Named, Operand, What};
use crate::value::Amount;
use crate::{Error, Kind, MeasureSpec, Quantity, Result};

/// How many readings in a row a source may fail before that is an error: two windows, each with
/// its start, middle and end.
const FAILURES: u32 = 6;

/// The open sources of some measures.
///
/// Sources are of the network namespace of the thread that opens the meter, whichever thread reads
/// it.
pub struct Meter {
    measures: Vec<Measured>,
    sources: Vec<Opened>,
}

/// A measure, and where its quantities are.
struct Measured {
    spec: MeasureSpec,
    unit: String,
    first: Place,
    second: Option<Place>,
}

/// A source, and a quantity of it.
#[derive(Clone, Copy)]
struct Place {
    source: usize,
    index: usize,
}

struct Opened {
    source: Box<dyn Source>,
    /// How often it failed since it last answered.
    failed: u32,
}

/// What all sources said at one moment.
#[derive(Clone, Debug)]
pub struct Reading(Vec<Hole<Moment>>);

/// What was read, or why there is a hole in its place.
type Hole<T> = std::result::Result<T, String>;

#[derive(Clone, Debug)]
struct Moment {
    at: Instant,
    values: Vec<crate::Value>,
}

impl Meter {
    /// Opens the sources of these measures and reads each once.
    ///
    /// # Errors
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown),
    /// [`Absent`](crate::ErrorKind::Absent), [`NotPermitted`](crate::ErrorKind::NotPermitted) and
    /// [`Void`](crate::ErrorKind::Void), naming the quantity or the file;
    /// [`Syntax`](crate::ErrorKind::Syntax) for a histogram without a quantile, and for a quantile of
    /// anything else.
    pub fn open(specs: &[MeasureSpec]) -> Result<Self> {
        let mut operands: Vec<&Operand> = Vec::new();
        let all = specs.iter().map(MeasureSpec::operands);
        for operand in all.flat_map(|(first, second)| [first].into_iter().chain(second)) {
            if !operands.contains(&operand) {
                operands.push(operand);
            }
        }
        let (mut sources, places) = open(&operands)?;
        let place = |operand: &Operand| {
            let index = operands.iter().position(|other| *other == operand);
            places[index.expect("all operands of all specs were collected above")]
        };
        let mut measures = Vec::new();
        for spec in specs {
            let (first, second) = spec.operands();
            let (first, second) = (place(first), second.map(place));
            let quantity = |place: Place| &sources[place.source].source.quantities()[place.index];
            let unit = unit(spec, quantity(first), second.map(quantity))?;
            measures.push(Measured { spec: spec.clone(), unit, first, second });
        }
        for source in &mut sources {
            source.source.read()?;
        }
        Ok(Self { measures, sources })
    }

    /// The measures in the order of their specs, as reports show them.
    pub fn measures(&self) -> Vec<Measure> {
        let measure = |measured: &Measured| {
            let spec = &measured.spec;
            let measure = Measure::new(spec.name(), measured.unit.clone(), spec.better());
            Measure { quantile: spec.quantile().unwrap_or(measure.quantile), ..measure }
        };
        self.measures.iter().map(measure).collect()
    }

    /// What a reader of the figures must know of how they were made.
    pub fn notes(&self) -> Vec<String> {
        self.sources.iter().filter_map(|opened| opened.source.note()).collect()
    }

    /// Reads all sources now.
    ///
    /// A source that fails leaves a hole in the reading: [`values`](Self::values) says why.
    ///
    /// # Errors
    /// The error of a source that failed in six readings in a row.
    pub fn read(&mut self) -> Result<Reading> {
        self.sources.iter_mut().map(Opened::read).collect::<Result<_>>().map(Reading)
    }

    /// What each measure comes to between two readings of this meter: of a ratio, by how much the two
    /// quantities grew; of a quantity by second, by how much it grew and the seconds; of a level, its
    /// mean times the seconds and what it is divided by. A denominator of 0 says that nothing happened.
    ///
    /// # Errors
    /// Each value has its own: [`ErrorKind::Void`](crate::ErrorKind::Void), with the reason.
    pub fn values(&self, from: &Reading, to: &Reading) -> Vec<Result<trial::Value>> {
        self.measures.iter().map(|measured| measured.value(from, to)).collect()
    }
}

impl Opened {
    fn read(&mut self) -> Result<Hole<Moment>> {
        let before = Instant::now();
        let read = self.source.read();
        let at = before + before.elapsed() / 2;
        match read {
            Ok(values) => {
                self.failed = 0;
                Ok(Ok(Moment { at, values }))
            }
            Err(error) => {
                self.failed += 1;
                if self.failed < FAILURES { Ok(Err(error.to_string())) } else { Err(error) }
            }
        }
    }
}

impl Measured {
    fn value(&self, from: &Reading, to: &Reading) -> Result<trial::Value> {
        self.between(from, to)
            .map_err(|reason| Error::void(format!("{}: {reason}", self.spec.name())))
    }

    fn between(&self, from: &Reading, to: &Reading) -> Hole<trial::Value> {
        let (first, seconds) = amount(self.first, from, to)?;
        let second = self.second.map(|second| amount(second, from, to)).transpose()?;
        let num = match first {
            Amount::Histogram(histogram) => return Ok(trial::Value::Histogram(histogram)),
            Amount::Number(num) => num,
        };
        let den = match second {
            None => seconds,
            Some((Amount::Number(den), _)) => den,
            Some((Amount::Histogram(histogram), _)) => histogram.count(),
        };
        Ok(trial::Value::Part(Part { num, den }))
    }
}

/// What lies between two readings of a quantity, and the seconds.
fn amount(place: Place, from: &Reading, to: &Reading) -> Hole<(Amount, f64)> {
    let moment = |reading: &'_ Reading| match &reading.0[place.source] {
        Ok(moment) => Ok((moment.at, moment.values[place.index].clone())),
        Err(reason) => Err(reason.clone()),
    };
    let ((start, before), (end, now)) = (moment(from)?, moment(to)?);
    let elapsed = end.saturating_duration_since(start);
    let amount = now.since(&before, elapsed).map_err(|error| error.to_string())?;
    Ok((amount, elapsed.as_secs_f64()))
}

/// Opens a source for all that can be read together. The second part says where each operand is.
fn open(operands: &[&Operand]) -> Result<(Vec<Opened>, Vec<Place>)> {
    let mut named: BTreeMap<Family, Vec<(usize, Named)>> = BTreeMap::new();
    let mut prom: BTreeMap<&str, Vec<(usize, Selector)>> = BTreeMap::new();
    let (mut events, mut counters) = (Vec::new(), Vec::new());
    for (at, operand) in operands.iter().enumerate() {
        match operand {
            Operand::Known(name) => {
                named.entry(name.known.family).or_default().push((at, name.clone()));
            }
            Operand::Prom { url, selector } => {
                prom.entry(url).or_default().push((at, selector.clone()));
            }
            Operand::Pmu(event) => events.push((at, event.clone())),
            Operand::Counter { name, pid } => {
                counters.push((at, (operand.to_string(), name.clone(), *pid)));
            }
        }
    }
    let mut opened: Vec<(Box<dyn Source>, Vec<usize>)> = Vec::new();
    for (family, names) in named {
        let (places, names): (Vec<_>, Vec<_>) = names.into_iter().unzip();
        opened.push((Box::new(source::open(family, &names)?), places));
    }
    for (url, selectors) in prom {
        let (places, selectors): (Vec<_>, Vec<_>) = selectors.into_iter().unzip();
        opened.push((Box::new(Prom::open(url, &selectors)?), places));
    }
    if !events.is_empty() {
        let (places, events): (Vec<_>, Vec<_>) = events.into_iter().unzip();
        opened.push((Box::new(Events::open(&events)?), places));
    }
    if !counters.is_empty() {
        let (places, counters): (Vec<_>, Vec<_>) = counters.into_iter().unzip();
        for (source, which) in Counters::open(&counters)? {
            let of_source = which.into_iter().map(|index: usize| places[index]);
            opened.push((Box::new(source), of_source.collect()));
        }
    }
    let mut places = vec![Place { source: 0, index: 0 }; operands.len()];
    for (source, (_, of_source)) in opened.iter().enumerate() {
        for (index, &operand) in of_source.iter().enumerate() {
            places[operand] = Place { source, index };
        }
    }
    let opened = opened.into_iter().map(|(source, _)| Opened { source, failed: 0 });
    Ok((opened.collect(), places))
}

/// The unit of a measure, after a look at whether its quantities are of the right kinds.
fn unit(spec: &MeasureSpec, first: &Quantity, second: Option<&Quantity>) -> Result<String> {
    let is_histogram = first.kind == Kind::Histogram;
    match spec.what {
        What::Quantile(..) if !is_histogram => {
            let message = format!("{spec}: {} is a {}, not a histogram", first.name, first.kind);
            return Err(Error::syntax(message));
        }
        What::Quantile(..) => return Ok(first.unit.clone()),
        What::Ratio(..) if is_histogram => {
            let message = format!("{spec}: it is a histogram; take a quantile, as in p99:{spec}");
            return Err(Error::syntax(message));
        }
        What::Ratio(..) => {}
    }
    Ok(match (second, first.kind) {
        (None, Kind::Level) => first.unit.clone(),
        // Seconds of CPU a second are a number of CPUs.
        (None, _) if first.unit == "CPU s" => "CPUs".into(),
        (None, _) => format!("{}/s", first.unit),
        (Some(second), Kind::Level) => format!("{}·s/{}", first.unit, by(second)),
        (Some(second), _) => format!("{}/{}", first.unit, by(second)),
    })
}

/// A quantity's unit where it is divided by.
fn by(quantity: &Quantity) -> String {
    match quantity.kind {
        Kind::Level => format!("({}·s)", quantity.unit),
        Kind::Total if quantity.unit.contains(' ') => format!("({})", quantity.unit),
        Kind::Total => quantity.unit.clone(),
        Kind::Histogram => "values".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::{ErrorKind, Value};

    /// Counts on, and fails where its script says so.
    struct Scripted {
        quantities: Vec<Quantity>,
        count: f64,
        script: VecDeque<bool>,
    }

    impl Source for Scripted {
        fn quantities(&self) -> &[Quantity] {
            &self.quantities
        }

        fn read(&mut self) -> Result<Vec<Value>> {
            self.count += 1.0;
            match self.script.pop_front() {
                Some(false) => Err(Error::void("it did not answer")),
                _ => Ok(vec![Value::total(self.count), Value::Level(self.count)]),
            }
        }
    }

    fn quantity(name: &str, unit: &str, kind: Kind) -> Quantity {
        Quantity { name: name.into(), unit: unit.into(), help: String::new(), kind }
    }

    fn meter(script: &[bool]) -> Meter {
        let quantities =
            vec![quantity("a", "bytes", Kind::Total), quantity("b", "bytes", Kind::Level)];
        let script = script.iter().copied().collect();
        let source = Box::new(Scripted { quantities, count: 0.0, script });
        let place = |index| Place { source: 0, index };
        let measure = |spec: &str, first, second: Option<usize>| Measured {
            spec: spec.parse().unwrap(),
            unit: String::new(),
            first: place(first),
            second: second.map(place),
        };
        let measures = vec![
            measure("net.bytes", 0, None),
            measure("memory.used", 1, None),
            measure("net.bytes/net.packets", 0, Some(1)),
        ];
        Meter { measures, sources: vec![Opened { source, failed: 0 }] }
    }

    #[test]
    fn a_window_with_a_hole_is_void_and_the_next_one_is_not() {
        let mut meter = meter(&[true, false, true]);
        let readings: Vec<Reading> = (0..3).map(|_| meter.read().unwrap()).collect();
        for value in meter.values(&readings[0], &readings[1]) {
            let error = value.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Void);
            assert!(error.to_string().ends_with(": it did not answer"), "{error}");
        }
        let values = meter.values(&readings[0], &readings[2]).into_iter();
        let ratios: Vec<(f64, f64)> = values
            .map(|value| match value {
                Ok(trial::Value::Part(Part { num, den })) => (num, den),
                other => panic!("{other:?}"),
            })
            .collect();
        let seconds = ratios[0].1;
        assert_eq!(ratios, [(2.0, seconds), (2.0 * seconds, seconds), (2.0, 2.0 * seconds)]);
    }

    #[test]
    fn a_source_that_goes_on_failing_is_an_error() {
        let holes = FAILURES as usize - 1;
        let mut script = vec![false; holes];
        script.push(true);
        script.extend(vec![false; holes + 1]);
        let mut meter = meter(&script);
        for _ in 0..holes + 1 + holes {
            meter.read().unwrap();
        }
        let error = meter.read().unwrap_err();
        assert!(error.to_string().contains("did not answer"), "{error}");
    }

    #[test]
    fn units_say_what_is_divided_by_what() {
        let (cpu, bytes) =
            (quantity("c", "CPU s", Kind::Total), quantity("b", "bytes", Kind::Total));
        let level = quantity("l", "bytes", Kind::Level);
        let histogram = quantity("h", "s", Kind::Histogram);
        let ratio: MeasureSpec = "cpu.busy".parse().unwrap();
        let quantile: MeasureSpec = "p99:prom:http://h/m:n,lower".parse().unwrap();
        for (spec, first, second, expected) in [
            (&ratio, &cpu, None, "CPUs"),
            (&ratio, &bytes, None, "bytes/s"),
            (&ratio, &level, None, "bytes"),
            (&ratio, &cpu, Some(&bytes), "CPU s/bytes"),
            (&ratio, &bytes, Some(&cpu), "bytes/(CPU s)"),
            (&ratio, &level, Some(&bytes), "bytes·s/bytes"),
            (&ratio, &bytes, Some(&histogram), "bytes/values"),
            (&quantile, &histogram, None, "s"),
        ] {
            assert_eq!(unit(spec, first, second).unwrap(), expected);
        }
        let error = unit(&ratio, &histogram, None).unwrap_err().to_string();
        assert!(error.contains("p99:cpu.busy"), "{error}");
        let error = unit(&quantile, &bytes, None).unwrap_err().to_string();
        assert!(error.contains("b is a total, not a histogram"), "{error}");
    }
}
