//! Numbered frames at a steady pace, to see until when frames got through: what stops them, a rule
//! for one, takes effect between the last that arrived and the next.

use std::thread;
use std::time::{Duration, Instant};

use bpf::thread::{Policy, set_own_policy};
use nix::errno::Errno;

use super::{
    FRAME_LEN,
    frames::{FrameCapture, FrameSender},
    generator::frame,
    threads::{Stop, Threads},
};
use crate::{End, Error, Result};

/// Where a frame carries its number: in the payload of its UDP datagram.
const NUMBER: usize = 14 + 20 + 8;

/// Sends 60-byte UDP frames from one host to another, and captures them there.
///
/// The thread that sends them has a real-time priority where it may have one, so that frames are
/// sent at their time beside busy programs as well.
#[derive(Debug)]
pub struct PacedFrames {
    capture: FrameCapture,
    threads: Threads<Result<Vec<Instant>>>,
}

impl PacedFrames {
    /// Starts to send a frame each `every`.
    ///
    /// # Errors
    /// As [`FrameSender::open`] and [`FrameCapture::open`].
    pub fn start(from: &End, to: &End, every: Duration) -> Result<Self> {
        let sender = FrameSender::open(&from.host, &from.device)?;
        let capture = FrameCapture::open(&to.host, &to.device)?;
        let bytes = frame(from.mac, to.mac);
        let mut threads = Threads::new()?;
        threads.start(&from.host, "paced", None, move |stop| {
            // Above that of what it watches; where it may have none, it goes on without one.
            let _ = set_own_policy(Policy::Realtime(10));
            send(&sender, bytes, every, stop)
        })?;
        Ok(Self { capture, threads })
    }

    /// Ends it, and returns when the last of those that arrived was sent; none if none arrived.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if frames could not be sent, or captured.
    pub fn last(mut self) -> Result<Option<Instant>> {
        let sent = self.threads.finish().pop();
        let sent = sent.ok_or_else(|| Error::invalid("the thread that sends has panicked"))??;
        let frames = self.capture.waiting()?;
        let numbers = frames.iter().filter_map(|frame| {
            let number = frame.bytes.get(NUMBER..NUMBER + 4)?.try_into().ok()?;
            (frame.bytes.len() == FRAME_LEN).then(|| u32::from_be_bytes(number) as usize)
        });
        Ok(numbers.filter_map(|number| sent.get(number).copied()).max())
    }
}

fn send(
    sender: &FrameSender,
    mut frame: Vec<u8>,
    every: Duration,
    stop: &Stop,
) -> Result<Vec<Instant>> {
    let mut sent = Vec::new();
    while !stop.is_set() {
        let number = u32::try_from(sent.len()).unwrap_or(u32::MAX);
        frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
        sent.push(Instant::now());
        match sender.try_send(&frame) {
            // One that finds no room, as on a machine whose CPUs are busy, is one that is lost.
            Ok(()) | Err(Errno::ENOBUFS) => {}
            Err(error) => return Err(Error::io("sending frames at a pace", error)),
        }
        thread::sleep(every);
    }
    Ok(sent)
}
