//! `/proc/schedstat`: how long threads waited for a CPU that they could have used.

use lanes::CpuSet;

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::spec::Named;
use crate::value::{Nature, Part};
use crate::{Result, Value};

const PATH: &str = "/proc/schedstat";

/// The columns after a CPU's name, the same in versions 15 (Linux 2.6.30) to 17.
const WAITED: usize = 7;
const SLICES: usize = 8;

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let file = Kept::open(PATH, "the kernel has no CONFIG_SCHEDSTATS")?;
    Text::new(vec![file], names, |name| {
        let cpus = name.cpus()?;
        let (column, scale) =
            if name.known.name == "cpu.wait" { (WAITED, 1e-9) } else { (SLICES, 1.0) };
        Ok(Box::new(move |files| column_of(files[0].text()?, cpus.as_ref(), column, scale)))
    })
}

fn column_of(text: &str, cpus: Option<&CpuSet>, column: usize, scale: f64) -> Result<Value> {
    let version = text.lines().find_map(|line| line.strip_prefix("version ")?.trim().parse().ok());
    if !version.is_some_and(|version: u32| (15..=17).contains(&version)) {
        return Err(unexpected(PATH, "version from 15 to 17"));
    }
    let mut parts = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next().and_then(|word| word.strip_prefix("cpu")?.parse::<usize>().ok());
        let Some(cpu) = cpu.filter(|&cpu| cpus.is_none_or(|cpus| cpus.contains(cpu))) else {
            continue;
        };
        let value = words.nth(column).and_then(|word| word.parse::<f64>().ok());
        let value = value.ok_or_else(|| unexpected(PATH, "run delay"))? * scale;
        parts.push(Part { of: format!("CPU {cpu}"), value, nature: Nature::Fixed });
    }
    match parts.is_empty() {
        true => Err(unexpected(PATH, "line for any of the CPUs that are asked for")),
        false => Ok(Value::Total(parts)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str, cpus: Option<&CpuSet>, column: usize, scale: f64) -> Vec<f64> {
        match column_of(text, cpus, column, scale).unwrap() {
            Value::Total(parts) => parts.iter().map(|part| part.value).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn waiting_and_slices_are_found_in_each_version() {
        // Of Linux 6.1 and 6.18: the lines of domains differ.
        let domains = [(15, "domain0 3 0 0 0"), (17, "domain0 MC 3 0 0 0")];
        for (version, domain) in domains {
            let text = format!(
                "version {version}\ntimestamp 4295\n\
                 cpu0 0 0 0 0 0 0 91000000000 2500000000 1000\n{domain}\n\
                 cpu1 0 0 0 0 0 0 92000000000 500000000 3000\n{domain}\n"
            );
            assert_eq!(values(&text, None, WAITED, 1e-9), [2.5, 0.5]);
            assert_eq!(values(&text, None, SLICES, 1.0), [1000.0, 3000.0]);
            let one: CpuSet = "1".parse().unwrap();
            assert_eq!(values(&text, Some(&one), WAITED, 1e-9), [0.5]);
        }
        let error = column_of("version 18\ncpu0 1 2 3\n", None, WAITED, 1.0).unwrap_err();
        assert!(error.to_string().contains("version"), "{error}");
        assert!(column_of("version 15\ncpu0 1 2 3\n", None, WAITED, 1.0).is_err());
    }
}
