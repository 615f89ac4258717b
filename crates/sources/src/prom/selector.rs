//! Which series of an endpoint count.

use std::fmt;

use regex::Regex;

/// A metric's name and what its labels must be, as PromQL has them: `name{a="x",b!="y",c=~"z.*"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) name: String,
    matchers: Vec<Matcher>,
}

#[derive(Clone, Debug)]
struct Matcher {
    label: String,
    op: Op,
    value: String,
    /// Of the whole value, for the two operators that have one.
    regex: Option<Regex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Equal,
    NotEqual,
    Matches,
    NotMatches,
}

/// The longer ones first.
const OPS: [(&str, Op); 4] =
    [("=~", Op::Matches), ("!~", Op::NotMatches), ("!=", Op::NotEqual), ("=", Op::Equal)];

impl Selector {
    /// Reads one and returns what follows it.
    pub(crate) fn parse(text: &str) -> Result<(Self, &str), String> {
        let (name, mut rest) = word(text, true);
        if name.is_empty() {
            return Err(format!("expected the name of a metric before {text:?}"));
        }
        let mut matchers = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside.trim_start();
            while !rest.starts_with('}') {
                let (matcher, after) = Matcher::parse(rest)?;
                matchers.push(matcher);
                let after = after.trim_start();
                rest = match after.strip_prefix(',') {
                    Some(after) => after.trim_start(),
                    None if after.starts_with('}') => after,
                    None => return Err(format!("expected \",\" or \"}}\" before {after:?}")),
                };
            }
            rest = &rest[1..];
        }
        Ok((Self { name: name.into(), matchers }, rest))
    }

    /// Whether a series has the labels; `label` gives the value of one, empty where there is none.
    pub(crate) fn takes<'a>(&self, label: impl Fn(&str) -> &'a str) -> bool {
        self.matchers.iter().all(|matcher| matcher.takes(label(&matcher.label)))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let Some((last, others)) = self.matchers.split_last() else { return Ok(()) };
        f.write_str("{")?;
        others.iter().try_for_each(|matcher| write!(f, "{matcher},"))?;
        write!(f, "{last}}}")
    }
}

impl Matcher {
    fn parse(text: &str) -> Result<(Self, &str), String> {
        let (label, rest) = word(text, false);
        let rest = rest.trim_start();
        let op = OPS.iter().find_map(|(sign, op)| Some((*op, rest.strip_prefix(sign)?)));
        let (op, rest) = op
            .filter(|_| !label.is_empty())
            .ok_or_else(|| format!("expected a label with =, !=, =~ or !~ before {text:?}"))?;
        let (value, rest) = quoted(rest.trim_start())
            .ok_or_else(|| format!("expected a value in double quotes before {rest:?}"))?;
        let regex = match op {
            Op::Equal | Op::NotEqual => None,
            Op::Matches | Op::NotMatches => {
                let regex = Regex::new(&format!("^(?s:{value})$"));
                Some(regex.map_err(|error| format!("label {label}: {error}"))?)
            }
        };
        Ok((Self { label: label.into(), op, value, regex }, rest))
    }

    fn takes(&self, value: &str) -> bool {
        let matches = self.regex.as_ref().is_some_and(|regex| regex.is_match(value));
        match self.op {
            Op::Equal => value == self.value,
            Op::NotEqual => value != self.value,
            Op::Matches => matches,
            Op::NotMatches => !matches,
        }
    }
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Self) -> bool {
        (&self.label, self.op, &self.value) == (&other.label, other.op, &other.value)
    }
}

impl Eq for Matcher {}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = OPS.iter().find(|(_, op)| *op == self.op).map_or("", |(sign, _)| sign);
        let value = self.value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        write!(f, "{}{sign}\"{value}\"", self.label)
    }
}

/// The name that a text begins with, of a metric or a label, and what follows; empty if none.
pub(super) fn word(text: &str, metric: bool) -> (&str, &str) {
    let fits = |(at, c): (usize, char)| {
        c.is_ascii_alphabetic()
            || c == '_'
            || (metric && c == ':')
            || (at > 0 && c.is_ascii_digit())
    };
    let end = text.char_indices().find(|&found| !fits(found)).map_or(text.len(), |(at, _)| at);
    text.split_at(end)
}

/// The value in quotes that a text begins with, and what follows.
pub(super) fn quoted(text: &str) -> Option<(String, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &inside[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                // What is not an escape stands for itself, backslash and all: regexes have many.
                c if c != '"' && c != '\\' => value.extend(['\\', c]),
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_compared_as_promql_does() {
        let labels = |name: &str| match name {
            "code" => "500",
            "path" => "/a/\"b\"",
            _ => "",
        };
        for (text, takes) in [
            ("m", true),
            ("m{}", true),
            (r#"m{code="500"}"#, true),
            (r#"m{code="50"}"#, false),
            (r#"m{code!="200", other=""}"#, true),
            (r#"m{ code =~ "5.." , }"#, true),
            (r#"m{code=~"5"}"#, false),
            (r#"m{code=~"\d+"}"#, true),
            (r#"m{code!~"5..|4.."}"#, false),
            (r#"m{path="/a/\"b\""}"#, true),
            (r#"m{other=~".+"}"#, false),
        ] {
            let (selector, rest) = Selector::parse(text).unwrap();
            assert_eq!((selector.takes(labels), rest), (takes, ""), "{text}");
        }
        for text in [
            "",
            "1m",
            "m{",
            "m{code}",
            "m{code=500}",
            r#"m{code="5}"#,
            r#"m{code=~"("}"#,
            r#"m{a="1"b="2"}"#,
        ] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_value_prints_so_that_it_reads_back(value in ".{0,20}") {
            let matcher =
                Matcher { label: "a".into(), op: Op::Equal, value: value.clone(), regex: None };
            let selector = Selector { name: "m".into(), matchers: vec![matcher] };
            let text = format!("{selector}/rest");
            let (back, rest) = Selector::parse(&text).unwrap();
            prop_assert_eq!((back, rest), (selector, "/rest"));
        }

        #[test]
        fn any_text_is_read_or_refused(text in r#"m[{a="\\~!,} n1]{0,20}"#) {
            if let Ok((selector, rest)) = Selector::parse(&text) {
                let printed = selector.to_string();
                prop_assert_eq!(Selector::parse(&printed).unwrap(), (selector, ""));
                prop_assert!(text.ends_with(rest));
            }
        }
    }
}
