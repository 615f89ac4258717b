//! `cachelane bench`: runs an experiment and prints what it found.

mod simulate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use measure::bench::{Plan, Stop, bridge, frames, lend, relay, steer};
use trial::bench::BenchOutput;
use trial::report::Page;

use crate::args::duration;
use crate::exit::Exit;
use crate::terminal;

/// Repeat a claim of the docs on this host, with peers beside it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    Relay(RelayArgs),
    Bridge(BridgeArgs),
    Frames(FramesArgs),
    Lend(LendArgs),
    Steer(SteerArgs),
    #[command(hide = true)]
    EchoServer {
        addr: SocketAddr,
    },
}

/// The relay against direct connections, HAProxy, nginx and sockmap as it comes
#[derive(clap::Args, Debug)]
struct RelayArgs {
    #[command(flatten)]
    common: Common,
    /// Only these parts, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<relay::Part>,
    /// How long the slow receiver of the memory part is watched
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    memory_time: Duration,
    /// Idle connections of the idle part
    #[arg(long, value_name = "N", default_value_t = 9_800)]
    idle: usize,
}

/// The fast path of a bridge against the Linux bridge itself
#[derive(clap::Args, Debug)]
struct BridgeArgs {
    #[command(flatten)]
    common: Common,
    /// Only these parts, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<bridge::Part>,
    /// Stations that the big bridge of the entries part knows
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    entries: u32,
}

/// The frame pool against DPDK's mempool, crossbeam and mimalloc, and its knob's values
#[derive(clap::Args, Debug)]
struct FramesArgs {
    #[command(flatten)]
    common: Common,
    /// Only these parts, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<frames::Part>,
}

/// Lent frames against an id allocator under a lock, and against AF_PACKET rings
#[derive(clap::Args, Debug)]
struct LendArgs {
    #[command(flatten)]
    common: Common,
    /// Only these parts, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<lend::Part>,
}

/// Receive flow steering against the kernel's own; or simulated, for machines that are not there
#[derive(clap::Args, Debug)]
struct SteerArgs {
    #[command(flatten)]
    common: Common,
    /// Only these parts, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PARTS",
        conflicts_with = "simulate"
    )]
    only: Vec<steer::Part>,
    #[command(flatten)]
    simulation: simulate::Args,
}

/// What every experiment takes.
#[derive(clap::Args, Debug)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Times that each case is measured
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Length of one measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    window: Duration,
    /// Seed of the order in which the cases run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
pub(crate) fn run(args: Args, quiet: bool) -> anyhow::Result<Exit> {
    match args.experiment {
        Experiment::Relay(args) => run_relay(&args, quiet),
        Experiment::Bridge(args) => run_bridge(&args, quiet),
        Experiment::Frames(args) => run_frames(&args, quiet),
        Experiment::Lend(args) => run_lend(&args, quiet),
        Experiment::Steer(args) => run_steer(&args, quiet),
        Experiment::EchoServer { addr } => echo_server(addr),
    }
}

fn run_relay(args: &RelayArgs, quiet: bool) -> anyhow::Result<Exit> {
    let plan = relay::Plan {
        parts: parts(&args.only),
        rounds: args.common.rounds as usize,
        window: args.common.window,
        memory: args.memory_time,
        idle: args.idle,
        seed: args.common.seed,
        quiet,
    };
    let output = relay::run(&plan, Stop::on_signals()?)?;
    show(&args.common, &output)
}

fn run_bridge(args: &BridgeArgs, quiet: bool) -> anyhow::Result<Exit> {
    let plan = bridge::Plan {
        parts: parts(&args.only),
        rounds: args.common.rounds as usize,
        window: args.common.window,
        entries: args.entries,
        seed: args.common.seed,
        quiet,
    };
    let output = bridge::run(&plan, Stop::on_signals()?)?;
    show(&args.common, &output)
}

fn run_frames(args: &FramesArgs, quiet: bool) -> anyhow::Result<Exit> {
    let output = frames::run(&plan(&args.common, &args.only, quiet), Stop::on_signals()?)?;
    show(&args.common, &output)
}

fn run_lend(args: &LendArgs, quiet: bool) -> anyhow::Result<Exit> {
    let output = lend::run(&plan(&args.common, &args.only, quiet), Stop::on_signals()?)?;
    show(&args.common, &output)
}

fn run_steer(args: &SteerArgs, quiet: bool) -> anyhow::Result<Exit> {
    let common = &args.common;
    if !args.simulation.simulate {
        let output = steer::run(&plan(common, &args.only, quiet), Stop::on_signals()?)?;
        return show(common, &output);
    }
    let plan = steer::simulate::Plan {
        simulated: args.simulation.simulated(common.window)?,
        rounds: common.rounds as usize,
        seed: common.seed,
        quiet,
    };
    let output = steer::simulate::run(&plan, &Stop::on_signals()?)?;
    if !common.json {
        println!("{}\n", steer::simulate::HEADING);
    }
    show(common, &output)
}

fn plan<P: clap::ValueEnum>(common: &Common, only: &[P], quiet: bool) -> Plan<P> {
    let rounds = common.rounds as usize;
    Plan { parts: parts(only), rounds, window: common.window, seed: common.seed, quiet }
}

/// The parts that were asked for; all if none was.
fn parts<P: clap::ValueEnum>(only: &[P]) -> Vec<P> {
    match only {
        [] => P::value_variants().to_vec(),
        only => only.to_vec(),
    }
}

/// Prints the output, and writes the page if it was asked for.
fn show(common: &Common, output: &BenchOutput) -> anyhow::Result<Exit> {
    if let Some(path) = &common.html {
        let page = Page::from_bench(output, terminal::command_line()).render();
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if common.json {
        println!("{}", serde_json::to_string_pretty(output)?);
    } else {
        print!("{}", output.to_table(terminal::width(), terminal::colour()));
    }
    Ok(Exit::Ok)
}

/// Echoes single bytes until it is killed.
fn echo_server(addr: SocketAddr) -> anyhow::Result<Exit> {
    let options = lab::traffic::EchoOptions::default();
    let _server = lab::traffic::EchoServer::start(&lab::Host::here()?, addr, options)?;
    loop {
        std::thread::park();
    }
}
