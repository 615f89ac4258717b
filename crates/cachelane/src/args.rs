//! What several commands take on the command line, and values as people write them there.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use knobs::ProcessName;
use lanes::LaneMap;

use crate::config::Sources;

/// How long it runs and what it prints.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Run")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) until: UntilArg,
    /// Time between two live lines or, with --json, between two lines of JSON; at least 10ms
    /// [default: 1s for live lines, and no JSON before the end]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// Print JSON instead of text: one object at the end and, with --interval, one on a line of its
    /// own for each interval
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a line of figures for each interval (a second, if no other is given) to this file, as
    /// comma-separated values under their names
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

/// How long it runs.
#[derive(clap::Args, Debug)]
pub(crate) struct UntilArg {
    /// Stop after this time, such as 500ms, 10s or 1h [default: no limit]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
}

/// What the process is called.
#[derive(clap::Args, Debug)]
pub(crate) struct NameArg {
    /// Name of this process, by which `cachelane knob` shows and finds it [default: what it does,
    /// such as 'relay :8080']
    #[arg(long, value_name = "NAME")]
    name: Option<ProcessName>,
}

impl NameArg {
    /// The name, or this one if none was given.
    pub(crate) fn or(&self, default: &str) -> ProcessName {
        self.name.clone().unwrap_or_else(|| ProcessName::of(default))
    }
}

/// Where the configuration is.
#[derive(clap::Args, Debug)]
pub(crate) struct SourceArgs {
    /// Configuration: a TOML file, or a folder of them; may be repeated, and later ones are laid over
    /// earlier ones [default: the files of this host in /usr/lib/cachelane and /etc/cachelane]
    #[arg(short = 'c', long = "config", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Set a key, over all files, such as relay.web.engine=copy; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SourceArgs {
    pub(crate) fn sources(&self) -> Sources {
        Sources { paths: self.paths.clone(), flags: self.set.clone() }
    }
}

/// The machine's lanes.
#[derive(clap::Args, Debug)]
pub(crate) struct LanesArg {
    /// Lanes (sets of CPUs that share a last-level cache), such as '0-7|8-15' [default: as the
    /// machine reports them]
    #[arg(long, value_name = "LANES")]
    pub(crate) lanes: Option<String>,
}

impl LanesArg {
    /// Those of this machine, as they are or as they were given.
    pub(crate) fn map(&self) -> lanes::Result<LaneMap> {
        let found = LaneMap::detect()?;
        self.lanes.as_ref().map_or(Ok(found.clone()), |given| found.with_override(given))
    }
}

/// Values that are chosen from, and their names.
pub(crate) type Choice<T> = &'static [(&'static str, T)];

/// As knobs have it, too.
pub(crate) const ON_OFF: Choice<bool> = &[("off", false), ("on", true)];

/// Reads one of these.
pub(crate) fn choice<T>(all: Choice<T>) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = PossibleValuesParser::new(all.iter().map(|(name, _)| *name));
    names.try_map(move |name| of_name(all, &name))
}

/// The value of this name.
pub(crate) fn of_name<T: Copy>(all: Choice<T>, name: &str) -> Result<T, String> {
    let found = all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let names = || all.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(" or ");
    found.ok_or_else(|| format!("'{name}' is neither (expected {})", names()))
}

/// The name of a value; all have one.
pub(crate) fn name_of<T: PartialEq>(all: Choice<T>, value: T) -> &'static str {
    all.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

/// Reads the time between two lines.
fn interval(s: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(10);
    let interval = duration(s)?;
    if interval < LEAST {
        return Err("too short (expected at least 10ms)".into());
    }
    Ok(interval)
}

/// Reads a time span: `500ms`, `5s`, `1h30m`.
pub(crate) fn duration(s: &str) -> Result<Duration, String> {
    humantime::parse_duration(s).map_err(|e| format!("{e} (expected a time such as 500ms, 5s, 1h)"))
}

/// A time after which something ends; none if it was written as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

/// Reads a [`Timeout`]: as [`duration`], or 0.
pub(crate) fn timeout(s: &str) -> Result<Timeout, String> {
    let span = if s == "0" { Duration::ZERO } else { duration(s)? };
    Ok(Timeout(Some(span).filter(|d| !d.is_zero())))
}

/// Reads a size in bytes, with K, M or G for powers of 1024.
pub(crate) fn size(s: &str) -> Result<usize, String> {
    let expected = || format!("'{s}' is not a size (expected bytes, or a number with K, M or G)");
    let (number, shift) = match s.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&s[..at], 10),
        Some((at, 'm' | 'M')) => (&s[..at], 20),
        Some((at, 'g' | 'G')) => (&s[..at], 30),
        _ => (s, 0),
    };
    let number: usize = number.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        for (given, expected) in [("0", 0), ("64K", 65_536), ("8m", 8 << 20), ("2G", 2 << 30)] {
            assert_eq!(size(given), Ok(expected), "{given}");
        }
        for given in ["", "K", "8MB", "-1", "1.5M", "99999999999G", "ü"] {
            assert!(size(given).unwrap_err().contains(given), "{given}");
        }
    }

    #[test]
    fn every_choice_is_read_as_it_is_written() {
        for on in [false, true] {
            assert_eq!(of_name(ON_OFF, name_of(ON_OFF, on)), Ok(on));
        }
        let refused = of_name(ON_OFF, "maybe").unwrap_err();
        assert_eq!(refused, "'maybe' is neither (expected off or on)");
    }

    #[test]
    fn zero_means_no_timeout() {
        assert_eq!(timeout("0"), Ok(Timeout(None)));
        assert_eq!(timeout("0s"), Ok(Timeout(None)));
        assert_eq!(timeout("1h"), Ok(Timeout(Some(Duration::from_secs(3600)))));
        assert!(timeout("soon").is_err());
    }
}
