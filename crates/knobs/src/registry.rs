//! The knobs and counters of this process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Knob, KnobInfo, Result};

/// The knobs and counters of one process. Clones are handles to the same registry.
///
/// The closures that it holds are called on whatever thread asks, often the control socket's, with
/// no lock of the registry held except that one knob is set by one thread at a time. They should
/// be quick, and a setter must not set its own knob.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    process: String,
    knobs: RwLock<BTreeMap<String, Arc<Entry>>>,
    meters: RwLock<BTreeMap<String, Arc<Meter>>>,
}

struct Entry {
    knob: Knob,
    /// Held while the knob is set, so that the setter sees one caller at a time.
    setting: Mutex<()>,
}

struct Meter {
    unit: String,
    help: String,
    kind: MeterKind,
    read: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Registry {
    /// An empty registry for a process of this name, such as `relay`. The name becomes part of the
    /// control socket's, which takes lowercase letters, digits, `-` and `_`.
    pub fn new(process: &str) -> Self {
        Self(Arc::new(Inner {
            process: process.to_owned(),
            knobs: RwLock::default(),
            meters: RwLock::default(),
        }))
    }

    /// The process's name.
    pub fn process(&self) -> &str {
        &self.0.process
    }

    /// Adds a knob.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`], [`ErrorKind::Duplicate`], and [`ErrorKind::BadValue`] for a default
    /// that the knob does not take.
    pub fn register(&self, knob: Knob) -> Result<()> {
        check_name("knob", &knob.name)?;
        knob.check(&knob.default)?;
        let name = knob.name.clone();
        let entry = Arc::new(Entry { knob, setting: Mutex::new(()) });
        insert("knob", &mut self.0.knobs.write(), name, entry)
    }

    /// Adds a number that only grows while the process lives, such as packets forwarded.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`], [`ErrorKind::Duplicate`]: counters and gauges share their names.
    pub fn counter(
        &self,
        name: &str,
        unit: &str,
        help: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<()> {
        self.meter(name, unit, help, MeterKind::Counter, Box::new(read))
    }

    /// Adds a number that goes up and down, such as connections open.
    ///
    /// # Errors
    /// As for [`counter`](Self::counter).
    pub fn gauge(
        &self,
        name: &str,
        unit: &str,
        help: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<()> {
        self.meter(name, unit, help, MeterKind::Gauge, Box::new(read))
    }

    fn meter(
        &self,
        name: &str,
        unit: &str,
        help: &str,
        kind: MeterKind,
        read: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<()> {
        check_name("counter", name)?;
        let meter = Meter { unit: unit.to_owned(), help: help.to_owned(), kind, read };
        insert("counter", &mut self.0.meters.write(), name.to_owned(), Arc::new(meter))
    }

    /// All knobs with their present values, by name.
    pub fn list(&self) -> Vec<KnobInfo> {
        let entries: Vec<_> = self.0.knobs.read().values().cloned().collect();
        entries.iter().map(|entry| entry.knob.info()).collect()
    }

    /// The present value of a knob.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKnob`], naming the knobs that there are.
    pub fn get(&self, knob: &str) -> Result<String> {
        Ok((self.entry(knob)?.knob.current)())
    }

    /// Sets a knob and returns the value that is then in force, as the knob writes it.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKnob`], and [`ErrorKind::BadValue`] with what was expected; the knob is
    /// then as it was.
    pub fn set(&self, knob: &str, value: &str) -> Result<String> {
        let entry = self.entry(knob)?;
        let knob = &entry.knob;
        knob.check(value)?;
        // The lock guards no data, so a setter that panicked has left nothing half done in it.
        let _one_at_a_time = entry.setting.lock();
        (knob.set)(value).map_err(|trouble| knob.refuse(value, Some(&trouble)))?;
        let now = (knob.current)();
        tracing::info!(knob = knob.name, value = now, "knob set");
        Ok(now)
    }

    /// All counters and gauges, by name. They are read one after the other, not at one instant.
    pub fn counters(&self) -> Vec<Reading> {
        let meters: Vec<_> = self
            .0
            .meters
            .read()
            .iter()
            .map(|(name, meter)| (name.clone(), meter.clone()))
            .collect();
        let reading = |(name, meter): (String, Arc<Meter>)| Reading {
            name,
            unit: meter.unit.clone(),
            help: meter.help.clone(),
            kind: meter.kind,
            value: (meter.read)(),
        };
        meters.into_iter().map(reading).collect()
    }

    fn entry(&self, knob: &str) -> Result<Arc<Entry>> {
        let knobs = self.0.knobs.read();
        knobs.get(knob).cloned().ok_or_else(|| {
            let names: Vec<_> = knobs.keys().map(String::as_str).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!("{} has no knob {knob:?} (knobs: {there})", self.0.process);
            Error::new(ErrorKind::UnknownKnob, message)
        })
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let knobs: Vec<_> = self.0.knobs.read().keys().cloned().collect();
        f.debug_struct("Registry").field("process", &self.0.process).field("knobs", &knobs).finish()
    }
}

/// A counter or gauge as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Such as `relay.bytes`.
    pub name: String,
    /// What is counted, such as `bytes`.
    pub unit: String,
    /// What it is, in a few words.
    pub help: String,
    /// Whether it only grows.
    pub kind: MeterKind,
    /// The number.
    pub value: u64,
}

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeterKind {
    /// Grows while the process lives (and wraps past `u64::MAX`): its difference over time counts.
    Counter,
    /// Goes up and down: its present value counts.
    Gauge,
}

/// `lowercase.and_dotted`: two or more words of letters, digits and `_`, each starting with a
/// letter.
fn check_name(what: &str, name: &str) -> Result<()> {
    let letter = |byte: &u8| byte.is_ascii_lowercase();
    let word = |word: &str| {
        word.as_bytes().first().is_some_and(letter)
            && word.bytes().all(|byte| letter(&byte) || byte.is_ascii_digit() || byte == b'_')
    };
    if name.contains('.') && name.split('.').all(word) {
        return Ok(());
    }
    let message = format!("{what} name {name:?} is not lowercase words joined by dots");
    Err(Error::new(ErrorKind::BadName, message))
}

fn insert<T>(what: &str, map: &mut BTreeMap<String, T>, name: String, value: T) -> Result<()> {
    if map.contains_key(&name) {
        return Err(Error::new(ErrorKind::Duplicate, format!("{what} {name} is registered twice")));
    }
    map.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Values;

    fn knob(name: &str, values: Values, default: &str) -> Knob {
        let value = Arc::new(Mutex::new(default.to_owned()));
        let shown = value.clone();
        let current = move || shown.lock().clone();
        Knob::new(name, "a test", values, default, current, move |new| match new {
            "broken" => Err("it is broken".to_owned()),
            _ => {
                *value.lock() = new.to_owned();
                Ok(())
            }
        })
    }

    fn registry() -> Registry {
        let registry = Registry::new("relay");
        let engines = Values::one_of(["copy", "splice", "broken"]);
        registry.register(knob("relay.engine", engines, "copy")).unwrap();
        registry.register(knob("relay.cpus", Values::text("CPU set"), "all")).unwrap();
        registry
    }

    #[test]
    fn a_knob_is_listed_and_set() {
        let registry = registry();
        assert_eq!(registry.set("relay.engine", "splice").unwrap(), "splice");
        assert_eq!(registry.clone().get("relay.engine").unwrap(), "splice");
        assert_eq!(registry.set("relay.cpus", "0-3").unwrap(), "0-3");
        let list = registry.list();
        let names: Vec<_> = list.iter().map(|knob| knob.name.as_str()).collect();
        assert_eq!(names, ["relay.cpus", "relay.engine"]);
        assert_eq!((list[1].default.as_str(), list[1].value.as_str()), ("copy", "splice"));
    }

    #[test]
    fn what_a_knob_does_not_take_is_refused_and_changes_nothing() {
        let registry = registry();
        for (name, value, kind, message) in [
            (
                "relay.engine",
                "warp",
                ErrorKind::BadValue,
                "knob relay.engine does not take \"warp\" (expected copy, splice or broken)",
            ),
            (
                "relay.engine",
                "broken",
                ErrorKind::BadValue,
                "knob relay.engine does not take \"broken\": it is broken (expected copy, splice \
                 or broken)",
            ),
            (
                "relay.cpus",
                "broken",
                ErrorKind::BadValue,
                "knob relay.cpus does not take \"broken\": it is broken (expected CPU set)",
            ),
            (
                "relay.cpu",
                "0",
                ErrorKind::UnknownKnob,
                "relay has no knob \"relay.cpu\" (knobs: relay.cpus, relay.engine)",
            ),
        ] {
            let error = registry.set(name, value).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
        }
        assert!(registry.list().iter().all(|knob| knob.value == knob.default));
        assert_eq!(Registry::new("x").get("a.b").unwrap_err().kind(), ErrorKind::UnknownKnob);
    }

    #[test]
    fn registration_checks_names_and_defaults() {
        let registry = registry();
        for name in ["", "relay", "Relay.x", "relay.", ".x", "a..b", "a.b c", "a.1b", "a.b-c"] {
            let error = registry.register(knob(name, Values::off_on(), "off")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName, "{name:?}");
            let error = registry.counter(name, "bytes", "", || 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName, "{name:?}");
        }
        let again = registry.register(knob("relay.engine", Values::off_on(), "on"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Duplicate);
        let error = registry.register(knob("relay.x", Values::off_on(), "maybe")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadValue);
    }

    #[test]
    fn counters_and_gauges_are_read_when_asked() {
        let registry = registry();
        let bytes = Arc::new(crate::Counter::new());
        let counted = bytes.clone();
        registry.counter("relay.bytes", "bytes", "forwarded", move || counted.value()).unwrap();
        registry.gauge("relay.a_open", "connections", "open now", || 3).unwrap();
        let twice = registry.gauge("relay.bytes", "bytes", "", || 0).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::Duplicate);
        bytes.add(7);
        let readings = registry.counters();
        let read: Vec<_> = readings.iter().map(|r| (r.name.as_str(), r.kind, r.value)).collect();
        let expected =
            [("relay.a_open", MeterKind::Gauge, 3), ("relay.bytes", MeterKind::Counter, 7)];
        assert_eq!(read, expected);
    }
}
