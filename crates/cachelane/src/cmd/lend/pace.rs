//! How a queue's thread waits for packets, by how many come.
//!
//! To wake a thread for a packet costs more than the packet does, and the lender has three to wake: its
//! own, the borrower's waker, and the borrower. So where a nap gathers some packets, the thread naps: its
//! own timer wakes it, no sender pays for that, and each borrower is woken once for all that came. Where
//! packets are few, none waits: the thread sleeps until one is there.
//!
//! A nap is so short that the ring, and a borrower's quota, hold what comes meanwhile: what came lately
//! fills a quarter of them, and a burst of [`BURST`] on top of little traffic fits. After silence there
//! is no nap for two windows, so that a burst of any size finds a thread that looks.
//!
//! A sender that waits for answers sends less the longer its packets wait. Then naps gather nothing, and
//! the thread leaves them be, each time for twice as long.

use std::time::{Duration, Instant};

use crate::packets::idle::LONGEST;

/// Packets that a nap has to gather.
const WORTH: u32 = 2;

/// A nap that gathers twice as many is cut in half.
const ENOUGH: f64 = 24.0;

/// Packets a second that may come out of nothing: 3 Gbit/s, if they have 1,500 bytes.
const BURST: f64 = 250_000.0;

/// How much of the room packets may take that come as lately.
const PART: f64 = 0.25;

/// Shorter naps are none. That is the case with a million packets a second and room for 1024; such a
/// thread has no reason to sleep.
const SHORTEST: Duration = Duration::from_micros(250);

/// Packets are counted for as long as two naps take, and at least this long, to know their rate. There
/// are two such windows, the last that are over; naps have to be worth it by both, and safe by both.
const WINDOW: Duration = Duration::from_millis(16);

/// A window that takes so many times longer has silence in it: of what comes after, nothing is known.
const SILENT: u32 = 4;

/// So many naps in vain, one after the other, and there is none for this long at first.
const VAIN: u32 = 2;
const NONE_AT_FIRST: Duration = Duration::from_millis(16);
const NONE_AT_MOST: Duration = Duration::from_secs(1);

/// What the thread does once it finds nothing more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It sleeps until there are packets.
    Sleep,
    /// It sleeps for so long, whatever comes.
    Nap(Duration),
}

/// Decides how a thread rests.
#[derive(Debug)]
pub(super) struct Pace {
    /// The longest nap.
    longest: Duration,
    window: Duration,
    /// Packets that have room while it naps.
    room: f64,
    /// Packets since the last rest.
    packets: u32,
    /// Packets in this window before that, and when it began.
    counted: u32,
    began: Option<Instant>,
    /// Packets a second in the last two windows.
    rates: [f64; 2],
    /// The last rest, if it was a nap.
    napped: Option<Duration>,
    /// Naps in vain, one after the other.
    vain: u32,
    /// Until when there is none, and how long that is the next time.
    none_until: Option<Instant>,
    none_for: Duration,
}

impl Pace {
    /// One under which no packet waits for longer than `delay` for others, where there is room for so
    /// many packets. No delay: none waits at all.
    pub(super) fn new(delay: Duration, room: u32) -> Pace {
        let room = f64::from(room);
        let longest = delay.min(Duration::from_secs_f64(room / BURST)).min(LONGEST);
        Pace {
            longest,
            window: WINDOW.max(2 * longest),
            room,
            packets: 0,
            counted: 0,
            began: None,
            rates: [0.0; 2],
            napped: None,
            vain: 0,
            none_until: None,
            none_for: NONE_AT_FIRST,
        }
    }

    /// So many packets came.
    pub(super) fn came(&mut self, packets: usize) {
        self.packets = self.packets.saturating_add(packets as u32);
    }

    /// How to rest now that there is nothing more to do.
    pub(super) fn rest(&mut self, now: Instant) -> Rest {
        let packets = std::mem::take(&mut self.packets);
        self.count(packets, now);
        let mut most = self.rates[0].max(self.rates[1]);
        if let Some(nap) = self.napped {
            self.judge(packets, now);
            most = most.max(f64::from(packets) / nap.as_secs_f64());
        }
        let filled = Duration::from_secs_f64((self.room * PART / most.max(1.0)).min(1.0));
        let least = self.rates[0].min(self.rates[1]);
        let half = self.longest / 2;
        let is_enough = least * half.as_secs_f64() >= ENOUGH;
        let nap = if is_enough { half } else { self.longest }.min(filled);
        let gathers = least * nap.as_secs_f64();
        let may = self.none_until.is_none_or(|until| now >= until);
        let naps = may && gathers >= f64::from(WORTH) && nap >= SHORTEST;
        self.napped = naps.then_some(nap);
        self.napped.map_or(Rest::Sleep, Rest::Nap)
    }

    /// Counts packets in this window, and begins the next one if it is over.
    fn count(&mut self, packets: u32, now: Instant) {
        let began = *self.began.get_or_insert(now);
        self.counted = self.counted.saturating_add(packets);
        let span = now.saturating_duration_since(began);
        if span < self.window {
            return;
        }
        self.rates = match span < SILENT * self.window {
            true => [self.rates[1], f64::from(self.counted) / span.as_secs_f64()],
            // There was silence in it.
            false => [0.0; 2],
        };
        (self.counted, self.began) = (0, Some(now));
    }

    /// What came of a nap.
    fn judge(&mut self, packets: u32, now: Instant) {
        if packets >= WORTH {
            (self.vain, self.none_for) = (0, NONE_AT_FIRST);
            return;
        }
        self.vain += 1;
        if self.vain == VAIN {
            self.vain = 0;
            self.none_until = Some(now + self.none_for);
            self.none_for = (self.none_for * 2).min(NONE_AT_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(8);

    /// What a thread did while packets came.
    #[derive(Debug, Default)]
    struct Seen {
        packets: u32,
        rests: u32,
        naps: u32,
        /// The longest that one waited, and the most that waited at a time.
        wait: Duration,
        most: u32,
    }

    /// A thread that takes no time for what it does, on a clock that only its rests move.
    struct Thread {
        pace: Pace,
        now: Instant,
    }

    impl Thread {
        fn new(delay: Duration, room: u32) -> Thread {
            Thread { pace: Pace::new(delay, room), now: Instant::now() }
        }

        /// Rests and takes packets that come at these times from now on, until there are no more.
        fn takes(&mut self, times: impl IntoIterator<Item = Duration>) -> Seen {
            let (from, mut seen) = (self.now, Seen::default());
            let mut times = times.into_iter().map(|time| from + time).peekable();
            while let Some(&next) = times.peek() {
                seen.rests += 1;
                match self.pace.rest(self.now) {
                    Rest::Sleep => self.now = self.now.max(next),
                    Rest::Nap(nap) => {
                        seen.naps += 1;
                        self.now += nap;
                    }
                }
                let mut waited = 0;
                while let Some(came) = times.next_if(|came| *came <= self.now) {
                    seen.wait = seen.wait.max(self.now - came);
                    waited += 1;
                }
                self.pace.came(waited as usize);
                seen.packets += waited;
                seen.most = seen.most.max(waited);
            }
            seen
        }

        fn takes_at(&mut self, rate: u32, packets: u32) -> Seen {
            let gap = Duration::from_secs(1) / rate;
            self.takes((1..=packets).map(|at| gap * at))
        }
    }

    #[test]
    fn few_packets_wait_for_nobody() {
        for rate in [1, 10, 100, 200] {
            let seen = Thread::new(DELAY, 2048).takes_at(rate, 1000);
            assert_eq!((seen.wait, seen.naps, seen.rests), (Duration::ZERO, 0, 1000), "{rate}");
        }
    }

    #[test]
    fn where_a_nap_gathers_some_wakes_are_few_and_no_packet_waits_longer_than_the_delay() {
        for (rate, part) in
            [(500, 1), (1_000, 1), (2_000, 1), (10_000, 2), (50_000, 2), (100_000, 2)]
        {
            let mut thread = Thread::new(DELAY, 2048);
            // It finds the rate.
            thread.takes_at(rate, rate / 20);
            let seen = thread.takes_at(rate, rate);
            assert!(seen.rests <= 130 * part, "{rate}: {seen:?}");
            assert!(seen.wait <= DELAY / part, "{rate}: {seen:?}");
        }
    }

    #[test]
    fn at_every_rate_the_room_holds_what_comes() {
        for room in [256, 1024, 2048, 8192] {
            for rate in [1_000, 30_000, 300_000, 1_000_000, 4_000_000] {
                let seen = Thread::new(DELAY, room).takes_at(rate, rate / 4);
                assert_eq!(seen.packets, rate / 4);
                assert!(seen.most <= room / 2, "{room}, {rate}: {seen:?}");
            }
        }
    }

    #[test]
    fn a_burst_fits_whatever_came_before() {
        for before in [0, 100, 1_000, 10_000] {
            for room in [256, 1024, 2048] {
                let mut thread = Thread::new(DELAY, room);
                if before > 0 {
                    thread.takes_at(before, before);
                }
                let seen = thread.takes_at(BURST as u32, 10_000);
                assert!(seen.most <= room, "{before}, {room}: {seen:?}");
            }
        }
    }

    #[test]
    fn after_silence_a_burst_of_any_size_finds_a_thread_that_looks() {
        let mut thread = Thread::new(DELAY, 2048);
        assert!(thread.takes_at(100_000, 100_000).naps > 0);
        // It finds out that nothing comes any more.
        let naps = |thread: &mut Thread| match thread.pace.rest(thread.now) {
            Rest::Sleep => false,
            Rest::Nap(nap) => {
                thread.now += nap;
                true
            }
        };
        let in_vain = (0..).take_while(|_| naps(&mut thread)).count();
        assert!(in_vain <= 4, "{in_vain}");
        let silence = Duration::from_millis(100);
        let burst = (0..20_000).map(|at| silence + Duration::from_nanos(250) * at);
        let seen = thread.takes(burst);
        assert_eq!((seen.wait, seen.naps), (Duration::ZERO, 0), "{seen:?}");
    }

    #[test]
    fn who_waits_for_an_answer_before_it_sends_more_is_kept_waiting_seldom() {
        const GAP: Duration = Duration::from_micros(50);
        let (start, mut pace) = (Instant::now(), Pace::new(DELAY, 2048));
        let (mut now, mut answers) = (start, 0);
        while now < start + Duration::from_secs(10) {
            now += match pace.rest(now) {
                Rest::Sleep => GAP,
                Rest::Nap(nap) => nap,
            };
            pace.came(1);
            answers += 1;
        }
        // Of 200,000 that there are without naps.
        assert!(answers > 185_000, "{answers}");
    }

    #[test]
    fn a_long_delay_with_much_room_makes_long_naps() {
        let mut thread = Thread::new(Duration::from_secs(1), 1 << 20);
        thread.takes_at(200, 200);
        let seen = thread.takes_at(200, 200);
        assert!(seen.rests <= 25 && seen.wait <= LONGEST, "{seen:?}");
    }

    #[test]
    fn without_a_delay_there_are_no_naps() {
        for rate in [1_000, 100_000] {
            let seen = Thread::new(Duration::ZERO, 2048).takes_at(rate, rate);
            assert_eq!((seen.wait, seen.naps), (Duration::ZERO, 0));
        }
    }
}
