//! This process as a member of `cachelane up`, which has started it: what it is called, that it does not
//! outlive that, and that it may do no more than it needs. The two talk in the protocol of `sd_notify`.

use std::sync::LazyLock;

use knobs::{Answer, Peer, Registry};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use sd_notify::NotifyState;
use serde_json::Value;

use crate::exit::Exit;
use crate::{log, out, passed, privileges};

/// Names the member that a process is.
pub(crate) const NAME: &str = "CACHELANE_MEMBER";
/// Names the process that has started it.
pub(crate) const OF: &str = "CACHELANE_MEMBER_OF";

/// What it is to log, unless its user says otherwise: a filter.
pub(crate) const FILTER: &str = "CACHELANE_MEMBER_LOG";

/// The request by which it is told anew: a filter.
pub(crate) const SET_FILTER: &str = "log.filter";

static MEMBER: LazyLock<Option<String>> =
    LazyLock::new(|| std::env::var(OF).and_then(|_| std::env::var(NAME)).ok());

/// What this process is called in the configuration, if it is in one.
pub(crate) fn name() -> Option<&'static str> {
    MEMBER.as_deref()
}

/// What it is to log by the configuration, if it is in one that says so.
pub(crate) fn filter() -> Option<String> {
    name().and_then(|_| std::env::var(FILTER).ok())
}

/// Lets `cachelane up` say what this process is to log, if that has started it.
pub(crate) fn register(registry: &Registry) -> Result<(), knobs::Error> {
    if name().is_none() {
        return Ok(());
    }
    registry.on_request(SET_FILTER, |filter: &Value, _: Peer| {
        log::set_filter(filter.as_str().ok_or("expected a filter")?);
        Ok::<_, &str>(Answer::default())
    })
}

/// Has this process be killed when `cachelane up` dies, if that has started it: until it
/// [has started](has_started), nothing is lost by that, and it may be stuck.
pub(crate) fn join() {
    if name().is_none() {
        return;
    }
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have died before it could be bound to.
    let of = std::env::var(OF).ok().and_then(|pid| pid.parse().ok());
    let is_there = getppid().is_some_and(|parent| Some(parent.as_raw_pid()) == of);
    if bound.is_err() || !is_there {
        std::process::exit(Exit::Failed as i32);
    }
    if let Err(error) = privileges::keep_those_of(kind()) {
        out::complain(&format!("all capabilities are kept: {error}"));
    }
}

/// Gives up what this process has needed to attach and open what it works on, and needs no more, if it is
/// in a configuration. To be called before there are threads that others can speak to.
pub(crate) fn has_attached() {
    if name().is_some()
        && let Err(error) = privileges::keep_those_for_later(kind())
    {
        tracing::warn!("capabilities that are needed no more are kept: {error}");
    }
}

fn kind() -> &'static str {
    name().map_or("", |name| name.split('.').next().unwrap_or_default())
}

/// Has this process end as it does when it is told to, from now on, when `cachelane up` dies. To be called
/// by the main thread.
pub(crate) fn has_started() {
    if name().is_some()
        && let Err(error) = set_parent_process_death_signal(Some(Signal::TERM))
    {
        tracing::warn!("this process is killed if cachelane up dies: {error}");
    }
}

/// Says why this process is about to fail.
pub(crate) fn fail(why: &str) {
    if name().is_some() {
        // The rest, such as what the kernel has against a program, is in the log.
        let first = why.lines().next().unwrap_or_default();
        passed::notify(&[NotifyState::Status(first)]);
    }
}

/// Says which process this one has taken over from; none if there was none.
pub(crate) fn took_over(from: Option<u32>) {
    if name().is_some() {
        passed::notify(&[NotifyState::Custom(&format!("REPLACED={}", from.unwrap_or_default()))]);
    }
}

/// A process id, for rustix.
pub(crate) fn pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}
