//! `cachelane bridge`: the fast path of an existing Linux bridge, in the foreground, until a
//! signal ends it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bridge::{Accelerator, Config, Obstacle, Plan, PortPlan, Protocol, Reason, Stats, Table, Way};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::control;
use crate::exit::Exit;
use crate::table::table;

/// Accelerate an existing Linux bridge
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
The Linux bridge stays the authority: it learns, ages, floods and speaks STP, and ip and bridge go \
on working. Frames that it would forward to a known address in exactly the same way are forwarded \
by a tcx program on each port, which runs after all other tcx programs there; everything else is \
left to it, counted by reason (cachelane knob list --counters). However this process ends, the \
bridge goes on by itself with the next packet.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the counters.

Examples:
  cachelane bridge docker0 --check
  cachelane bridge br0
  cachelane knob set bridge.fastpath off")]
pub(crate) struct Args {
    /// The bridge: br0, docker0, cni0, virbr0
    #[arg(value_name = "NAME")]
    name: String,
    /// Say for each port whether it can be accelerated and, if not, why; then end. Exit code 1:
    /// nothing can
    #[arg(long)]
    check: bool,
    /// Check everything, say what would be done, and do nothing
    #[arg(long, conflicts_with = "check")]
    dry_run: bool,
    /// With --check: print JSON
    #[arg(long, requires = "check")]
    json: bool,
    /// Start with the fast path on or off (knob bridge.fastpath)
    #[arg(long, value_name = "STATE", default_value = "on", value_parser = ["off", "on"])]
    fastpath: String,
    /// Where last-seen stamps live: split or shared (knob bridge.fdb)
    #[arg(long, value_name = "TABLE", default_value = "split")]
    fdb: Table,
    /// The most stations that the fast path knows; more take the kernel path [default: a quarter
    /// more than the bridge knows now, and at least 8192]
    #[arg(long, value_name = "N")]
    max_stations: Option<u32>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let name = args.name.as_str();
    if args.check {
        return check(name, &bridge::inspect(name)?, args.json);
    }
    if args.dry_run {
        return dry_run(name, &bridge::inspect(name)?);
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("cannot catch signals")?;
    let config = Config {
        max_stations: args.max_stations,
        fastpath: args.fastpath == "on",
        table: args.fdb,
        ..Config::new(name)
    };
    let accelerator = Arc::new(Accelerator::start(config)?);
    let _control = control::open("bridge", |knobs| bridge::register(&accelerator, knobs));
    announce(name, &accelerator);
    let exit = follow(&accelerator, &mut signals);
    report(&accelerator.stats());
    exit
}

/// Waits for a signal that ends it, or for the fast path to end by itself.
fn follow(accelerator: &Accelerator, signals: &mut Signals) -> anyhow::Result<Exit> {
    /// How soon either is heeded.
    const LOOK: Duration = Duration::from_millis(50);
    loop {
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => report(&accelerator.stats()),
                _ => return Ok(Exit::Ok),
            }
        }
        if let Some(error) = accelerator.failure() {
            // Not what it is at the start, an answer to what the user gave.
            bail!("the fast path has ended, and the bridge, if it is there, goes on: {error}");
        }
        std::thread::sleep(LOOK);
    }
}

fn announce(name: &str, accelerator: &Accelerator) {
    let plan = accelerator.plan();
    let stations = accelerator.stats().stations;
    let count = plan.ports.iter().filter(|port| accelerated(port)).count();
    tracing::info!(
        "{name}: {count} of {} ports accelerated, {stations} stations known",
        plan.ports.len()
    );
    for line in explain(&plan) {
        tracing::warn!("{name}: {line}");
    }
}

fn report(stats: &Stats) {
    let kernel: Vec<String> = Reason::ALL
        .iter()
        .filter(|reason| stats.kernel(**reason) > 0)
        .map(|reason| format!("{} {}", reason.name(), stats.kernel(*reason)))
        .collect();
    let why = if kernel.is_empty() { String::new() } else { format!(" ({})", kernel.join(", ")) };
    tracing::info!(
        "forwarded {} packets straight and {} by their port's queue, {} bytes in all; left {} to \
         the kernel{why}",
        stats.straight,
        stats.redirected,
        stats.bytes,
        stats.left_to_kernel(),
    );
}

/// What concerns every port, in sentences.
fn explain(plan: &Plan) -> Vec<String> {
    let whole = plan.obstacles.iter().map(|o| format!("all is left to the kernel path: {o}"));
    let answers = |port: &&PortPlan| port.receive.contains(&Obstacle::Answers);
    let answering: Vec<&str> =
        plan.ports.iter().filter(answers).map(|port| port.name.as_str()).collect();
    let asked = (!answering.is_empty()).then(|| {
        format!(
            "ARP and neighbour discovery left to the kernel path on every port: {} answers for \
             others (neigh_suppress, proxy_arp)",
            answering.join(", ")
        )
    });
    let by_ports = |protocol: &Protocol| {
        *protocol == Protocol::Nd || *protocol == Protocol::Arp && asked.is_some()
    };
    let left: Vec<String> =
        plan.left.iter().filter(|left| !by_ports(left)).map(ToString::to_string).collect();
    let protocols = (!left.is_empty()).then(|| {
        format!(
            "{} left to the kernel path: br_netfilter hands it to the IP tables (sysctl \
             net.bridge.bridge-nf-call-iptables, -ip6tables, -arptables)",
            left.join(", ")
        )
    });
    whole.chain(protocols).chain(asked).collect()
}

/// Whether something may be taken from the port, or sent to it.
fn accelerated(port: &PortPlan) -> bool {
    port.receive.is_empty() || port.send > Way::Kernel
}

fn check(name: &str, plan: &Plan, as_json: bool) -> anyhow::Result<Exit> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(&plan_json(name, plan))?);
    } else {
        let rows: Vec<[String; 4]> = plan.ports.iter().map(row).collect();
        print!("{}", table(["PORT", "FROM IT", "TO IT", "WHY NOT MORE"], &rows));
        for port in plan.ports.iter().filter(|port| !port.before.is_empty()) {
            println!("{}: ours would run after {}", port.name, programs(port).join(", "));
        }
        explain(plan).iter().for_each(|line| println!("{line}"));
        if let Some(length) = plan.lease.length {
            let longest = plan.lease.longest_look;
            println!("a look takes {longest:.1?}, and the fast path goes by it for {length:.1?}");
        }
        if plan.ports.is_empty() {
            println!("{name} has no ports");
        }
    }
    Ok(if plan.can_forward() { Exit::Ok } else { Exit::Failed })
}

fn row(port: &PortPlan) -> [String; 4] {
    let from = if port.receive.is_empty() { "fast" } else { "kernel" };
    let mut why: Vec<String> = port.receive.iter().map(ToString::to_string).collect();
    why.extend(port.limits.iter().map(ToString::to_string));
    why.dedup();
    // What stands against both directions is in both lists.
    let mut seen = std::collections::HashSet::new();
    why.retain(|reason| seen.insert(reason.clone()));
    [port.name.clone(), from.into(), port.send.name().into(), why.join("; ")]
}

/// The tcx programs that run before ours, as people find them with bpftool.
fn programs(port: &PortPlan) -> Vec<String> {
    let name = |id: &u32| match bridge::program_name(*id) {
        Some(name) => format!("{name} (id {id})"),
        None => format!("id {id}"),
    };
    port.before.iter().map(name).collect()
}

fn plan_json(name: &str, plan: &Plan) -> Value {
    let obstacle = |o: &Obstacle| json!({"id": o.id(), "text": o.to_string()});
    let all = |list: &[Obstacle]| list.iter().map(obstacle).collect::<Vec<_>>();
    let port = |port: &PortPlan| {
        json!({
            "name": port.name,
            "from": if port.receive.is_empty() { "fast" } else { "kernel" },
            "to": port.send.name(),
            "against_from": all(&port.receive),
            "against_better_to": all(&port.limits),
            "tcx_before": port.before,
        })
    };
    json!({
        "schema": 1,
        "bridge": name,
        "can_forward": plan.can_forward(),
        "obstacles": all(&plan.obstacles),
        "longest_look_us": plan.lease.longest_look.as_micros(),
        "lease_ms": plan.lease.length.map(|length| length.as_millis()),
        "left_to_kernel": plan.left.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": plan.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn dry_run(name: &str, plan: &Plan) -> anyhow::Result<Exit> {
    for port in &plan.ports {
        let order = match programs(port).as_slice() {
            [] => String::new(),
            there => format!(", after the tcx programs there: {}", there.join(", ")),
        };
        let from = if port.receive.is_empty() { "takes from it" } else { "takes nothing from it" };
        let to = match port.send {
            Way::Kernel => "sends nothing to it",
            Way::Queue => "sends to it through its queue",
            Way::Straight => "sends to it straight",
        };
        println!("would attach a tcx program to {}'s ingress{order}: {from}, {to}", port.name);
    }
    println!("would follow {name}'s ports and forwarding table by netlink");
    println!("would change nothing else on this host");
    explain(plan).iter().for_each(|line| println!("{line}"));
    Ok(Exit::Ok)
}
