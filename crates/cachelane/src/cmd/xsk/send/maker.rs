//! Makes the packets that a sender sends, when they are due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::{Frame, LaneCache};
use xsk::Packet;

use super::super::flows::Flows;
use super::super::pacer::{Pacer, Pacing};
use super::super::probe::{Probe, monotonic};
use super::super::template::Template;

/// Something that makes packets.
pub(super) trait Make: Send {
    /// How many packets are due, at most `most`.
    fn due(&mut self, now: Instant, most: usize) -> anyhow::Result<usize>;

    /// Makes so many, fewer where there are not the frames; adds them to `packets`, and says how many.
    fn make(
        &mut self,
        now: Instant,
        count: usize,
        cache: &mut LaneCache,
        packets: &mut Vec<Packet>,
    ) -> usize;

    /// How long it is until more are due.
    fn wait(&self, now: Instant) -> Duration;

    /// Whether there are no more.
    fn is_over(&self) -> bool {
        false
    }

    /// Writes down what came of it.
    fn end(&mut self, now: Instant);
}

/// Packets of a template.
pub(super) struct Templated {
    pub(super) template: Arc<Template>,
    pub(super) flows: Flows,
    pub(super) stream: u32,
    /// The next packet's number in the stream.
    pub(super) number: u64,
    /// How many packets are waited for at the rate.
    pub(super) burst: usize,
    pub(super) pacer: Pacer,
    pub(super) pacing: Pacing,
    pub(super) frames: Vec<Frame>,
}

impl Make for Templated {
    fn due(&mut self, now: Instant, most: usize) -> anyhow::Result<usize> {
        Ok(self.pacer.due(now, most))
    }

    fn make(
        &mut self,
        now: Instant,
        count: usize,
        cache: &mut LaneCache,
        packets: &mut Vec<Packet>,
    ) -> usize {
        let longest = self.template.bytes().len();
        let parts = longest.div_ceil(cache.pool().area().frame_size() as usize);
        cache.get_bulk(count * parts, &mut self.frames);
        let made = self.frames.len() / parts;
        for frame in self.frames.drain(made * parts..) {
            cache.put(frame);
        }
        self.pacer.sent(made, now);
        if parts > 1 {
            self.in_parts(made, cache, packets);
        } else if self.template.is_constant() {
            packets.extend(self.frames.drain(..).map(|frame| Packet::new(frame, longest as u32)));
        } else {
            self.varied(cache, packets);
        }
        made
    }

    fn wait(&self, now: Instant) -> Duration {
        self.pacer.wait(now, self.burst)
    }

    fn end(&mut self, now: Instant) {
        self.pacer.end(now, &self.pacing);
    }
}

impl Templated {
    fn probe(&self) -> Option<Probe> {
        let stream = self.stream;
        self.template.probes().then(|| Probe { stream, number: 0, nanoseconds: monotonic() })
    }

    fn varied(&mut self, cache: &LaneCache, packets: &mut Vec<Packet>) {
        let area = cache.pool().area();
        let mut probe = self.probe();
        for mut frame in self.frames.drain(..) {
            if let Some(probe) = &mut probe {
                probe.number = self.number;
            }
            let (bytes, flow) = (area.bytes_mut(&mut frame), self.flows.next());
            let len = self.template.stamp(bytes, self.number, flow, probe.as_ref());
            self.number += 1;
            packets.push(Packet::new(frame, len as u32));
        }
    }

    /// Packets that need several frames, or might. Any frame has held any part, so all is written.
    fn in_parts(&mut self, made: usize, cache: &mut LaneCache, packets: &mut Vec<Packet>) {
        let mut bytes = self.template.bytes().to_vec();
        let mut probe = self.probe();
        for _ in 0..made {
            if let Some(probe) = &mut probe {
                probe.number = self.number;
            }
            let flow = self.flows.next();
            let len = self.template.stamp(&mut bytes, self.number, flow, probe.as_ref());
            self.number += 1;
            write_parts(&bytes[..len], cache, &mut self.frames, packets);
        }
        self.frames.drain(..).for_each(|frame| cache.put(frame));
    }
}

/// Writes a packet into as many frames as it needs. There have to be so many.
pub(super) fn write_parts(
    bytes: &[u8],
    cache: &LaneCache,
    frames: &mut Vec<Frame>,
    packets: &mut Vec<Packet>,
) {
    let area = cache.pool().area();
    for part in bytes.chunks(area.frame_size() as usize) {
        let Some(mut frame) = frames.pop() else { return };
        area.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
        packets.push(Packet { frame, offset: 0, len: part.len() as u32, more: true });
    }
    if let Some(last) = packets.last_mut() {
        last.more = false;
    }
}
