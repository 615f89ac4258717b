//! Which rate to try next, and when the highest is known.

/// Looks for the highest rate at which no more is lost than may be, in packets a second.
#[derive(Clone, Debug)]
pub(super) struct Bisection {
    /// The highest rate that has passed, and the lowest that has not.
    passed: Option<f64>,
    failed: Option<f64>,
    /// How near they have to come, as a share of the higher one.
    precision: f64,
    /// The highest to try; none: as fast as can be.
    most: Option<f64>,
    /// Trials of a rate that fail before it has failed, and how many of them the present one has had.
    tries: u32,
    tried: u32,
    /// No lower rate is tried.
    least: f64,
    /// Trials in a row that passed, in which less was sent than was asked.
    short: u32,
}

/// So often a sender may be held up.
const SHORT: u32 = 3;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// Try this rate; none: as fast as can be.
    Try(Option<f64>),
    Over(Highest),
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Highest {
    /// This rate passes, and one slightly higher does not.
    Found(f64),
    /// This one passes, and is as high as it may be, or as the sender could send.
    AtLeast(f64),
    /// Not even a rate of about this passes.
    Below(f64),
}

impl Bisection {
    /// To be as exact as this share; `most` is the highest rate to try, and `least` about the lowest.
    pub(super) fn new(precision: f64, most: Option<f64>, least: f64, tries: u32) -> Bisection {
        Bisection { passed: None, failed: None, precision, most, tries, tried: 0, least, short: 0 }
    }

    /// What to do next.
    pub(super) fn next(&self) -> Next {
        if let Some(passed) = self.passed.filter(|_| self.short >= SHORT) {
            return Next::Over(Highest::AtLeast(passed));
        }
        let Some(failed) = self.failed else {
            return match self.passed {
                Some(passed) if self.short == 0 => Next::Over(Highest::AtLeast(passed)),
                _ => Next::Try(self.most),
            };
        };
        match self.passed {
            Some(passed) if failed - passed <= failed * self.precision => {
                Next::Over(Highest::Found(passed))
            }
            Some(passed) => Next::Try(Some((passed + failed) / 2.0)),
            None if failed <= self.least => Next::Over(Highest::Below(failed)),
            // Where even little does not pass, halves would take long.
            None => Next::Try(Some((failed / 4.0).max(self.least / 2.0))),
        }
    }

    /// A trial at this rate, as it was really sent, has passed or failed.
    pub(super) fn tell(&mut self, asked: Option<f64>, sent: f64, has_passed: bool) {
        if has_passed {
            self.tried = 0;
            self.passed = Some(self.passed.map_or(sent, |passed| passed.max(sent)));
            // A sender that was held up says nothing of what was asked, so it is asked again; one that is
            // too slow stays so.
            let is_short = asked.is_some_and(|asked| sent < asked * (1.0 - self.precision));
            self.short = if is_short { self.short + 1 } else { 0 };
            return;
        }
        self.tried += 1;
        if self.tried >= self.tries {
            self.tried = 0;
            let rate = asked.map_or(sent, |asked| asked.min(sent.max(1.0)));
            self.failed = Some(self.failed.map_or(rate, |failed| failed.min(rate)));
            // One that passed before, by chance, does not count any more.
            self.passed = self.passed.filter(|passed| *passed < rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_is_held_up_is_asked_again_and_one_that_is_slow_is_said_to_be() {
        // It does a million, not ten.
        let fast = Bisection::new(0.01, Some(1e7), 10.0, 1);
        assert_eq!(search(1e9, 1e6, fast), (Highest::AtLeast(1e6), SHORT));
        let mut bisection = Bisection::new(0.01, None, 10.0, 1);
        bisection.tell(None, 1e6, false);
        assert_eq!(bisection.next(), Next::Try(Some(250_000.0)));
        bisection.tell(Some(250_000.0), 225_000.0, true);
        let Next::Try(Some(rate)) = bisection.next() else { panic!("{:?}", bisection.next()) };
        assert!(rate > 600_000.0, "{rate}");
        bisection.tell(Some(rate), rate, true);
        assert!(matches!(bisection.next(), Next::Try(Some(next)) if next > rate));
    }

    /// Searches where a device passes this rate, and a sender sends at most that one.
    fn search(device: f64, sender: f64, mut bisection: Bisection) -> (Highest, u32) {
        for trial in 0..100 {
            match bisection.next() {
                Next::Over(found) => return (found, trial),
                Next::Try(asked) => {
                    let sent = asked.map_or(sender, |asked| asked.min(sender));
                    bisection.tell(asked, sent, sent <= device);
                }
            }
        }
        panic!("it does not end: {bisection:?}");
    }

    #[test]
    fn the_highest_rate_is_found_as_exactly_as_was_asked() {
        for device in [7.0, 123.0, 50_000.0, 999_999.0] {
            for precision in [0.1, 0.01, 0.001] {
                let (found, trials) = search(device, 1e6, Bisection::new(precision, None, 10.0, 1));
                match found {
                    Highest::Found(rate) => {
                        assert!(
                            rate <= device && rate >= device * (1.0 - 2.0 * precision),
                            "{rate}"
                        );
                    }
                    Highest::Below(rate) => assert!(device < 10.0 && rate <= 10.0),
                    Highest::AtLeast(_) => panic!("{device}: {found:?}"),
                }
                assert!(trials <= 25, "{device} {precision}: {trials}");
            }
        }
    }

    #[test]
    fn what_limits_the_sender_is_no_limit_of_the_device() {
        let any = Bisection::new(0.01, None, 10.0, 1);
        assert_eq!(search(1e9, 1e6, any.clone()), (Highest::AtLeast(1e6), 1));
        let most = Bisection::new(0.01, Some(5000.0), 10.0, 1);
        assert_eq!(search(1e9, 1e6, most), (Highest::AtLeast(5000.0), 1));
        let (found, _) = search(0.0, 1e6, any);
        assert!(matches!(found, Highest::Below(rate) if rate <= 10.0), "{found:?}");
    }

    #[test]
    fn a_rate_may_fail_as_often_as_was_allowed() {
        let mut bisection = Bisection::new(0.01, Some(1000.0), 10.0, 3);
        for _ in 0..2 {
            assert_eq!(bisection.next(), Next::Try(Some(1000.0)));
            bisection.tell(Some(1000.0), 1000.0, false);
        }
        bisection.tell(Some(1000.0), 1000.0, true);
        assert_eq!(bisection.next(), Next::Over(Highest::AtLeast(1000.0)));
    }
}
