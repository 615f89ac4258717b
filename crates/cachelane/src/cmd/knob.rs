//! `cachelane knob`: the knobs and counters of the cachelane processes that run.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use knobs::{Client, KnobInfo, Process, Reading};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::out;
use crate::terminal::table;

/// List, read and change the knobs (settings) of running cachelane processes
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Only of the process with this process id
    #[arg(long, global = true, value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// List all knobs, their values, and what they take
    List {
        /// List the counters too
        #[arg(long)]
        counters: bool,
    },
    /// Print the value of a knob
    Get {
        /// Name of the knob, such as relay.engine
        knob: String,
    },
    /// Change a knob in every process that has it
    Set {
        /// Name of the knob, such as relay.engine
        knob: String,
        /// The new value; `cachelane knob list` shows what a knob takes
        value: String,
        /// Set it also while somebody, such as a trial, holds it; that ends the hold
        #[arg(long)]
        force: bool,
    },
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    let processes = processes(args.pid)?;
    match &args.action {
        Action::List { counters } => list(&processes, *counters, args.json),
        Action::Get { knob } => each(&processes, knob, |client| client.get(knob), args.json),
        Action::Set { knob, value, force } => {
            let set = |client: &mut Client| match force {
                true => client.set_by_force(knob, value),
                false => client.set(knob, value),
            };
            each(&processes, knob, set, args.json)
        }
    }
}

/// Asks each process that has the knob, and prints what it answers.
fn each(
    processes: &[Process],
    knob: &str,
    ask: impl Fn(&mut Client) -> knobs::Result<String>,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let answer = |process: &Process| {
        let value = ask(&mut connect(process)?).with_context(|| label(process))?;
        anyhow::Ok((process.clone(), value))
    };
    let answers = having(processes, knob)?.into_iter().map(answer);
    print(answers.collect::<anyhow::Result<_>>()?, knob, as_json)
}

fn processes(pid: Option<u32>) -> anyhow::Result<Vec<Process>> {
    let mut found = knobs::discover()?;
    if let Some(pid) = pid {
        found.retain(|p| p.pid == pid);
        if found.is_empty() {
            bail!("no cachelane process with process id {pid} runs (see cachelane knob list)");
        }
    }
    Ok(found)
}

/// The processes that have a knob of this name.
fn having<'a>(processes: &'a [Process], knob: &str) -> anyhow::Result<Vec<&'a Process>> {
    let (mut having, mut known) = (Vec::new(), BTreeSet::new());
    for process in processes {
        let names: Vec<String> = connect(process)?.list()?.into_iter().map(|k| k.name).collect();
        having.extend(names.iter().any(|name| name == knob).then_some(process));
        known.extend(names);
    }
    if !having.is_empty() {
        return Ok(having);
    }
    if known.is_empty() {
        bail!("knob '{knob}': no cachelane process runs");
    }
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    bail!("knob '{knob}' is not known to any process that runs (there are {known})")
}

fn list(processes: &[Process], counters: bool, as_json: bool) -> anyhow::Result<Exit> {
    let (mut list, mut knobs, mut readings) = (Vec::new(), Vec::new(), Vec::new());
    for process in processes {
        let (mut client, label) = (connect(process)?, label(process));
        let has = client.list().with_context(|| label.clone())?;
        let counted = if counters { client.counters()? } else { Vec::new() };
        let Process { name, pid, .. } = process;
        list.push(json!({"process": name, "pid": pid, "knobs": has, "counters": counted}));
        let knob = |k: KnobInfo| {
            let held = k.held.map(|held| format!(" (held by {})", held.holder));
            let value = format!("{}{}", k.value, held.unwrap_or_default());
            [label.clone(), k.name, value, k.values.to_string()]
        };
        knobs.extend(has.into_iter().map(knob));
        let reading = |r: Reading| [label.clone(), r.name, r.value.to_string(), r.help];
        readings.extend(counted.into_iter().map(reading));
    }
    let mut text = match processes {
        [] => "no cachelane process runs\n".into(),
        _ => table(["PROCESS", "KNOB", "VALUE", "TAKES"], &knobs),
    };
    if counters && !processes.is_empty() {
        text += &format!("\n{}", table(["PROCESS", "COUNTER", "VALUE", "IS"], &readings));
    }
    if as_json {
        text = format!("{}\n", json!({"schema": 1, "processes": list}));
    }
    out::print(&text).map(|()| Exit::Ok)
}

/// One value alone for a shell script, a line for each process where there are several.
fn print(mut values: Vec<(Process, String)>, knob: &str, as_json: bool) -> anyhow::Result<Exit> {
    let lines = if as_json {
        let list: Vec<Value> = values
            .iter()
            .map(|(p, v)| json!({"process": p.name, "pid": p.pid, "value": v}))
            .collect();
        vec![json!({"schema": 1, "knob": knob, "values": list}).to_string()]
    } else if values.len() == 1 {
        values.drain(..).map(|(_, value)| value).collect()
    } else {
        values.iter().map(|(process, value)| format!("{}: {value}", label(process))).collect()
    };
    out::lines(lines).map(|()| Exit::Ok)
}

fn connect(process: &Process) -> anyhow::Result<Client> {
    Client::connect(&process.path).with_context(|| label(process))
}

fn label(process: &Process) -> String {
    format!("{}-{}", process.name, process.pid)
}
