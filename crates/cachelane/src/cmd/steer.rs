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

use crate::args::{LanesArg, ON_OFF, UntilArg, choice};
use crate::exit::Exit;
use crate::privileges;
use machine::Machine;

/// Steer received flows to the lanes of their consumers
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Do not use it where the card has a receive queue for each CPU, where all CPUs share one cache, \
where most packets are forwarded rather than received by sockets of this host, on veth and tap \
devices, or where RPS or RFS is on: --check says what stands against it.

Packets of TCP and connected UDP go to the CPU that their socket was last used on, and stay there \
while its thread moves inside the lane: only when it leaves the lane is the flow's record written. \
A flow moves when all it has queued is delivered, so that nothing is reordered. Everything else is \
left to the kernel, counted by reason (cachelane knob list --counters). However this process ends, \
the kernel's own path goes on with the next packet.

It works in the network namespace that it is started in, for the sockets there. CPUs that go \
offline are not steered to, and are again when they are back.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the counters by CPU.

Exit codes: 1 with --check if it would be refused, or if the device goes; 3 if it is refused.

Examples:
  cachelane steer eth0 --check
  cachelane steer eth0
  cachelane steer eth0 --cpus 0-7 --lanes '0-3|4-7'
  cachelane knob set steer.llc_affinity off")]
pub(crate) struct Args {
    /// The device whose received flows are steered
    #[arg(value_name = "IFACE")]
    interface: String,
    /// CPUs that flows may be sent to: a list such as 0-3,8, or lane:N, or all
    #[arg(long, value_name = "CPUS", default_value = "all")]
    cpus: CpuSpec,
    #[command(flatten)]
    lanes: LanesArg,
    /// Start with records rewritten only when a consumer changed lanes, or not (knob
    /// steer.llc_affinity)
    #[arg(long, value_name = "STATE", default_value = "on", action = ArgAction::Set, value_parser = choice(ON_OFF))]
    llc_affinity: bool,
    /// Records of flows: a power of two from 256 to 16777216 [default: four for each socket that
    /// is there now, and at least 2048]
    #[arg(long, value_name = "N")]
    records: Option<u32>,
    /// Packets of a receive queue that wait for a CPU at most, from 1 to 16384; more are lost, and
    /// counted
    #[arg(long, value_name = "N", default_value_t = SteerOptions::default().queue_size)]
    queue: u32,
    /// Real-time priority (SCHED_FIFO) of the kernel's threads that take steered packets, from 1 to
    /// 99; 0: none, and packets wait beside busy programs
    #[arg(long, value_name = "N", default_value_t = SteerOptions::default().priority)]
    priority: u8,
    #[command(flatten)]
    until: UntilArg,
    /// Steer where that is refused, as far as it can be: for tests
    #[arg(long)]
    force: bool,
    /// Say what stands against it and what is worth a look, and end. Exit code 1: it would be
    /// refused
    #[arg(long)]
    check: bool,
    /// Check everything, say what would be done, and do nothing
    #[arg(long, conflicts_with = "check")]
    dry_run: bool,
    /// Print JSON: with --check what it finds, else an object with all counters at the end and on
    /// SIGUSR1, a line each
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
    use privileges::{DEVICES, PRIORITY, PROGRAMS, SYSFS, TRACEPOINTS};

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
    let needs = [PROGRAMS, TRACEPOINTS, DEVICES, SYSFS, PRIORITY];
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
