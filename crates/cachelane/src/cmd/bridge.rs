//! `cachelane bridge`: the fast paths of existing Linux bridges, in the foreground, until a signal
//! ends them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bridge::{
    Accelerator, Bridges, Config, ErrorKind, Event, Fleet, Inspection, Obstacle, Plan, PortPlan,
    Protocol, Reason, Stats, Table, Way,
};
use clap::ArgAction;
use serde_json::{Value, json};

use crate::args::{ON_OFF, choice};
use crate::exit::{Exit, usage};
use crate::figures::of_which;
use crate::out;
use crate::run::{Followed, Foreground, control};
use crate::table::table;

/// Accelerate existing Linux bridges
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
The Linux bridge stays the authority: it learns, ages, floods and speaks STP, and ip and bridge go \
on working. Frames that it would forward to a known address in exactly the same way are forwarded \
by a tcx program on each port, which runs after all other tcx programs there; everything else is \
left to it, counted by reason (cachelane knob list --counters). However this process ends, the \
bridge goes on by itself with the next packet.

A bridge that is deleted leaves; the process ends when the last has left, unless it waits. Knobs and \
counters are those of all its bridges together.

Signals: SIGINT and SIGTERM end it. SIGUSR1 logs the counters of each bridge.

Examples:
  cachelane bridge docker0 --check
  cachelane bridge br0
  cachelane bridge br0 br1 --wait
  cachelane bridge --all
  cachelane knob set bridge.fastpath off")]
pub(crate) struct Args {
    /// The bridges: br0, docker0, cni0, virbr0
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Accelerate all bridges that there are, and all that come later
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Wait for bridges that are not there, or not any more, and accelerate them when they come
    #[arg(long)]
    wait: bool,
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
    #[arg(long, value_name = "STATE", default_value = "on", action = ArgAction::Set, value_parser = choice(ON_OFF))]
    fastpath: bool,
    /// Where last-seen stamps live: split or shared (knob bridge.fdb)
    #[arg(long, value_name = "TABLE", default_value = "split")]
    fdb: Table,
    /// The most stations of a bridge that the fast path knows; more take the kernel path [default:
    /// a quarter more than the bridge knows now, and at least 8192]
    #[arg(long, value_name = "N")]
    max_stations: Option<u32>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut names = HashSet::new();
    if let Some(twice) = args.names.iter().find(|name| !names.insert(*name)) {
        return Err(usage(format!("'{twice}' is given twice; give each bridge once")));
    }
    if args.check {
        return check(args);
    }
    if args.dry_run {
        return dry_run(args);
    }
    let config =
        Config { max_stations: args.max_stations, fastpath: args.fastpath, table: args.fdb };
    let bridges = match args.all {
        true => Bridges::All,
        false => Bridges::Named { names: args.names.clone(), wait: args.wait },
    };
    let fleet = Arc::new(Fleet::start(bridges, config)?);
    // Until now a signal ends the process at once: with a thousand ports starting takes a while.
    let mut foreground = Foreground::new()?;
    let _control = control::open("bridge", |knobs| bridge::register(&fleet, knobs));
    let ended = foreground.follow(None, &mut Running { fleet: &fleet, begun: false });
    tracing::info!("{}", counts(&fleet.stats()));
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
            tracing::info!("{name}: {}", counts(&fast.stats()));
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

/// What was forwarded, and what was left to the kernel by reason, in a line.
fn counts(stats: &Stats) -> String {
    let why = of_which(Reason::ALL.iter().map(|why| (why.name(), stats.kernel(*why))));
    format!(
        "forwarded {} packets straight and {} by their port's queue, {} bytes in all; left {} to \
         the kernel{why}",
        stats.straight,
        stats.redirected,
        stats.bytes,
        stats.left_to_kernel(),
    )
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

/// The bridges that are meant, and what is found there; none where one is not there and would be
/// waited for.
fn inspect(args: &Args) -> anyhow::Result<Vec<(String, Option<Inspection>)>> {
    let names = if args.all { bridge::bridges()? } else { args.names.clone() };
    let look = |name: String| match bridge::inspect(&name) {
        Err(error) if error.kind() == ErrorKind::NoDevice && (args.wait || args.all) => {
            Ok((name, None))
        }
        found => Ok((name, Some(found?))),
    };
    names.into_iter().map(look).collect()
}

fn check(args: &Args) -> anyhow::Result<Exit> {
    let found = inspect(args)?;
    let text = if args.json {
        let mut all: Vec<Value> = found.iter().map(to_json).collect();
        let json = match (args.names.len(), all.pop()) {
            // The one that was asked for.
            (1, Some(one)) => one,
            (_, last) => {
                json!({"schema": 1, "bridges": all.into_iter().chain(last).collect::<Vec<_>>()})
            }
        };
        format!("{json:#}\n")
    } else if found.is_empty() {
        "there are no bridges here\n".into()
    } else {
        let several = found.len() > 1;
        let one = |(name, there): &(String, Option<Inspection>)| {
            let head = if several { format!("{name}:\n") } else { String::new() };
            head + &there
                .as_ref()
                .map_or(format!("{name} is not there\n"), |there| text(name, there))
        };
        found.iter().map(one).collect::<Vec<_>>().join("\n")
    };
    out::print(&text)?;
    let can = found.iter().flat_map(|(_, there)| there).any(|there| there.plan.can_forward());
    Ok(if can { Exit::Ok } else { Exit::Failed })
}

/// What `--check` finds of a bridge, for people.
fn text(name: &str, inspection: &Inspection) -> String {
    let plan = &inspection.plan;
    let accelerated = inspection.accelerated.as_ref();
    let by = accelerated.map(|by| format!("{name} is already accelerated by pid {}\n", by.pid));
    let rows: Vec<[String; 4]> = plan.ports.iter().map(row).collect();
    let table = table(["PORT", "FROM IT", "TO IT", "WHY NOT MORE"], &rows);
    let runs = if accelerated.is_some() { "runs" } else { "would run" };
    let ordered = plan.ports.iter().filter(|port| !port.before.is_empty());
    let order =
        |port: &PortPlan| format!("{}: ours {runs} after {}", port.name, programs(port).join(", "));
    let mut lines: Vec<String> = ordered.map(order).chain(explain(plan)).collect();
    if let Some(length) = plan.lease.length {
        let longest = plan.lease.longest_look;
        lines.push(format!(
            "a look takes {longest:.1?}, and the fast path goes by it for {length:.1?}"
        ));
    }
    if plan.ports.is_empty() {
        lines.push(format!("{name} has no ports"));
    }
    lines.iter().fold(by.unwrap_or_default() + &table, |text, line| text + line + "\n")
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

fn to_json((name, there): &(String, Option<Inspection>)) -> Value {
    let Some(inspection) = there else {
        return json!({"schema": 1, "bridge": name, "there": false, "can_forward": false});
    };
    let plan = &inspection.plan;
    let obstacle = |o: &Obstacle| json!({"id": o.id(), "text": o.to_string()});
    let all = |list: &[Obstacle]| list.iter().map(obstacle).collect::<Vec<_>>();
    let port = |port: &PortPlan| {
        json!({
            "name": port.name,
            "attached": inspection.attached.contains(&port.index),
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
        "there": true,
        "accelerated_by": inspection.accelerated.as_ref().map(|by| {
            json!({"pid": by.pid, "program": by.program})
        }),
        "can_forward": plan.can_forward(),
        "obstacles": all(&plan.obstacles),
        "longest_look_us": plan.lease.longest_look.as_micros(),
        "lease_ms": plan.lease.length.map(|length| length.as_millis()),
        "left_to_kernel": plan.left.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": plan.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn dry_run(args: &Args) -> anyhow::Result<Exit> {
    let found = inspect(args)?;
    let of = |inspection: &Inspection| inspection.accelerated.as_ref().map(|by| by.pid);
    let pid = |there: &Option<Inspection>| there.as_ref().and_then(of);
    let mut lines = Vec::new();
    for (name, there) in &found {
        if let Some(pid) = pid(there) {
            lines.push(format!("would be refused: '{name}' is already accelerated by pid {pid}"));
        }
    }
    if !args.all && !lines.is_empty() {
        return out::lines(lines).map(|()| Exit::Failed);
    }
    for (name, there) in &found {
        match there {
            Some(inspection) if inspection.accelerated.is_some() => {}
            Some(inspection) => lines.extend(would_attach(name, &inspection.plan)),
            None => lines.push(format!("would wait for '{name}', which is not there")),
        }
    }
    if args.all {
        lines.push("would do the same for every bridge that comes".into());
    }
    out::dry_run(lines)
}

fn would_attach(name: &str, plan: &Plan) -> Vec<String> {
    let would = |port: &PortPlan| {
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
        format!("would attach a tcx program to {}'s ingress{order}: {from}, {to}", port.name)
    };
    let follow = format!("would follow {name}'s ports and forwarding table by netlink");
    plan.ports.iter().map(would).chain([follow]).chain(explain(plan)).collect()
}
