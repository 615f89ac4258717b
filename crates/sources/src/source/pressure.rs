//! `/proc/pressure`: time that was lost because something was short.

use super::file::Kept;
use super::text::Text;
use super::unexpected;
use crate::spec::Named;
use crate::{Result, Value};

pub(super) fn open(resource: &str, names: &[Named]) -> Result<Text> {
    let path = format!("/proc/pressure/{resource}");
    let lacking = "the kernel has no CONFIG_PSI, or needs psi=1 on its command line";
    Text::new(vec![Kept::open(path, lacking)?], names, |name| {
        let row = if name.known.name.ends_with("_full") { "full" } else { "some" };
        Ok(Box::new(move |files| {
            total(files[0].text()?, row).ok_or_else(|| unexpected(&files[0].path, row))
        }))
    })
}

/// The total of a row, which is in microseconds.
fn total(text: &str, row: &str) -> Option<Value> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(row))?;
    let total = line.split(' ').find_map(|word| word.strip_prefix("total="))?;
    Some(Value::total(total.trim().parse::<f64>().ok()? / 1e6))
}

#[test]
fn both_rows_are_found() {
    let text = "some avg10=12.83 avg60=12.11 avg300=14.31 total=446310827\n\
                full avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n";
    assert_eq!(total(text, "some"), Some(Value::total(446.310827)));
    assert_eq!(total(text, "full"), Some(Value::total(1.0)));
    // Kernels before 5.13 have no row of that name for the CPU.
    assert_eq!(total(text.lines().next().unwrap(), "full"), None);
}
