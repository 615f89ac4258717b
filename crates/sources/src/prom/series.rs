//! What a selector finds in the text of an endpoint, added up over series.

use std::collections::BTreeMap;

use trial::Histogram;

use super::exposition::{Line, Sample, line, number};
use super::selector::Selector;
use crate::histogram::from_cumulative;
use crate::value::{Nature, Part};
use crate::{Error, ErrorKind, Kind, Quantity, Result, Value};

/// The most series that are added up.
const SERIES: usize = 100_000;

/// A selector whose kind is known.
#[derive(Debug)]
pub(super) struct Metric {
    selector: Selector,
    /// The name of its samples: OpenMetrics declares the counter `a` and gives samples of `a_total`.
    name: String,
    kind: Kind,
    help: String,
}

impl Metric {
    /// Looks for a selector's metric in the first text of an endpoint.
    ///
    /// # Errors
    /// [`ErrorKind::Unknown`] if there is no series of it, or none that a difference or a mean makes
    /// sense of.
    pub(super) fn find(url: &str, selector: &Selector, text: &str) -> Result<Self> {
        let unknown = |trouble: String| {
            Error::new(ErrorKind::Unknown, format!("prom:{url}:{selector}: {trouble}"))
        };
        let (kind, help) = declared(&selector.name, text).map_err(unknown)?;
        let mut metric =
            Self { selector: selector.clone(), name: selector.name.clone(), kind, help };
        let total = format!("{}_total", selector.name);
        if kind == Kind::Total && has(text, &total) && !has(text, &selector.name) {
            metric.name = total;
        }
        match metric.value(text) {
            Ok(_) => Ok(metric),
            Err(error) if !has(text, &metric.sample_name()) => {
                let names = similar(&selector.name, text);
                let hint =
                    if names.is_empty() { String::new() } else { format!(" (similar: {names})") };
                Err(unknown(format!("the endpoint has no such metric{hint}: {error}")))
            }
            Err(error) => Err(unknown(error.to_string())),
        }
    }

    pub(super) fn quantity(&self, url: &str) -> Quantity {
        Quantity {
            name: format!("prom:{url}:{}", self.selector),
            unit: unit(&self.selector.name).into(),
            help: self.help.clone(),
            kind: self.kind,
        }
    }

    /// What the series say, added up.
    pub(super) fn value(&self, text: &str) -> Result<Value> {
        let mut samples = Vec::new();
        let wanted = self.sample_name();
        for (index, text) in text.lines().enumerate() {
            let read = line(text, |name| name == wanted);
            let bad = |trouble| Error::void(format!("line {} of the answer: {trouble}", index + 1));
            if let Line::Sample(sample) = read.map_err(bad)?
                && self.selector.takes(|label| sample.label(label))
            {
                samples.push(sample);
                if samples.len() > SERIES {
                    let many = format!("{}: more than {SERIES} series", self.selector);
                    return Err(Error::void(many));
                }
            }
        }
        if samples.is_empty() {
            return Err(Error::void(format!("there is no series of {}", self.selector)));
        }
        match self.kind {
            Kind::Total => total(&samples).map(Value::Total),
            Kind::Level => samples.iter().map(finite).sum::<Result<f64>>().map(Value::Level),
            Kind::Histogram => histograms(&samples).map(Value::Histogram),
        }
    }

    fn sample_name(&self) -> String {
        match self.kind {
            Kind::Histogram => format!("{}_bucket", self.name),
            _ => self.name.clone(),
        }
    }
}

/// The kind of a metric and its help, from the lines that declare it, else from its name.
fn declared(name: &str, text: &str) -> Result<(Kind, String), String> {
    const ENDINGS: [&str; 4] = ["_total", "_sum", "_count", "_bucket"];
    let family = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    let (mut own, mut of_family, mut help) = (None, None, String::new());
    for text in text.lines().filter(|text| text.starts_with('#')) {
        match line(text, |_| false)? {
            Line::Type(found, kind) if found == name => own = Some(kind),
            Line::Type(found, kind) if Some(found) == family => of_family = Some(kind),
            Line::Help(found, text) if found == name || Some(found) == family => help = text.into(),
            _ => {}
        }
    }
    let kind = match (own, of_family) {
        (Some("counter"), _) => Kind::Total,
        (Some("gauge" | "stateset" | "info"), _) => Kind::Level,
        (Some("histogram"), _) => Kind::Histogram,
        (Some(kind @ ("summary" | "gaugehistogram")), _) => {
            return Err(format!("a {kind} cannot be added up; take {name}_sum or {name}_count"));
        }
        (None, Some("counter" | "histogram" | "summary")) => Kind::Total,
        _ if family.is_some() => Kind::Total,
        _ => Kind::Level,
    };
    Ok((kind, help))
}

/// A part for each series.
fn total(samples: &[Sample<'_>]) -> Result<Vec<Part>> {
    let mut parts = BTreeMap::new();
    for sample in samples {
        unique(&mut parts, series(sample, ""), finite(sample)?)?;
    }
    let part = |(of, value)| Part { of, value, nature: Nature::Appears };
    Ok(parts.into_iter().map(part).collect())
}

fn histograms(buckets: &[Sample<'_>]) -> Result<Vec<(String, Histogram)>> {
    let mut found: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for bucket in buckets {
        let bound = number(bucket.label("le"));
        let bound = bound.ok_or_else(|| {
            Error::void(format!("{}: a bucket le={:?}", bucket.name, bucket.label("le")))
        })?;
        found.entry(series(bucket, "le")).or_default().push((bound, finite(bucket)?));
    }
    let histogram = |(series, buckets)| match from_cumulative(buckets) {
        Ok(histogram) => Ok((series, histogram)),
        Err(error) => Err(Error::void(format!("{series}: {error}"))),
    };
    found.into_iter().map(histogram).collect()
}

/// What a series is called: its name and its labels but one, in one order.
fn series(sample: &Sample<'_>, without: &str) -> String {
    let mut labels: Vec<String> = (sample.labels.iter())
        .filter(|(label, _)| *label != without)
        .map(|(label, value)| format!("{label}={value:?}"))
        .collect();
    labels.sort();
    format!("{}{{{}}}", sample.name, labels.join(","))
}

fn unique<T>(all: &mut BTreeMap<String, T>, series: String, value: T) -> Result<()> {
    match all.insert(series.clone(), value) {
        None => Ok(()),
        Some(_) => Err(Error::void(format!("{series} is there twice"))),
    }
}

fn finite(sample: &Sample<'_>) -> Result<f64> {
    match sample.value.is_finite() {
        true => Ok(sample.value),
        false => Err(Error::void(format!("{} is {}", series(sample, ""), sample.value))),
    }
}

/// Whether there is a sample of this name.
fn has(text: &str, name: &str) -> bool {
    text.lines()
        .any(|text| text.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ', '\t'])))
}

/// The names in the text that are most like this one.
fn similar(name: &str, text: &str) -> String {
    let names = text.lines().filter_map(|text| text.strip_prefix("# TYPE ")?.split(' ').next());
    let mut names: Vec<(f64, &str)> =
        names.map(|found| (strsim::jaro_winkler(found, name), found)).collect();
    names.retain(|(likeness, _)| *likeness > 0.8);
    names.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    names.iter().take(3).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

/// The base unit that a name says, as the conventions for names have it.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").or(name.strip_suffix("_sum")).unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "bytes",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::value::Amount;

    const SECOND: Duration = Duration::from_secs(1);

    const EARLY: &str = "\
# HELP requests_total Requests answered.
# TYPE requests_total counter
requests_total{code=\"200\",method=\"get\"} 100
requests_total{code=\"500\",method=\"get\"} 7
# TYPE active gauge
active{listener=\"a\"} 3
active{listener=\"b\"} 4.5
# TYPE wait_seconds histogram
wait_seconds_bucket{path=\"/\",le=\"0.1\"} 10
wait_seconds_bucket{path=\"/\",le=\"+Inf\"} 12
wait_seconds_bucket{le=\"+Inf\",path=\"/b\"} 5
wait_seconds_bucket{le=\"0.1\",path=\"/b\"} 5
wait_seconds_sum{path=\"/\"} 4
wait_seconds_count{path=\"/\"} 12
# TYPE gc_seconds summary
gc_seconds{quantile=\"0.5\"} 0.1
gc_seconds_sum 3
gc_seconds_count 30
# TYPE frames counter
frames_total 9
untyped_bytes 17
";

    fn metric(selector: &str, text: &str) -> Result<Metric> {
        let (selector, rest) = Selector::parse(selector).unwrap();
        assert_eq!(rest, "");
        Metric::find("http://h/m", &selector, text)
    }

    fn grown(selector: &str, late: &str) -> Result<Amount, String> {
        let metric = metric(selector, EARLY).unwrap();
        let value = |text| metric.value(text).map_err(|error| error.to_string());
        value(late)?.since(&value(EARLY)?, SECOND).map_err(|error| error.to_string())
    }

    #[test]
    fn counters_gauges_and_histograms_are_told_apart() {
        for (selector, kind, unit) in [
            ("requests_total", Kind::Total, ""),
            ("active", Kind::Level, ""),
            ("wait_seconds", Kind::Histogram, "s"),
            ("wait_seconds_sum", Kind::Total, "s"),
            ("wait_seconds_count", Kind::Total, ""),
            ("wait_seconds_bucket{le=\"0.1\"}", Kind::Total, ""),
            ("gc_seconds_sum", Kind::Total, "s"),
            ("frames", Kind::Total, ""),
            ("frames_total", Kind::Total, ""),
            ("untyped_bytes", Kind::Level, "bytes"),
        ] {
            let metric = metric(selector, EARLY).unwrap_or_else(|e| panic!("{selector}: {e}"));
            let quantity = metric.quantity("http://h/m");
            assert_eq!((quantity.kind, quantity.unit.as_str()), (kind, unit), "{selector}");
            assert_eq!(quantity.name, format!("prom:http://h/m:{selector}"));
        }
        for (selector, words) in [
            ("gc_seconds", "gc_seconds_sum or gc_seconds_count"),
            ("request_total", "similar: requests_total"),
            ("requests_total{code=\"404\"}", "no series of requests_total{code=\"404\"}"),
        ] {
            let error = metric(selector, EARLY).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn series_are_added_up_and_new_ones_start_from_nothing() {
        let late = EARLY.replace("} 100", "} 130").replace("} 7\n", "} 8\n");
        assert_eq!(grown("requests_total", &late), Ok(Amount::Number(31.0)));
        assert_eq!(grown("requests_total{code=\"500\"}", &late), Ok(Amount::Number(1.0)));
        let more = format!("{late}requests_total{{code=\"404\"}} 4\n");
        assert_eq!(grown("requests_total", &more), Ok(Amount::Number(35.0)));
        assert_eq!(grown("active", &late.replace(" 4.5", " 6.5")), Ok(Amount::Number(8.5)));
        let late = EARLY
            .replace("\"0.1\"} 10", "\"0.1\"} 13")
            .replace("Inf\"} 12", "Inf\"} 17")
            .replace("path=\"/b\"} 5", "path=\"/b\"} 6");
        let Ok(Amount::Histogram(histogram)) = grown("wait_seconds", &late) else { panic!() };
        assert_eq!((histogram.count(), histogram.quantile(1.0 / 3.0)), (6.0, Some(0.05)));
    }

    #[test]
    fn a_restart_or_a_lost_series_voids_the_window() {
        for (selector, late, words) in [
            (
                "requests_total",
                EARLY.replace("} 7\n", "} 6\n"),
                "code=\"500\",method=\"get\"}: the counter was reset",
            ),
            ("requests_total", EARLY.replace("requests_total{code=\"500\"", "x{a=\"\""), "is gone"),
            ("requests_total", String::new(), "no series of requests_total"),
            ("requests_total", EARLY.replace("} 100", "} abc"), "line 3 of the answer"),
            ("requests_total", EARLY.replace("} 100", "} NaN"), "is NaN"),
            ("requests_total", EARLY.replace("code=\"500\"", "code=\"200\""), "twice"),
            ("wait_seconds", EARLY.replace("\"0.1\"} 10", "\"0.1\"} 2"), "was reset"),
            ("wait_seconds", EARLY.replace("\"+Inf\"} 12", "\"5\"} 12"), "+Inf"),
            ("wait_seconds", EARLY.replace("path=\"/b\"", "path=\"/c\""), "is gone"),
            ("wait_seconds", EARLY.replace("0.1", "0.2"), "different buckets"),
        ] {
            let error = grown(selector, &late).unwrap_err();
            assert!(error.contains(words), "{selector}: {error}");
        }
    }
}
