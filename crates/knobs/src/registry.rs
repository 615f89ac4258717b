//! The knobs and counters of this process.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::Field;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::custom::{Handler, MAX_FILES};
use crate::entry::{By, Entry};
use crate::said::Said;
use crate::{Answer, Current, Error, ErrorKind, Knob, KnobInfo, Peer, ProcessName, Result};

/// The knobs and counters of one process. Clones are handles to the same registry.
///
/// The closures that it holds are called on whatever thread asks, often the control socket's, with
/// no lock of the registry held except that one knob is set by one thread at a time. They should
/// be quick, and a setter must not set its own knob.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    process: String,
    name: ProcessName,
    knobs: RwLock<BTreeMap<String, Arc<Entry>>>,
    meters: RwLock<Vec<Arc<Meters>>>,
    handlers: RwLock<BTreeMap<String, Arc<Handler>>>,
}

/// Counters, or gauges, that are read together.
struct Meters {
    prefix: String,
    kind: MeterKind,
    fields: Vec<Field>,
    read: Box<dyn Fn() -> std::result::Result<Vec<u64>, String> + Send + Sync>,
}

impl Registry {
    /// An empty registry for a process of this kind, such as `relay`. The kind becomes part of the
    /// control socket's, which takes lowercase letters, digits, `-` and `_`.
    pub fn new(process: &str) -> Self {
        Self::named(process, ProcessName::of(process))
    }

    /// As [`new`](Self::new), with what people call this process of several, such as `relay :8080`.
    pub fn named(process: &str, name: ProcessName) -> Self {
        Self(Arc::new(Inner {
            process: process.to_owned(),
            name,
            knobs: RwLock::default(),
            meters: RwLock::default(),
            handlers: RwLock::default(),
        }))
    }

    /// What sort of process it is, such as `relay`.
    pub fn process(&self) -> &str {
        &self.0.process
    }

    /// What people call it.
    pub fn name(&self) -> &ProcessName {
        &self.0.name
    }

    /// Adds a knob.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`], also for the counters of its [`Exposure`](crate::Exposure);
    /// [`ErrorKind::Duplicate`], and [`ErrorKind::BadValue`] for a default that the knob does not
    /// take.
    pub fn register(&self, knob: Knob) -> Result<()> {
        check_name("knob", &knob.name)?;
        let counters = knob.exposure.iter().flat_map(|exposure| [&exposure.under, &exposure.of]);
        counters.into_iter().try_for_each(|counter| check_name("counter", counter))?;
        knob.check(&knob.default)?;
        let name = knob.name.clone();
        let entry = Arc::new(Entry::new(knob));
        match self.0.knobs.write().entry(name) {
            btree_map::Entry::Occupied(taken) => return Err(duplicate("knob", taken.key())),
            btree_map::Entry::Vacant(free) => free.insert(entry),
        };
        Ok(())
    }

    /// Adds counters or gauges that are read together: `read` gives them in the order of `fields`,
    /// or says why they cannot be read. Each is called `PREFIX.NAME`.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`], [`ErrorKind::Duplicate`]: counters and gauges share their names.
    pub fn meters<const N: usize, E: fmt::Display>(
        &self,
        kind: MeterKind,
        prefix: &str,
        fields: [Field; N],
        read: impl Fn() -> std::result::Result<[u64; N], E> + Send + Sync + 'static,
    ) -> Result<()> {
        let read = move || read().map(Vec::from).map_err(|trouble| trouble.to_string());
        let added =
            Meters { prefix: prefix.to_owned(), kind, fields: fields.into(), read: Box::new(read) };
        let mut meters = self.0.meters.write();
        let mut there: BTreeSet<_> = meters.iter().flat_map(|meters| meters.names()).collect();
        for name in added.names() {
            check_name("counter", &name)?;
            if let Some(name) = there.replace(name) {
                return Err(duplicate("counter", &name));
            }
        }
        meters.push(Arc::new(added));
        Ok(())
    }

    /// Has `handler` answer the requests of this name that clients [`ask`](crate::Client::ask): what
    /// they are about, and who asks, which is this user or root. Names are as for knobs.
    ///
    /// The handler is called on the control socket's thread, so it must not wait for anything. The
    /// client gets duplicates of the files that it answers with, or is gone before it got them all;
    /// the handler is not told. What it gives as an error reaches the client as
    /// [`ErrorKind::Refused`].
    ///
    /// ```
    /// # use cachelane_knobs::{Answer, Registry};
    /// let registry = Registry::new("relay");
    /// registry.on_request("relay.listeners", |with, peer| {
    ///     let files = vec![std::fs::File::open("/dev/null").map_err(|error| error.to_string())?.into()];
    ///     Ok::<_, String>(Answer { value: format!("{with} for {peer}").into(), files })
    /// })?;
    /// # Ok::<(), cachelane_knobs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadName`], [`ErrorKind::Duplicate`].
    pub fn on_request<E: fmt::Display>(
        &self,
        name: &str,
        handler: impl Fn(&Value, Peer) -> std::result::Result<Answer, E> + Send + Sync + 'static,
    ) -> Result<()> {
        check_name("request", name)?;
        let handler =
            move |with: &Value, peer| handler(with, peer).map_err(|trouble| trouble.to_string());
        match self.0.handlers.write().entry(name.to_owned()) {
            btree_map::Entry::Occupied(taken) => Err(duplicate("request", taken.key())),
            btree_map::Entry::Vacant(free) => {
                free.insert(Arc::new(handler));
                Ok(())
            }
        }
    }

    pub(crate) fn ask(&self, name: &str, with: &Value, peer: Peer) -> Result<Answer> {
        let process = &self.0.process;
        let Some(handler) = self.0.handlers.read().get(name).cloned() else {
            let message = format!("{process} answers no request {name:?}");
            return Err(Error::new(ErrorKind::UnknownRequest, message));
        };
        let answer = handler(with, peer).map_err(|trouble| {
            Error::new(ErrorKind::Refused, format!("{process} refused {name}: {trouble}"))
        })?;
        if answer.files.len() > MAX_FILES {
            let message =
                format!("{name} has {} files to give, more than {MAX_FILES}", answer.files.len());
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        Ok(answer)
    }

    /// All knobs with their present values, by name.
    pub fn list(&self) -> Vec<KnobInfo> {
        self.entries().iter().map(|entry| entry.info()).collect()
    }

    /// The present value of a knob.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKnob`], naming the knobs that there are; [`ErrorKind::Unreadable`].
    pub fn get(&self, knob: &str) -> Result<String> {
        self.entry(knob)?.knob.value()
    }

    /// Sets a knob and returns the value that is then in force, as the knob writes it.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKnob`], [`ErrorKind::Held`] while somebody holds it, and
    /// [`ErrorKind::BadValue`] with what was expected; the knob is then as it was.
    /// [`ErrorKind::Unreadable`] if it was set and what it is now cannot be read.
    pub fn set(&self, knob: &str, value: &str) -> Result<String> {
        self.set_by(knob, value, By::Anybody, None)
    }

    pub(crate) fn set_by(
        &self,
        knob: &str,
        value: &str,
        by: By<'_>,
        only_if: Option<&str>,
    ) -> Result<String> {
        self.entry(knob)?.set(value, by, only_if)
    }

    pub(crate) fn hold(&self, knob: &str, token: &str, holder: &str, ms: u64) -> Result<String> {
        self.entry(knob)?.hold(token, holder, Duration::from_millis(ms))
    }

    pub(crate) fn renew(&self, knob: &str, token: &str, ms: u64) -> Result<String> {
        self.entry(knob)?.renew(token, Duration::from_millis(ms))
    }

    pub(crate) fn release(&self, knob: &str, token: &str, keep: bool) -> Result<String> {
        self.entry(knob)?.release(token, keep)
    }

    /// Ends the holds whose time was over at `now`, which is when whoever calls began to answer what
    /// waited. When to do so again, if ever.
    pub(crate) fn tend(&self, now: Instant) -> Option<Instant> {
        self.entries().iter().filter_map(|entry| entry.tend(now)).min()
    }

    /// Ends all holds, since nobody will tend them any more.
    pub(crate) fn abandon_holds(&self) {
        self.entries().iter().for_each(|entry| entry.abandon());
    }

    /// All counters and gauges, by name. Those that were added together are read at one moment,
    /// the others one after the other.
    pub fn readings(&self) -> Vec<Reading> {
        let meters = self.0.meters.read().clone();
        let mut readings: Vec<_> = meters.iter().flat_map(|meters| meters.readings()).collect();
        readings.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        readings
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        self.0.knobs.read().values().cloned().collect()
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

impl Meters {
    fn names(&self) -> impl Iterator<Item = String> {
        self.fields.iter().map(|(name, ..)| format!("{}.{name}", self.prefix))
    }

    fn readings(&self) -> impl Iterator<Item = Reading> {
        let values = (self.read)();
        self.names().zip(&self.fields).enumerate().map(move |(place, (name, (_, unit, help)))| {
            let value = values.as_ref().map(|all| all[place]).map_err(Clone::clone);
            Reading {
                name,
                unit: (*unit).to_owned(),
                help: (*help).to_owned(),
                kind: self.kind,
                value: Current::of(value),
                more: Map::new(),
            }
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
#[serde(from = "Value")]
pub struct Reading {
    /// Such as `relay.bytes`.
    pub name: String,
    /// What is counted, such as `bytes`.
    pub unit: String,
    /// What it is, in a few words.
    pub help: String,
    /// Whether it only grows.
    pub kind: MeterKind,
    /// The number; on the wire as a field `value` or `error` of this.
    #[serde(flatten)]
    pub value: Current<u64>,
    /// What else a process of a later version says of it.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl From<Value> for Reading {
    /// Understands as much as possible of what a process of another version says.
    fn from(said: Value) -> Self {
        let mut said = Said::of(said);
        Self {
            name: said.text("name"),
            unit: said.text("unit"),
            help: said.text("help"),
            kind: said.known("kind"),
            value: said.current(),
            more: said.rest(),
        }
    }
}

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MeterKind {
    /// Grows while the process lives (and wraps past `u64::MAX`): its difference over time counts.
    Counter,
    /// Goes up and down: its present value counts.
    Gauge,
    /// Something that a process of a later version has.
    #[default]
    #[serde(other)]
    Unknown,
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

fn duplicate(what: &str, name: &str) -> Error {
    Error::new(ErrorKind::Duplicate, format!("{what} {name} is registered twice"))
}

#[cfg(test)]
mod tests {
    use std::result::Result;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use parking_lot::Mutex;

    use super::*;

    /// What reads a value, and what sets it unless that is `refused`.
    fn shared<T: Clone + Send + Sync + 'static>(
        value: T,
        refused: fn(&T) -> Option<&'static str>,
    ) -> (impl Fn() -> Result<T, &'static str>, impl Fn(T) -> Result<(), &'static str>) {
        let value = Arc::new(Mutex::new(value));
        let shown = value.clone();
        let set = move |new| {
            refused(&new).map_or(Ok(()), Err)?;
            *value.lock() = new;
            Ok(())
        };
        (move || Ok(shown.lock().clone()), set)
    }

    fn engine(name: &str, default: &'static str) -> Knob {
        let (get, set) = shared(default, |new| (*new == "broken").then_some("it is broken"));
        Knob::choice(name, "a test", &["copy", "splice", "broken"], default, get, set)
    }

    fn registry() -> Registry {
        let registry = Registry::new("relay");
        registry.register(engine("relay.engine", "copy")).unwrap();
        let (get, set) = shared(4_u32, |new| (*new > 4).then_some("it is too many"));
        let knob = Knob::parsed("relay.cpus", "a test", "a number", "4", get, set);
        registry.register(knob).unwrap();
        registry
    }

    #[test]
    fn a_knob_is_listed_and_set() {
        let registry = registry();
        assert_eq!(registry.set("relay.engine", "splice").unwrap(), "splice");
        assert_eq!(registry.clone().get("relay.engine").unwrap(), "splice");
        assert_eq!(registry.set("relay.cpus", "3").unwrap(), "3");
        let list = registry.list();
        let names: Vec<_> = list.iter().map(|knob| knob.name.as_str()).collect();
        assert_eq!(names, ["relay.cpus", "relay.engine"]);
        assert_eq!(list[1].default, "copy");
        assert_eq!(list[1].value, Current::Value("splice".into()));
    }

    #[test]
    fn what_a_knob_does_not_take_is_refused_and_changes_nothing() {
        let registry = registry();
        let engines = "(expected copy, splice or broken)";
        for (name, value, said) in [
            ("engine", "warp", format!("\"warp\" {engines}")),
            ("engine", "broken", format!("\"broken\": it is broken {engines}")),
            ("cpus", "7", "\"7\": it is too many (expected a number)".into()),
            ("cpus", "x", "\"x\": invalid digit found in string (expected a number)".into()),
        ] {
            let error = registry.set(&format!("relay.{name}"), value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadValue);
            assert_eq!(error.to_string(), format!("knob relay.{name} does not take {said}"));
        }
        let error = registry.set("relay.cpu", "0").unwrap_err();
        let said = "relay has no knob \"relay.cpu\" (knobs: relay.cpus, relay.engine)";
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::UnknownKnob, said));
        assert!(registry.list().iter().all(|knob| knob.value.value() == Some(&knob.default)));
        assert_eq!(Registry::new("x").get("a.b").unwrap_err().kind(), ErrorKind::UnknownKnob);
    }

    #[test]
    fn registration_checks_names_and_defaults() {
        let registry = registry();
        for name in ["", "relay", "Relay.x", "relay.", ".x", "a..b", "a.b c", "a.1b", "a.b-c"] {
            let error = registry.register(engine(name, "copy")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName, "{name:?}");
        }
        for prefix in ["", "Relay", "relay.", ".x", "a..b", "a b", "1b", "a-c"] {
            let bytes = [("bytes", "bytes", "")];
            let added = registry.meters(MeterKind::Counter, prefix, bytes, || Ok::<_, String>([0]));
            assert_eq!(added.unwrap_err().kind(), ErrorKind::BadName, "{prefix:?}");
        }
        let again = registry.register(engine("relay.engine", "copy"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Duplicate);
        let exposed = registry.register(engine("relay.x", "copy").exposed("relay.y", "bytes"));
        let said = "counter name \"bytes\" is not lowercase words joined by dots";
        assert_eq!(exposed.unwrap_err().to_string(), said);
        let error = registry.register(engine("relay.x", "warp")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadValue);
    }

    #[test]
    fn counters_and_gauges_are_read_when_asked() {
        const BYTES: [Field; 1] = [("bytes", "bytes", "forwarded")];
        let registry = registry();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        let read = move || Ok::<_, String>([counted.load(Relaxed)]);
        registry.meters(MeterKind::Counter, "relay", BYTES, read).unwrap();
        let open = [("a_open", "connections", "open now")];
        registry.meters(MeterKind::Gauge, "relay", open, || Ok::<_, String>([3])).unwrap();
        let twice = registry.meters(MeterKind::Gauge, "relay", BYTES, || Ok::<_, String>([0]));
        assert_eq!(twice.unwrap_err().kind(), ErrorKind::Duplicate);
        bytes.store(7, Relaxed);
        let readings = registry.readings();
        let read: Vec<_> = readings.iter().map(|r| (r.name.as_str(), r.kind, &r.value)).collect();
        let (open, bytes) = (Current::Value(3), Current::Value(7));
        let open = ("relay.a_open", MeterKind::Gauge, &open);
        assert_eq!(read, [open, ("relay.bytes", MeterKind::Counter, &bytes)]);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_costs_nothing_else() {
        let registry = registry();
        let knob = Knob::off_on("relay.x", "a test", true, || Err("no such map"), |_| Ok(()));
        registry.register(knob).unwrap();
        let maps = [("one", "times", ""), ("two", "times", "")];
        registry.meters(MeterKind::Counter, "relay", maps, || Err("no such map")).unwrap();
        let list = registry.list();
        assert_eq!(list[2].value, Current::Error("no such map".into()));
        assert_eq!(list[1].value, Current::Value("copy".into()));
        for read in [registry.get("relay.x"), registry.set("relay.x", "on")] {
            let error = read.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreadable);
            assert_eq!(error.to_string(), "knob relay.x cannot be read: no such map");
        }
        let readings = registry.readings();
        assert!(readings.iter().all(|one| one.value == Current::Error("no such map".into())));
        let text = serde_json::to_value(&readings[1]).unwrap();
        assert_eq!(text["error"], "no such map");
        assert_eq!(serde_json::from_value::<Reading>(text).unwrap(), readings[1]);
    }
}
