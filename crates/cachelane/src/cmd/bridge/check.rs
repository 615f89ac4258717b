//! What is said before anything is done, and what is said of a bridge's ports.

use std::collections::HashSet;

use bridge::{ErrorKind, Inspection, Obstacle, Plan, PortPlan, Way};
use serde_json::{Value, json};

use super::Args;
use crate::exit::Exit;
use crate::out;
use crate::terminal::table;

/// `--check`.
pub(super) fn check(args: &Args) -> anyhow::Result<Exit> {
    let found = inspect(args)?;
    let text = if args.json {
        let all: Vec<Value> = found.iter().map(to_json).collect();
        let json = match (args.names.as_slice(), all.as_slice()) {
            // The one that was asked for.
            ([name], [one]) if !bridge::is_pattern(name) => one.clone(),
            _ => json!({"schema": 1, "bridges": all}),
        };
        format!("{json:#}\n")
    } else if found.is_empty() {
        "there are no bridges here\n".into()
    } else {
        let several = found.len() > 1;
        let one = |(name, there): &(String, Option<Inspection>)| {
            let head = if several { format!("{name}:\n") } else { String::new() };
            let body = match there {
                Some(there) => text(name, there),
                None => format!("{name} is not there\n"),
            };
            head + &body
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
    let rows: Vec<[String; 5]> = plan.ports.iter().map(|port| row(plan, port)).collect();
    let table = match plan.vlans {
        Some(_) => table(["PORT", "FROM IT", "TO IT", "VLANS", "WHY NOT MORE"], &rows),
        None => {
            let rows: Vec<[String; 4]> =
                rows.into_iter().map(|[port, from, to, _, why]| [port, from, to, why]).collect();
            table(["PORT", "FROM IT", "TO IT", "WHY NOT MORE"], &rows)
        }
    };
    let runs = if accelerated.is_some() { "runs" } else { "would run" };
    let ordered = plan.ports.iter().filter(|port| !port.before.is_empty());
    let order =
        |port: &PortPlan| format!("{}: ours {runs} after {}", port.name, programs(port).join(", "));
    let tags = plan.vlans.map(|tags| format!("it goes by VLAN tags of {tags}"));
    let mut lines: Vec<String> = ordered.map(order).chain(tags).chain(plan.remarks()).collect();
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

/// The ways from a port, which is the kernel's or any other, and to it: the kernel's both where the
/// whole bridge is.
fn ways(plan: &Plan, port: &PortPlan) -> (Way, Way) {
    match (plan.obstacles.is_empty(), port.receive.is_empty()) {
        (false, _) => (Way::Kernel, Way::Kernel),
        (true, false) => (Way::Kernel, port.send),
        (true, true) => (Way::Straight, port.send),
    }
}

/// The same in words.
fn named(plan: &Plan, port: &PortPlan) -> (&'static str, &'static str) {
    let (from, to) = ways(plan, port);
    (if from == Way::Kernel { "kernel" } else { "fast" }, to.name())
}

fn row(plan: &Plan, port: &PortPlan) -> [String; 5] {
    let (from, to) = named(plan, port);
    let vlans = port.vlans.as_ref().map(|vlans| vlans.to_string()).unwrap_or_default();
    let mut why: Vec<String> = port.receive.iter().map(ToString::to_string).collect();
    why.extend(port.limits.iter().map(ToString::to_string));
    why.dedup();
    // What stands against both directions is in both lists.
    let mut seen = HashSet::new();
    why.retain(|reason| seen.insert(reason.clone()));
    [port.name.clone(), from.into(), to.into(), vlans, why.join("; ")]
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
        let (from, to) = named(plan, port);
        json!({
            "name": port.name,
            "attached": inspection.attached.contains(&port.index),
            "from": from,
            "to": to,
            "pvid": port.vlans.as_ref().and_then(|vlans| vlans.pvid()),
            "vlans": port.vlans.as_ref().map(|vlans| vlans.count()),
            "vlans_not_forwarding": port.vlans.as_ref().map(|vlans| vlans.held()),
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
        "vlan_protocol": plan.vlans.map(|tags| tags.to_string()),
        "obstacles": all(&plan.obstacles),
        "longest_look_us": plan.lease.longest_look.as_micros(),
        "lease_ms": plan.lease.length.map(|length| length.as_millis()),
        "left_to_kernel": plan.left.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": plan.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

/// `--dry-run`.
pub(super) fn dry_run(args: &Args) -> anyhow::Result<Exit> {
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
        let (from, to) = ways(plan, port);
        let from = if from == Way::Kernel { "takes nothing from it" } else { "takes from it" };
        let to = match to {
            Way::Kernel => "sends nothing to it",
            Way::Queue => "sends to it through its queue",
            Way::Straight => "sends to it straight",
        };
        format!("would attach a tcx program to {}'s ingress{order}: {from}, {to}", port.name)
    };
    let follow = format!("would follow {name}'s ports and forwarding table by netlink");
    plan.ports.iter().map(would).chain([follow]).chain(plan.remarks()).collect()
}

/// Whether something may be taken from the port, or sent to it.
pub(super) fn accelerated(plan: &Plan, port: &PortPlan) -> bool {
    ways(plan, port) != (Way::Kernel, Way::Kernel)
}

/// The bridges that are meant, and what is found there; none where one is not there and would be
/// waited for.
fn inspect(args: &Args) -> anyhow::Result<Vec<(String, Option<Inspection>)>> {
    let there = bridge::bridges()?;
    let mut names = Vec::new();
    for name in &args.names {
        match bridge::is_pattern(name) {
            true => names.extend(bridge::matching(&there, name)),
            false => names.push(name.clone()),
        }
    }
    if args.all {
        names = there;
    }
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let look = |name: String| match bridge::inspect(&name) {
        Err(error) if error.kind() == ErrorKind::NoDevice && (args.wait || args.all) => {
            Ok((name, None))
        }
        found => Ok((name, Some(found?))),
    };
    names.into_iter().map(look).collect()
}
