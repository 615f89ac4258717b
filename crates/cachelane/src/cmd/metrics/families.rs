//! What is shown: families of series, each series once, in the forms that Prometheus reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// The longest help of a family and value of a label, in characters.
const LONGEST: usize = 300;

/// What tells a series from the others of its family.
pub(super) type Labels = Vec<(&'static str, String)>;

/// What a series is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    Count(u64),
    Number(f64),
    /// Only its labels say something.
    Info,
}

/// What a family is of.
#[derive(Clone, Debug)]
pub(super) struct About<'a> {
    /// Without the unit and `_total`.
    pub(super) name: &'a str,
    pub(super) kind: MetricType,
    pub(super) unit: Option<Unit>,
    pub(super) help: &'a str,
}

#[derive(Debug)]
struct Family {
    name: String,
    kind: MetricType,
    unit: Option<Unit>,
    help: String,
    series: BTreeMap<Labels, Sample>,
}

/// All families of a scrape.
#[derive(Debug, Default)]
pub(super) struct Families {
    /// By their names, with the unit.
    all: BTreeMap<String, Family>,
    /// How many series they have together.
    series: usize,
}

/// The two forms of text, each packed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Form {
    /// OpenMetrics 1.0 rather than Prometheus' text 0.0.4.
    pub(super) open: bool,
    pub(super) gzip: bool,
}

/// A text in its form. All who get it share it.
pub(super) type Text = (Form, Arc<[u8]>);

impl Form {
    /// The value of `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self.open {
            true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            false => prometheus_text::CONTENT_TYPE,
        }
    }
}

impl Families {
    /// Adds a series; whether there is a place for it: not beside one with the same labels, nor in a
    /// family of the same name that is of another kind.
    pub(super) fn add(&mut self, about: &About<'_>, labels: Labels, sample: Sample) -> bool {
        let About { name, kind, unit, help } = about;
        let key = match unit {
            Some(unit) => Cow::Owned(format!("{name}_{}", unit.as_str())),
            None => Cow::Borrowed(*name),
        };
        if !self.all.contains_key(&*key) {
            let (name, help, series) = ((*name).to_owned(), plain(help), BTreeMap::new());
            let family = Family { name, kind: *kind, unit: unit.clone(), help, series };
            self.all.insert(key.clone().into_owned(), family);
        }
        let Some(family) = self.all.get_mut(&*key) else { return false };
        if family.kind != *kind || family.unit != *unit {
            return false;
        }
        let labels = labels.into_iter().map(|(name, value)| (name, short(value))).collect();
        let Entry::Vacant(free) = family.series.entry(labels) else { return false };
        free.insert(sample);
        self.series += 1;
        true
    }

    /// How many series there are.
    pub(super) fn len(&self) -> usize {
        self.series
    }

    /// The text in each of these forms.
    pub(super) fn encode(self, forms: &[Form]) -> anyhow::Result<Vec<Text>> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        forms.iter().map(|form| Ok((*form, encode(&registry, *form)?.into()))).collect()
    }
}

fn encode(registry: &Registry, form: Form) -> anyhow::Result<Vec<u8>> {
    let mut text = String::new();
    let encoded = match form.open {
        true => text::encode(&mut text, registry),
        false => prometheus_text::encode(&mut text, registry),
    };
    encoded.context("cannot write the metrics")?;
    if !form.gzip {
        return Ok(text.into_bytes());
    }
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = packer.write_all(text.as_bytes()).and_then(|()| packer.finish());
    packed.context("cannot pack the metrics")
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Family { name, kind, unit, help, series } in self.all.values() {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for (labels, sample) in series {
                if *kind == MetricType::Info {
                    family.encode_info(labels)?;
                    continue;
                }
                let mut one = family.encode_family(labels)?;
                match (kind, sample) {
                    (MetricType::Counter, Sample::Count(count)) => {
                        one.encode_counter::<NoLabelSet, _, u64>(count, None)?;
                    }
                    (MetricType::Counter, Sample::Number(number)) => {
                        one.encode_counter::<NoLabelSet, _, u64>(number, None)?;
                    }
                    (_, Sample::Count(count)) => one.encode_gauge(count)?,
                    (_, Sample::Number(number)) => one.encode_gauge(number)?,
                    (_, Sample::Info) => one.encode_gauge(&1_u64)?,
                }
            }
        }
        Ok(())
    }
}

/// A help that needs no escapes, of which the two forms have different ones.
fn plain(help: &str) -> String {
    let plain = short(help.to_owned()).replace('\\', "/").replace('"', "'");
    if plain.is_empty() { "No help.".into() } else { plain }
}

/// At most so many characters, and none that controls.
fn short(text: String) -> String {
    if text.len() <= LONGEST && !text.contains(char::is_control) {
        return text;
    }
    let fits = |c: char| if c.is_control() { '?' } else { c };
    let mut short: String = text.chars().take(LONGEST).map(fits).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Form = Form { open: false, gzip: false };
    const OPEN: Form = Form { open: true, gzip: false };

    fn about(name: &str, kind: MetricType, unit: Option<Unit>) -> About<'_> {
        About { name, kind, unit, help: "A \"test\"\nof C:\\." }
    }

    fn some() -> Families {
        let mut families = Families::default();
        let bytes = about("a_relay", MetricType::Counter, Some(Unit::Bytes));
        let label = |value: &str| vec![("name", value.to_owned())];
        assert!(families.add(&bytes, label("x\"\\\n"), Sample::Count(u64::MAX)));
        assert!(!families.add(&bytes, label("x\"\\\n"), Sample::Count(1)), "it is there");
        let gauge = about("a_relay", MetricType::Gauge, Some(Unit::Bytes));
        assert!(!families.add(&gauge, label("y"), Sample::Count(1)), "of another kind");
        assert!(families.add(&about("b", MetricType::Info, None), label("z"), Sample::Info));
        let time = about("c", MetricType::Gauge, Some(Unit::Seconds));
        assert!(families.add(&time, Vec::new(), Sample::Number(0.5)));
        assert_eq!(families.len(), 3);
        families
    }

    fn text(form: Form) -> String {
        let [(_, text)] = <[_; 1]>::try_from(some().encode(&[form]).unwrap()).unwrap();
        String::from_utf8(text.to_vec()).unwrap()
    }

    #[test]
    fn both_forms_have_every_series_once_and_nothing_that_breaks_a_line() {
        let expected = "\
# HELP a_relay_bytes_total A 'test'?of C:/.
# TYPE a_relay_bytes_total counter
a_relay_bytes_total{name=\"x\\\"\\\\?\"} 18446744073709551615
# HELP b_info A 'test'?of C:/.
# TYPE b_info gauge
b_info{name=\"z\"} 1
# HELP c_seconds A 'test'?of C:/.
# TYPE c_seconds gauge
c_seconds 0.5
";
        assert_eq!(text(PLAIN), expected);
        let open = text(OPEN);
        for line in [
            "# TYPE a_relay_bytes counter",
            "# UNIT a_relay_bytes bytes",
            "# TYPE b info",
            "b_info{name=\"z\"} 1",
        ] {
            assert!(open.lines().any(|one| one == line), "{line} in {open}");
        }
        assert!(open.ends_with("# EOF\n"));
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(short("ü".repeat(LONGEST)).chars().count(), LONGEST);
        let cut = short("ü".repeat(LONGEST + 1));
        assert!(cut.ends_with('…') && cut.chars().count() == LONGEST + 1);
    }
}
