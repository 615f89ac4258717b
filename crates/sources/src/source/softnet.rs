//! `/proc/net/softnet_stat`: what receive softirqs did, a row a CPU, of all network namespaces.

use lanes::CpuSet;

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::spec::Named;
use crate::value::{Nature, Part};
use crate::{Result, Value};

const PATH: &str = "/proc/net/softnet_stat";

const PACKETS: usize = 0;
const DROPS: usize = 1;
const SQUEEZED: usize = 2;
/// The CPU, from Linux 5.10 on. Rows of CPUs that are offline are left out.
const CPU: usize = 12;

pub(super) fn open(names: &[Named]) -> Result<Text> {
    let file = Kept::open(PATH, "the kernel has no network")?;
    Text::new(vec![file], names, |name| {
        let cpus = name.cpus()?;
        let column = match name.known.name {
            "softnet.packets" => PACKETS,
            "softnet.drops" => DROPS,
            _ => SQUEEZED,
        };
        Ok(Box::new(move |files| column_of(files[0].text()?, cpus.as_ref(), column)))
    })
}

fn column_of(text: &str, cpus: Option<&CpuSet>, column: usize) -> Result<Value> {
    let mut parts = Vec::new();
    for line in text.lines() {
        let row: Vec<&str> = line.split_ascii_whitespace().collect();
        let figure = |column: usize| u32::from_str_radix(row.get(column)?, 16).ok();
        let (Some(value), Some(cpu)) = (figure(column), figure(CPU)) else {
            return Err(unexpected(PATH, "CPU in each row"));
        };
        if cpus.is_none_or(|cpus| cpus.contains(cpu as usize)) {
            let (of, value) = (format!("CPU {cpu}"), value.into());
            parts.push(Part { of, value, nature: Nature::Wraps });
        }
    }
    match parts.is_empty() {
        true => Err(unexpected(PATH, "row for any of the CPUs that are asked for")),
        false => Ok(Value::Total(parts)),
    }
}

#[test]
fn rows_are_of_the_cpus_that_they_name() {
    // Of Linux 6.18 with CPU 1 offline.
    let text = "\
fffffff0 00000000 00000012 00000000 00000000 00000000 00000000 00000000 00000000 00000007 00000000 00000000 00000000 00000000 00000000
0279fe61 00000003 0000000b 00000000 00000000 00000000 00000000 00000000 00000000 00034400 00000000 00000000 00000002 00000000 00000000
";
    let part = |cpu: u32, value| Part { of: format!("CPU {cpu}"), value, nature: Nature::Wraps };
    let of = |cpus: Option<&CpuSet>, column| column_of(text, cpus, column).unwrap();
    let packets = Value::Total(vec![part(0, 4_294_967_280.0), part(2, 41_549_409.0)]);
    assert_eq!(of(None, PACKETS), packets);
    assert_eq!(of(None, SQUEEZED), Value::Total(vec![part(0, 18.0), part(2, 11.0)]));
    assert_eq!(of(Some(&"2".parse().unwrap()), DROPS), Value::Total(vec![part(2, 3.0)]));
    assert!(column_of(text, Some(&"1".parse().unwrap()), DROPS).is_err());
    // Older kernels do not name the CPU.
    assert!(column_of("00000001 00000000 00000000\n", None, DROPS).is_err());
}
