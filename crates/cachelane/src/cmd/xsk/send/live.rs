//! Sending by XDP frames that the kernel makes: [`xsk::LiveSender`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::random;
use xsk::{Device, LIVE_LONGEST, LivePackets, LiveSender, LiveSent, check_live, prefers_live};

use super::super::pacer::Pacer;
use super::super::template::Template;
use super::{Args, Engine};
use crate::exit::{Exit, usage};
use crate::out;
use crate::packets::carrier::Carrier;
use crate::packets::job::{Ground, Job};
use crate::packets::session::{Context, Work};
use crate::packets::setup::idle_program;
use crate::privileges;

/// How long one call may take: so soon a signal is heeded, and figures are new.
const CALL: Duration = Duration::from_millis(20);

/// Packets of a call: the fewest that it pays for, where there is no rate, and the most.
const LEAST: usize = 64;
const MOST: usize = 1 << 16;

/// Whether packets are to be sent this way.
pub(super) fn is_chosen(args: &Args, device: &Device) -> anyhow::Result<bool> {
    let for_sockets = args.common.for_sockets();
    let size = args.packets.size as usize;
    match args.engine {
        Engine::Socket => Ok(false),
        Engine::Auto => {
            let may = for_sockets.is_none() && size <= LIVE_LONGEST;
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
            None => Ok(true),
        },
    }
}

/// Sends from a thread for each CPU that was given, or from one.
pub(super) fn run(
    args: &Args,
    device: &Device,
    template: &Arc<Template>,
    what: &str,
    quiet: bool,
) -> anyhow::Result<Exit> {
    let places = args.common.places.each()?;
    let way = format!("live frames out of {device}, without socket buffers");
    if args.common.dry_run {
        let would = [format!("would send {what}"), format!("would send {way}")];
        return out::dry_run(would.to_vec()).map(|_| Exit::Ok);
    }
    privileges::require("sending live frames", privileges::LIVE)?;
    let carrier = Carrier::of([device])?;
    // Some cards take frames only with a program on them.
    let idle = match check_live(device) {
        Ok(()) => None,
        Err(_) if device.kind()?.is_none() => idle_program(device)?,
        Err(error) => return Err(anyhow::Error::from(error).context("--engine live")),
    };
    if idle.is_some() {
        let checked = check_live(device);
        checked.map_err(|error| anyhow::Error::from(error).context("--engine live"))?;
    }
    carrier.iter().try_for_each(Carrier::wait)?;
    let stream = random::<u32>() & 0xffff_ff00;
    let threads = places.len();
    let sender = |number: usize| {
        let flows = template.flows();
        let from = flows.count() * number as u64 / threads as u64;
        let packets = template.live(&flows.skip(from), stream | number as u32 & 0xff);
        let rate = args.packets.rate as f64 / threads as f64;
        let (device, pacer) = (device.clone(), Pacer::new(rate, Instant::now()));
        // With a rate, so many at once as are due in two milliseconds.
        let call = if rate > 0.0 { ((rate / 500.0) as usize).clamp(1, MOST) } else { LEAST };
        Box::new(move |context: &mut Context| {
            let sender = LiveSender::new(&device, &packets)?;
            Sender { sender, pacer, call, has_rate: rate > 0.0, packets: &packets }.run(context)
        }) as Work
    };
    let job = Job {
        process: "xsk",
        command: "send",
        announcement: format!("sending {what}, as live frames"),
        beside: &[("size", args.packets.size.into())],
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
    ground.run((0..threads).map(sender).collect(), job, quiet)
}

/// One thread's part.
struct Sender<'a> {
    sender: LiveSender,
    pacer: Pacer,
    /// Packets of the next call.
    call: usize,
    has_rate: bool,
    packets: &'a LivePackets,
}

impl Sender<'_> {
    fn run(mut self, context: &mut Context) -> anyhow::Result<()> {
        let mut before = LiveSent::default();
        while !context.control.is_over() {
            let now = Instant::now();
            let claimed = context.control.claim(self.pacer.due(now, self.call));
            if claimed == 0 {
                std::thread::sleep(self.pacer.wait(now, self.call).clamp(CALL / 400, CALL / 2));
                continue;
            }
            self.sender.send(claimed as u32)?;
            self.pacer.sent(claimed);
            let after = self.sender.sent()?;
            self.count(context, claimed, before, after);
            before = after;
            if !self.has_rate {
                self.adapt(now.elapsed());
            }
        }
        Ok(())
    }

    fn count(&self, context: &mut Context, claimed: usize, before: LiveSent, after: LiveSent) {
        let sent = after.sent - before.sent;
        let traffic = &context.meter().traffic;
        traffic.tx_packets.add(sent);
        traffic.tx_bytes.add(sent * self.packets.packet.len() as u64);
        let done = (sent + after.dropped - before.dropped) as usize;
        context.control.settle(done, claimed.saturating_sub(done));
        if sent > 0 {
            context.saw_packets(Instant::now());
        }
        context.tx_dropped(after.dropped);
    }

    /// As many the next time as take as long as a call may.
    fn adapt(&mut self, took: Duration) {
        self.call = match took {
            _ if took < CALL / 2 => (self.call * 2).min(MOST),
            _ if took > CALL => (self.call / 2).max(LEAST),
            _ => self.call,
        };
    }
}
