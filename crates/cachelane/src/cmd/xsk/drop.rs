//! `cachelane xsk drop`: receives packets, counts them, and throws them away.

use std::sync::Arc;
use std::time::Instant;

use frames::Frame;
use parking_lot::Mutex;
use rustix::event::PollFlags;
use serde_json::json;
use xsk::{Device, Packet};

use super::check::{Checker, check};
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
    let plan = Plan::new(&args.common, interfaces, args.threads, false)?;
    let then = vec!["would count those packets and throw them away".to_owned()];
    let Some(mut built) = plan.build("receiving", then)? else { return Ok(Exit::Ok) };
    let checker = args.check.then(|| Arc::new(Mutex::new(Checker::new())));
    let receiver = |cache| {
        let sockets = Sockets::new(Vec::new(), cache, &args.common.sockets);
        Receiver::new(sockets, checker.clone())
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
        beside: &checker,
    };
    built.run(&plan, receivers.into_iter().map(Handler::work).collect(), job, quiet)
}

/// What a checker found, if there is one.
impl Beside for Option<Arc<Mutex<Checker>>> {
    fn add_to(&self, report: &mut Report) {
        if let Some(checker) = self {
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

/// One thread's part: some queues.
pub(super) struct Receiver {
    sockets: Sockets,
    checker: Option<Arc<Mutex<Checker>>>,
    packets: Vec<Packet>,
    frames: Vec<Frame>,
}

impl Receiver {
    pub(super) fn new(sockets: Sockets, checker: Option<Arc<Mutex<Checker>>>) -> Receiver {
        Receiver { sockets, checker, packets: Vec::new(), frames: Vec::new() }
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
