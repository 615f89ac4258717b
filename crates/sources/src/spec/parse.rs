//! The grammar of measures.
//!
//! Quantities are read from the left, since a URL, a selector and the path of a cgroup may have the
//! `/` in them that stands between two quantities.

use trial::Better;

use super::{Named, Operand, What};
use crate::prom::Selector;
use crate::quantity::{KNOWN, Known, Of};
use crate::{Error, Result};

/// Takes the direction off the end.
pub(super) fn direction(text: &str) -> (&str, Option<Better>) {
    let found = [("lower", Better::Lower), ("higher", Better::Higher)].into_iter().find_map(
        |(word, better)| Some((text.strip_suffix(word)?.strip_suffix(',')?, Some(better))),
    );
    found.unwrap_or((text, None))
}

/// A measure without its direction.
pub(super) fn what(text: &str) -> Result<What> {
    if let Some((thousandths, rest)) = quantile(text) {
        let (of, rest) = operand(rest)?;
        return match rest {
            "" => Ok(What::Quantile(thousandths, of)),
            _ => Err(Error::syntax(format!(
                "measure {text:?}: a quantile is of one histogram, but {rest:?} follows"
            ))),
        };
    }
    let (first, rest) = operand(text)?;
    let Some(rest) = rest.strip_prefix('/') else {
        return match rest {
            "" => Ok(What::Ratio(first, None)),
            _ => Err(follows(text, rest)),
        };
    };
    match operand(rest)? {
        (second, "") => Ok(What::Ratio(first, Some(second))),
        (_, rest) => Err(follows(text, rest)),
    }
}

/// A quantity alone.
pub(super) fn quantity(text: &str) -> Result<Operand> {
    match operand(text)? {
        (quantity, "") => Ok(quantity),
        (_, rest) => {
            Err(Error::syntax(format!("{text:?}: expected one quantity, but {rest:?} follows")))
        }
    }
}

fn follows(text: &str, rest: &str) -> Error {
    Error::syntax(format!(
        "measure {text:?}: expected the end, \"/\" and another quantity, \",lower\" or \
         \",higher\" before {rest:?}"
    ))
}

/// The quantile of a text such as `p99.9:…`, in thousandths of a percent, and what follows.
fn quantile(text: &str) -> Option<(u32, &str)> {
    let (percent, rest) = text.strip_prefix('p')?.split_once(':')?;
    let plain = !percent.is_empty() && percent.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let percent: f64 = percent.parse().ok().filter(|_| plain)?;
    let thousandths = (percent * 1e3).round();
    (thousandths > 0.0 && thousandths < 1e5).then_some((thousandths as u32, rest))
}

/// The quantity that a text begins with, and what follows.
fn operand(text: &str) -> Result<(Operand, &str)> {
    if let Some(rest) = text.strip_prefix("prom:") {
        return prom(rest);
    }
    if let Some(rest) = text.strip_prefix("pmu:") {
        let (event, rest) = split(rest);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        return match !event.is_empty() && event.bytes().all(fits) {
            true => Ok((Operand::Pmu(event.into()), rest)),
            false => Err(Error::syntax(format!(
                "pmu:{event}: expected the name of an event, such as pmu:cycles or pmu:r0244"
            ))),
        };
    }
    if let Some(rest) = text.strip_prefix("counter:") {
        let (counter, rest) = split(rest);
        return Ok((self::counter(counter)?, rest));
    }
    if let Some(rest) = text.strip_prefix("cgroup.cpu@") {
        let (path, rest) = cgroup(rest);
        return Ok((known("cgroup.cpu", Some(path))?, rest));
    }
    let (word, rest) = split(text);
    let (name, of) = match word.split_once('@') {
        Some((name, of)) => (name, Some(of)),
        None => (word, None),
    };
    if Known::find(name).is_none() && is_counter(name) && Known::nearest(name).is_none() {
        return Ok((counter(word)?, rest));
    }
    Ok((known(name, of)?, rest))
}

/// Up to the next `/`.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find('/').unwrap_or(text.len()))
}

fn known(name: &str, of: Option<&str>) -> Result<Operand> {
    let known = Known::find(name).ok_or_else(|| unknown(name))?;
    let written = || format!("{name}{}", known.of.written());
    match (known.of, of) {
        (Of::Host, Some(of)) => {
            Err(Error::syntax(format!("{name}@{of}: {name} is of the whole host; leave out @{of}")))
        }
        (Of::Process | Of::Cgroup, None | Some("")) | (_, Some("")) => {
            Err(Error::syntax(format!("{name}: expected {}", written())))
        }
        (Of::Cpus, Some(cpus)) => {
            // So that it prints in one way, and what is no CPU set is refused at once.
            let cpus = cpus.parse::<lanes::CpuSpec>();
            let cpus = cpus.map_err(|error| Error::syntax(format!("{name}: {error}")))?;
            Ok(Operand::Known(Named { known, of: Some(cpus.to_string()) }))
        }
        _ => Ok(Operand::Known(Named { known, of: of.map(str::to_owned) })),
    }
}

fn unknown(name: &str) -> Error {
    let message = match Known::nearest(name) {
        Some(nearest) => format!("{name:?} is not known; did you mean {nearest}?"),
        None => {
            let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
            format!(
                "{name:?} is not known; expected {}, pmu:EVENT, prom:URL:SELECTOR or a counter of a \
                 cachelane process such as relay.bytes",
                names.join(", ")
            )
        }
    };
    Error::new(crate::ErrorKind::Unknown, message)
}

/// The longest path, so that what follows is a quantity again.
fn cgroup(text: &str) -> (&str, &str) {
    let slashes = text.match_indices('/').map(|(at, _)| at);
    let is_quantity = |at: &usize| {
        let after = &text[at + 1..];
        let name = after.split(['/', '@']).next().unwrap_or_default();
        let prefixes = ["pmu:", "prom:", "counter:"];
        Known::find(name).is_some() || prefixes.iter().any(|prefix| after.starts_with(prefix))
    };
    text.split_at(slashes.filter(|at| *at > 0).find(is_quantity).unwrap_or(text.len()))
}

/// Whether a word looks like the name of a counter: two or more words with dots between.
fn is_counter(name: &str) -> bool {
    let word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    name.contains('.') && name.split('.').all(word)
}

fn counter(text: &str) -> Result<Operand> {
    let (name, pid) = match text.split_once('@') {
        None => (text, None),
        Some((name, pid)) => {
            let pid = pid.parse().map_err(|_| {
                Error::syntax(format!("{text}: expected a process id after @, as in {name}@1234"))
            })?;
            (name, Some(pid))
        }
    };
    match is_counter(name) {
        true => Ok(Operand::Counter { name: name.into(), pid }),
        false => Err(Error::syntax(format!(
            "counter:{name}: expected the name of a counter, such as counter:relay.bytes"
        ))),
    }
}

/// `http://HOST[:PORT]/PATH:SELECTOR`.
fn prom(text: &str) -> Result<(Operand, &str)> {
    let bad = |trouble: &str| {
        Error::syntax(format!(
            "prom:{text}: {trouble}; expected prom:http://HOST[:PORT]/PATH:SELECTOR, such as \
             prom:http://127.0.0.1:9100/metrics:node_forks_total"
        ))
    };
    if text.starts_with("https:") {
        return Err(bad("TLS is not spoken here"));
    }
    let host = text.strip_prefix("http://").ok_or_else(|| bad("not an http:// address"))?;
    let slash = host.find('/').filter(|at| *at > 0).ok_or_else(|| bad("no path"))?;
    let colon = host[slash..].find(':').ok_or_else(|| bad("no selector"))?;
    let end = text.len() - host.len() + slash + colon;
    let url = &text[..end];
    if url.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'"') {
        return Err(bad("blanks or quotes in the address"));
    }
    let (selector, rest) = Selector::parse(&text[end + 1..]).map_err(|trouble| bad(&trouble))?;
    Ok((Operand::Prom { url: url.into(), selector }, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{Better, ErrorKind, MeasureSpec};

    #[test]
    fn measures_read_as_they_are_written() {
        for text in [
            "cpu.busy",
            "cpu.busy,higher",
            "cpu.busy/net.packets",
            "cpu.busy@0-3,8",
            "cpu.busy@0-3,8,lower",
            "cpu.busy@lane:0/net.bytes@eth0",
            "net.bytes@eth0.100/cpu.softirq",
            "process.cpu@1/pmu:cycles",
            "cgroup.cpu@/system.slice/a b.service",
            "cgroup.cpu@system.slice/net.packets",
            "cgroup.cpu@a/b/counter:relay.bytes",
            "cgroup.cpu@a/prom:http://h/m:n",
            "pmu:fills",
            "pmu:r0244,higher",
            "counter:relay.bytes,higher",
            "counter:relay.bytes@12/cpu.busy,higher",
            "prom:http://h:9/m:n,lower",
            "prom:http://[::1]:9/a/b?c=d,e:n_total/prom:http://h/m:n_count,lower",
            r#"prom:http://h/m:n{a="x/y,lower",b!="}",c=~"a|\"b",d!~"."}/cpu.busy,higher"#,
            "p99:prom:http://h/m:n,lower",
            "p99.9:prom:http://h/m:n,lower",
            "p0.05:prom:http://h/m:n,lower",
        ] {
            let spec: MeasureSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(spec.to_string(), text);
            let said = text.rsplit(',').next() == Some("higher");
            let expected = if said { Better::Higher } else { spec.better() };
            assert_eq!(spec.better(), expected, "{text}");
        }
        let bare: MeasureSpec = "relay.bytes@7,higher".parse().unwrap();
        assert_eq!(bare.to_string(), "counter:relay.bytes@7,higher");
    }

    #[test]
    fn the_good_direction_is_known_or_asked_for() {
        for (text, better) in [
            ("cpu.busy/net.packets", Better::Lower),
            ("net.bytes/cpu.busy", Better::Higher),
            ("tcp.retransmits", Better::Lower),
            ("net.packets,lower", Better::Lower),
            ("pmu:cache-misses", Better::Lower),
        ] {
            assert_eq!(text.parse::<MeasureSpec>().unwrap().better(), better, "{text}");
        }
        for text in ["relay.bytes", "pmu:instructions", "prom:http://h/m:n", "cpu.slices"] {
            let error = text.parse::<MeasureSpec>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text},higher")), "{error}");
        }
    }

    #[test]
    fn what_is_no_measure_is_refused_with_what_would_be() {
        for (text, kind, words) in [
            ("", ErrorKind::Unknown, "expected cpu.busy,"),
            ("cpu.bussy", ErrorKind::Unknown, "did you mean cpu.busy?"),
            ("net.packts@eth0", ErrorKind::Unknown, "did you mean net.packets?"),
            ("zzz", ErrorKind::Unknown, "relay.bytes"),
            ("switches@0", ErrorKind::Syntax, "leave out @0"),
            ("process.cpu", ErrorKind::Syntax, "process.cpu@PID"),
            ("cgroup.cpu@", ErrorKind::Syntax, "cgroup.cpu@PATH"),
            ("net.bytes@", ErrorKind::Syntax, "net.bytes[@DEVICE]"),
            ("cpu.busy@x", ErrorKind::Syntax, "CPU numbers such as 0-3"),
            ("cpu.busy/", ErrorKind::Unknown, "expected cpu.busy,"),
            ("cpu.busy/net.bytes/net.bytes", ErrorKind::Syntax, "before \"/net.bytes\""),
            ("cpu.busy,better", ErrorKind::Unknown, "cpu.busy"),
            ("pmu:", ErrorKind::Syntax, "pmu:cycles"),
            ("pmu:a b", ErrorKind::Syntax, "pmu:cycles"),
            ("counter:x,lower", ErrorKind::Syntax, "counter:relay.bytes"),
            ("counter:relay.bytes@x,lower", ErrorKind::Syntax, "relay.bytes@1234"),
            ("prom:https://h/m:n,lower", ErrorKind::Syntax, "TLS"),
            ("prom:h/m:n,lower", ErrorKind::Syntax, "not an http:// address"),
            ("prom:http://h:9:n,lower", ErrorKind::Syntax, "no path"),
            ("prom:http://h/m,lower", ErrorKind::Syntax, "no selector"),
            ("prom:http://h/m:,lower", ErrorKind::Syntax, "name of a metric"),
            ("prom:http://h/m:n{a=b},lower", ErrorKind::Syntax, "quotes"),
            ("p99:prom:http://h/m:n/cpu.busy,lower", ErrorKind::Syntax, "one histogram"),
        ] {
            let error = text.parse::<MeasureSpec>().expect_err(text);
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_or_refused(
            text in r#"(p99:)?(cpu\.busy|net\.bytes|prom:http://h/m:[a-z{}="~/,]{0,12}|pmu:r1|[a-z.@/:,]{0,9})(@[0-9,-]{0,4})?(/[a-z.:@/]{0,9}|/cpu\.user)?(,lower|,higher)?"#
        ) {
            if let Ok(spec) = text.parse::<MeasureSpec>() {
                prop_assert_eq!(spec.to_string().parse::<MeasureSpec>().unwrap(), spec, "{}", text);
            }
        }
    }
}
