//! CPU sets as users write them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::scan::Scanner;
use crate::{CpuSet, Error, ErrorKind, LaneId, LaneMap, Result};

/// The CPUs that a user asks for: the kernel's lists, `lane:N` and `all`, joined by commas, such
/// as `lane:1,8-9`.
///
/// It is checked against a machine by [`resolve`](Self::resolve). `Display` prints it in one
/// standard order; two specs are equal if they print the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSpec {
    all: bool,
    lanes: BTreeSet<LaneId>,
    cpus: CpuSet,
}

impl CpuSpec {
    /// `all`: every CPU that the process may use.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// The CPUs meant on this machine, never none: all are online and open to this process.
    ///
    /// `all` means the CPUs that are allowed, and `lane:N` those of the lane that are allowed; a
    /// CPU that is named by its number must be allowed.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchLane`], [`NoSuchCpu`](ErrorKind::NoSuchCpu),
    /// [`Offline`](ErrorKind::Offline) and [`NotAllowed`](ErrorKind::NotAllowed); each message
    /// names the CPUs or the lane, this spec, and what there is instead.
    pub fn resolve(&self, map: &LaneMap) -> Result<CpuSet> {
        let (online, allowed) = (map.online(), map.allowed());
        for (kind, available, is) in [
            (ErrorKind::NoSuchCpu, map.present(), format!("does not exist (online: {online})")),
            (ErrorKind::Offline, online, format!("is not online (online: {online})")),
            (
                ErrorKind::NotAllowed,
                allowed,
                format!("is not open to this process (allowed: {allowed})"),
            ),
        ] {
            if let Some(cpu) = self.cpus.difference(available).first() {
                return Err(self.error(kind, &format!("cpu {cpu} {is}")));
            }
        }
        let mut cpus = self.cpus.clone();
        if self.all {
            cpus = cpus.union(allowed);
        }
        for &lane in &self.lanes {
            cpus = cpus.union(&self.resolve_lane(lane, map)?);
        }
        if cpus.is_empty() {
            return Err(self.error(ErrorKind::NotAllowed, "this process may use no online CPU"));
        }
        Ok(cpus)
    }

    fn resolve_lane(&self, lane: LaneId, map: &LaneMap) -> Result<CpuSet> {
        if map.cpus(lane).is_empty() {
            let lanes: CpuSet = map.lanes().map(|lane| usize::from(lane.0)).collect();
            let trouble = format!("lane {lane} does not exist (lanes: {lanes})");
            return Err(self.error(ErrorKind::NoSuchLane, &trouble));
        }
        let cpus = map.cpus(lane).intersection(map.allowed());
        if cpus.is_empty() {
            let trouble = format!(
                "lane {lane}, CPUs {}, is not open to this process (allowed: {})",
                map.cpus(lane),
                map.allowed()
            );
            return Err(self.error(ErrorKind::NotAllowed, &trouble));
        }
        Ok(cpus)
    }

    fn error(&self, kind: ErrorKind, trouble: &str) -> Error {
        Error::new(kind, format!("CPU set \"{self}\": {trouble}"))
    }
}

impl FromStr for CpuSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut scanner = Scanner::new("CPU set", text);
        let mut spec = Self::default();
        scanner.list(|scanner| {
            if scanner.take("all") {
                spec.all = true;
            } else if scanner.take("lane:") {
                spec.lanes.insert(lane(scanner)?);
            } else if scanner.next_is_digit() {
                spec.cpus.extend(scanner.cpus()?.iter());
            } else {
                return Err(scanner.error("expected CPU numbers such as 0-3, lane:N or all"));
            }
            Ok(())
        })?;
        Ok(spec)
    }
}

fn lane(scanner: &mut Scanner<'_>) -> Result<LaneId> {
    let at = scanner.offset();
    let lane = scanner.number("a lane number")?;
    let too_large = |_| scanner.error_at(at, format_args!("lane {lane} is too large"));
    u16::try_from(lane).map(LaneId).map_err(too_large)
}

impl fmt::Display for CpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        if self.all {
            items.push("all".to_owned());
        }
        items.extend(self.lanes.iter().map(|lane| format!("lane:{lane}")));
        if !self.cpus.is_empty() {
            items.push(self.cpus.to_string());
        }
        f.pad(&items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_users_write() {
        for (text, printed) in [
            ("0-3,8", "0-3,8"),
            ("lane:1", "lane:1"),
            ("all", "all"),
            ("8, lane:1,0-3,lane:0 ", "lane:0,lane:1,0-3,8"),
            ("1,all", "all,1"),
        ] {
            assert_eq!(text.parse::<CpuSpec>().unwrap().to_string(), printed);
        }
        assert_eq!("all".parse::<CpuSpec>().unwrap(), CpuSpec::all());
    }

    #[test]
    fn a_bad_spec_is_refused_at_the_character() {
        let wanted = "expected CPU numbers such as 0-3, lane:N or all";
        for (text, offset, trouble) in [
            ("", 0, wanted),
            ("0,", 2, wanted),
            ("cores", 0, wanted),
            ("allx", 3, "expected \",\" or the end"),
            ("lane:", 5, "expected a lane number"),
            ("0,lane:x", 7, "expected a lane number"),
            ("lane:65536", 5, "lane 65536 is too large"),
            ("lane:0-1", 6, "expected \",\" or the end"),
            ("lane:1 2", 7, "expected \",\" or the end"),
        ] {
            let error = text.parse::<CpuSpec>().unwrap_err();
            assert_eq!(error.offset(), Some(offset), "{text:?}");
            let message = format!("CPU set {text:?}: {trouble} at character {}", offset + 1);
            assert_eq!(error.to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(
            all in any::<bool>(),
            lanes in prop::collection::btree_set(any::<u16>().prop_map(LaneId), 0..4),
            cpus in prop::collection::btree_set(0..=CpuSet::MAX, 1..20),
        ) {
            let spec = CpuSpec { all, lanes, cpus: cpus.into_iter().collect() };
            prop_assert_eq!(spec.to_string().parse::<CpuSpec>().unwrap(), spec);
        }
    }
}
