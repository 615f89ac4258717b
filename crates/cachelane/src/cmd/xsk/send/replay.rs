//! Sends the packets of a capture file: when they were recorded, or at a rate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use frames::{Frame, LaneCache};
use kit::Mac;
use parking_lot::Mutex;
use serde_json::json;
use xsk::Packet;

use super::super::maker::{Make, write_parts};
use super::super::pacer::ARREARS;
use super::super::times::Times;
use super::super::values::Rate;
use super::capture::{Chunk, Recorded};
use crate::packets::job::{Beside, Report};

/// When packets are due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timing {
    /// As they were recorded, so many times as fast.
    Recorded(f64),
    Rate(Rate),
}

/// Keeps the times of a recording.
#[derive(Debug)]
struct Recording {
    speed: f64,
    /// When the packet that was recorded at this time, in nanoseconds, was sent. A sender that is held
    /// up goes on from there.
    from: Option<(Instant, u64)>,
}

impl Recording {
    fn new(speed: f64) -> Recording {
        Recording { speed, from: None }
    }

    /// How late a packet is that was recorded at this time; none if it is not due.
    fn late(&mut self, nanoseconds: u64, now: Instant) -> Option<Duration> {
        let (from, first) = *self.from.get_or_insert((now, nanoseconds));
        let since = nanoseconds.saturating_sub(first);
        let late = now.checked_duration_since(self.at(from, since))?;
        if late > ARREARS {
            self.from = Some((now, nanoseconds));
        }
        Some(late)
    }

    fn at(&self, from: Instant, since: u64) -> Instant {
        const LONGEST: Duration = Duration::from_secs(1 << 30);
        let since = Duration::try_from_secs_f64(since as f64 / 1e9 / self.speed);
        from + since.unwrap_or(LONGEST).min(LONGEST)
    }

    fn wait(&self, nanoseconds: u64, now: Instant) -> Duration {
        let Some((from, first)) = self.from else { return Duration::ZERO };
        self.at(from, nanoseconds.saturating_sub(first)).saturating_duration_since(now)
    }
}

/// A file that is sent.
pub(super) struct Replay {
    pub(super) chunks: Receiver<anyhow::Result<Chunk>>,
    pub(super) timing: Timing,
    /// Addresses that packets get instead of their own: to send to, and from.
    pub(super) macs: [Option<Mac>; 2],
    /// The longest packet that can be sent.
    pub(super) longest: usize,
    pub(super) outcome: Replayed,
    state: State,
}

/// How far it is.
struct State {
    /// With a rate, the times are those of the rate.
    recording: Recording,
    /// The time of the next packet at a rate, in nanoseconds.
    clock: f64,
    chunk: Chunk,
    /// The next packet of it, the one up to which they are due, and the one up to which it is noted how
    /// late they were.
    at: usize,
    until: usize,
    noted: usize,
    is_over: bool,
    lateness: Times,
    counts: Counts,
    frames: Vec<Frame>,
}

/// What a replay came to.
#[derive(Clone, Default)]
pub(super) struct Replayed {
    path: PathBuf,
    counts: Arc<Mutex<(Counts, Option<Times>)>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Only a part of them was recorded, which was sent.
    cut: u64,
    /// Not sent: longer than the device takes.
    too_long: u64,
    /// Not sent: shorter than an Ethernet header.
    too_short: u64,
    /// Not sent: not of Ethernet.
    other: u64,
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

impl Replayed {
    pub(super) fn new(path: PathBuf) -> Replayed {
        Replayed { path, ..Replayed::default() }
    }
}

impl Replay {
    pub(super) fn new(
        chunks: Receiver<anyhow::Result<Chunk>>,
        timing: Timing,
        macs: [Option<Mac>; 2],
        longest: usize,
        outcome: Replayed,
    ) -> Replay {
        let speed = if let Timing::Recorded(speed) = timing { speed } else { 1.0 };
        let state = State {
            recording: Recording::new(speed),
            clock: 0.0,
            chunk: Chunk::default(),
            at: 0,
            until: 0,
            noted: 0,
            is_over: false,
            lateness: Times::default(),
            counts: Counts::default(),
            frames: Vec::new(),
        };
        Replay { chunks, timing, macs, longest, outcome, state }
    }

    /// Gives the packets of a chunk the times of the rate, if there is one.
    fn schedule(&mut self) {
        let Timing::Rate(rate) = self.timing else { return };
        let (state, mut start) = (&mut self.state, 0);
        for packet in &mut state.chunk.packets {
            let bytes = packet.end - start;
            start = packet.end;
            packet.nanoseconds = state.clock as u64;
            state.clock += match rate {
                Rate::Unlimited => 0.0,
                rate => 1e9 / rate.packets(bytes.max(1) as f64),
            };
        }
    }

    /// Has a packet at hand, if there is one that was read.
    fn is_ready(&mut self) -> anyhow::Result<bool> {
        while self.state.at == self.state.chunk.packets.len() {
            let state = &mut self.state;
            state.chunk = match self.chunks.try_recv() {
                Ok(chunk) => chunk?,
                Err(error) => {
                    state.is_over = error == TryRecvError::Disconnected;
                    return Ok(false);
                }
            };
            (state.at, state.until, state.noted) = (0, 0, 0);
            if state.chunk.begins && matches!(self.timing, Timing::Recorded(_)) {
                // The file begins anew, and so do its times.
                state.recording.from = None;
            }
            self.schedule();
        }
        Ok(true)
    }

    /// Whether a packet of so many bytes cannot be sent, and is counted.
    fn is_skipped(&mut self, packet: Recorded, len: usize) -> bool {
        let counts = &mut self.state.counts;
        let count = match len {
            _ if packet.is_other => &mut counts.other,
            ..ETHERNET => &mut counts.too_short,
            len if len > self.longest => &mut counts.too_long,
            _ => return false,
        };
        *count += 1;
        true
    }
}

impl Make for Replay {
    fn due(&mut self, now: Instant, most: usize) -> anyhow::Result<usize> {
        if !self.is_ready()? {
            return Ok(0);
        }
        let state = &mut self.state;
        state.until = state.at;
        for packet in state.chunk.packets[state.at..].iter().take(most) {
            let Some(late) = state.recording.late(packet.nanoseconds, now) else { break };
            state.until += 1;
            if state.until > state.noted {
                state.noted = state.until;
                state.lateness.add(late, 1);
            }
        }
        Ok(state.until - state.at)
    }

    fn make(
        &mut self,
        _: Instant,
        count: usize,
        cache: &mut LaneCache,
        packets: &mut Vec<Packet>,
    ) -> usize {
        let size = cache.pool().area().frame_size() as usize;
        let mut made = 0;
        while made < count && self.state.at < self.state.until {
            let state = &mut self.state;
            let packet = state.chunk.packets[state.at];
            let start = state.at.checked_sub(1).map_or(0, |before| state.chunk.packets[before].end);
            if self.is_skipped(packet, packet.end - start) {
                self.state.at += 1;
                continue;
            }
            let state = &mut self.state;
            let bytes = &mut state.chunk.bytes[start..packet.end];
            let parts = bytes.len().div_ceil(size);
            cache.get_bulk(parts, &mut state.frames);
            if state.frames.len() < parts {
                state.frames.drain(..).for_each(|frame| cache.put(frame));
                break;
            }
            for (at, mac) in [0, 6].into_iter().zip(self.macs) {
                if let Some(mac) = mac {
                    bytes[at..at + 6].copy_from_slice(&mac.0);
                }
            }
            write_parts(bytes, cache, &mut state.frames, packets);
            state.counts.cut += u64::from(packet.is_cut);
            state.at += 1;
            made += 1;
        }
        made
    }

    fn wait(&self, now: Instant) -> Duration {
        /// Until the file has been read on.
        const READING: Duration = Duration::from_millis(1);
        let State { chunk, at, recording, .. } = &self.state;
        chunk.packets.get(*at).map_or(READING, |packet| recording.wait(packet.nanoseconds, now))
    }

    fn is_over(&self) -> bool {
        self.state.is_over
    }

    fn end(&mut self) {
        let has_times = !matches!(self.timing, Timing::Rate(Rate::Unlimited));
        let lateness = std::mem::take(&mut self.state.lateness);
        *self.outcome.counts.lock() = (self.state.counts, has_times.then_some(lateness));
    }
}

impl Beside for Replayed {
    fn add_to(&self, report: &mut Report) {
        let (Counts { cut, too_long, too_short, other }, lateness) = &*self.counts.lock();
        report.fields["pcap"] = json!({
            "file": self.path.display().to_string(),
            "cut": cut,
            "too_long": too_long,
            "too_short": too_short,
            "other": other,
        });
        for (count, what) in [
            (cut, "were recorded in part, and sent so"),
            (too_long, "were not sent: longer than the device or a frame takes"),
            (too_short, "were not sent: shorter than an Ethernet header"),
            (other, "were not sent: not of Ethernet"),
        ] {
            if *count > 0 {
                report.lines.push(format!("{count} packets {what}"));
            }
        }
        if let Some(lateness) = lateness {
            report.lines.push(format!("late: {}", lateness.text()));
            report.fields["late_us"] = lateness.object();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_when_they_were_recorded() {
        let start = Instant::now();
        let after = |micros: u64| start + Duration::from_micros(micros);
        let mut recording = Recording::new(2.0);
        assert_eq!(recording.late(1_000_000, start), Some(Duration::ZERO));
        // A millisecond later, at twice the speed.
        assert_eq!(recording.late(2_000_000, after(499)), None);
        assert_eq!(recording.wait(2_000_000, after(499)), Duration::from_micros(1));
        assert_eq!(recording.late(2_000_000, after(503)), Some(Duration::from_micros(3)));
        // It was held up for long: what follows keeps its distance.
        assert_eq!(recording.late(3_000_000, after(101_000)), Some(Duration::from_millis(100)));
        assert_eq!(recording.late(4_000_000, after(101_400)), None);
        assert_eq!(recording.late(4_000_000, after(101_500)), Some(Duration::ZERO));
    }

    /// A short file over and over keeps its times each time.
    #[test]
    fn each_pass_of_a_file_has_its_times() {
        let (to, chunks) = std::sync::mpsc::sync_channel(4);
        let recorded =
            |nanoseconds, end| Recorded { end, nanoseconds, is_cut: false, is_other: false };
        for _ in 0..3 {
            let packets = vec![recorded(1_000, 60), recorded(4_001_000, 120)];
            to.send(Ok(Chunk { bytes: vec![0; 120], packets, begins: true })).expect("room");
        }
        let (timing, outcome) = (Timing::Recorded(1.0), Replayed::default());
        let mut replay = Replay::new(chunks, timing, [None; 2], 1514, outcome);
        let start = Instant::now();
        for pass in 0..3 {
            let now = start + Duration::from_millis(4 * pass);
            assert_eq!(replay.due(now, 8).expect("a packet"), 1, "{pass}");
            replay.state.at += 1;
            assert_eq!(replay.due(now, 8).expect("none"), 0, "{pass}");
            assert_eq!(replay.wait(now), Duration::from_millis(4), "{pass}");
            assert_eq!(
                replay.due(now + Duration::from_millis(4), 8).expect("a packet"),
                1,
                "{pass}"
            );
            replay.state.at += 1;
        }
        assert_eq!(replay.state.lateness.object()["max"], 0.0);
    }

    #[test]
    fn a_recording_of_years_does_not_overflow() {
        let (start, mut recording) = (Instant::now(), Recording::new(1e-9));
        assert_eq!(recording.late(0, start), Some(Duration::ZERO));
        assert_eq!(recording.late(u64::MAX, start), None);
        assert!(recording.wait(u64::MAX, start) > Duration::from_secs(1 << 20));
    }
}
