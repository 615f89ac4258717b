//! `cachelane steer`: receive flow steering on a device, in the foreground, until a signal ends
//! it.

mod check;
mod machine;
mod report;
mod run;

use std::path::Path;

use anyhow::Context as _;
use clap::ArgAction;
use lanes::{CpuSet, CpuSpec};
use steer::{Plan, SteerOptions};
use xsk::Device;

use crate::args::{LanesArg, NameArg, ON_OFF, UntilArg, choice};
use crate::exit::Exit;
use crate::privileges;
use machine::Machine;

/// Steer received packets to CPUs that share a cache with the program that reads them
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Do not use it if the card has a receive queue for each CPU, if all CPUs share one cache, if this \
host forwards most packets rather than receiving them, on veth and tap devices, or with RPS or \
RFS on. --check says which of these apply.

Packets of TCP and of connected UDP go to the CPU that last used their socket. They stay there \
while the thread that uses it moves inside its lane (the CPUs that share a last-level cache): \
only when the thread leaves the lane is the flow's record rewritten. A flow moves when all its \
queued packets have been delivered, so that none are reordered. All other packets are left to \
the kernel and counted by reason (cachelane knob list --counters). When this process ends, \
however it ends, the kernel handles the next packet by itself.

It steers for the sockets of the network namespace in which it is started. It stops steering to \
a CPU that goes offline, and starts again when the CPU is back.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the counters by CPU.

Exit codes: 1 if --check finds that steering would be refused, or if the device goes away; 3 if \
steering is refused.

Examples:
  cachelane steer eth0 --check
  cachelane steer eth0
  cachelane steer eth0 --cpus 0-7 --lanes '0-3|4-7'
  cachelane knob set steer.llc_affinity off")]
pub(crate) struct Args {
    /// Device whose received packets are steered
    #[arg(value_name = "IFACE")]
    interface: String,
    /// CPUs that packets may be sent to: a list such as 0-3,8, lane:N for the CPUs of lane N, or
    /// all
    #[arg(long, value_name = "CPUS", default_value = "all")]
    cpus: CpuSpec,
    #[command(flatten)]
    lanes: LanesArg,
    /// When to rewrite a flow's record, which says on what CPU its packets are read: on (only when
    /// the reader moves to another lane) or off (also when it moves inside its lane); can be
    /// changed while it runs: knob steer.llc_affinity
    #[arg(long, value_name = "STATE", default_value = "on", action = ArgAction::Set, value_parser = choice(ON_OFF))]
    llc_affinity: bool,
    /// Records of flows to keep: a power of two from 256 to 16777216 [default: four for each socket
    /// that exists now, and at least 2048]
    #[arg(long, value_name = "N")]
    records: Option<u32>,
    /// Most packets of a receive queue that may wait for a CPU, from 1 to 16384; further packets
    /// are dropped, and counted
    #[arg(long, value_name = "N", default_value_t = SteerOptions::default().queue_size)]
    queue: u32,
    /// Real-time priority (SCHED_FIFO) of the kernel threads that take steered packets, from 1 to
    /// 99; with 0 they have none, and packets may wait for busy programs
    #[arg(long, value_name = "N", default_value_t = SteerOptions::default().priority)]
    priority: u8,
    #[command(flatten)]
    until: UntilArg,
    #[command(flatten)]
    name: NameArg,
    /// Steer even where --check says that it would be refused, as far as that is possible; for
    /// tests
    #[arg(long)]
    force: bool,
    /// Print what speaks against steering this device, and what is worth a look; then exit, with
    /// code 1 if steering would be refused
    #[arg(long)]
    check: bool,
    /// Check the arguments and this host, print what would be done, and exit
    #[arg(long, conflicts_with = "check")]
    dry_run: bool,
    /// Print JSON: with --check, what was found; else an object with all counters, on one line, at
    /// the end and on SIGUSR1
    #[arg(long, conflicts_with = "dry_run")]
    json: bool,
}

/// What was found out before anything is done.
struct Prepared {
    device: Device,
    machine: Machine,
    options: SteerOptions,
    plan: Plan,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let prepared = prepare(args)?;
    if args.check {
        return check::check(&prepared, args.force, args.json);
    }
    check::refuse(&prepared.device, &prepared.plan, args.force)?;
    if args.dry_run {
        return check::dry_run(&prepared);
    }
    run::run(prepared, args, quiet)
}

fn prepare(args: &Args) -> anyhow::Result<Prepared> {
    let machine = Machine::look_at(Path::new("/sys/devices/system"), args.lanes.lanes.as_deref())?;
    let lanes = machine.lanes();
    let defaults = SteerOptions::default();
    let mut options = SteerOptions {
        records: args.records.unwrap_or(defaults.records),
        queue_size: args.queue,
        priority: args.priority,
        targets: targets(&args.cpus, lanes).context("--cpus")?,
        llc_affinity: args.llc_affinity,
        ..defaults
    };
    options.check()?;
    let device = Device::find(&args.interface)?;
    let needs = privileges::needs_of("steer");
    // The last one only for a priority.
    let needed = needs.len() - usize::from(options.priority == 0);
    privileges::require("steering", &needs[..needed])?;
    let plan = steer::inspect(&device, lanes)?;
    if args.records.is_none() {
        options.records = steer::records_for(plan.sockets);
    }
    Ok(Prepared { device, machine, options, plan })
}

/// The CPUs that are meant: with `all` also those that come later.
fn targets(spec: &CpuSpec, lanes: &lanes::LaneMap) -> Result<CpuSet, lanes::Error> {
    match *spec == CpuSpec::all() {
        true => Ok((0..=CpuSet::MAX).collect()),
        false => spec.resolve(lanes),
    }
}
