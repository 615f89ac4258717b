//! The line that says how it goes, and numbers as people read them.

use std::time::Duration;

use frames::Census;

use super::meter::{DROPS, Totals, dropped};

/// How things stand.
#[derive(Clone, Copy, Debug)]
pub(in crate::cmd) struct Sample {
    /// Since the start.
    pub(in crate::cmd) seconds: Duration,
    /// Since the sample before.
    pub(in crate::cmd) span: Duration,
    pub(in crate::cmd) totals: Totals,
    /// The sample before.
    pub(in crate::cmd) before: Totals,
    pub(in crate::cmd) census: Census,
}

impl Sample {
    /// Received and sent since the sample before, in packets and bits a second.
    pub(in crate::cmd) fn rates(&self) -> Rates {
        let (now, before) = (&self.totals, &self.before);
        let rate = |now: u64, before: u64| per_second(now.saturating_sub(before), self.span);
        Rates {
            rx_pps: rate(now.rx_packets, before.rx_packets),
            rx_bits: rate(now.rx_bytes, before.rx_bytes) * 8.0,
            tx_pps: rate(now.tx_packets, before.tx_packets),
            tx_bits: rate(now.tx_bytes, before.tx_bytes) * 8.0,
        }
    }

    /// Why packets were dropped since the sample before, and how many.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        let (now, before) = (&self.totals.statistics, &self.before.statistics);
        let drops =
            DROPS.iter().map(|(name, _, read)| (*name, read(now).saturating_sub(read(before))));
        drops.filter(|&(_, dropped)| dropped > 0).collect()
    }

    /// Frames in all rings of the sockets.
    fn rings(&self) -> u32 {
        let rings = &self.totals.outstanding;
        rings.fill + rings.rx + rings.tx + rings.completed
    }
}

/// Packets and bits a second.
#[derive(Clone, Copy, Debug)]
pub(in crate::cmd) struct Rates {
    pub(in crate::cmd) rx_pps: f64,
    pub(in crate::cmd) rx_bits: f64,
    pub(in crate::cmd) tx_pps: f64,
    pub(in crate::cmd) tx_bits: f64,
}

/// A number of things in this time, a second; 0 for no time.
pub(in crate::cmd) fn per_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The same over the time from the first to the latest; none where that is next to none.
pub(in crate::cmd) fn rate_over(count: u64, time: Duration) -> Option<f64> {
    const LEAST: Duration = Duration::from_millis(1);
    (time >= LEAST).then(|| per_second(count, time))
}

/// Three digits and a prefix: `1.23 M`, `45.6 k`, `7`.
pub(in crate::cmd) fn si(value: f64) -> String {
    let (scaled, prefix) = match value {
        v if v >= 999.5e6 => (v / 1e9, " G"),
        v if v >= 999.5e3 => (v / 1e6, " M"),
        v if v >= 999.5 => (v / 1e3, " k"),
        v => (v, " "),
    };
    let digits = match scaled {
        _ if prefix == " " => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{prefix}")
}

/// The line, in at most `width` characters: with all words, or with short ones, or cut. What the
/// command has to say `beside` it comes first.
pub(in crate::cmd) fn line(sample: &Sample, beside: Option<&str>, width: usize) -> String {
    let after = |line: String| match beside {
        Some(beside) => format!("{beside} | {line}"),
        None => line,
    };
    let long = after(long(sample));
    if long.chars().count() <= width {
        return long;
    }
    let short = after(short(sample));
    match short.chars().count() <= width {
        true => short,
        false => short.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Characters in a line of stderr, where the live line is; 80 where it is no terminal.
pub(in crate::cmd) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    // A full line would make some terminals go to the next one.
    size.map_or(80, |size| usize::from(size.ws_col)).max(21) - 1
}

fn long(sample: &Sample) -> String {
    let Rates { rx_pps, rx_bits, tx_pps, tx_bits } = sample.rates();
    let mut parts = Vec::new();
    for (name, pps, bits, ever) in [
        ("rx", rx_pps, rx_bits, sample.totals.rx_packets),
        ("tx", tx_pps, tx_bits, sample.totals.tx_packets),
    ] {
        if ever > 0 {
            parts.push(format!("{name} {}pps {}bit/s", si(pps), si(bits)));
        }
    }
    if parts.is_empty() {
        parts.push("no packets yet".into());
    }
    let drops: Vec<String> = sample.drops().iter().map(|(name, n)| format!("{name} {n}")).collect();
    parts.push(match drops.is_empty() {
        true => "no drops".into(),
        false => format!("drops: {}", drops.join(", ")),
    });
    let Census { cached, depot, inboxes, outboxes, held, .. } = sample.census;
    parts.push(format!(
        "frames: cache {cached}, depot {depot}, inbox {}, rings {}, held {held}",
        inboxes + outboxes,
        sample.rings()
    ));
    parts.join(" | ")
}

/// The same with what matters most at the front, as it may be cut.
fn short(sample: &Sample) -> String {
    let Rates { rx_pps, rx_bits, tx_pps, tx_bits } = sample.rates();
    let sends = sample.totals.tx_packets > 0;
    let both = sends && sample.totals.rx_packets > 0;
    let tight = |value: f64| si(value).replace(' ', "");
    let mut line = match (both, sends) {
        (true, _) => format!("{}/{}pps", tight(rx_pps), tight(tx_pps)),
        (_, true) => format!("{}pps {}b/s", tight(tx_pps), tight(tx_bits)),
        _ => format!("{}pps {}b/s", tight(rx_pps), tight(rx_bits)),
    };
    let [now, before] = [&sample.totals, &sample.before].map(|totals| dropped(&totals.statistics));
    line += &format!(" drop {}", tight(now.saturating_sub(before) as f64));
    let Census { cached, depot, inboxes, outboxes, .. } = sample.census;
    let (inbox, rings) = (inboxes + outboxes, sample.rings());
    line + &format!(" c{cached} d{depot} i{inbox} r{rings}")
}

#[cfg(test)]
mod tests {
    use xsk::{Outstanding, Statistics};

    use super::*;

    fn sample() -> Sample {
        let statistics = Statistics { rx_ring_full: 12, ..Statistics::default() };
        let outstanding = Outstanding { fill: 2000, rx: 48, ..Outstanding::default() };
        let totals = Totals {
            rx_packets: 2_300_000,
            rx_bytes: 147_200_000,
            statistics,
            outstanding,
            ..Totals::default()
        };
        let mut census = Census::default();
        (census.cached, census.depot, census.held) = (126, 1922, 3);
        let (seconds, span) = (Duration::from_secs(2), Duration::from_secs(2));
        Sample { seconds, span, totals, before: Totals::default(), census }
    }

    #[test]
    fn a_wide_line_says_everything() {
        let expected = "rx 1.15 Mpps 589 Mbit/s | drops: rx_ring_full 12 | frames: cache 126, \
                        depot 1922, inbox 0, rings 2048, held 3";
        assert_eq!(line(&sample(), None, 200), expected);
        let nothing = Sample { totals: Totals::default(), ..sample() };
        assert!(
            line(&nothing, None, 200).starts_with("no packets yet | no drops | frames: cache 126")
        );
    }

    #[test]
    fn a_narrow_line_has_what_matters_and_fits() {
        let expected = "1.15Mpps 589Mb/s drop 12 c126 d1922 i0 r2048";
        assert_eq!(line(&sample(), None, 60), expected);
        for width in 1..200 {
            assert!(line(&sample(), None, width).chars().count() <= width, "{width}");
        }
        assert_eq!(line(&sample(), None, 20), "1.15Mpps 589Mb/s dr…");
    }

    #[test]
    fn what_a_command_has_to_say_comes_first() {
        let said = line(&sample(), Some("2 borrowers"), 70);
        assert!(said.starts_with("2 borrowers | 1.15Mpps 589Mb/s drop 12"), "{said}");
    }

    #[test]
    fn a_packet_that_is_counted_as_two_drops_is_one() {
        let statistics = Statistics { rx_dropped: 9, fill_ring_empty: 7, ..Statistics::default() };
        let totals = Totals { statistics, ..sample().totals };
        assert!(line(&Sample { totals, ..sample() }, None, 60).contains(" drop 9 "));
        let said = line(&Sample { totals, ..sample() }, None, 200);
        assert!(said.contains("| drops: fill_ring_empty 7, rx_dropped 2 |"), "{said}");
    }

    #[test]
    fn a_rate_over_no_time_is_none() {
        assert_eq!(rate_over(7, Duration::ZERO), None);
        assert_eq!(rate_over(7, Duration::from_micros(20)), None);
        assert_eq!(rate_over(7, Duration::from_millis(500)), Some(14.0));
    }

    #[test]
    fn what_is_shown_is_what_changed() {
        let again = Sample { before: sample().totals, ..sample() };
        assert!(
            line(&again, None, 200).starts_with("rx 0 pps 0 bit/s | no drops"),
            "{}",
            line(&again, None, 200)
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, expected) in [
            (0.0, "0 "),
            (7.4, "7 "),
            (999.0, "999 "),
            (999.6, "1.00 k"),
            (1_234.0, "1.23 k"),
            (99_960.0, "100 k"),
            (999_600.0, "1.00 M"),
            (12_340_000.0, "12.3 M"),
            (2.5e9, "2.50 G"),
        ] {
            assert_eq!(si(value), expected, "{value}");
        }
    }
}
