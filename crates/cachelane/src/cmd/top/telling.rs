//! The few figures that tell most of a process: what its row shows.

use super::sample::Said;
use crate::figures::tight;

/// A figure of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// None until two samples are there, or where it cannot be read.
    pub(super) value: Option<f64>,
    /// By second, or at this moment.
    pub(super) is_rate: bool,
    pub(super) unit: String,
}

impl Figure {
    /// Such as `1.23GB/s`, `120 conn/s`, `5 open`.
    pub(super) fn text(&self) -> String {
        self.value.map_or_else(|| "-".into(), number) + &self.unit
    }
}

/// A number in few characters; with a digit behind the point where it is small.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 9.95 && v.fract() != 0.0 => format!("{v:.1}"),
        v => tight(v),
    }
}

/// What is picked of the counters of one mechanism.
struct Pick {
    /// The last parts of names; where one ends in a dot, all that begin so.
    names: &'static [&'static str],
    is_rate: bool,
    unit: &'static str,
}

const fn rate(names: &'static [&'static str], unit: &'static str) -> Pick {
    Pick { names, is_rate: true, unit }
}

const fn now(names: &'static [&'static str], unit: &'static str) -> Pick {
    Pick { names, is_rate: false, unit }
}

/// By the first part of counters' names. A process may have several of these.
const TELLING: [(&str, &[Pick]); 5] = [
    (
        "relay",
        &[rate(&["bytes"], "B/s"), rate(&["accepted"], " conn/s"), now(&["connections"], " open")],
    ),
    ("bridge", &[rate(&["straight", "redirected"], " fast/s"), rate(&["kernel."], " kernel/s")]),
    (
        "steer",
        &[
            rate(&["steered"], " steered/s"),
            rate(&["moves"], " moves/s"),
            rate(&["written"], " written/s"),
        ],
    ),
    (
        "lend",
        &[rate(&["lent"], " lent/s"), now(&["on_loan"], " out"), now(&["borrowers"], " borrowers")],
    ),
    ("xsk", &[rate(&["rx_packets"], " rx/s"), rate(&["tx_packets"], " tx/s")]),
];

/// How many counters stand for a process of which nothing else is known.
const FASTEST: usize = 3;

/// The figures of a process, the most telling first.
pub(super) fn telling(said: &Said, rates: &[Option<f64>]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (mechanism, picks) in TELLING {
        let prefix = format!("{mechanism}.");
        if said.meters.iter().any(|meter| meter.name.starts_with(&prefix)) {
            figures.extend(picks.iter().map(|pick| pick.figure(&prefix, said, rates)));
        }
    }
    if figures.is_empty() { fastest(said, rates) } else { figures }
}

impl Pick {
    fn figure(&self, prefix: &str, said: &Said, rates: &[Option<f64>]) -> Figure {
        let picked = said.meters.iter().enumerate().filter(|(_, meter)| {
            meter.name.strip_prefix(prefix).is_some_and(|rest| self.takes(rest))
        });
        let value = |(place, _): (usize, _)| match self.is_rate {
            true => rates.get(place).copied().flatten(),
            false => said.values.get(place).copied().flatten().map(|now| now as f64),
        };
        // What can be read of them.
        let values = picked.filter_map(value);
        let value = values.fold(None, |sum: Option<f64>, one| Some(sum.unwrap_or(0.0) + one));
        Figure { value, is_rate: self.is_rate, unit: self.unit.to_owned() }
    }

    /// Whether it is of one of these names: of the mechanism, or of one of several services of it.
    fn takes(&self, rest: &str) -> bool {
        self.names.iter().any(|name| match name.ends_with('.') {
            true => rest.starts_with(name) || rest.contains(&format!(".{name}")),
            false => rest.rsplit('.').next() == Some(name) && !rest.starts_with("kernel."),
        })
    }
}

/// The counters that grow fastest.
fn fastest(said: &Said, rates: &[Option<f64>]) -> Vec<Figure> {
    let grows = said.meters.iter().zip(rates).filter_map(|(meter, rate)| Some((meter, (*rate)?)));
    let mut grows: Vec<_> = grows.filter(|(_, rate)| *rate > 0.0).collect();
    grows.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.name.cmp(&b.0.name)));
    grows.truncate(FASTEST);
    let figure = |(meter, rate): (&super::sample::Meter, f64)| Figure {
        value: Some(rate),
        is_rate: true,
        unit: format!(" {}/s", meter.name),
    };
    grows.into_iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::top::testing::said;

    fn texts(meters: &[(&str, bool, u64)], rates: &[Option<f64>]) -> Vec<String> {
        telling(&said(0, meters), rates).iter().map(Figure::text).collect()
    }

    #[test]
    fn a_relay_shows_bytes_connections_and_what_is_open() {
        let meters = [
            ("relay.accepted", true, 7),
            ("relay.bytes", true, 9),
            ("relay.bytes_up", true, 9),
            ("relay.connections", false, 3),
        ];
        let shown = texts(&meters, &[Some(0.5), Some(1.5e9), Some(1.0), None]);
        assert_eq!(shown, ["1.50GB/s", "0.5 conn/s", "3 open"]);
        assert_eq!(texts(&meters, &[None; 4]), ["-B/s", "- conn/s", "3 open"]);
    }

    #[test]
    fn several_relays_of_a_process_are_added_up() {
        let meters = [("relay.web.bytes", true, 9), ("relay.db.bytes", true, 9)];
        assert_eq!(texts(&meters, &[Some(1000.0), Some(2000.0)])[0], "3.00kB/s");
    }

    #[test]
    fn a_bridge_shows_both_paths() {
        let meters = [
            ("bridge.straight", true, 1),
            ("bridge.redirected", true, 1),
            ("bridge.kernel.vlan", true, 1),
            ("bridge.kernel.off", true, 1),
        ];
        let shown = texts(&meters, &[Some(10.0), Some(20.0), Some(3.0), None]);
        assert_eq!(shown, ["30 fast/s", "3 kernel/s"]);
    }

    #[test]
    fn what_is_unknown_shows_what_grows_fastest() {
        let meters =
            [("new.a", true, 1), ("new.b", true, 1), ("new.c", false, 1), ("new.d", true, 1)];
        let shown = texts(&meters, &[Some(1.0), Some(20.0), None, Some(0.0)]);
        assert_eq!(shown, ["20 new.b/s", "1 new.a/s"]);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (0.34, "0.3"), (7.0, "7"), (99.6, "100"), (1.2e6, "1.20M")]
        {
            assert_eq!(number(value), text);
        }
    }
}
