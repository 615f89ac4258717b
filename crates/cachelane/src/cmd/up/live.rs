//! What of a new configuration can be changed in the process that is there: keys that are knobs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use knobs::{Client, ErrorKind};

use super::member::Member;
use super::process::{Process, State};
use crate::config::Member as Wanted;
use crate::member;

/// A member is to be another one: by its knobs if these are all that differs, or else anew.
pub(super) fn change(member: &mut Member, wanted: &Wanted) {
    let name = &member.name;
    match by_knobs(member, wanted) {
        Some(Ok(set)) => {
            tracing::info!("{name}: set {set}");
            member.serves(wanted.clone());
        }
        Some(Err(error)) => {
            // Held by a trial, say. What is wanted stays as it was, so the next reload tries again.
            tracing::error!("{name}: stays as it was until the next reload: {error}");
        }
        None => member.want(wanted.clone()),
    }
}

/// Has these processes log what this filter lets through, where they do not yet. One that did not answer is
/// told again once it says something.
pub(super) fn log<'a>(processes: impl Iterator<Item = &'a mut Process>, filter: &str) {
    let differ = |one: &Process| {
        let hears = one.deaf_since.is_none_or(|since| one.heard > since);
        one.state == State::Running && one.filter != filter && hears
    };
    let mut others: HashMap<u32, &mut Process> =
        processes.filter(|one| differ(one)).map(|one| (one.pid(), one)).collect();
    if others.is_empty() {
        return;
    }
    // All at once: there may be a thousand.
    let mut found = knobs::discover().unwrap_or_default();
    found.retain(|one| others.contains_key(&one.pid));
    let told = knobs::ask_each(&found, |one| ask_soon(one)?.ask(member::SET_FILTER, filter.into()));
    for (one, told) in found.iter().zip(told) {
        let Some(process) = others.remove(&one.pid) else { continue };
        let name = &process.of.name;
        match told {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                if process.deaf_since.replace(Instant::now()).is_none() {
                    tracing::error!("{name} logs as before until it answers: {error}");
                }
                continue;
            }
            Err(error) => tracing::error!("{name} logs as before: {error}"),
            Ok(_) => {}
        }
        process.logs(filter);
    }
    for (pid, process) in others {
        let name = &process.of.name;
        tracing::error!("{name} logs as before: process {pid} has no control socket");
        process.logs(filter);
    }
}

/// Sets the knobs that differ, if nothing else does; what was set.
fn by_knobs(member: &Member, wanted: &Wanted) -> Option<knobs::Result<String>> {
    let process = member.process.as_ref().filter(|one| one.state == State::Running)?;
    if member.next.is_some() || process.of.kind != wanted.kind {
        return None;
    }
    let differ = differ(&process.of, wanted);
    if differ.is_empty() || arguments_beside(&process.of) != arguments_beside(wanted) {
        return None;
    }
    let set: Option<Vec<_>> = differ
        .iter()
        .map(|key| {
            let knob = wanted.kind.knob(key)?;
            let value = wanted.value(key).or_else(|| wanted.kind.default(key))?;
            Some((knob, value))
        })
        .collect();
    let set = set?;
    let text =
        set.iter().map(|(knob, value)| format!("{knob} {value}")).collect::<Vec<_>>().join(", ");
    Some(set_all(process.pid(), &set).map(|()| text))
}

/// Keys that have other values.
fn differ(one: &Wanted, other: &Wanted) -> Vec<String> {
    let of = |member: &Wanted, key: &str| {
        let values = member.values.iter().filter(|(name, _)| name == key);
        values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let mut keys: Vec<_> =
        one.values.iter().chain(&other.values).map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| of(one, key) != of(other, key));
    keys
}

/// What it is given that stands under no key of its own.
fn arguments_beside(member: &Wanted) -> Vec<&String> {
    let is_key = |arg: &&String| member.values.iter().any(|(_, value)| value == *arg);
    member.args.iter().filter(|arg| !is_key(arg)).collect()
}

fn set_all(pid: u32, all: &[(&'static str, String)]) -> knobs::Result<()> {
    let mut client = connect(pid)?;
    for (knob, value) in all {
        client.set(knob, value)?;
    }
    Ok(())
}

fn connect(pid: u32) -> knobs::Result<Client> {
    let processes = knobs::discover()?;
    let process = processes.into_iter().find(|process| process.pid == pid);
    let none = || knobs::Search::default().none(&knobs::Select { pid: Some(pid), name: None });
    ask_soon(&process.ok_or_else(none)?)
}

fn ask_soon(process: &knobs::Process) -> knobs::Result<Client> {
    /// The daemon waits so long for one that does not answer.
    const PATIENCE: Duration = Duration::from_secs(2);
    // One that is stopped is not waited for.
    process.connect_timeout(if process.is_stopped() { PATIENCE / 20 } else { PATIENCE })
}
