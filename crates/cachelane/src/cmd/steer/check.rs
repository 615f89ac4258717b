//! What is said before anything is done.

use serde_json::{Value, json};
use steer::{Obstacle, Plan, Steering};
use xsk::Device;

use super::Prepared;
use crate::exit::{Exit, host_cannot};
use crate::terminal::{width, wrap};
use crate::{holder, out};

/// `--check`.
pub(super) fn check(prepared: &Prepared, force: bool, as_json: bool) -> anyhow::Result<Exit> {
    let Prepared { device, options, plan, .. } = prepared;
    Steering::try_load(device, options)?;
    let refused = plan.refusals(force).next().is_some();
    out::print(&match as_json {
        true => format!("{:#}\n", object(prepared, force)),
        false => describe(prepared, force).iter().map(|line| wrap(line, width())).collect(),
    })?;
    Ok(if refused { Exit::Failed } else { Exit::Ok })
}

/// An error that says all that stands against it, if anything does.
pub(super) fn refuse(device: &Device, plan: &Plan, force: bool) -> anyhow::Result<()> {
    let reasons: Vec<String> =
        plan.refusals(force).map(|obstacle| against(obstacle, device)).collect();
    if reasons.is_empty() {
        return Ok(());
    }
    let can_be_forced = plan.refusals(true).next().is_none();
    let hint = if can_be_forced { " (--force steers it all the same, for tests)" } else { "" };
    Err(host_cannot(format!(
        "{} is not steered: {}{hint}",
        plan.device,
        reasons.join(". Besides: ")
    )))
}

/// `--dry-run`.
pub(super) fn dry_run(prepared: &Prepared) -> anyhow::Result<Exit> {
    let Prepared { device, machine, options, plan } = prepared;
    Steering::try_load(device, options)?;
    let cpus = options.targets.intersection(machine.lanes().online());
    let states = u64::from(options.records) * u64::from(plan.queues);
    let kib = (u64::from(options.records) * 4 + states * 8) / 1024;
    let priority = match options.priority {
        0 => "an ordinary kernel thread".into(),
        priority => format!("a kernel thread of the real-time priority {priority}"),
    };
    let would = format!(
        "would attach an XDP program to {device}, in its driver\n\
         would attach programs to the tracepoints sock_recv_length, sock_send_length, napi_poll \
         and xdp_cpumap_enqueue\n\
         would start {priority} on each of CPUs {cpus}, for up to {} packets that wait\n\
         would hold {} records of flows, {kib} KiB of kernel memory\n\
         would change nothing else on this host, and leave nothing of it behind\n",
        options.queue_size, options.records
    );
    // Here only what was forced is left of the obstacles.
    let forced = plan.obstacles.iter().map(|obstacle| against(obstacle, device));
    let notes = plan.notes.iter().map(ToString::to_string);
    let lines = forced.chain(notes).map(|line| wrap(&format!("{device}: {line}"), width()));
    out::print(&lines.fold(would, |text, line| text + &line)).map(|()| Exit::Ok)
}

/// Warns of what was forced, and of what is worth a look.
pub(super) fn warn(plan: &Plan) {
    for obstacle in &plan.obstacles {
        tracing::warn!("{}: steered all the same (--force): {obstacle}", plan.device);
    }
    for note in &plan.notes {
        tracing::warn!("{}: {note}", plan.device);
    }
}

/// An obstacle and what takes it out of the way.
pub(super) fn against(obstacle: &Obstacle, device: &Device) -> String {
    match remedy(obstacle, device) {
        Some(remedy) => format!("{obstacle} [{}]. What helps: {remedy}", obstacle.id()),
        None => format!("{obstacle} [{}]", obstacle.id()),
    }
}

/// What takes it out of the way, as far as that is known.
fn remedy(obstacle: &Obstacle, device: &Device) -> Option<String> {
    match obstacle {
        Obstacle::Program { .. } => holder::of(device),
        _ => obstacle.remedy(device.name()),
    }
}

fn describe(prepared: &Prepared, force: bool) -> Vec<String> {
    let Prepared { device, machine, options, plan } = prepared;
    let lanes = machine.lanes();
    let queues = if plan.queues == 1 { "queue" } else { "queues" };
    let mut lines = vec![format!(
        "{device}: {} receive {queues}, to be steered to CPUs {} in lanes {lanes}",
        plan.queues,
        options.targets.intersection(lanes.online())
    )];
    for obstacle in &plan.obstacles {
        let what = match obstacle.can_be_forced() {
            true if force => "forced",
            true => "refused without --force",
            false => "refused",
        };
        lines.push(format!("{what}: {}", against(obstacle, device)));
    }
    lines.extend(plan.notes.iter().map(|note| format!("note: {note} [{}]", note.id())));
    if plan.obstacles.is_empty() {
        lines.push("nothing stands against it".into());
    }
    if let Some(lease) = options.lease {
        lines.push(format!(
            "should this process not get to look after the host for {} s, nothing is steered until \
             it does",
            lease.as_secs_f64()
        ));
    }
    lines.push("a packet that is sent to another CPU loses:".into());
    lines.extend(steer::COSTS.iter().map(|cost| format!("  {} [{}]", cost.text, cost.id)));
    lines
}

fn object(prepared: &Prepared, force: bool) -> Value {
    let Prepared { device, machine, options, plan } = prepared;
    let obstacle = |obstacle: &Obstacle| {
        json!({
            "id": obstacle.id(),
            "text": obstacle.to_string(),
            "remedy": remedy(obstacle, device),
            "can_be_forced": obstacle.can_be_forced(),
        })
    };
    let note = |note: &steer::Note| json!({"id": note.id(), "text": note.to_string()});
    json!({
        "schema": 1,
        "interface": plan.device,
        "can_steer": plan.refusals(force).next().is_none(),
        "queues": plan.queues,
        "targets": options.targets.intersection(machine.lanes().online()).to_string(),
        "lanes": machine.lanes().to_string(),
        "priority": options.priority,
        "lease_seconds": options.lease.map(|lease| lease.as_secs_f64()),
        "obstacles": plan.obstacles.iter().map(obstacle).collect::<Vec<_>>(),
        "notes": plan.notes.iter().map(note).collect::<Vec<_>>(),
        "costs": steer::COSTS.map(|cost| json!({"id": cost.id, "text": cost.text})),
    })
}
