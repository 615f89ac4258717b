//! A line of figures for each interval, in a file that spreadsheets and plotters read.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::meter::{Drops, Totals};
use crate::figures::per_second;
use crate::out;

/// Writes figures to a file as they come.
#[derive(Debug)]
pub(crate) struct Csv {
    path: PathBuf,
    file: File,
    /// At the line before.
    before: (Duration, Totals),
}

/// Its columns, before those of the drops: all of the interval that ends at `seconds`.
const COLUMNS: [&str; 9] = [
    "seconds",
    "rx_packets",
    "rx_bytes",
    "rx_pps",
    "rx_bits_per_second",
    "tx_packets",
    "tx_bytes",
    "tx_pps",
    "tx_bits_per_second",
];

impl Csv {
    /// Makes the file, or empties it, and names the columns.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Csv> {
        let file = File::create(path).with_context(|| format!("--csv {}", path.display()))?;
        let before = (Duration::ZERO, Totals::default());
        let mut csv = Csv { path: path.to_owned(), file, before };
        let drops = Drops::FIELDS.iter().map(|(name, ..)| *name);
        let names = COLUMNS.into_iter().chain(drops).chain(["over_quota"]);
        csv.line(&names.collect::<Vec<_>>().join(","))?;
        Ok(csv)
    }

    /// Writes what has happened since the line before, by this time since the start.
    pub(crate) fn row(&mut self, now: Duration, totals: Totals) -> anyhow::Result<()> {
        let (then, before) = std::mem::replace(&mut self.before, (now, totals));
        let span = now.saturating_sub(then);
        let mut fields = vec![format!("{:.6}", now.as_secs_f64())];
        let (new, old) = (totals.traffic, before.traffic);
        for (packets, bytes) in [
            (new.rx_packets - old.rx_packets, new.rx_bytes - old.rx_bytes),
            (new.tx_packets - old.tx_packets, new.tx_bytes - old.tx_bytes),
        ] {
            fields.extend([packets, bytes].map(|count| count.to_string()));
            fields.extend(
                [packets, bytes * 8].map(|count| format!("{:.1}", per_second(count, span))),
            );
        }
        let drops = totals.drops.values().into_iter().zip(before.drops.values());
        fields.extend(drops.map(|(new, old)| new.saturating_sub(old).to_string()));
        fields.push(totals.over_quota.saturating_sub(before.over_quota).to_string());
        self.line(&fields.join(","))
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let written = out::write_to(&self.file, format!("{line}\n").as_bytes());
        written.with_context(|| format!("--csv {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::meter::Traffic;
    use super::*;

    #[test]
    fn a_line_has_what_happened_in_its_interval() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut csv = Csv::create(file.path()).expect("room");
        let totals = |packets, rx_ring_full| Totals {
            traffic: Traffic { rx_packets: packets, rx_bytes: packets * 100, ..Traffic::default() },
            drops: Drops { rx_ring_full, ..Drops::default() },
            ..Totals::default()
        };
        csv.row(Duration::from_secs(1), totals(10, 0)).expect("room");
        csv.row(Duration::from_millis(1500), totals(40, 7)).expect("room");
        let written = std::fs::read_to_string(file.path()).expect("text");
        let mut lines = written.lines();
        let names: Vec<&str> = lines.next().expect("names").split(',').collect();
        assert_eq!(names[..3], ["seconds", "rx_packets", "rx_bytes"]);
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        assert!(rows.iter().all(|row| row.len() == names.len()), "{rows:?}");
        assert_eq!(rows[0][..5], ["1.000000", "10", "1000", "10.0", "8000.0"]);
        assert_eq!(rows[1][..5], ["1.500000", "30", "3000", "60.0", "48000.0"]);
        let full = names.iter().position(|name| *name == "rx_ring_full").expect("a column");
        assert_eq!((rows[0][full], rows[1][full]), ("0", "7"));
    }

    #[test]
    fn a_file_that_takes_nothing_is_named() {
        let full = Csv::create("/dev/full".as_ref()).map(drop).expect_err("it is full");
        assert!(format!("{full:#}").starts_with("--csv /dev/full: No space left"), "{full:#}");
    }
}
