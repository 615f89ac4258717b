//! `cachelane knob`: the knobs and counters of the cachelane processes that run.

mod ask;
mod set;

use std::time::Duration;

use knobs::{Current, KnobInfo, Reading, Select};
use serde_json::{Value, json};

use crate::args::duration;
use crate::exit::Exit;
use crate::out;
use crate::terminal::{clean, table};
use ask::{Answered, Everyone};

/// List, read and change the knobs (settings) of running cachelane processes
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
All processes are asked at the same time. One that does not answer, because it is stopped or broken, \
is named on stderr, the others are shown, and the exit code is 1 if it was asked for.

Users see their own processes. Root sees those of all users.

Examples:
  cachelane knob list --counters
  cachelane knob set relay.engine splice --name 'relay :8080'
  cachelane knob set relay.engine auto --all
  cachelane knob set bridge.fastpath off --for 10m")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Only of the process with this process id
    #[arg(long, global = true, value_name = "PID")]
    pid: Option<u32>,
    /// Only of the process of this name, such as 'relay :8080'
    #[arg(long, global = true, value_name = "NAME")]
    name: Option<String>,
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
    /// Change a knob
    Set(SetArgs),
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    /// Name of the knob, such as relay.engine
    knob: String,
    /// The new value; `cachelane knob list` shows what a knob takes
    value: String,
    /// Set it in every process of yours that has it, or in none if one refuses; with --name, in every
    /// process of that name, also of other users
    #[arg(long)]
    all: bool,
    /// Set it only if it is this now, as `cachelane knob get` prints it
    #[arg(long = "if", value_name = "OLD", conflicts_with = "force")]
    only_if: Option<String>,
    /// Set it for this time, such as 10m, and then set it back; until then this command runs, and
    /// nobody else can set the knob. If it is killed, the process sets the knob back itself
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Set it also while somebody, such as a trial, holds it; that ends the hold
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    let select = Select { pid: args.pid, name: args.name };
    match args.action {
        Action::List { counters } => list(&Everyone::ask(&select, counters)?, counters, args.json),
        Action::Get { knob } => get(&Everyone::ask(&select, false)?, &knob, args.json),
        Action::Set(set) => set::set(Everyone::ask(&select, false)?, &set, args.json),
    }
}

fn list(everyone: &Everyone, counters: bool, as_json: bool) -> anyhow::Result<Exit> {
    let text = if as_json {
        let answered = everyone.answered.iter().map(|one| {
            let more = json!({"knobs": one.knobs, "counters": one.counters});
            one.object(more)
        });
        let silent = everyone.silent.iter().map(|one| one.object());
        let processes: Vec<_> = answered.chain(silent).collect();
        format!("{}\n", json!({"schema": 1, "processes": processes}))
    } else if everyone.answered.is_empty() && everyone.silent.is_empty() {
        format!("{}\n", everyone.search.none(&everyone.select))
    } else {
        tables(&everyone.answered, counters)
    };
    out::print(&text)?;
    everyone.complain(&everyone.silent)
}

fn tables(answered: &[Answered], counters: bool) -> String {
    let (mut knobs, mut readings) = (Vec::new(), Vec::new());
    for one in answered {
        let row = |cells: [&str; 3]| {
            let [name, value, about] = cells.map(str::to_owned);
            [one.shown_name(), one.process.pid.to_string(), name, value, about]
        };
        let knob = |k: &KnobInfo| {
            let held = k.held.as_ref().map(|held| format!(" (held by {})", held.holder));
            let value = format!("{}{}", k.value, held.unwrap_or_default());
            row([&k.name, &value, &k.values.to_string()])
        };
        let reading = |r: &Reading| row([&r.name, &r.value.to_string(), &r.help]);
        knobs.extend(one.knobs.iter().map(knob));
        readings.extend(one.counters.iter().map(reading));
    }
    let mut text = table(["PROCESS", "PID", "KNOB", "VALUE", "TAKES"], &knobs);
    if counters {
        let table = table(["PROCESS", "PID", "COUNTER", "VALUE", "IS"], &readings);
        text += &format!("\n{table}");
    }
    text
}

fn get(everyone: &Everyone, knob: &str, as_json: bool) -> anyhow::Result<Exit> {
    let having = everyone.having(knob)?;
    let silent = everyone.silent_like(&having);
    let mut values = Vec::new();
    let mut is_unreadable = false;
    for (one, info) in &having {
        values.push(match &info.value {
            Current::Value(value) => (*one, Ok(value.clone())),
            Current::Error(trouble) => {
                is_unreadable = true;
                eprint_line(&format!("{}: knob {knob} cannot be read: {trouble}", one.label()));
                (*one, Err(trouble.clone()))
            }
        });
    }
    if as_json {
        let one = |(one, value): &(&Answered, Result<String, String>)| match value {
            Ok(value) => one.object(json!({"value": value})),
            Err(trouble) => {
                one.object(json!({"error": {"kind": "unreadable", "message": trouble}}))
            }
        };
        let objects = values.iter().map(one).chain(silent.iter().map(|one| one.object()));
        print_values(knob, objects.collect())?;
    } else {
        let is_one = values.len() == 1;
        out::lines(values.iter().filter_map(|(one, value)| match value {
            Ok(value) if is_one => Some(clean(value)),
            Ok(value) => Some(clean(&format!("{}: {value}", one.label()))),
            Err(_) => None,
        }))?;
    }
    let exit = everyone.complain(&silent)?;
    Ok(if is_unreadable { Exit::Failed } else { exit })
}

fn print_values(knob: &str, values: Vec<Value>) -> anyhow::Result<()> {
    out::lines([json!({"schema": 1, "knob": knob, "values": values})])
}

/// Something that is wrong with a part of what was asked for.
fn eprint_line(text: &str) {
    out::complain(&clean(text));
}
