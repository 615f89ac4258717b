//! `cachelane xsk search`: the highest rate without loss, for each size (RFC 2544, section 26.1).
//!
//! The threads send and receive as those of `send` and `drop` do, trial by trial ([`stage`]); one more
//! decides which ([`bisection`]).

mod bisection;
mod report;
mod stage;

use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use xsk::Device;

use super::args::{FlowArgs, check_mtu, comes_back};
use super::drop::Receiver;
use super::maker::Make;
use super::sender::{Echo, Flight, Sender};
use super::template::{Kind, Pattern, Recipe, Template};
use super::values::{Rate, Sizes};
use crate::args::duration;
use crate::exit::{Exit, usage};
use crate::out;
use crate::packets::job::{Ground, Job};
use crate::packets::options::{CommonArgs, Place};
use crate::packets::session::{Context, Work};
use crate::packets::setup::{Built, Interface, Plan};
use crate::packets::sockets::{Handler as _, Sockets};
use crate::run::Ended;
use bisection::{Bisection, Next};
use report::Results;
use stage::{Stage, Staged};

/// Find the highest rate without loss, for each size of packets
#[derive(clap::Args, Debug)]
#[command(mut_arg("count", |count| count.hide(true)), after_long_help = "\
It measures what is between sending and receiving: a cable, a switch, a forwarding host. Either \
another host sends the packets back (`xsk forward`), or they come to another device of this host \
(--receive). A trial sends packets at a rate and counts those that do not come; halving what is \
between a rate that passes and one that does not finds the highest, as RFC 2544 has it (section \
26.1). Sizes are without the checksum, so the RFC's are 4 more.

What loses packets may be this host: look at what it says of drops. A virtual machine, or a CPU \
with other work, loses some at any rate now and then; --loss 0.01 or --tries 3 allow for that.

Signals: SIGINT and SIGTERM end it, with what was found until then. SIGUSR1 logs the current figures.

Examples:
  cachelane xsk search eth1 --dst-mac 02:00:00:00:00:02
  cachelane xsk search eth1 --receive eth2 --sizes 64,512,1514 --html search.html
  cachelane xsk search eth1 --trial 60s --queues 0-3 --cpus 0-3 --sport 1000-1999 --json")]
pub(super) struct Args {
    /// Device to send from
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Device that packets come to [default: the same, to which another host sends them back]
    #[arg(long, value_name = "IFACE")]
    receive: Option<String>,
    #[command(flatten)]
    trials: TrialArgs,
    #[command(flatten)]
    flows: FlowArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// What is tried.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Search")]
struct TrialArgs {
    /// Sizes of packets in bytes, without the checksum [default: 64,124,252,508,1020,1276,1514, as far as
    /// they fit]
    #[arg(long, value_name = "SIZES")]
    sizes: Option<Sizes>,
    /// Time of one trial, from 10ms to 24h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    trial: Duration,
    /// Packets that may be lost, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = |s: &str| percent(s, 0.0))]
    loss: f64,
    /// How exact the rate is to be, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = |s: &str| percent(s, 0.01))]
    precision: f64,
    /// Trials of a rate that have to fail before a lower one is tried
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// Highest rate to try, as with `xsk send --rate`; for the rate of a cable, a packet takes 24 bytes more
    /// than its size [default: as fast as can be sent]
    #[arg(long, value_name = "RATE", default_value = "0")]
    max_rate: Rate,
    /// Write a page with the results to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The sizes of RFC 2544, section 9.1, without the checksum; the smallest with room for a probe.
const SIZES: [u32; 7] = [64, 124, 252, 508, 1020, 1276, 1514];

fn time(s: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(10);
    const MOST: Duration = Duration::from_secs(86_400);
    duration(s).and_then(|time| match (LEAST..=MOST).contains(&time) {
        true => Ok(time),
        false => Err("too short or too long (expected 10ms to 24h)".into()),
    })
}

fn percent(s: &str, least: f64) -> Result<f64, String> {
    let value = s.parse().ok().filter(|value| (least..=50.0).contains(value));
    value.ok_or_else(|| format!("'{s}' cannot be (expected {least} to 50, in percent)"))
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let device = Device::find(&args.interface)?;
    let to = args.receive.as_deref().map(Device::find).transpose()?;
    if to.as_ref() == Some(&device) {
        return Err(usage(format!(
            "--receive {device}: packets are sent from there (leave it out where another host sends \
             them back)"
        )));
    }
    if let Some(path) = &args.trials.html {
        out::check_writable(path).with_context(|| format!("--html {}", path.display()))?;
    }
    if let Some(sizes) = &args.trials.sizes
        && (sizes.is_imix || sizes.each.iter().any(|(_, many)| *many > 1))
    {
        return Err(usage(format!(
            "--sizes {sizes}: each size is searched (expected such as 64,512)"
        )));
    }
    if let Some(count) = args.common.count {
        return Err(usage(format!("--count {count}: a search has trials (expected --trial TIME)")));
    }
    let templates = templates(args, &device, to.as_ref())?;
    let what = describe(args, &device, &templates);
    let first = &templates[0].1;
    let filter = comes_back(first)?;
    let turns = first.turns.clone();
    let templates: Vec<_> = templates.iter().map(|(template, _)| Arc::clone(template)).collect();
    let is_split = to.is_some();
    let interfaces = match to {
        // What receives comes first, which says how many queues there are.
        Some(to) => {
            vec![Interface::new(to, Some(&filter), false), Interface::new(device, None, true)]
        }
        None => vec![Interface::new(device, Some(&filter), true)],
    };
    let mut plan = Plan::new(&args.common, interfaces, None, is_split)?;
    plan.shares = !is_split;
    let then = vec![format!("would search {what}")];
    let Some(mut built) = plan.build("searching", then)? else { return Ok(Exit::Ok) };
    let stage = Stage::new(plan.queues.len());
    let results = Results::new(args, &templates, turns);
    let mut threads = if is_split {
        split(args, &mut built, &stage)
    } else {
        reflected(args, plan.fill() as usize, &mut built, &stage)
    };
    threads.push(searcher(args, &stage, templates, &results));
    let mut places = plan.places.clone();
    places.push(Place::default());
    let ground = Ground {
        args: &args.common,
        devices: plan.interfaces.iter().map(|one| one.device.name()).collect(),
        pool: Some(built.pool),
        queues: &plan.queues,
        places: &places,
        programs: built.programs,
        idle_programs: built.idle_programs,
        in_force: built.in_force,
    };
    let announcement = format!("searching {what}");
    let job = Job { process: "xsk", command: "search", announcement, beside: &results };
    let exit = ground.run(threads, job, quiet);
    results.write(args)?;
    exit
}

type Made = (Arc<Template>, Recipe);

/// The packets of each size.
fn templates(args: &Args, device: &Device, to: Option<&Device>) -> anyhow::Result<Vec<Made>> {
    let TrialArgs { sizes, .. } = &args.trials;
    let is_tagged = args.flows.vlan.is_some();
    let all = args.flows.recipe(device, Kind::Udp, Sizes::default(), Pattern::Seq)?;
    let all = Recipe { option: "--sizes", ..all };
    let fits = |size: usize| {
        let frame = args.common.memory.frame_size as usize;
        if size > frame && !args.common.sockets.multi_buffer {
            return Err(usage(format!(
                "--sizes {size}: a frame has {frame} bytes (expected --frame-size 4096, or \
                 --multi-buffer)"
            )));
        }
        check_mtu("--sizes", size, device, is_tagged)?;
        to.map_or(Ok(()), |to| check_mtu("--sizes", size, to, is_tagged))
    };
    let make = |size: u32| {
        let recipe = Recipe { sizes: Sizes::one(size), ..all.clone() };
        fits(size as usize)?;
        Ok((Arc::new(Template::new(&recipe)?), recipe))
    };
    match sizes {
        Some(sizes) => sizes.each.iter().map(|(size, _)| make(*size)).collect(),
        None => {
            let all = SIZES.into_iter().map(make).filter_map(Result::ok).collect::<Vec<_>>();
            // None fits where the addresses cannot be, which the first one says.
            if all.is_empty() { make(SIZES[3]).map(|one| vec![one]) } else { Ok(all) }
        }
    }
}

fn describe(args: &Args, device: &Device, templates: &[Made]) -> String {
    let sizes: Vec<String> =
        templates.iter().map(|(template, _)| template.bytes().len().to_string()).collect();
    let way = match &args.receive {
        Some(to) => format!("from {device} to {to}"),
        None => format!("from {device} and back"),
    };
    let loss = match args.trials.loss {
        0.0 => "without loss".into(),
        loss => format!("with a loss of at most {loss} %"),
    };
    let turns = match &templates[0].1.turns {
        Some(turns) => format!(", flows by the receiver's queue: {}", turns.words()),
        None => String::new(),
    };
    format!("the highest rate {loss} {way}, of packets of {} bytes{turns}", sizes.join(", "))
}

/// Threads that each send and receive on a queue.
fn reflected(args: &Args, fill: usize, built: &mut Built, stage: &Arc<Stage>) -> Vec<Work> {
    let sockets = take(&mut built.sockets).into_iter().flatten().zip(take(&mut built.caches));
    let thread = |(thread, (socket, cache))| {
        let echo = Echo { echoes: stage.echoes.clone(), fill, packets: Vec::new() };
        sender(args, socket, cache, Staged::new(stage, thread), Some(echo))
    };
    sockets.enumerate().map(thread).collect()
}

/// Threads that each receive on a queue of one device, and threads that each send on one of the other.
fn split(args: &Args, built: &mut Built, stage: &Arc<Stage>) -> Vec<Work> {
    let mut sockets = take(&mut built.sockets).into_iter();
    let (from, to) = (sockets.next().unwrap_or_default(), sockets.next().unwrap_or_default());
    let mut caches = take(&mut built.caches).into_iter();
    let mut works = Vec::new();
    for (thread, (receives, sends)) in from.into_iter().zip(to).enumerate() {
        let (Some(first), Some(second)) = (caches.next(), caches.next()) else { break };
        let sockets = Sockets::new(vec![receives], first, &args.common.sockets);
        works.push(Receiver::new(sockets, Some(stage.echoes.checker())).work());
        works.push(sender(args, sends, second, Staged::new(stage, thread), None));
    }
    works
}

fn sender(
    args: &Args,
    socket: xsk::Socket,
    cache: frames::LaneCache,
    maker: Staged,
    echo: Option<Echo>,
) -> Work {
    let (maker, batch) = (Box::new(maker) as Box<dyn Make>, args.common.sockets.batch as usize);
    let sender = Sender { socket, cache, maker, batch, flight: Flight::default(), echo };
    Box::new(move |context: &mut Context| sender.run(context))
}

/// The thread that says what is tried.
fn searcher(
    args: &Args,
    stage: &Arc<Stage>,
    templates: Vec<Arc<Template>>,
    results: &Results,
) -> Work {
    let (stage, results) = (Arc::clone(stage), results.clone());
    let TrialArgs { trial, loss, precision, tries, max_rate, .. } = args.trials;
    let way = match &args.receive {
        Some(to) => format!("came from {} to {to}: see --dst-mac", args.interface),
        None => format!("came back to {}: see --dst-mac, and `xsk forward`", args.interface),
    };
    // Of fewer packets in a trial, the share that is lost says little.
    let least = 20.0 / trial.as_secs_f64();
    Box::new(move |context: &mut Context| {
        // A search in vain would take long.
        const FIRST: (f64, Duration) = (100.0, Duration::from_millis(200));
        let first = stage.trial(&context.control, &templates[0], Some(FIRST.0), FIRST.1)?;
        let Some(first) = first else { return Ok(()) };
        ensure!(first.lost < first.sent, "none of {} packets {way}", first.sent);
        for (number, template) in templates.iter().enumerate() {
            let most = max_rate.packets(template.bytes().len() as f64);
            let most = (most > 0.0).then_some(most);
            let mut bisection = Bisection::new(precision / 100.0, most, least, tries);
            let highest = loop {
                match bisection.next() {
                    Next::Over(highest) => break highest,
                    Next::Try(rate) => {
                        results.tries(number, rate);
                        let found = stage.trial(&context.control, template, rate, trial)?;
                        let Some(found) = found else { return Ok(()) };
                        let has_passed = found.loss() * 100.0 <= loss;
                        bisection.tell(rate, found.rate, has_passed);
                        results.tried(number, found, has_passed);
                    }
                }
            };
            results.found(number, highest);
        }
        context.control.ends(Ended::Done);
        context.control.end();
        Ok(())
    })
}
