//! `cachelane bridge`: the fast paths of existing Linux bridges, in the foreground, until a signal
//! ends them.

mod check;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bridge::{Accelerator, Bridges, Config, Counters, Event, Fleet, Reason, Table};
use clap::ArgAction;

use crate::args::{NameArg, ON_OFF, choice};
use crate::exit::{Exit, usage};
use crate::figures::of_which;
use crate::privileges;
use crate::run::{Followed, Foreground, open_control};
use check::accelerated;

/// Accelerate existing Linux bridges
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
The Linux bridge stays in charge: it learns and ages addresses, floods and speaks STP, and the \
tools ip and bridge work as before. A tcx program on each port, which runs after all other tcx \
programs there, forwards the frames that the bridge would pass on unchanged to a known address. \
It leaves all others to the bridge and counts them by reason (cachelane knob list --counters). \
When this process ends, however it ends, the bridge forwards the next packet itself.

When a bridge is deleted, the process continues with the others. It ends with the last one, \
unless --wait, --all or a pattern is given. Knobs and counters are for all its bridges together.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the counters of each bridge.

Examples:
  cachelane bridge docker0 --check
  cachelane bridge br0
  cachelane bridge br0 br1 --wait
  cachelane bridge docker0 'br-*'
  cachelane bridge --all
  cachelane knob set bridge.fastpath off")]
pub(crate) struct Args {
    /// Bridges to accelerate, such as br0 or docker0, or patterns, such as 'br-*', for those that are
    /// there and those that come later
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Accelerate all bridges, including those that are created later
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Wait for named bridges that do not exist, or are deleted, and accelerate them when they
    /// appear
    #[arg(long)]
    wait: bool,
    /// Print for each port whether it can be accelerated and, if not, why; then exit, with code 1
    /// if no port can
    #[arg(long)]
    check: bool,
    /// Check the arguments and this host, print what would be done, and exit
    #[arg(long, conflicts_with = "check")]
    dry_run: bool,
    /// With --check: print JSON instead of text
    #[arg(long, requires = "check")]
    json: bool,
    /// Whether to start with the fast path (cachelane's own forwarding) on; while it is off, the
    /// kernel forwards everything; can be changed while it runs: knob bridge.fastpath
    #[arg(long, value_name = "STATE", default_value = "on", action = ArgAction::Set, value_parser = choice(ON_OFF))]
    fastpath: bool,
    /// Where the fast path notes when it last saw a station (an address that the bridge knows):
    /// split (on each CPU, so that CPUs share no cache line) or shared (in one table, as the kernel
    /// does; to compare with); can be changed while it runs: knob bridge.fdb
    #[arg(long, value_name = "TABLE", default_value = "split")]
    fdb: Table,
    /// Most stations of a bridge that the fast path can hold; the kernel forwards to the others
    /// [default: a quarter more than the bridge knows now, and at least 8192]
    #[arg(long, value_name = "N")]
    max_stations: Option<u32>,
    #[command(flatten)]
    name: NameArg,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut names = HashSet::new();
    if let Some(twice) = args.names.iter().find(|name| !names.insert(*name)) {
        return Err(usage(format!("'{twice}' is given twice; give each bridge once")));
    }
    if args.check {
        return check::check(args);
    }
    if args.dry_run {
        return check::dry_run(args);
    }
    privileges::require("accelerating a bridge", privileges::needs_of("bridge"))?;
    let config =
        Config { max_stations: args.max_stations, fastpath: args.fastpath, table: args.fdb };
    let bridges = match args.all {
        true => Bridges::All,
        false => Bridges::Named { names: args.names.clone(), wait: args.wait },
    };
    let fleet = Arc::new(Fleet::start(bridges, config)?);
    // Until now a signal ends the process at once: with a thousand ports starting takes a while.
    let mut foreground = Foreground::new()?;
    let what = if args.all { "--all".into() } else { args.names.join(", ") };
    let name = args.name.or(&format!("bridge {what}"));
    let _control = open_control("bridge", name, |knobs| bridge::register(&fleet, knobs));
    let ended = foreground.follow(None, &mut Running { fleet: &fleet, begun: false });
    log("", fleet.counters());
    ended.map(|_| Exit::Ok)
}

/// The fast paths while they run.
struct Running<'a> {
    fleet: &'a Fleet,
    /// Whether it was looked at before.
    begun: bool,
}

impl Followed for Running<'_> {
    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        /// How soon what happens is heeded.
        const LOOK: Duration = Duration::from_millis(50);
        let fleet = self.fleet;
        let events = fleet.tend();
        let pause = if events.is_empty() { LOOK } else { Duration::ZERO };
        for (name, event) in &events {
            say(fleet, name, event);
        }
        if let (Some((name, Event::Ended(error))), true) = (events.last(), fleet.is_over()) {
            // Not what it is at the start, an answer to what the user gave.
            bail!("no bridge is left; the last was '{name}': {error}");
        }
        if !self.begun && fleet.is_empty() {
            tracing::info!("no bridge yet: waiting");
        }
        self.begun = true;
        Ok(Some(pause))
    }

    fn log(&mut self) -> anyhow::Result<()> {
        self.fleet.each().into_iter().for_each(|(name, fast)| {
            log(&format!("{name}: "), fast.counters());
        });
        Ok(())
    }
}

/// Tells what has become of a bridge.
fn say(fleet: &Fleet, name: &str, event: &Event) {
    match event {
        Event::Started => {
            if let Some((_, fast)) = fleet.each().into_iter().find(|(member, _)| member == name) {
                announce(name, &fast);
            }
        }
        Event::Awaited => tracing::info!("{name}: not there yet"),
        Event::Refused(error) => tracing::warn!("{name}: {error}; trying again now and then"),
        Event::Ended(error) => tracing::warn!(
            "{name}: the fast path has ended, and the bridge, if it is there, goes on: {error}"
        ),
    }
}

fn announce(name: &str, accelerator: &Accelerator) {
    let plan = accelerator.plan();
    let stations = accelerator.stations();
    let count = plan.ports.iter().filter(|port| accelerated(&plan, port)).count();
    tracing::info!(
        "{name}: {count} of {} ports accelerated, {stations} stations known",
        plan.ports.len()
    );
    for line in plan.remarks() {
        tracing::warn!("{name}: {line}");
    }
}

/// Logs what was forwarded, and what was left to the kernel by reason.
fn log(whose: &str, counters: bridge::Result<Counters>) {
    match counters {
        Ok(counters) => tracing::info!("{whose}{}", counts(&counters)),
        Err(error) => tracing::warn!("{whose}{error}"),
    }
}

fn counts(counters: &Counters) -> String {
    let why = of_which(Reason::ALL.iter().map(|why| (why.name(), counters.kernel(*why))));
    format!(
        "forwarded {} packets straight and {} by their port's queue, {} bytes in all; left {} to \
         the kernel{why}",
        counters.straight,
        counters.redirected,
        counters.bytes,
        counters.left_to_kernel(),
    )
}
