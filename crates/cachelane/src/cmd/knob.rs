//! `cachelane knob`: the knobs and counters of the cachelane processes that run.

use anyhow::{Context as _, bail};
use knobs::{Client, KnobInfo, Process, Reading};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::table::table;

/// List, read and set the knobs of the running processes
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Only the process with this process id
    #[arg(long, global = true, value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Show every knob and its value
    List {
        /// Show the counters too
        #[arg(long)]
        counters: bool,
    },
    /// Print the value of a knob
    Get {
        /// Such as relay.engine
        knob: String,
    },
    /// Set a knob in every process that has it
    Set {
        /// Such as relay.engine
        knob: String,
        /// The new value
        value: String,
    },
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    let processes = processes(args.pid)?;
    match &args.action {
        Action::List { counters } => list(&processes, *counters, args.json),
        Action::Get { knob } => {
            let having = having(&processes, knob)?;
            print(
                &having.iter().map(|(p, info)| (p, info.value.clone())).collect::<Vec<_>>(),
                knob,
                args.json,
            )
        }
        Action::Set { knob, value } => {
            let mut done = Vec::new();
            for (process, _) in having(&processes, knob)? {
                let set = connect(&process)?.set(knob, value);
                done.push((process.clone(), set.with_context(|| label(&process))?));
            }
            print(&done.iter().map(|(p, v)| (p, v.clone())).collect::<Vec<_>>(), knob, args.json)
        }
    }
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
fn having(processes: &[Process], knob: &str) -> anyhow::Result<Vec<(Process, KnobInfo)>> {
    let mut having = Vec::new();
    let mut known = Vec::new();
    for process in processes {
        for info in connect(process)?.list()? {
            if info.name == knob {
                having.push((process.clone(), info));
            } else {
                known.push(info.name);
            }
        }
    }
    if having.is_empty() && known.is_empty() {
        bail!("knob '{knob}': no cachelane process runs");
    }
    if having.is_empty() {
        known.sort();
        known.dedup();
        bail!(
            "knob '{knob}' is not known to any process that runs (there are {})",
            known.join(", ")
        );
    }
    Ok(having)
}

fn list(processes: &[Process], counters: bool, as_json: bool) -> anyhow::Result<Exit> {
    let mut shown = Vec::new();
    for process in processes {
        let mut client = connect(process)?;
        let knobs = client.list().with_context(|| label(process))?;
        let readings = if counters { client.counters()? } else { Vec::new() };
        shown.push((process, knobs, readings));
    }
    if as_json {
        let list: Vec<Value> = shown.iter().map(|(p, k, r)| process_json(p, k, r)).collect();
        println!("{}", json!({"schema": 1, "processes": list}));
    } else if shown.is_empty() {
        println!("no cachelane process runs");
    } else {
        print!("{}", knob_table(&shown));
        if counters {
            print!("\n{}", counter_table(&shown));
        }
    }
    Ok(Exit::Ok)
}

type Shown<'a> = (&'a Process, Vec<KnobInfo>, Vec<Reading>);

fn process_json(process: &Process, knobs: &[KnobInfo], readings: &[Reading]) -> Value {
    json!({"process": process.name, "pid": process.pid, "knobs": knobs, "counters": readings})
}

fn knob_table(shown: &[Shown<'_>]) -> String {
    let mut rows = Vec::new();
    for (process, knobs, _) in shown {
        for k in knobs {
            rows.push([label(process), k.name.clone(), k.value.clone(), k.values.to_string()]);
        }
    }
    table(["PROCESS", "KNOB", "VALUE", "TAKES"], &rows)
}

fn counter_table(shown: &[Shown<'_>]) -> String {
    let mut rows = Vec::new();
    for (process, _, readings) in shown {
        for r in readings {
            rows.push([label(process), r.name.clone(), r.value.to_string(), r.help.clone()]);
        }
    }
    table(["PROCESS", "COUNTER", "VALUE", "IS"], &rows)
}

/// One value alone for a shell script, a line for each process where there are several.
fn print(values: &[(&Process, String)], knob: &str, as_json: bool) -> anyhow::Result<Exit> {
    if as_json {
        let list: Vec<Value> = values
            .iter()
            .map(|(p, v)| json!({"process": p.name, "pid": p.pid, "value": v}))
            .collect();
        println!("{}", json!({"schema": 1, "knob": knob, "values": list}));
    } else if let [(_, value)] = values {
        println!("{value}");
    } else {
        for (process, value) in values {
            println!("{}: {value}", label(process));
        }
    }
    Ok(Exit::Ok)
}

fn connect(process: &Process) -> anyhow::Result<Client> {
    Client::connect(&process.path).with_context(|| label(process))
}

fn label(process: &Process) -> String {
    format!("{}-{}", process.name, process.pid)
}
