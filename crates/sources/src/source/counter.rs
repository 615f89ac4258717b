//! The counters of running cachelane processes.

use std::time::Duration;

use knobs::{Client, Current, MeterKind, Process, Reading};

use super::Source;
use crate::{Error, ErrorKind, Kind, Quantity, Result, Value};

/// How long a process may take to answer.
const LIMIT: Duration = Duration::from_secs(1);

/// Counters of one process.
pub(crate) struct Counters {
    quantities: Vec<Quantity>,
    /// As the process calls them.
    names: Vec<String>,
    process: Process,
    client: Client,
}

impl Counters {
    /// The counters of these names: each as a measure has it, as a process has it, and the process if
    /// several have it. One source a process, each with the places of its names.
    pub(crate) fn open(names: &[(String, String, Option<u32>)]) -> Result<Vec<(Self, Vec<usize>)>> {
        Self::open_of(&all_counters()?, names)
    }

    fn open_of(
        there: &[(Process, Vec<Reading>)],
        names: &[(String, String, Option<u32>)],
    ) -> Result<Vec<(Self, Vec<usize>)>> {
        let mut sources: Vec<(Self, Vec<usize>)> = Vec::new();
        for (place, (written, counter, pid)) in names.iter().enumerate() {
            let (process, reading) = find(there, written, counter, *pid)?;
            let quantity = quantity(written.clone(), reading);
            let index = match sources.iter().position(|(source, _)| source.process == *process) {
                Some(index) => index,
                None => {
                    let client = process.connect_timeout(LIMIT);
                    let client = client.map_err(|error| trouble(process, &error))?;
                    let process = process.clone();
                    let source = Self { quantities: vec![], names: vec![], process, client };
                    sources.push((source, Vec::new()));
                    sources.len() - 1
                }
            };
            let (source, places) = &mut sources[index];
            source.quantities.push(quantity);
            source.names.push(counter.clone());
            places.push(place);
        }
        Ok(sources)
    }
}

impl Source for Counters {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn read(&mut self) -> Result<Vec<Value>> {
        let readings = self.client.counters().map_err(|error| trouble(&self.process, &error))?;
        let value = |name: &String| {
            let reading = readings.iter().find(|reading| reading.name == *name);
            match reading.map(|reading| (&reading.value, reading.kind)) {
                Some((Current::Value(value), MeterKind::Counter)) => {
                    Ok(Value::total(*value as f64))
                }
                Some((Current::Value(value), _)) => Ok(Value::Level(*value as f64)),
                Some((Current::Error(reason), _)) => Err(Error::void(format!("{name}: {reason}"))),
                None => Err(Error::void(format!("the process no longer has {name}"))),
            }
        };
        self.names.iter().map(value).collect()
    }
}

/// All counters of all processes that answer.
pub(crate) fn all_counters() -> Result<Vec<(Process, Vec<Reading>)>> {
    counters_of(knobs::discover())
}

fn counters_of(found: knobs::Result<Vec<Process>>) -> Result<Vec<(Process, Vec<Reading>)>> {
    let processes = found.map_err(|error| {
        let kind = match error.kind() {
            knobs::ErrorKind::NotPermitted => ErrorKind::NotPermitted,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("cannot look for cachelane processes: {error}"))
    })?;
    // One that does not answer has no counters to offer; the others have.
    let ask = |process: &Process| process.connect_timeout(LIMIT)?.counters();
    let counters =
        knobs::ask_each(&processes, ask).into_iter().map(knobs::Result::unwrap_or_default);
    Ok(processes.into_iter().zip(counters).collect())
}

/// A counter as a quantity of this name.
pub(crate) fn quantity(name: String, reading: &Reading) -> Quantity {
    let kind = match reading.kind {
        MeterKind::Counter => Kind::Total,
        _ => Kind::Level,
    };
    Quantity { name, unit: reading.unit.clone(), help: reading.help.clone(), kind }
}

fn find<'a>(
    there: &'a [(Process, Vec<Reading>)],
    written: &str,
    counter: &str,
    pid: Option<u32>,
) -> Result<(&'a Process, &'a Reading)> {
    let wanted = there.iter().filter(|(process, _)| pid.is_none_or(|pid| process.pid == pid));
    let mut found = wanted.filter_map(|(process, readings)| {
        Some((process, readings.iter().find(|reading| reading.name == counter)?))
    });
    let unknown = |message| Err(Error::new(ErrorKind::Unknown, message));
    match (found.next(), found.next()) {
        (Some(found), None) => Ok(found),
        (Some((one, _)), Some((other, _))) => unknown(format!(
            "{written}: several processes have it; write {counter}@{} or {counter}@{}",
            one.pid, other.pid
        )),
        (None, _) => {
            let processes =
                there.iter().map(|(process, _)| format!("{} {}", process.kind, process.pid));
            let processes: Vec<String> = processes.collect();
            let running = match processes.is_empty() {
                true => "none is running".into(),
                false => format!("running: {}", processes.join(", ")),
            };
            unknown(format!("{written}: no cachelane process has this counter ({running})"))
        }
    }
}

fn trouble(process: &Process, error: &knobs::Error) -> Error {
    Error::void(format!("{} {}: {error}", process.kind, process.pid))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use knobs::{Registry, Server};

    use super::*;
    use crate::value::Amount;

    fn serve(process: &str, dir: &std::path::Path, count: &Arc<AtomicU64>) -> Server {
        let (registry, bytes, clients) = (Registry::new(process), count.clone(), count.clone());
        let fields = [("bytes", "bytes", "Forwarded.")];
        let read = move || Ok::<_, String>([bytes.load(Relaxed)]);
        registry.meters(MeterKind::Counter, "relay", fields, read).unwrap();
        let fields = [("clients", "clients", "Connected.")];
        let read = move || Ok::<_, String>([clients.load(Relaxed)]);
        registry.meters(MeterKind::Gauge, "relay", fields, read).unwrap();
        Server::bind_in(registry, dir).unwrap()
    }

    fn there(dir: &std::path::Path) -> Vec<(Process, Vec<Reading>)> {
        counters_of(knobs::discover_in(dir)).unwrap()
    }

    fn names(counters: &[&str]) -> Vec<(String, String, Option<u32>)> {
        counters.iter().map(|name| (format!("counter:{name}"), (*name).into(), None)).collect()
    }

    #[test]
    fn counters_of_a_process_are_read_until_it_ends() {
        let (dir, count) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(5)));
        let server = serve("relay", dir.path(), &count);
        let mut opened =
            Counters::open_of(&there(dir.path()), &names(&["relay.clients", "relay.bytes"]))
                .unwrap();
        let (mut source, places) = opened.pop().unwrap();
        assert_eq!((opened.len(), places), (0, vec![0, 1]));
        let kinds: Vec<Kind> = source.quantities().iter().map(|quantity| quantity.kind).collect();
        assert_eq!(kinds, [Kind::Level, Kind::Total]);
        let early = source.read().unwrap();
        count.store(9, Relaxed);
        let late = source.read().unwrap();
        assert_eq!(late[0], Value::Level(9.0));
        let grown = late[1].since(&early[1], Duration::from_secs(1)).unwrap();
        assert_eq!(grown, Amount::Number(4.0));
        drop(server);
        let error = source.read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Void);
        assert!(error.to_string().starts_with("relay "), "{error}");
    }

    #[test]
    fn a_counter_that_none_or_two_have_is_refused() {
        let (dir, count) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(5)));
        let open = |counter| {
            let opened = Counters::open_of(&there(dir.path()), &names(&[counter]));
            opened.map(drop).map_err(|error| error.to_string())
        };
        assert!(open("relay.bytes").unwrap_err().contains("none is running"));
        let _one = serve("relay", dir.path(), &count);
        assert_eq!(open("relay.bytes"), Ok(()));
        assert!(open("relay.x").unwrap_err().contains("running: relay "));
        let _other = serve("relay2", dir.path(), &count);
        assert!(open("relay.bytes").unwrap_err().contains("several processes"));
    }
}
