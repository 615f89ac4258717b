//! A rate, kept as a token bucket.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Error;

/// So many in a time: at once, if there were none for that long, and as many again as the time passes.
/// From text as `100/10s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    time: Duration,
}

impl Rate {
    /// # Errors
    /// A count of 0; a time below a nanosecond for each or above a day.
    pub fn new(count: u32, time: Duration) -> Result<Rate, Error> {
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
        let rate = Rate { count, time };
        if count == 0 || time > LONGEST || rate.each() == 0 {
            return Err(Error::invalid(format!("rate '{rate}' cannot be kept ({EXPECTED})")));
        }
        Ok(rate)
    }

    /// Takes one of a bucket that is full again at `due`, in nanoseconds, if it has one at `now`: the
    /// time at which it is full again after that.
    pub(super) fn take(self, due: u64, now: u64) -> Option<u64> {
        let due = due.max(now) + self.each();
        (due - now <= self.each() * u64::from(self.count)).then_some(due)
    }

    /// Nanoseconds until there is one more.
    fn each(self) -> u64 {
        self.time.as_nanos() as u64 / u64::from(self.count.max(1))
    }
}

const EXPECTED: &str = "expected N/TIME of at most a day, such as 100/10s or 5/1m";

impl FromStr for Rate {
    type Err = Error;

    fn from_str(s: &str) -> Result<Rate, Error> {
        let refuse = || Error::invalid(format!("rate '{s}' does not parse ({EXPECTED})"));
        let (count, time) = s.split_once('/').ok_or_else(refuse)?;
        // `5/s` is one second's.
        let one = if time.starts_with(|c: char| c.is_ascii_alphabetic()) { "1" } else { "" };
        let time = humantime::parse_duration(&format!("{one}{time}")).map_err(|_| refuse())?;
        Rate::new(count.parse().map_err(|_| refuse())?, time)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, humantime::format_duration(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for (given, count, millis) in [
            ("100/10s", 100, 10_000),
            ("5/s", 5, 1000),
            ("1/1m", 1, 60_000),
            ("3/1h30m", 3, 5_400_000),
        ] {
            let rate: Rate = given.parse().unwrap();
            assert_eq!(rate, Rate { count, time: Duration::from_millis(millis) });
            assert_eq!(rate.to_string().replace(' ', "").parse::<Rate>().unwrap(), rate);
        }
        for bad in [
            "",
            "5",
            "/s",
            "5/",
            "0/s",
            "-1/s",
            "5/0s",
            "5/2days",
            "4294967295/1us",
            "5/10",
            "5/s/s",
        ] {
            let error = bad.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("rate '") && error.contains("N/TIME"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_bucket_gives_its_count_at_once_and_then_one_by_one() {
        let rate: Rate = "3/30ns".parse().unwrap();
        let mut due = 0;
        let mut takes = |now| match rate.take(due, now) {
            Some(later) => {
                due = later;
                true
            }
            None => false,
        };
        for (now, given) in [
            (100, true),
            (100, true),
            (100, true),
            (100, false),
            (109, false),
            (110, true),
            (110, false),
            (115, false),
            (120, true),
            (121, false),
            // All again after its time, and no more than that however long it was.
            (1000, true),
            (1000, true),
            (1000, true),
            (1009, false),
            (1010, true),
        ] {
            assert_eq!(takes(now), given, "at {now}");
        }
    }
}
