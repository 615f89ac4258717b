//! How the members fare, for those who ask by the control socket: as a table, as JSON, as counters, and in
//! a line for the service manager.

use std::sync::Arc;
use std::time::Instant;

use knobs::MeterKind::{Counter, Gauge};
use knobs::{Answer, Peer, ProcessName, Registry};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::member::Member;
use super::process::State;
use super::succession::{GIVE_WAY, TAKEN};
use crate::exit::Exit;
use crate::out;
use crate::terminal::{clean, table};

const MEMBERS: &str = "up.members";

/// What another daemon has asked of this one.
#[derive(Debug)]
pub(super) enum Asked {
    /// To let this process take its place.
    GiveWay(u32),
    /// To end, now that its place is taken, and these of its processes were taken over from.
    Taken(Vec<u32>),
}

/// What the daemon shows, and what it was asked. Held for moments alone.
pub(super) struct Board {
    shown: Mutex<Shown>,
    asked: Mutex<Vec<Asked>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Shown {
    members: Vec<Status>,
    /// The daemon has looked at them once.
    has_begun: bool,
    /// Starts and failures of members that are gone.
    past: (u64, u64),
    has_given_way: bool,
    /// The first process that has asked this one to give way, and is not gone.
    successor: Option<u32>,
}

/// How one member fares.
#[derive(Clone, Debug)]
struct Status {
    name: String,
    state: &'static str,
    pid: Option<u32>,
    /// When it came to be so.
    since: Option<Instant>,
    starts: u64,
    failures: u64,
    ending: usize,
    retry_at: Option<Instant>,
    trouble: Option<String>,
}

impl Board {
    pub(super) fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Board> {
        Arc::new(Board { shown: Mutex::default(), asked: Mutex::default(), wake: Box::new(wake) })
    }

    pub(super) fn show<'a>(
        &self,
        members: impl Iterator<Item = &'a Member>,
        past: (u64, u64),
        has_given_way: bool,
        now: Instant,
    ) {
        let members = members.map(|member| Status::of(member, now)).collect();
        let mut shown = self.shown.lock();
        (shown.members, shown.past, shown.has_given_way) = (members, past, has_given_way);
        shown.has_begun = true;
    }

    /// The process that was to take the place of this one is gone.
    pub(super) fn forget_successor(&self) {
        self.shown.lock().successor = None;
    }

    pub(super) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// Answers those who ask.
    pub(super) fn register(board: &Arc<Board>, registry: &Registry) -> Result<(), knobs::Error> {
        let from = Arc::clone(board);
        registry.on_request(MEMBERS, move |_: &Value, _: Peer| {
            let shown = from.shown.lock();
            // Whoever asks whether all run is not to hear of none.
            if !shown.has_begun {
                return Err("it has not started its members yet");
            }
            let members = shown.members.iter().map(Status::json).collect();
            Ok(Answer { value: Value::Array(members), files: Vec::new() })
        })?;
        let to = Arc::clone(board);
        registry.on_request(GIVE_WAY, move |_: &Value, peer: Peer| {
            let mut shown = to.shown.lock();
            let successor = *shown.successor.get_or_insert(peer.pid);
            let value = json!({"has_given_way": shown.has_given_way});
            drop(shown);
            if successor != peer.pid {
                return Err(format!("process {successor} is about to take its place"));
            }
            to.ask(Asked::GiveWay(peer.pid));
            Ok(Answer { value, files: Vec::new() })
        })?;
        let to = Arc::clone(board);
        registry.on_request(TAKEN, move |with: &Value, _: Peer| {
            let pids = with["replaced"].as_array().into_iter().flatten();
            let pids = pids.filter_map(|pid| u32::try_from(pid.as_u64()?).ok()).collect();
            to.ask(Asked::Taken(pids));
            Ok::<_, String>(Answer::default())
        })?;
        let from = Arc::clone(board);
        let now = [
            ("members", "members", "Members of the configuration."),
            ("running", "members", "Members that run."),
            (
                "failing",
                "members",
                "Members that have failed and wait to be tried again, or are tried.",
            ),
        ];
        registry.meters(Gauge, "up", now, move || {
            let shown = from.shown.lock();
            let of =
                |is: fn(&Status) -> bool| shown.members.iter().filter(|one| is(one)).count() as u64;
            let all =
                [of(|_| true), of(|one| one.state == "running"), of(|one| one.trouble.is_some())];
            Ok::<_, String>(all)
        })?;
        let from = Arc::clone(board);
        let counts = [
            ("starts", "processes", "Processes that were started."),
            (
                "failures",
                "processes",
                "Times that a process of a member failed, or could not be started.",
            ),
        ];
        registry.meters(Counter, "up", counts, move || {
            let shown = from.shown.lock();
            let sum = |of: fn(&Status) -> u64| shown.members.iter().map(of).sum::<u64>();
            let (starts, failures) = shown.past;
            Ok::<_, String>([starts + sum(|one| one.starts), failures + sum(|one| one.failures)])
        })
    }

    fn ask(&self, asked: Asked) {
        self.asked.lock().push(asked);
        (self.wake)();
    }

    /// How they fare, in a line.
    pub(super) fn summary(&self) -> String {
        let shown = self.shown.lock();
        let all = shown.members.len();
        let run = shown.members.iter().filter(|one| one.state == "running").count();
        let failing = shown.members.iter().find(|one| one.trouble.is_some());
        let why =
            failing.and_then(|one| Some(format!("; {}: {}", one.name, one.trouble.as_ref()?)));
        format!("{run} of {all} members run{}", why.unwrap_or_default())
    }

    /// How each of them fares.
    pub(super) fn lines(&self) -> Vec<String> {
        let shown = self.shown.lock();
        let line = |one: &Status| {
            let trouble = one.trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
            format!("{} {}{trouble}", one.name, one.state)
        };
        shown.members.iter().map(line).collect()
    }
}

impl Status {
    fn of(member: &Member, now: Instant) -> Status {
        let process = member.process.as_ref();
        let state = match (process.map(|one| one.state), member.retry_at) {
            (Some(State::Running), _) if member.next.is_some() => "being replaced",
            (Some(State::Running), _) => "running",
            (Some(State::Starting), _) => "starting",
            (Some(State::Ending | State::Replaced), _) => "ending",
            (None, _) if member.wanted.is_none() => "ending",
            (None, Some(at)) if at > now => "waiting",
            (None, _) => "starting",
        };
        Status {
            name: member.name.clone(),
            state,
            pid: process.map(super::process::Process::pid),
            since: process.map(|one| one.since),
            starts: member.starts,
            failures: member.failures_in_all,
            ending: member.old.len(),
            retry_at: member.retry_at,
            trouble: member.trouble.clone(),
        }
    }

    fn json(&self) -> Value {
        let now = Instant::now();
        json!({
            "name": self.name,
            "state": self.state,
            "pid": self.pid,
            "for_seconds": self.since.map(|since| now.duration_since(since).as_secs()),
            "starts": self.starts,
            "failures": self.failures,
            "ending": self.ending,
            "retry_in_seconds": self.retry_at.map(|at| at.saturating_duration_since(now).as_secs_f64()),
            "trouble": self.trouble,
        })
    }
}

/// Prints how the members of the daemons that run fare.
pub(super) fn print(name: &ProcessName, json: bool) -> anyhow::Result<Exit> {
    let search = knobs::search()?;
    let mut all = search.processes.clone();
    // Others' could say anything.
    let user = rustix::process::geteuid().as_raw();
    all.retain(|process| process.kind == "up" && process.uid == user);
    let answers = knobs::ask_each(&all, |one| {
        let mut client = one.connect()?;
        Ok((client.listing()?.name, client.ask(MEMBERS, json!({}))?.value))
    });
    let (mut found, mut silent) = (None, None);
    for answer in answers {
        match answer {
            Ok((theirs, members)) if theirs == name.as_str() => found = Some(members),
            Ok(_) => {}
            Err(error) => silent = Some(error),
        }
    }
    let select = knobs::Select { pid: None, name: Some(name.to_string()) };
    let none = || silent.unwrap_or_else(|| search.none(&select));
    let members = found.ok_or_else(none)?;
    if json {
        out::lines([json!({"schema": 1, "name": name.as_str(), "members": members})])?;
    } else {
        let empty = Vec::new();
        let rows: Vec<_> = members.as_array().unwrap_or(&empty).iter().map(row).collect();
        out::print(&table(
            ["MEMBER", "STATE", "PID", "FOR", "STARTS", "FAILURES", "TROUBLE"],
            &rows,
        ))?;
    }
    // One that starts for the first time has no trouble yet.
    let is_well = |one: &Value| one["trouble"].is_null() && one["state"] != "starting";
    let well = members.as_array().is_none_or(|all| all.iter().all(is_well));
    Ok(if well { Exit::Ok } else { Exit::Failed })
}

fn row(member: &Value) -> [String; 7] {
    let text = |key: &str| match &member[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => clean(text),
        other => other.to_string(),
    };
    let seconds = member["for_seconds"].as_u64().map(std::time::Duration::from_secs);
    let span = seconds.map_or("-".into(), |span| humantime::format_duration(span).to_string());
    let state = match member["ending"].as_u64() {
        Some(0) | None => text("state"),
        Some(count) => format!("{}, {count} draining", text("state")),
    };
    let retry = member["retry_in_seconds"].as_f64().filter(|left| *left > 0.0);
    let trouble = match retry {
        Some(left) => format!("{}; trying again in {left:.0} s", text("trouble")),
        None => text("trouble"),
    };
    [text("name"), state, text("pid"), span, text("starts"), text("failures"), trouble]
}
