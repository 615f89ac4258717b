//! `cachelane metrics`: what all cachelane processes of this host count, for Prometheus.
//!
//! `server.rs` serves HTTP, with a `Connection` for each client and `http.rs` for what they say;
//! `gather.rs` asks the processes, `show.rs` and `traffic.rs` decide what of the answers is shown,
//! `names.rs` what it is called, and `families.rs` how it is written. Nothing of a single flow is shown:
//! how many series there are follows from the configuration, not from the traffic.

mod connection;
mod families;
mod gather;
mod http;
mod listen;
mod names;
mod server;
mod show;
mod traffic;
mod usage;

use std::time::Duration;

use knobs::MeterKind;
use sd_notify::NotifyState;

use crate::args::NameArg;
use crate::counters::{named, register};
use crate::exit::Exit;
use crate::figures;
use crate::member;
use crate::out;
use crate::passed;
use crate::run::{Ended, Followed, Foreground, open_control};
use families::Form;
use gather::Gatherer;
use listen::{Listen, Listener};
use server::{Served, Server};

/// Where it listens unless told otherwise. The ports from 9100 to 9999, which Prometheus' list keeps for
/// exporters, are all given out, so this one is elsewhere; it is below those that Linux gives to clients
/// (from 32768 on).
const DEFAULT: &str = "127.0.0.1:21646";

/// Serve the counters of all cachelane processes of this host to Prometheus, over HTTP
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Pages: /metrics, for Prometheus, in OpenMetrics or in Prometheus' own text, as the client asks; \
/-/healthy says that the server runs.

Each scrape asks all processes, at the same time. One that does not answer within a second, because it \
is stopped or stuck, is shown by cachelane_process_up 0. Users see their own processes; root sees those \
of all users. There is no password: whoever can connect can read.

Examples:
  cachelane metrics
  cachelane metrics --listen :21646
  cachelane metrics --once > cachelane.prom.new && mv cachelane.prom.new cachelane.prom")]
pub(crate) struct Args {
    /// Where to serve: IP:PORT (IPv6 in brackets), :PORT for every address, unix:PATH, unix:@NAME, or
    /// fd:NAME for the sockets of this name that a service manager passes; may be repeated
    /// [default: the sockets that were passed, else 127.0.0.1:21646]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Listen>,
    /// Print the metrics once and exit, for the textfile collector of node_exporter
    #[arg(long, conflicts_with_all = ["listen", "name"])]
    once: bool,
    #[command(flatten)]
    name: NameArg,
    /// Check the arguments and this host, print what would be done, and exit
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    if args.once {
        return once(args.dry_run);
    }
    let passed = passed::sockets()?;
    let asked = match (args.listen.is_empty(), passed.is_empty()) {
        (true, true) => vec![DEFAULT.parse().map_err(crate::exit::usage)?],
        _ => args.listen.clone(),
    };
    let mut foreground = Foreground::new()?;
    let listeners = listen::open(&asked, passed)?;
    let place = list(&listeners);
    if args.dry_run {
        return out::dry_run(vec![format!("would serve http://{place}/metrics")]);
    }
    let mut sockets = Vec::new();
    let mut files = Vec::new();
    for Listener { socket, file, .. } in listeners {
        sockets.push(socket);
        files.push(file);
    }
    member::has_attached();
    let server = Server::start(sockets, foreground.waker()?)?;
    let counters = server.counters();
    let name = args.name.or(&format!("metrics {place}"));
    let _control = open_control("metrics", name, |knobs| {
        let read = move || counters().values();
        register(knobs, MeterKind::Counter, "metrics", Served::FIELDS, read)
    });
    tracing::info!("serving http://{place}/metrics");
    let mut running = Running(server);
    if foreground.follow(None, &mut running)? == Ended::Error {
        return Err(running.0.failure());
    }
    passed::notify(&[NotifyState::Stopping]);
    Ok(Exit::Ok)
}

/// Prints the metrics. What is of this process alone is left out: a program that reads several such
/// files has metrics of the same names of its own.
fn once(dry_run: bool) -> anyhow::Result<Exit> {
    if dry_run {
        return out::dry_run(vec![
            "would ask every cachelane process, and print the metrics".into(),
        ]);
    }
    let families = Gatherer::new(false).gather()?;
    for (_, text) in families.encode(&[Form { open: false, gzip: false }])? {
        out::print(&String::from_utf8_lossy(&text))?;
    }
    Ok(Exit::Ok)
}

fn list(listeners: &[Listener]) -> String {
    let addrs = listeners.iter().map(|one| one.addr.to_string());
    addrs.collect::<Vec<_>>().join(", ")
}

/// The server while it runs.
struct Running(Server);

impl Followed for Running {
    fn ended(&mut self) -> Option<Ended> {
        self.0.has_ended().then_some(Ended::Error)
    }

    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        Ok(None)
    }

    fn log(&mut self) -> anyhow::Result<()> {
        let served = (self.0.counters())();
        tracing::info!("{}", figures::named(named(Served::FIELDS, served.values())));
        Ok(())
    }
}
