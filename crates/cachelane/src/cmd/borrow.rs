//! `cachelane borrow`: receives packets that a lender lends, where they lie.
//!
//! A thread for each connection receives and gives back (`worker`), and hands packets to what is
//! done with them: nothing, a sum over their bytes, or a capture file (`pcap`). The threads are run
//! as those of `cachelane xsk` are (`packets`), until the lender, the time or a signal ends that. Or
//! another program does it, in place of this one (`program`).

mod connection;
mod pcap;
mod program;
mod report;
mod worker;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use crate::args::RunArgs;
use crate::exit::{Exit, usage};
use crate::packets::expression;
use crate::packets::options::Place;
use crate::packets::session::{Context, Session, Work};
use connection::Connection;
use pcap::{Capture, FileArgs};
use report::Report;
use worker::{Task, Worker};

/// Receive packets from `cachelane lend`, without copying them
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
It needs no privilege but the permission to open the socket. While somebody borrows, the kernel \
does not receive what the lender takes.

A borrower may hold a quota of packets that it has not given back. The lender drops what comes \
beyond that, and this command counts it. Without --mirror, the packets are shared out among all \
borrowers of the lender; each flow goes to one of them. Borrowers with the same --group share them \
out among themselves, whatever borrowers of other groups get.

It ends when the lender ends (exit code 0), is killed, or disconnects it (exit code 1), after --for \
or --count, or on SIGINT or SIGTERM. With --reconnect it waits for the lender instead, and goes on when it is \
there again. SIGUSR1 logs the current figures.

After --, a command that uses libpcap: tcpdump, tshark and others. It runs in place of this one, and finds the device `cachelane`, which is this lender, or any lender as cachelane:PATH. It gets every packet (a mirror), or with --share the packets of its share of the flows.

Examples:
  cachelane borrow /run/lend
  cachelane borrow /run/lend -- tcpdump -n -i cachelane port 53
  cachelane borrow /run/lend --mirror --pcap - | tcpdump -n -r -
  cachelane borrow /run/lend --mirror --pcap all.pcap --rotate-size 100M --files 50
  cachelane borrow /run/lend --worker 4 --for 10s --json
  cachelane borrow /run/lend --mirror --pcap dns.pcap --filter 'port 53'
  cachelane borrow /run/lend --worker 4 --group 2 --reconnect")]
pub(crate) struct Args {
    /// The lender's Unix socket
    #[arg(value_name = "PATH")]
    socket: PathBuf,
    /// Run this many workers, from 1 to 64, that read every byte; each has a connection of its own
    /// and a share of the flows
    #[arg(long, value_name = "N", group = "task", value_parser = clap::value_parser!(u16).range(1..=64))]
    worker: Option<u16>,
    /// Stop after this many packets [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Name in the lender's tables, up to 48 bytes [default: count, pcap or worker-N]
    #[arg(long)]
    name: Option<String>,
    /// Most packets to hold at a time for each of the lender's queues [default: the lender's
    /// --quota]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    quota: Option<u32>,
    /// Get every packet, whichever of them other borrowers get
    #[arg(long)]
    mirror: bool,
    /// Handle only packets that this expression matches, as tcpdump has it (man pcap-filter), and give
    /// all others back at once. Needs libpcap on this host; no privilege
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "command")]
    filter: Option<String>,
    /// Share the packets with borrowers of this group alone, a number from 1 to 65535; each group gets
    /// all packets [default: the group of those who give none]
    #[arg(long, value_name = "N", conflicts_with = "mirror", value_parser = clap::value_parser!(u16).range(1..))]
    group: Option<u16>,
    /// Wait for the lender where there is none, and connect again when it ends, is killed or
    /// disconnects this borrower for returning nothing
    #[arg(long)]
    reconnect: bool,
    /// Never sleep, so that the lender need not wake this process; keeps a CPU busy
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    run: RunArgs,
    /// With a command: the packets of a share of the flows, which no other borrower gets
    #[arg(long, requires = "command", conflicts_with = "mirror")]
    share: bool,
    /// Command to run in place of this one, with the device `cachelane` in its libpcap
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with_all = ["task", "count", "spin", "time", "interval", "json", "csv"]
    )]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    if !args.command.is_empty() {
        match program::run(args)? {}
    }
    args.file.check()?;
    let writes_to_stdout = args.file.is_stdout();
    if writes_to_stdout && args.run.json {
        return Err(usage("--json prints where --pcap - writes packets (expected a file)".into()));
    }
    if writes_to_stdout && io::stdout().is_terminal() {
        return Err(usage(
            "--pcap - writes packets to stdout, which is a terminal (expected a file or a pipe)"
                .into(),
        ));
    }
    let filter = expression::compile(args.filter.as_deref())?;
    let connections = (0..args.worker.unwrap_or(1)).map(|number| Connection::open(args, number));
    let mut connections = connections.collect::<Result<Vec<_>, _>>()?;
    let first = connections[0].borrower();
    let (quota, channels) = (first.quota(), first.channels());
    if let Some(asked) = args.quota.filter(|asked| *asked > quota) {
        tracing::warn!("--quota {asked}: the lender gives {quota} at most");
    }
    // Only now: who is refused leaves the file as it is.
    let mut capture = args.file.create(first.device(), args.filter.as_deref())?;
    let files = capture.as_ref().map(Capture::made);
    let work = |connection| -> (Place, Work) {
        let task = match capture.take() {
            Some(capture) => Task::Capture(Box::new(capture)),
            None if args.worker.is_some() => Task::Read,
            None => Task::Count,
        };
        let worker = Worker { connection, task, filter: filter.clone(), spin: args.spin };
        (Place::default(), Box::new(move |context: &mut Context| worker.run(context)))
    };
    let threads: Vec<_> = connections.into_iter().map(work).collect();
    let what = match (args.file.name(), args.worker) {
        (Some(name), _) => format!("writing to {name}"),
        (_, Some(1)) => "reading with 1 worker".into(),
        (_, Some(workers)) => format!("reading with {workers} workers"),
        _ => "counting".into(),
    };
    let socket = args.socket.display();
    let announcement =
        format!("{what} what {socket} lends: up to {quota} at a time, {channels} channel(s)");
    let report = Report { args, quota, channels, files };
    let session = Session::new(threads.len(), args.count, &args.run, quiet)?;
    let outcome = session.run("borrow", threads, &announcement, &report, &args.run);
    report.finish(outcome)
}

impl Args {
    /// What is done, as programs read it.
    fn task(&self) -> &'static str {
        match (&self.file.path, self.worker) {
            (Some(_), _) => "pcap",
            (_, Some(_)) => "worker",
            _ => "count",
        }
    }
}
