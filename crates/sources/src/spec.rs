//! Measures as users write them.

mod parse;

use std::fmt;
use std::str::FromStr;

use lanes::{CpuSet, CpuSpec, LaneMap};
use trial::Better;

use crate::prom::Selector;
use crate::quantity::{Known, Of};
use crate::{Error, ErrorKind, Result};

/// What a trial measures: a quantity by second, a quantity by another one, or a quantile of a
/// histogram, and which direction is the good one.
///
/// | text | is |
/// |---|---|
/// | `cpu.busy` | by second: a total's growth, a level's mean |
/// | `cpu.busy/net.packets` | by what the second quantity grew |
/// | `p99:prom:http://HOST/metrics:NAME` | a quantile of the values that came |
///
/// and after it `,lower` or `,higher`, for those whose good direction is not known. A quantity is a
/// name of docs/measures.md, some with an `@`; `pmu:EVENT`; `prom:URL:SELECTOR`; `counter:NAME` or
/// just `NAME` for a counter of a running cachelane process, with `@PID` if several have it.
///
/// `Display` gives a text that reads back as the same measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureSpec {
    pub(crate) what: What,
    pub(crate) better: Better,
    /// Whether the direction was said, and is not the quantity's own.
    said: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// By second where there is no other quantity.
    Ratio(Operand, Option<Operand>),
    /// In thousandths of a percent, so that it prints as it was written.
    Quantile(u32, Operand),
}

/// A quantity as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Known(Named),
    Pmu(String),
    Prom { url: String, selector: Selector },
    Counter { name: String, pid: Option<u32> },
}

/// A known name, and what it is of.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) known: &'static Known,
    pub(crate) of: Option<String>,
}

impl MeasureSpec {
    /// Which direction is the good one.
    pub fn better(&self) -> Better {
        self.better
    }

    /// The share of the values that are below what it measures, 0 to 1; none if it is not a quantile.
    pub fn quantile(&self) -> Option<f64> {
        match self.what {
            What::Ratio(..) => None,
            What::Quantile(thousandths, _) => Some(f64::from(thousandths) / 1e5),
        }
    }

    /// Whether it is by second.
    pub fn is_rate(&self) -> bool {
        matches!(self.what, What::Ratio(_, None))
    }

    /// Whether both begin with one quantity, whatever it is taken by.
    pub fn is_of_same(&self, other: &Self) -> bool {
        self.operands().0 == other.operands().0
    }

    /// The same by what a quantity grew, if it is a total by second; else as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] and [`ErrorKind::Unknown`] if `quantity` is none.
    pub fn by(self, quantity: &str) -> Result<Self> {
        let by = parse::quantity(quantity)?;
        let what = match self.what {
            What::Ratio(first, None) if !first.is_level() => What::Ratio(first, Some(by)),
            what => what,
        };
        Ok(Self { what, ..self })
    }

    /// The quantities in it.
    pub(crate) fn operands(&self) -> (&Operand, Option<&Operand>) {
        match &self.what {
            What::Ratio(first, second) => (first, second.as_ref()),
            What::Quantile(_, of) => (of, None),
        }
    }

    /// What it is called, without the direction.
    pub(crate) fn name(&self) -> String {
        match &self.what {
            What::Ratio(first, None) => first.to_string(),
            What::Ratio(first, Some(second)) => format!("{first}/{second}"),
            What::Quantile(thousandths, of) => format!("p{}:{of}", f64::from(*thousandths) / 1e3),
        }
    }
}

impl FromStr for MeasureSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (rest, said) = parse::direction(text);
        let what = parse::what(rest)?;
        let (What::Ratio(first, _) | What::Quantile(_, first)) = &what;
        let better = said.or_else(|| first.better()).ok_or_else(|| {
            Error::syntax(format!(
                "measure {text:?}: which direction is the good one? Write {rest},lower or \
                 {rest},higher"
            ))
        })?;
        Ok(Self { what, better, said: said.is_some() })
    }
}

impl fmt::Display for MeasureSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match (self.said, self.better) {
            (false, _) => Ok(()),
            (true, Better::Lower) => f.write_str(",lower"),
            (true, Better::Higher) => f.write_str(",higher"),
        }
    }
}

impl Operand {
    /// Whether it is known to be one that goes up and down.
    fn is_level(&self) -> bool {
        matches!(self, Self::Known(named) if named.known.kind == crate::Kind::Level)
    }

    /// The good direction, where it follows from the name.
    fn better(&self) -> Option<Better> {
        match self {
            Self::Known(named) => named.known.better,
            Self::Pmu(event) => crate::pmu::better(event),
            Self::Prom { .. } | Self::Counter { .. } => None,
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(named) => named.fmt(f),
            Self::Pmu(event) => write!(f, "pmu:{event}"),
            Self::Prom { url, selector } => write!(f, "prom:{url}:{selector}"),
            Self::Counter { name, pid: None } => write!(f, "counter:{name}"),
            Self::Counter { name, pid: Some(pid) } => write!(f, "counter:{name}@{pid}"),
        }
    }
}

impl Named {
    /// The CPUs after its `@`, all online; none if it says none.
    pub(crate) fn cpus(&self) -> Result<Option<CpuSet>> {
        let Some(of) = self.of.as_deref().filter(|_| self.known.of == Of::Cpus) else {
            return Ok(None);
        };
        let cpus = of.parse::<CpuSpec>().and_then(|spec| spec.resolve(&LaneMap::detect()?));
        let unknown = |error| Error::new(ErrorKind::Unknown, format!("{self}: {error}"));
        cpus.map(Some).map_err(unknown)
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.known.name == other.known.name && self.of == other.of
    }
}

impl Eq for Named {}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            None => f.write_str(self.known.name),
            Some(of) => write!(f, "{}@{of}", self.known.name),
        }
    }
}
