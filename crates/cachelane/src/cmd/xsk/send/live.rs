//! Sending by XDP frames that the kernel makes: [`xsk::LiveSender`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use xsk::{
    Device, ErrorKind, LIVE_LONGEST, LIVE_SLOWEST, LivePackets, LiveSender, LiveSent, LiveStop,
    check_live, prefers_live,
};

use super::super::maker::Streams;
use super::super::template::Template;
use super::{Args, Engine};
use crate::exit::{Exit, usage};
use crate::out;
use crate::packets::carrier::Carrier;
use crate::packets::job::{Beside, Ground, Job, Report};
use crate::packets::session::{Context, Work};
use crate::packets::setup::idle_program;
use crate::privileges;

/// How long one call is to take: so often figures are new. Between two calls nothing is sent for some
/// milliseconds.
const CALL: Duration = Duration::from_millis(500);

/// Packets of the first call, and the most of one.
const FIRST: usize = 1 << 16;
const MOST: usize = 1 << 22;

/// Whether packets are to be sent this way.
pub(super) fn is_chosen(args: &Args, device: &Device, template: &Template) -> anyhow::Result<bool> {
    let burst = args.packets.burst.map(|_| "--burst");
    let latency = args.latency.then_some("--latency");
    let for_sockets = args.common.for_sockets().or(burst).or(latency);
    let size = template.bytes().len();
    match args.engine {
        Engine::Socket => Ok(false),
        Engine::Auto => {
            let may = for_sockets.is_none() && template.not_live().is_none();
            let may = may && size <= LIVE_LONGEST && !is_too_slow(args, template)?;
            Ok(may && prefers_live(device) && privileges::require("", privileges::LIVE).is_ok())
        }
        Engine::Live => match for_sockets {
            Some(option) => Err(usage(format!(
                "{option} is for sockets: expected --engine socket, or no {option}"
            ))),
            None if size > LIVE_LONGEST => Err(usage(format!(
                "--size {size}: a live frame has at most {LIVE_LONGEST} bytes (expected no more, or \
                 --engine socket)"
            ))),
            None if is_too_slow(args, template)? => Err(usage(format!(
                "--rate {}: live frames go at {LIVE_SLOWEST} a second or more from each thread \
                 (expected that, or --engine socket)",
                args.packets.rate()
            ))),
            None => match template.not_live() {
                Some(option) => Err(usage(format!(
                    "{option}: live frames are UDP packets of one size, of which the ports vary in \
                     turn (expected such, or --engine socket)"
                ))),
                None => Ok(true),
            },
        },
    }
}

/// Whether each thread has a rate that is too low.
fn is_too_slow(args: &Args, template: &Template) -> anyhow::Result<bool> {
    let rate = rate(args, template) / args.common.places.each()?.len() as f64;
    Ok(rate > 0.0 && rate < LIVE_SLOWEST)
}

/// Packets a second of all threads.
fn rate(args: &Args, template: &Template) -> f64 {
    args.packets.rate().packets(template.bytes().len() as f64)
}

/// Sends from a thread for each CPU that was given, or from one.
pub(super) fn run(
    args: &Args,
    device: &Device,
    template: &Arc<Template>,
    what: &str,
    quiet: bool,
) -> anyhow::Result<Exit> {
    xsk::check_kernel()?;
    let places = args.common.places.each()?;
    let way = format!("live frames out of {device}, without socket buffers");
    if args.common.dry_run {
        let would = [format!("would send {what}"), format!("would send {way}")];
        return out::dry_run(would.to_vec()).map(|_| Exit::Ok);
    }
    privileges::require("sending live frames", privileges::LIVE)?;
    let carrier = Carrier::of([device])?;
    // Some cards take frames only with a program on them.
    let is_card = device.kind()?.is_none();
    let idle = if is_card && check_live(device).is_err() { idle_program(device)? } else { None };
    check_live(device).context("--engine live")?;
    carrier.iter().try_for_each(Carrier::wait)?;
    let (threads, stops) = (places.len(), Stops::default());
    let streams = Streams::new(threads);
    let sender = |number: usize| {
        let stream = streams.of_thread(number, template);
        let rate = rate(args, template) / threads as f64;
        let packets = LivePackets { rate, ..template.live(number, threads, stream) };
        let (device, stops) = (device.clone(), Arc::clone(&stops.all));
        Box::new(move |context: &mut Context| {
            let sender = LiveSender::new(&device, &packets)?;
            stops.lock().push(sender.stop());
            let bytes = packets.packet.len() as u64;
            let (call, sent, refused) = (FIRST, LiveSent::default(), 0);
            Sender { device, sender, call, bytes, sent, refused }.run(context)
        }) as Work
    };
    let works = (0..threads).map(sender).collect();
    let job = Job {
        process: "xsk",
        command: "send",
        announcement: format!("sending {what}, as live frames"),
        beside: &(stops, template.bytes().len()),
    };
    let ground = Ground {
        args: &args.common,
        devices: vec![device.name()],
        pool: None,
        queues: &[],
        places: &places,
        programs: Vec::new(),
        idle_programs: idle.into_iter().collect(),
        in_force: vec![way],
    };
    ground.run(works, job, quiet)
}

/// What ends the threads' calls.
#[derive(Debug, Default)]
struct Stops {
    all: Arc<Mutex<Vec<LiveStop>>>,
}

/// With the size of a packet.
impl Beside for (Stops, usize) {
    fn ending(&self) {
        // A thread that is not stopped goes on to the end of its call, and that is all.
        self.0.all.lock().iter().for_each(|stop| drop(stop.stop()));
    }

    fn add_to(&self, report: &mut Report) {
        report.fields["size"] = self.1.into();
    }
}

/// One thread's part.
struct Sender {
    device: Device,
    sender: LiveSender,
    /// Packets of the next call.
    call: usize,
    /// Of a packet.
    bytes: u64,
    sent: LiveSent,
    /// Packets that the device was not asked to take.
    refused: u64,
}

impl Sender {
    fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        while !context.control.is_over() {
            let (now, claimed) = (Instant::now(), context.control.claim(self.call));
            if claimed == 0 {
                // Others are at the last ones.
                std::thread::sleep(CALL / 100);
                continue;
            }
            context.saw_packets(now);
            self.sender.send(claimed as u32)?;
            context.saw_packets(Instant::now());
            if !self.count(context, claimed)? {
                let is_up = match self.device.is_up() {
                    Err(error) if error.kind() == ErrorKind::NoDevice => false,
                    is_up => is_up?,
                };
                ensure!(is_up, "{} is down, or gone", self.device);
            }
            self.call = next_call(claimed, now.elapsed());
        }
        Ok(())
    }

    /// Counts what became of so many packets; whether the device was asked to take any.
    fn count(&mut self, context: &mut Context, claimed: usize) -> anyhow::Result<bool> {
        let now = self.sender.sent()?;
        let before = std::mem::replace(&mut self.sent, now);
        let sent = now.sent - before.sent;
        let traffic = &context.meter().traffic;
        traffic.tx_packets.add(sent);
        traffic.tx_bytes.add(sent * self.bytes);
        let asked = (sent + now.dropped - before.dropped) as usize;
        let rest = claimed.saturating_sub(asked);
        // At the end they were not made. Else they could not be redirected, such as where the other end
        // of a veth takes none any more.
        let refused = if context.control.is_over() { 0 } else { rest };
        self.refused += refused as u64;
        context.control.settle(asked + refused, rest - refused);
        context.tx_dropped(now.dropped + self.refused);
        Ok(asked > 0)
    }
}

/// As many packets as take as long as a call is to.
fn next_call(packets: usize, took: Duration) -> usize {
    let next = packets as f64 * CALL.as_secs_f64() / took.as_secs_f64().max(1e-6);
    (next as usize).clamp(FIRST, MOST)
}
