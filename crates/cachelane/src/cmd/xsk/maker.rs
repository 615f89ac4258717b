//! Makes the packets that a sender sends, when they are due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::{Frame, LaneCache};
use rand::random;
use xsk::Packet;

use super::flows::Flows;
use super::pacer::{Pacer, Pacing};
use super::probe::{Probe, Stream, monotonic};
use super::template::Template;

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
    fn end(&mut self);
}

/// Packets of a template.
pub(super) struct Templated {
    template: Arc<Template>,
    flows: Flows,
    stream: Stream,
    /// The next packet's number in this thread.
    pub(super) number: u64,
    /// How many packets are waited for at the rate.
    pub(super) burst: usize,
    pacer: Pacer,
    /// Where it is written down how well the rate was kept.
    pub(super) pacing: Pacing,
    renews: bool,
    frames: Vec<Frame>,
}

impl Templated {
    /// The packets of one of so many threads, at its rate. `renews`: frames hold what was received in
    /// between.
    pub(super) fn new(
        template: &Arc<Template>,
        (thread, threads): (usize, usize),
        streams: Streams,
        rate: f64,
        renews: bool,
    ) -> Templated {
        let stream = streams.of_thread(thread, template);
        Templated {
            template: Arc::clone(template),
            flows: template.flows().of_thread(thread, threads, stream.id()),
            stream,
            number: 0,
            burst: Templated::usual_burst(rate),
            pacer: Pacer::new(rate),
            pacing: Pacing::default(),
            renews,
            frames: Vec::new(),
        }
    }

    /// How many packets are waited for: what a thread handles that is awake every 200 microseconds.
    pub(super) fn usual_burst(rate: f64) -> usize {
        ((rate / 5000.0) as usize).max(1)
    }
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

    fn end(&mut self) {
        self.pacer.end(&self.pacing);
    }
}

impl Templated {
    /// Writes the next packet where one was; its length.
    #[inline]
    fn write(&mut self, bytes: &mut [u8], nanoseconds: u64) -> usize {
        let probe = Probe { stream: self.stream, number: self.number, nanoseconds };
        let probe = self.template.probes().then_some(&probe);
        if self.renews {
            self.template.renew(bytes, self.number);
        }
        let len = self.template.stamp(bytes, self.number, self.flows.next(), probe);
        self.number += 1;
        len
    }

    fn varied(&mut self, cache: &LaneCache, packets: &mut Vec<Packet>) {
        let (area, time) = (cache.pool().area(), self.time());
        let mut frames = std::mem::take(&mut self.frames);
        for mut frame in frames.drain(..) {
            let len = self.write(area.bytes_mut(&mut frame), time);
            packets.push(Packet::new(frame, len as u32));
        }
        self.frames = frames;
    }

    /// Packets that need several frames, or might. Any frame has held any part, so all is written.
    fn in_parts(&mut self, made: usize, cache: &mut LaneCache, packets: &mut Vec<Packet>) {
        let (mut bytes, time) = (self.template.bytes().to_vec(), self.time());
        for _ in 0..made {
            let len = self.write(&mut bytes, time);
            write_parts(&bytes[..len], cache, &mut self.frames, packets);
        }
        self.frames.drain(..).for_each(|frame| cache.put(frame));
    }

    /// The time that probes have.
    fn time(&self) -> u64 {
        if self.template.probes() { monotonic() } else { 0 }
    }
}

/// The streams of a run: one for each thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    first: u32,
    threads: u32,
}

impl Streams {
    const IDS: u32 = 1 << Stream::IDS;

    pub(super) fn new(threads: usize) -> Streams {
        Streams { first: random::<u32>() % Self::IDS, threads: threads as u32 }
    }

    /// The one of a thread that sends packets of this template.
    pub(super) fn of_thread(self, thread: usize, template: &Template) -> Stream {
        let flows = template.flows();
        let id = self.first.wrapping_add(thread as u32) % Self::IDS;
        Stream::new(id, flows.known(), flows.is_random() && flows.known() > 1)
    }

    /// Whether a stream is one of them.
    pub(super) fn have(self, stream: Stream) -> bool {
        stream.id().wrapping_sub(self.first) % Self::IDS < self.threads
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
