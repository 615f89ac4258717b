//! `cachelane xsk drop`: receives packets, counts them, and throws them away.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frames::{Frame, FrameArea};
use parking_lot::Mutex;
use rustix::event::PollFlags;
use serde_json::json;
use xsk::{Device, Packet, Stamps};

use super::check::{Checker, check};
use super::times::Times;
use crate::exit::Exit;
use crate::packets::idle;
use crate::packets::job::{Beside, Job, Report};
use crate::packets::options::{CommonArgs, FilterArgs};
use crate::packets::session::Context;
use crate::packets::setup::{Interface, Plan};
use crate::packets::sockets::{Handler, Sockets};

/// Receive packets, count them, and throw them away
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
The packets that it takes do not reach the kernel. Without an option of \"Which \
packets\", it takes all packets on these queues, including those of your own session on this \
device. When it ends, however it ends, the kernel receives them again.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the current figures. With --check, the exit \
code is 1 if any packet was lost, reordered, duplicated or corrupt.

Examples:
  cachelane xsk drop eth1 --udp-port 9 --for 10s
  cachelane xsk drop eth1 --udp-port 9 --gaps --for 10s
  cachelane xsk drop eth1 --udp-port 9 --check --count 1000000 --json
  cachelane xsk drop eth1 --queues 0-3 --cpus lane:0 --xdp native")]
pub(super) struct Args {
    /// Device to receive from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Check packets of `xsk send --pattern seq`, and count those that are lost, reordered,
    /// duplicated or corrupt
    #[arg(long)]
    check: bool,
    /// Measure the time between one packet and the next of a queue, by when the kernel received them
    #[arg(long)]
    gaps: bool,
    /// Threads, among which the queues are shared out [default: one for each queue]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    let announcement = format!("receiving {} on {device}, ", args.filter.what());
    let interfaces = vec![Interface::new(device, Some(&args.filter), false)];
    let mut plan = Plan::new(&args.common, interfaces, args.threads, false)?;
    plan.stamps = args.gaps;
    let then = vec!["would count those packets and throw them away".to_owned()];
    let Some(mut built) = plan.build("receiving", then)? else { return Ok(Exit::Ok) };
    let checker = args.check.then(|| Arc::new(Mutex::new(Checker::new())));
    let stamps = built.programs.first().and_then(|program| program.lock().stamps());
    let gaps = stamps.map(|_| Arc::new(Mutex::new(Gaps::default())));
    let receiver = |cache| {
        let sockets = Sockets::new(Vec::new(), cache, &args.common.sockets);
        let mut receiver = Receiver::new(sockets, checker.clone());
        receiver.watch = stamps.zip(gaps.clone()).map(|(stamps, gaps)| Watch::new(stamps, gaps));
        receiver
    };
    let mut receivers: Vec<_> = built.caches.drain(..).map(receiver).collect();
    let threads = receivers.len();
    for (number, socket) in built.sockets.drain(..).flatten().enumerate() {
        receivers[number % threads].sockets.list.push(socket);
    }
    let job = Job {
        process: "xsk",
        command: "drop",
        announcement: announcement + &plan.queues_text(),
        beside: &Found { checker, gaps },
    };
    built.run(&plan, receivers.into_iter().map(Handler::work).collect(), job, quiet)
}

/// What was looked for.
struct Found {
    checker: Option<Arc<Mutex<Checker>>>,
    gaps: Option<Arc<Mutex<Gaps>>>,
}

impl Beside for Found {
    fn add_to(&self, report: &mut Report) {
        if let Some(gaps) = &self.gaps {
            gaps.lock().add_to(report);
        }
        if let Some(checker) = &self.checker {
            add_check(report, &checker.lock());
        }
    }
}

fn add_check(report: &mut Report, checker: &Checker) {
    let tally = checker.tally();
    report.lines.push(format!(
        "checked {} packets: {} lost, {} reordered, {} duplicated, {} corrupt; {} without a probe",
        tally.probes, tally.lost, tally.reordered, tally.duplicated, tally.corrupt, tally.other
    ));
    let flows = checker.flows();
    if flows.flows > 1 {
        report.lines.push(format!(
            "in {} flows: {} with losses, {} reordered, {} with duplicates",
            flows.flows, flows.lost, flows.reordered, flows.duplicated
        ));
    }
    let mut fields = json!({
        "flows": {
            "seen": flows.flows,
            "lost": flows.lost,
            "reordered": flows.reordered,
            "duplicated": flows.duplicated,
        },
        "probes": tally.probes,
        "lost": tally.lost,
        "reordered": tally.reordered,
        "duplicated": tally.duplicated,
        "corrupt": tally.corrupt,
        "other": tally.other,
    });
    if let Some((text, object)) = checker.delays() {
        report.lines.push(format!("delay, if the sender is on this host: {text}"));
        fields["delay_us"] = object;
    }
    report.fields["check"] = fields;
    report.findings = !tally.is_clean();
}

/// The times between packets.
#[derive(Debug, Default)]
struct Gaps {
    times: Times,
    /// Packets of which it is not known when they came.
    unknown: u64,
}

impl Gaps {
    fn add_to(&self, report: &mut Report) {
        let Gaps { times, unknown } = self;
        if !times.is_empty() {
            report.lines.push(format!("between packets: {}", times.text()));
            report.fields["gaps_us"] = times.object();
        }
        if *unknown > 0 {
            report.lines.push(format!("{unknown} packets came without a time"));
        }
        report.fields["without_time"] = (*unknown).into();
    }
}

/// Looks when packets come, on the sockets of one thread.
struct Watch {
    stamps: Stamps,
    gaps: Arc<Mutex<Gaps>>,
    /// When the latest packet of each socket came.
    latest: Vec<Option<u64>>,
    times: Vec<Option<NonZeroU64>>,
}

impl Watch {
    fn new(stamps: Stamps, gaps: Arc<Mutex<Gaps>>) -> Watch {
        Watch { stamps, gaps, latest: Vec::new(), times: Vec::new() }
    }

    fn look(&mut self, socket: usize, packets: &mut [Packet], area: &FrameArea) {
        self.stamps.take(packets, area, &mut self.times);
        self.latest.resize(self.latest.len().max(socket + 1), None);
        let (latest, mut gaps) = (&mut self.latest[socket], self.gaps.lock());
        let mut is_first = true;
        for (time, packet) in self.times.drain(..).zip(packets) {
            if std::mem::replace(&mut is_first, !packet.more) {
                match time.map(NonZeroU64::get) {
                    Some(now) => {
                        if let Some(before) = latest.replace(now) {
                            gaps.times.add(Duration::from_nanos(now.saturating_sub(before)), 1);
                        }
                    }
                    None => gaps.unknown += 1,
                }
            }
        }
    }
}

/// One thread's part: some queues.
pub(super) struct Receiver {
    sockets: Sockets,
    checker: Option<Arc<Mutex<Checker>>>,
    watch: Option<Watch>,
    packets: Vec<Packet>,
    frames: Vec<Frame>,
}

impl Receiver {
    pub(super) fn new(sockets: Sockets, checker: Option<Arc<Mutex<Checker>>>) -> Receiver {
        let (packets, frames) = (Vec::new(), Vec::new());
        Receiver { sockets, checker, watch: None, packets, frames }
    }
}

impl Handler for Receiver {
    fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    fn turn(&mut self, context: &mut Context, now: Instant) -> anyhow::Result<usize> {
        let mut received = 0;
        for socket in 0..self.sockets.list.len() {
            self.sockets.supply(socket)?;
            let packets = self.sockets.receive(socket, context, now, &mut self.packets);
            if packets == 0 {
                continue;
            }
            let cache = &mut self.sockets.cache;
            if let Some(watch) = &mut self.watch {
                watch.look(socket, &mut self.packets, cache.pool().area());
            }
            if let Some(checker) = &self.checker {
                check(&mut checker.lock(), &self.packets, cache.pool().area());
            }
            self.frames.extend(self.packets.drain(..).map(|packet| packet.frame));
            cache.put_bulk(&mut self.frames);
            context.control.settle(packets, 0);
            received += packets;
        }
        Ok(received)
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        let wanted = self.sockets.list.iter().map(|socket| (socket as _, PollFlags::IN));
        idle::sleep(wanted, &mut self.sockets.cache, idle::LONGEST)
    }
}
