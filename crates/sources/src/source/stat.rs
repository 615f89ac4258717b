//! `/proc/stat`: what CPUs did with their time, and context switches.
//!
//! Kernels without exact accounting attribute the time of a tick to what runs at that tick, so that
//! softirqs that start and end between two ticks are missed. Idle time is exact where idle CPUs
//! have no ticks, which is nearly everywhere. So `cpu.busy` is the time on the clock that idle,
//! waiting and stolen time leave. All figures are in ticks of 10 ms a CPU.

use std::sync::LazyLock;
use std::time::Instant;

use lanes::CpuSet;
use rustix::param::clock_ticks_per_second;

use super::file::Kept;
use super::text::{Pick, Text};
use super::unexpected;
use crate::spec::Named;
use crate::value::{Nature, Part};
use crate::{Result, Value};

const PATH: &str = "/proc/stat";

/// The columns after a CPU's name.
const USER: usize = 0;
const NICE: usize = 1;
const SYSTEM: usize = 2;
const IDLE: usize = 3;
const IOWAIT: usize = 4;
const IRQ: usize = 5;
const SOFTIRQ: usize = 6;
const STEAL: usize = 7;

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let file = Kept::open(PATH, "procfs is not mounted")?;
    Text::new(vec![file], names, pick)
}

fn pick(name: &Named) -> Result<Pick> {
    let cpus = name.cpus()?;
    Ok(match name.known.name {
        "switches" => Box::new(|files| switches(files[0].text()?)),
        "cpu.busy" => Box::new(move |files| busy(files[0].text()?, cpus.as_ref(), files[0].at)),
        column => {
            let columns: &[usize] = match column {
                "cpu.user" => &[USER, NICE],
                "cpu.system" => &[SYSTEM],
                "cpu.irq" => &[IRQ],
                "cpu.softirq" => &[SOFTIRQ],
                _ => &[STEAL],
            };
            Box::new(move |files| spent(files[0].text()?, cpus.as_ref(), columns))
        }
    })
}

fn switches(text: &str) -> Result<Value> {
    let count = text.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok());
    count.map(Value::total).ok_or_else(|| unexpected(PATH, "ctxt"))
}

fn busy(text: &str, cpus: Option<&CpuSet>, at: Instant) -> Result<Value> {
    // Any start will do: only differences count.
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let now = at.saturating_duration_since(*START).as_secs_f64();
    let ticks = clock_ticks_per_second() as f64;
    each(text, cpus, |columns| {
        let not_busy = [IDLE, IOWAIT, STEAL].iter().map(|&column| columns[column]).sum::<f64>();
        // Each of the three is rounded to a tick.
        (now - not_busy / ticks, Nature::Rounded(4.0 / ticks))
    })
}

fn spent(text: &str, cpus: Option<&CpuSet>, of: &[usize]) -> Result<Value> {
    let ticks = clock_ticks_per_second() as f64;
    each(text, cpus, |columns| {
        (of.iter().map(|&column| columns[column]).sum::<f64>() / ticks, Nature::Fixed)
    })
}

/// A part for each CPU that is online and in `cpus`.
fn each(
    text: &str,
    cpus: Option<&CpuSet>,
    value: impl Fn(&[f64; 8]) -> (f64, Nature),
) -> Result<Value> {
    let mut parts = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next().and_then(|word| word.strip_prefix("cpu")?.parse::<usize>().ok());
        let Some(cpu) = cpu else { continue };
        if cpus.is_some_and(|cpus| !cpus.contains(cpu)) {
            continue;
        }
        let mut columns = [0.0; 8];
        for column in &mut columns {
            let number = words.next().and_then(|word| word.parse().ok());
            *column = number.ok_or_else(|| unexpected(PATH, "eight columns for each CPU"))?;
        }
        let (value, nature) = value(&columns);
        parts.push(Part { of: format!("CPU {cpu}"), value, nature });
    }
    match parts.is_empty() {
        true => Err(unexpected(PATH, "line for any of the CPUs that are asked for")),
        false => Ok(Value::Total(parts)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::value::Amount;

    /// Of Linux 6.12, shortened.
    const EARLY: &str = "\
cpu  2000 10 300 8000 50 0 20 7 0 0
cpu0 1000 5 150 4000 25 3 10 4 0 0
cpu1 1000 5 150 4000 25 0 10 3 0 0
intr 1000 0 9 0
ctxt 4711
btime 1700000000
processes 300
procs_running 1
procs_blocked 0
softirq 100 0 1 2 3
";

    /// Two seconds later: CPU 0 idle, waiting and robbed for a second, CPU 1 busy.
    const LATE: &str = "\
cpu  2000 10 300 8000 50 0 20 7 0 0
cpu0 1080 15 155 4050 55 8 15 24 0 0
cpu1 1100 5 240 4000 25 0 20 3 0 0
ctxt 5000
";

    fn since(pick: impl Fn(&str, Instant) -> Result<Value>, late: &str) -> Result<f64, String> {
        let start = Instant::now() + Duration::from_secs(1);
        let elapsed = Duration::from_secs(2);
        let (early, late) = (pick(EARLY, start).unwrap(), pick(late, start + elapsed).unwrap());
        match late.since(&early, elapsed).map_err(|error| error.to_string())? {
            Amount::Number(number) => Ok((number * 1e6).round() / 1e6),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn busy_is_what_idle_waiting_and_stolen_time_leave() {
        assert_eq!(clock_ticks_per_second(), 100, "the tables here are in ticks of 10 ms");
        let one: CpuSet = "0".parse().unwrap();
        assert_eq!(since(|text, at| busy(text, None, at), LATE), Ok(3.0));
        assert_eq!(since(|text, at| busy(text, Some(&one), at), LATE), Ok(1.0));
    }

    #[test]
    fn columns_and_switches_are_found() {
        for (columns, seconds) in [
            (&[USER, NICE][..], 1.9),
            (&[SYSTEM], 0.95),
            (&[IRQ], 0.05),
            (&[SOFTIRQ], 0.15),
            (&[STEAL], 0.2),
        ] {
            let found = since(|text, _| spent(text, None, columns), LATE);
            assert_eq!(found, Ok(seconds), "{columns:?}");
        }
        assert_eq!(since(|text, _| switches(text), LATE), Ok(289.0));
    }

    #[test]
    fn a_cpu_that_went_or_came_voids_the_window() {
        let gone = LATE.replace("cpu1", "#");
        let found = since(|text, at| busy(text, None, at), &gone);
        assert_eq!(found, Err("CPU 1 is gone".into()));
        let come = format!("{LATE}cpu2 0 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(since(|text, at| busy(text, None, at), &come), Err("CPU 2 is new".into()));
        let others: CpuSet = "7".parse().unwrap();
        let error = busy(LATE, Some(&others), Instant::now()).unwrap_err().to_string();
        assert!(error.contains("/proc/stat") && error.contains("asked for"), "{error}");
    }
}
