//! The line that says how it goes with sockets.

use frames::Census;

use super::meter::Drops;
use super::session::Sample;
use crate::counters::named;
use crate::figures::{drops, si, tight};

impl Sample {
    /// Why the kernel dropped packets since the sample before, and how many.
    fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let before = self.before.drops.values().into_iter();
        let now = named(Drops::FIELDS, self.totals.drops.values()).zip(before);
        now.map(|((name, now), before)| (name, now.saturating_sub(before)))
    }

    /// Frames in all rings of the sockets.
    fn rings(&self) -> u64 {
        self.totals.rings.values().iter().sum()
    }
}

/// The line, in at most `width` characters: with all words, or with short ones, or cut. What the
/// command has to say `beside` it comes first.
pub(crate) fn line(sample: &Sample, census: &Census, beside: Option<&str>, width: usize) -> String {
    let after = |line: String| match beside {
        Some(beside) => format!("{beside} | {line}"),
        None => line,
    };
    let long = after(long(sample, census));
    if long.chars().count() <= width {
        return long;
    }
    let short = after(short(sample, census));
    match short.chars().count() <= width {
        true => short,
        false => short.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn long(sample: &Sample, census: &Census) -> String {
    let mut parts = Vec::new();
    for (name, (pps, bits), ever) in [
        ("rx", sample.rx(), sample.totals.traffic.rx_packets),
        ("tx", sample.tx(), sample.totals.traffic.tx_packets),
    ] {
        if ever > 0 {
            parts.push(format!("{name} {}pps {}bit/s", si(pps), si(bits)));
        }
    }
    if parts.is_empty() {
        parts.push("no packets yet".into());
    }
    parts.push(drops(sample.drops()));
    let Census { cached, depot, inboxes, outboxes, held, .. } = *census;
    parts.push(format!(
        "frames: cache {cached}, depot {depot}, inbox {}, rings {}, held {held}",
        inboxes + outboxes,
        sample.rings()
    ));
    parts.join(" | ")
}

/// The same with what matters most at the front, as it may be cut.
fn short(sample: &Sample, census: &Census) -> String {
    let ((rx_pps, rx_bits), (tx_pps, tx_bits)) = (sample.rx(), sample.tx());
    let sends = sample.totals.traffic.tx_packets > 0;
    let both = sends && sample.totals.traffic.rx_packets > 0;
    let mut line = match (both, sends) {
        (true, _) => format!("{}/{}pps", tight(rx_pps), tight(tx_pps)),
        (_, true) => format!("{}pps {}b/s", tight(tx_pps), tight(tx_bits)),
        _ => format!("{}pps {}b/s", tight(rx_pps), tight(rx_bits)),
    };
    let dropped: u64 = sample.drops().map(|(_, dropped)| dropped).sum();
    line += &format!(" drop {}", tight(dropped as f64));
    let Census { cached, depot, inboxes, outboxes, .. } = *census;
    let (inbox, rings) = (inboxes + outboxes, sample.rings());
    line + &format!(" c{cached} d{depot} i{inbox} r{rings}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xsk::Statistics;

    use super::super::meter::{Rings, Totals, Traffic};
    use super::*;

    fn sample() -> Sample {
        let (rx_packets, rx_bytes) = (2_300_000, 147_200_000);
        let traffic = Traffic { rx_packets, rx_bytes, ..Traffic::default() };
        let drops = Drops { rx_ring_full: 12, ..Drops::default() };
        let rings = Rings { fill: 2000, rx: 48, ..Rings::default() };
        let totals = Totals { traffic, drops, rings, ..Totals::default() };
        let (seconds, span) = (Duration::from_secs(2), Duration::from_secs(2));
        Sample { seconds, span, totals, before: Totals::default() }
    }

    fn line(sample: &Sample, beside: Option<&str>, width: usize) -> String {
        let mut census = Census::default();
        (census.cached, census.depot, census.held) = (126, 1922, 3);
        super::line(sample, &census, beside, width)
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
        let drops = |zero_copy| Drops::of(statistics, zero_copy);
        let totals = Totals { drops: drops(false), ..sample().totals };
        assert!(line(&Sample { totals, ..sample() }, None, 60).contains(" drop 9 "));
        let said = line(&Sample { totals, ..sample() }, None, 200);
        assert!(said.contains("| drops: fill_ring_empty 7, rx_dropped 2 |"), "{said}");
        // A zero-copy driver only asked for frames.
        assert_eq!(drops(true), Drops { rx_dropped: 9, ..Drops::default() });
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
}
