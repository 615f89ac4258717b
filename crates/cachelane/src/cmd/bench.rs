//! `cachelane bench`: runs an experiment and prints what it found.

mod all;
mod results;
mod simulate;

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser};
use measure::bench::bridge::Bridge;
use measure::bench::doctor::Doctor;
use measure::bench::frames::Frames;
use measure::bench::lend::Lend;
use measure::bench::list::{self, Listed, ListedRatio};
use measure::bench::relay::Relay;
use measure::bench::steer::{Steer, simulate::HEADING};
use measure::bench::trial::Trial;
use measure::bench::{self, Experiment, Plan, Stop, in_words};
use serde_json::json;
use trial::report::Page;

use crate::args::duration;
use crate::exit::Exit;
use crate::{out, terminal};

/// Measure on this host what the documentation claims, against other programs
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Option<Command>,
    /// List the experiments with their parts, the ratios that each part gives, and what is claimed
    #[arg(long)]
    list: bool,
    /// With --list: print JSON instead of text
    #[arg(long, requires = "list")]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Relay(RelayArgs),
    Bridge(BridgeArgs),
    /// Compare the frame pool with DPDK's mempool, crossbeam and mimalloc, and its knob's values
    Frames(Of<Frames>),
    /// Compare lent frames with an id allocator under a lock, and with AF_PACKET rings
    Lend(Of<Lend>),
    Steer(SteerArgs),
    /// Measure what the watching of `cachelane doctor` costs
    Doctor(Of<Doctor>),
    /// Try knobs whose effect is known, and see whether `cachelane trial` says the truth
    Trial(Of<Trial>),
    All(all::Args),
    Results(results::Args),
    #[command(hide = true)]
    EchoServer {
        addr: SocketAddr,
    },
}

/// Compare the relay with direct connections, HAProxy, nginx and plain sockmap
#[derive(clap::Args, Debug)]
struct RelayArgs {
    #[command(flatten)]
    of: Of<Relay>,
    /// How long the memory part watches its slow receiver
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    memory_time: Duration,
    /// Number of idle connections in the idle part
    #[arg(long, value_name = "N", default_value_t = 9_800)]
    idle: usize,
    /// TCP congestion control of the test host, for the relay and its peers alike, such as reno, cubic
    /// or bbr
    #[arg(long, value_name = "NAME", default_value = Relay::CONGESTION_CONTROL)]
    congestion_control: String,
}

/// Compare the fast path of a bridge with the Linux bridge alone
#[derive(clap::Args, Debug)]
struct BridgeArgs {
    #[command(flatten)]
    of: Of<Bridge>,
    /// Stations (known addresses) of the largest bridge in the parts entries and growth, from 4 to 1000000
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    entries: u32,
}

/// Compare receive flow steering with the kernel's own, or simulate it on other machines
#[derive(clap::Args, Debug)]
struct SteerArgs {
    #[command(flatten)]
    of: Of<Steer>,
    #[command(flatten)]
    simulation: simulate::Args,
}

/// What every experiment takes.
#[derive(clap::Args, Debug)]
struct Of<X: Experiment + Default> {
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Write an HTML page with plots to this file as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    extent: Extent,
    /// Run only these parts, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PARTS", value_parser = parts::<X>())]
    only: Vec<String>,
    #[arg(skip)]
    experiment: PhantomData<X>,
}

/// How much is measured.
#[derive(clap::Args, Clone, Copy, Debug)]
struct Extent {
    /// How often to measure each case, from 1 to 1000 [default: see `bench --list`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Length of one measurement, such as 500ms or 2s [default: see `bench --list`]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    window: Option<Duration>,
    /// Seed of the random order in which cases run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The names of an experiment's parts, as values of an argument.
fn parts<X: Experiment + Default>() -> PossibleValuesParser {
    let parts = X::default().parts();
    let value = |part: &bench::Part<_>| PossibleValue::new(part.name).help(part.about);
    PossibleValuesParser::new(parts.iter().map(value).collect::<Vec<_>>())
}

/// Runs the command.
pub(crate) fn run(args: Args, quiet: bool) -> anyhow::Result<Exit> {
    match args.experiment {
        None => list(args.json),
        Some(Command::Relay(RelayArgs { of, memory_time, idle, congestion_control })) => {
            of.measure(&Relay { memory_time, idle, congestion_control }, quiet, "")
        }
        Some(Command::Bridge(BridgeArgs { of, entries })) => {
            of.measure(&Bridge { entries }, quiet, "")
        }
        Some(Command::Frames(of)) => of.measure(&Frames, quiet, ""),
        Some(Command::Lend(of)) => of.measure(&Lend, quiet, ""),
        Some(Command::Steer(SteerArgs { of, simulation })) => match simulation.simulate {
            false => of.measure(&Steer, quiet, ""),
            true => of.measure(&simulation.simulated(of.extent.window)?, quiet, HEADING),
        },
        Some(Command::Doctor(of)) => of.measure(&Doctor, quiet, ""),
        Some(Command::Trial(of)) => of.measure(&Trial, quiet, ""),
        Some(Command::All(args)) => all::run(&args, quiet),
        Some(Command::Results(args)) => results::run(&args),
        Some(Command::EchoServer { addr }) => echo_server(addr),
    }
}

impl<X: Experiment + Default> Of<X> {
    /// Runs an experiment and prints what it found, also if it ended early. A heading stands above
    /// tables.
    fn measure<E: Experiment>(&self, it: &E, quiet: bool, heading: &str) -> anyhow::Result<Exit> {
        let (rounds, window) = E::EXTENT;
        let plan = Plan {
            parts: self.only.clone(),
            rounds: self.extent.rounds.map_or(rounds, |rounds| rounds as usize),
            window: self.extent.window.unwrap_or(window),
            seed: self.extent.seed,
            quiet,
        };
        let outcome = bench::run(it, &plan, &Stop::on_signals()?)?;
        out::print(&match self.json {
            true => format!("{}\n", serde_json::to_string_pretty(&outcome.output)?),
            false => {
                let heading = if heading.is_empty() { "" } else { &format!("{heading}\n\n") };
                let table = outcome.output.to_table(terminal::width(), terminal::colour());
                heading.to_owned() + &table
            }
        })?;
        if let Some(path) = &self.html {
            let page = Page::from_bench(&outcome.output, terminal::command_line()).render();
            std::fs::write(path, page)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        outcome.error.map_or(Ok(Exit::Ok), Err)
    }
}

/// Prints what there is to measure.
fn list(as_json: bool) -> anyhow::Result<Exit> {
    let all = list::all();
    let text = if as_json {
        let experiments: Vec<_> = all.iter().map(Listed::to_json).collect();
        format!("{:#}\n", json!({"schema": 1, "experiments": experiments}))
    } else {
        all.iter().map(listed).collect()
    };
    out::print(&text).map(|()| Exit::Ok)
}

fn listed(Listed { name, rounds, window, seconds, parts }: &Listed) -> String {
    let time = in_words(*seconds);
    let mut text = format!("{name}: about {time}, with {rounds} rounds of windows of {window:?}\n");
    for part in parts {
        text.push_str(&format!("  {}: {}\n", part.name, part.about));
        for ListedRatio { name, bar } in &part.ratios {
            let claim = bar.map_or_else(String::new, |bar| format!(" ({bar})"));
            text.push_str(&format!("    {name}{claim}\n"));
        }
    }
    text
}

/// Echoes single bytes until it is killed.
fn echo_server(addr: SocketAddr) -> anyhow::Result<Exit> {
    let options = lab::traffic::EchoOptions::default();
    let _server = lab::traffic::EchoServer::start(&lab::Host::here()?, addr, options)?;
    loop {
        std::thread::park();
    }
}
