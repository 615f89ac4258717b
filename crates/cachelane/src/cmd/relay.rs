//! `cachelane relay`: a relay of TCP and Unix sockets in the foreground, until a signal ends it.

mod begin;
mod stats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use lanes::{CpuSet, CpuSpec, LaneMap};
use relay::{
    AccessLog, Addr, AddressEntry, Backend, Balance, ClientMask, Config, CongestionControl, Engine,
    Inherited, LogFormat, LogSample, LogTarget, Predecessor, ProxyHeader, Rate, Relay, Source,
};
use sd_notify::NotifyState;
use signal_hook::consts::SIGTERM;

use self::begin::Listen;
use crate::args::{LanesArg, NameArg, Timeout, duration, size, timeout};
use crate::exit::Exit;
use crate::member;
use crate::out;
use crate::passed;
use crate::run::{Ended, Followed, Foreground, open_control};

/// Relay TCP connections, and those of Unix sockets, on CPUs of your choice
// These comments are help texts as well, where [IPv6]:PORT is no link.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Signals: On SIGTERM it accepts the clients that have connected by then and no others, and waits \
for their connections to end, at most for --drain-timeout. On a second signal, or on SIGINT, it \
resets them and exits. On SIGUSR1 it logs its counters. On SIGHUP it opens the file of --access-log \
anew, and reads the files of --allow, --deny and --proxy-from again.

Options of a backend, after commas: weight=0-256 (its share), sni=NAME (for TLS clients that ask for \
it, or for *.DOMAIN), backup (used only while no other is up), \
maxconn=N (more wait), check (connect to it every 2s; inter=TIME, timeout=TIME, rise=N, fall=N, \
send=TEXT and expect=TEXT change that), slowstart=TIME (fewer connections at first, once it is up \
again), source=ADDR (as --source, for this backend). Which backends get new connections can be changed while it runs: knob relay.backends.

Examples:
  cachelane relay --listen :8080 --to 10.0.0.5:80 --to 10.0.0.6:80
  cachelane relay --listen :6379 --to 'db1:6379,check,send=PING\\r\\n,expect=+PONG' --to db2:6379,backup
  cachelane relay --listen :8080 --to 10.0.0.7:80 --replace
  cachelane relay --listen unix:/run/db.sock,mode=660,group=db --to db:5432
  cachelane relay --listen 127.0.0.1:5432 --to db:5432 --cpus lane:0 --balance leastconn")]
pub(crate) struct Args {
    /// Address to accept connections on: IP:PORT, [IPv6]:PORT, :PORT for any address, NAME:PORT for its
    /// addresses that are of this host, unix:PATH[,mode=OCTAL][,user=NAME][,group=NAME] or unix:@NAME for
    /// a Unix socket, or fd:NAME for the sockets of this name that a service manager passes (LISTEN_FDS);
    /// may be repeated [default: all sockets that are passed]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Listen>,
    /// Take over the listening sockets of the relay that runs on these addresses, which then drains:
    /// no client is refused or reset. If there is none, start as usual
    #[arg(long)]
    replace: bool,
    /// Backend to relay to: IP:PORT, [IPv6]:PORT, NAME:PORT, which stands for all its addresses, or
    /// unix:PATH or unix:@NAME, a Unix socket; and options of it after commas, see below; may be repeated
    #[arg(long, value_name = "ADDR[,OPTION...]", required_unless_present = "stats", num_args = 1..)]
    to: Vec<Backend>,
    /// How bytes are moved: copy (read and write), splice (through a pipe, not through user space),
    /// sockmap (by a BPF program in the kernel), or auto (chosen for each flow); can be changed
    /// while it runs: knob relay.engine
    #[arg(long, default_value = "auto")]
    engine: Engine,
    /// CPUs that workers run on, one on each: a list such as 0-3,8, lane:N for the CPUs of lane N,
    /// or all; can be changed while it runs: knob relay.cpus [default: all, but no more than the
    /// CPU quota of its cgroup]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSpec>,
    #[command(flatten)]
    lanes: LanesArg,
    /// How a backend is chosen: roundrobin (one after the other), leastconn (the one with the
    /// fewest connections), random (of two that are drawn, the one with fewer), or source (by the
    /// client's address, the same one each time)
    #[arg(long, default_value = "roundrobin")]
    balance: Balance,
    /// Most memory, in the kernel and in user space, that one connection may use: bytes, or a
    /// number with K, M or G
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    budget: usize,
    /// Most connections at a time; further clients wait in the listen queue [default: as many as
    /// the limit on open files allows]
    #[arg(long, value_name = "N")]
    max_connections: Option<usize>,
    /// How long a backend may take to accept a connection, such as 500ms or 5s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    connect_timeout: Duration,
    /// How long all attempts together may take to find a backend for a client, before the client
    /// gets a reset
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration)]
    connect_deadline: Duration,
    /// Most connections that wait while all backends are full (maxconn)
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_queue: usize,
    /// How long one waits for that before it is reset
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    queue_timeout: Duration,
    /// How often the names of backends are resolved
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    resolve_every: Duration,
    /// Reset a connection after this long without a byte in either direction; 0 for never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = timeout)]
    idle_timeout: Timeout,
    /// Reset a connection whose client neither sends nor takes a byte for this long; 0 for never
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = timeout)]
    client_timeout: Timeout,
    /// Reset a connection whose backend neither sends nor takes a byte for this long; 0 for never
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = timeout)]
    server_timeout: Timeout,
    /// Reset a connection of which one side has ended after this long without a byte; 0 for as long
    /// as other connections
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = timeout)]
    half_closed_timeout: Timeout,
    /// Ask a peer that has been quiet for this long whether it is still there (TCP keepalive); 0
    /// for never
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = timeout)]
    keepalive: Timeout,
    /// Give up a peer that acknowledges nothing, or keeps its window shut, for this long
    /// (TCP_USER_TIMEOUT); 0 for as long as the host's sysctls say
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = timeout)]
    user_timeout: Timeout,
    /// How long a backend that refused a connection is not tried again
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    retry_after: Duration,
    /// Let in clients of this address, and no others: IP, IP/PREFIX, all, or @FILE for a file of them,
    /// which is read again on SIGHUP; may be repeated, as --deny may: the smallest network that has a
    /// client decides
    #[arg(long, value_name = "CIDR")]
    allow: Vec<AddressEntry>,
    /// Reset clients of this address; of the same network in both, --deny decides
    #[arg(long, value_name = "CIDR")]
    deny: Vec<AddressEntry>,
    /// Most connections of one client at a time, by its address; more are reset
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    client_connections: Option<u32>,
    /// Most new connections of one client in a time, such as 100/10s; more are reset
    #[arg(long, value_name = "N/TIME")]
    client_rate: Option<Rate>,
    /// Which part of an address tells clients apart: lengths of prefixes, of IPv4 and of IPv6
    #[arg(long, value_name = "BITS,BITS", default_value = "32,64")]
    client_mask: ClientMask,
    /// How long existing connections may continue after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    drain_timeout: Duration,
    /// Expect a PROXY protocol header, which names the original client, from clients, of version 1 or
    /// 2
    #[arg(long)]
    accept_proxy: bool,
    /// Take PROXY headers from these peers alone: IP, IP/PREFIX, or @FILE for a file of them; all others
    /// are clients without a header; may be repeated [default: every peer sends one]
    #[arg(long, value_name = "CIDR", requires = "accept_proxy")]
    proxy_from: Vec<AddressEntry>,
    /// Send a PROXY protocol v1 header (text), which names the client, to backends
    #[arg(long, conflicts_with = "send_proxy_v2")]
    send_proxy: bool,
    /// Send a PROXY protocol v2 header (binary), which names the client, to backends
    #[arg(long)]
    send_proxy_v2: bool,
    /// Where connections to backends come from: an address of this host, by turns if repeated; or
    /// client, for each client's own address, which needs CAP_NET_ADMIN and routes that bring the answers
    /// back to this host [default: as the kernel chooses]
    #[arg(long, value_name = "ADDR")]
    source: Vec<Source>,
    /// Congestion control of both legs: auto (the host's default, but no pacing within the host),
    /// system (the host's default), or a name such as cubic
    #[arg(long, value_name = "NAME", default_value = "auto")]
    congestion_control: CongestionControl,
    /// Log each connection when it has ended: to stderr, to syslog (/dev/log, or syslog:PATH for another
    /// socket), or to the file of this path, which is opened anew on SIGHUP
    #[arg(long, value_name = "TARGET")]
    access_log: Option<LogTarget>,
    /// What a line of the access log looks like: text (HAProxy's tcplog) or json
    #[arg(long, default_value = "text", requires = "access_log")]
    access_log_format: LogFormat,
    /// Of the connections that ended well, log one of N; all others are logged
    #[arg(long, value_name = "1/N", default_value = "1/1", requires = "access_log")]
    access_log_sample: LogSample,
    #[command(flatten)]
    name: NameArg,
    /// Check the arguments and this host, print what would be done, and exit
    #[arg(long)]
    dry_run: bool,
    /// Relay nothing, but show what the relays that run have counted of each listener and backend
    #[arg(long, conflicts_with_all = ["listen", "to", "dry_run"])]
    stats: bool,
    /// Show that as JSON
    #[arg(long, requires = "stats")]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    if args.stats {
        return stats::print(args.json);
    }
    let map = args.lanes.map()?;
    let cpus = match &args.cpus {
        Some(spec) => spec.resolve(&map).context("--cpus")?,
        None => default_cpus(&map).context("--cpus")?,
    };
    let (format, sample) = (args.access_log_format, args.access_log_sample);
    let access_log = args.access_log.map(|target| AccessLog { target, format, sample });
    let (listen, sockets) = begin::listeners(&args.listen, passed::sockets()?)?;
    let config = Config {
        balance: args.balance,
        engine: args.engine,
        budget: args.budget,
        max_connections: args.max_connections,
        connect_timeout: args.connect_timeout,
        connect_deadline: args.connect_deadline,
        max_queue: args.max_queue,
        queue_timeout: args.queue_timeout,
        resolve_every: args.resolve_every,
        idle_timeout: args.idle_timeout.0,
        client_timeout: args.client_timeout.0,
        server_timeout: args.server_timeout.0,
        half_closed_timeout: args.half_closed_timeout.0,
        keepalive: args.keepalive.0,
        user_timeout: args.user_timeout.0,
        retry_after: args.retry_after,
        allow: args.allow,
        deny: args.deny,
        client_connections: args.client_connections,
        client_rate: args.client_rate,
        client_mask: args.client_mask,
        accept_proxy: args.accept_proxy,
        proxy_from: args.proxy_from,
        send_proxy: match (args.send_proxy, args.send_proxy_v2) {
            (true, _) => Some(ProxyHeader::V1),
            (_, true) => Some(ProxyHeader::V2),
            _ => None,
        },
        source: args.source,
        congestion_control: args.congestion_control,
        access_log,
        ..Config::new(listen, args.to.clone(), cpus)
    };
    // A daemon passes it on to all of its relays.
    let heeds_hangup =
        config.access_log.is_some() || config.has_address_files() || member::name().is_some();
    if args.dry_run {
        return dry_run(config, sockets, args.replace);
    }
    let mut foreground = Foreground::new()?;
    if heeds_hangup {
        foreground.heed_hangup()?;
    }
    let relay = Arc::new(match args.replace {
        true => begin::replace(&config, &sockets)?,
        false => Relay::start_on(config, sockets)?,
    });
    relay.on_replaced(foreground.waker()?);
    let _control = open_control("relay", args.name.or(&name(relay.listening_on())), |knobs| {
        relay::register(&relay, map, knobs)
    });
    announce(&relay, &args.to, relay.cpus());
    if args.replace {
        passed::notify(&[NotifyState::MainPid(std::process::id())]);
    }
    match foreground.follow(None, &mut Running(&relay))? {
        Ended::Signal(SIGTERM) => {
            passed::notify(&[NotifyState::Stopping]);
            drain(&relay, args.drain_timeout, &mut foreground)?;
        }
        Ended::Replaced => {
            let successor = relay.replaced_by().unwrap_or_default();
            tracing::info!("replaced by process {successor}");
            if successor != 0 {
                passed::notify(&[NotifyState::MainPid(successor)]);
            }
            drain(&relay, args.drain_timeout, &mut foreground)?;
        }
        _ => {}
    }
    Ok(Exit::Ok)
}

/// All CPUs, or as many as the cgroup's quota pays for: more workers would have each other throttled.
fn default_cpus(map: &LaneMap) -> anyhow::Result<CpuSet> {
    let all = CpuSpec::all().resolve(map)?;
    let Some(quota) = lanes::quota().filter(|quota| quota.ceil() < all.len() as f64) else {
        return Ok(all);
    };
    let cpus = map.nearest(rustix::thread::sched_getcpu(), quota.ceil() as usize);
    tracing::info!("the cgroup may use {quota:.2} CPUs: workers on CPUs {cpus} (or see --cpus)");
    Ok(cpus)
}

/// The relay while it runs.
struct Running<'a>(&'a Relay);

impl Followed for Running<'_> {
    fn ended(&mut self) -> Option<Ended> {
        self.0.replaced_by().map(|_| Ended::Replaced)
    }

    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        /// How soon workers follow CPUs that come and go.
        const TEND: Duration = Duration::from_secs(1);
        self.0.tend()?;
        Ok(Some(TEND))
    }

    fn log(&mut self) -> anyhow::Result<()> {
        tracing::info!("{:?}", self.0.stats());
        Ok(())
    }

    fn hang_up(&mut self) {
        self.0.reopen_access_log();
        if let Err(error) = self.0.reread_addresses() {
            tracing::error!("the lists of addresses stay as they were: {error}");
        }
    }
}

/// Waits for the connections that are there, until `timeout` or another signal ends that.
fn drain(relay: &Relay, timeout: Duration, foreground: &mut Foreground) -> anyhow::Result<()> {
    /// How soon a second signal is heeded.
    const LOOK: Duration = Duration::from_millis(50);
    let queued = |count: usize| match count {
        0 => String::new(),
        count => format!(", and {count} clients that wait to be accepted"),
    };
    tracing::info!("draining {} connections{}", relay.active(), queued(relay.waiting()));
    let deadline = Instant::now() + timeout;
    while !relay.drain(LOOK.min(deadline.saturating_duration_since(Instant::now()))) {
        relay.tend()?;
        if foreground.heed(&mut Running(relay))?.is_some() || Instant::now() >= deadline {
            let (active, waiting) = (relay.active(), queued(relay.waiting()));
            tracing::warn!("resetting {active} connections that did not end{waiting}");
            break;
        }
    }
    Ok(())
}

/// Checks the configuration as far as it goes without listening, and says what it comes to.
fn dry_run(config: Config, sockets: Vec<Inherited>, replace: bool) -> anyhow::Result<Exit> {
    let Config { listen, backends, engine, cpus, budget, access_log, .. } = &config;
    let listen: Vec<_> = listen.iter().map(|one| one.addr.clone()).collect();
    let predecessor = if replace { Predecessor::find(&listen)? } else { None };
    let take_over = predecessor.iter().map(|one| {
        format!("would take over the listening sockets of process {}, which then drains", one.pid)
    });
    let mut lines: Vec<_> = take_over.collect();
    lines.extend([
        format!(
            "would listen on {} ({} workers, one pinned to each of CPUs {cpus})",
            list(&listen),
            cpus.len()
        ),
        format!("would relay to {} with engine {engine}", targets(backends)),
        format!("would hold at most {budget} bytes of memory for a connection"),
    ]);
    lines.extend(access_log.iter().map(|log| format!("would log connections to {}", log.target)));
    let exit = out::dry_run(lines)?;
    let mut open: Vec<_> = sockets.iter().map(Inherited::addr).cloned().collect();
    open.extend(predecessor.iter().flat_map(Predecessor::addrs).cloned());
    Relay::check(&config, &open)?;
    Ok(exit)
}

fn announce(relay: &Relay, backends: &[Backend], cpus: CpuSet) {
    tracing::info!(
        "relaying {} to {} with engine {} on CPUs {cpus}, at most {} connections",
        list(relay.listening_on()),
        targets(backends),
        relay.engine(),
        relay.max_connections()
    );
}

/// What it is called if nobody says: where it listens.
fn name(addrs: &[Addr]) -> String {
    let short = |addr: &Addr| match addr.ip() {
        Some(addr) if addr.ip().is_unspecified() => format!(":{}", addr.port()),
        _ => addr.to_string(),
    };
    format!("relay {}", addrs.iter().map(short).collect::<Vec<_>>().join(", "))
}

fn list(addrs: &[Addr]) -> String {
    addrs.iter().map(Addr::to_string).collect::<Vec<_>>().join(", ")
}

fn targets(backends: &[Backend]) -> String {
    backends.iter().map(|backend| backend.target.to_string()).collect::<Vec<_>>().join(", ")
}
