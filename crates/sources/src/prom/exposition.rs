//! The text formats of metrics: Prometheus 0.0.4 and OpenMetrics 1.0, a line at a time.

use super::selector::{quoted, word};

/// What a line says.
#[derive(Debug, PartialEq)]
pub(super) enum Line<'a> {
    /// `# TYPE name type`.
    Type(&'a str, &'a str),
    /// `# HELP name text`.
    Help(&'a str, &'a str),
    Sample(Sample<'a>),
    /// A comment, an empty line, the end, or what has a name that is not wanted.
    Other,
}

/// A value of a series.
#[derive(Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    pub(super) labels: Vec<(&'a str, String)>,
    pub(super) value: f64,
}

impl Sample<'_> {
    /// The value of a label, empty if it has none.
    pub(super) fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(label, _)| *label == name);
        found.map_or("", |(_, value)| value)
    }
}

/// Reads a line. Samples whose name is not `wanted` are skipped unread.
pub(super) fn line(text: &str, wanted: impl Fn(&str) -> bool) -> Result<Line<'_>, String> {
    if let Some(comment) = text.strip_prefix('#') {
        return Ok(self::comment(comment.trim_start()));
    }
    let (name, rest) = word(text, true);
    if name.is_empty() || !wanted(name) {
        return Ok(Line::Other);
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        None => (Vec::new(), rest),
        Some(inside) => labels(inside)?,
    };
    // A time and an exemplar may follow.
    let value = rest.split_ascii_whitespace().next().ok_or("no value")?;
    let value = number(value).ok_or_else(|| format!("{value:?} is not a number"))?;
    Ok(Line::Sample(Sample { name, labels, value }))
}

fn comment(text: &str) -> Line<'_> {
    let words = text.split_once(' ').and_then(|(kind, rest)| {
        let (name, rest) = rest.trim_start().split_once(' ')?;
        Some((kind, name, rest.trim()))
    });
    match words {
        Some(("TYPE", name, kind)) => Line::Type(name, kind),
        Some(("HELP", name, help)) => Line::Help(name, help),
        _ => Line::Other,
    }
}

/// The labels up to the closing brace, and what follows.
type Labels<'a> = (Vec<(&'a str, String)>, &'a str);

fn labels(text: &str) -> Result<Labels<'_>, String> {
    let mut labels = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (label, after) = word(rest, false);
        let value =
            after.trim_start().strip_prefix('=').and_then(|after| quoted(after.trim_start()));
        let (value, after) =
            value.filter(|_| !label.is_empty()).ok_or("labels that make no sense")?;
        labels.push((label, value));
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.starts_with('}') => after,
            None => return Err("labels that do not end".into()),
        };
    }
}

/// As Go reads floats: also `+Inf` and `NaN`.
pub(super) fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Line<'_>, String> {
        line(text, |name| name != "unwanted")
    }

    fn sample<'a>(
        name: &'a str,
        labels: &[(&'a str, &str)],
        value: f64,
    ) -> Result<Line<'a>, String> {
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
        Ok(Line::Sample(Sample { name, labels, value }))
    }

    #[test]
    fn lines_of_both_formats_are_read() {
        for (text, expected) in [
            ("# HELP a Some help: {x} ", Ok(Line::Help("a", "Some help: {x}"))),
            ("# TYPE a counter", Ok(Line::Type("a", "counter"))),
            ("#   TYPE  a  histogram", Ok(Line::Type("a", "histogram"))),
            ("# UNIT a seconds", Ok(Line::Other)),
            ("# EOF", Ok(Line::Other)),
            ("# just words", Ok(Line::Other)),
            ("", Ok(Line::Other)),
            ("unwanted{ broken", Ok(Line::Other)),
            ("{\"quoted.name\"} 1", Ok(Line::Other)),
            ("a 1", sample("a", &[], 1.0)),
            ("a:b_c 1.5e3 1700000000000", sample("a:b_c", &[], 1500.0)),
            ("a{} -2", sample("a", &[], -2.0)),
            ("a{x=\"1\"} +Inf", sample("a", &[("x", "1")], f64::INFINITY)),
            (
                "a{x=\"1\",y=\"} 2 \\\"\\n\\\\\",} 3",
                sample("a", &[("x", "1"), ("y", "} 2 \"\n\\")], 3.0),
            ),
            ("a { x = \"1\" , y=\"\" } 3", Err("\"{\" is not a number".into())),
            (
                "a_bucket{le=\"0.5\"} 7 # {trace=\"9\"} 0.4 17",
                sample("a_bucket", &[("le", "0.5")], 7.0),
            ),
            ("a\t4", sample("a", &[], 4.0)),
            ("a", Err("no value".into())),
            ("a x", Err("\"x\" is not a number".into())),
            ("a{x=\"1} 4", Err("labels that make no sense".into())),
            ("a{x=\"1\" 4", Err("labels that do not end".into())),
            ("a{=\"1\"} 4", Err("labels that make no sense".into())),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(text in r#"(a|# TYPE a|.)[{}="\\a, .0-9#é]{0,30}"#) {
            let _ = read(&text);
        }

        #[test]
        fn what_is_written_is_read(value in any::<f64>(), label in "[^\\\\\"\n]{0,30}") {
            let text = format!("m{{l=\"{label}\"}} {value}");
            let Ok(Line::Sample(sample)) = read(&text) else { panic!("{text}") };
            prop_assert_eq!(sample.label("l"), label);
            prop_assert!(sample.value == value || sample.value.is_nan() && value.is_nan());
        }
    }
}
