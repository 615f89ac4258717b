//! `cachelane up`: all that a configuration asks for, each in a process of its own, until a signal ends
//! it.
//!
//! `member` is what is wanted of one and which processes it has, `process` one of these, `inbox` what they
//! say of themselves; `daemon` has all members, and applies a new configuration (`live`: where it can
//! without another process), which `watch` may find in its files; `succession` is how one daemon takes the
//! place of another (what the daemon does then: `daemon::handover`), and `status` what others are told.

mod daemon;
mod inbox;
mod live;
mod member;
mod process;
mod status;
mod succession;
mod watch;

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use knobs::{ProcessName, runtime_dir};
use rustix::fs::{FlockOperation, Mode, OFlags};
use sd_notify::NotifyState;
use signal_hook::consts::SIGINT;

use self::daemon::Daemon;
use self::inbox::Inbox;
use self::process::Starter;
use self::status::Board;
use self::succession::{Gave, Predecessor};
use crate::args::{SourceArgs, duration};
use crate::config::{Config, Loaded, Settings, Texts};
use crate::exit::{Exit, usage};
use crate::out;
use crate::passed;
use crate::privileges;
use crate::run::{Ended, Foreground, open_control};

/// Run everything that a configuration asks for, as a daemon
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Each table of the configuration, such as [relay.web] or [bridge.docker], is a process of its own, named \
as its table is. One that fails takes no other down: it is started again after a second, and after \
twice as long each time that it fails again. One that is stuck, or stopped, is killed and started \
again. When this process ends, however it ends, the others end, too.

cachelane config check finds what is wrong in a configuration, cachelane config default prints one to \
begin with.

Signals: SIGHUP applies what has changed in the configuration, and that alone: relays whose keys have \
changed are replaced without a client noticing, and what is wrong changes nothing. Relays open their \
access logs anew. With --watch it applies what has changed by itself. On SIGTERM it ends all, after their connections have ended (drain-timeout); on SIGINT, \
or a second signal, at once. On SIGUSR1 it logs how all fare. On SIGUSR2 it starts the program that is \
now at its path with --replace, for upgrades.

Exit codes: 2 if something is wrong in the configuration; of --status, 1 if a member has trouble, \
or has not started yet.

Examples:
  cachelane up
  cachelane up -c proxy.toml --dry-run
  cachelane up -c proxy.toml --set relay.web.engine=copy
  cachelane up --status
  cachelane up --replace")]
pub(crate) struct Args {
    #[command(flatten)]
    sources: SourceArgs,
    /// Take the place of the daemon of this name: its relays' clients notice nothing, and no packet is
    /// lost. If there is none, start as usual
    #[arg(long)]
    replace: bool,
    /// How long a process may be stuck or stopped before it is killed and started again; 0s for ever
    /// [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    silent_after: Option<Duration>,
    /// How soon to start a process again that has failed; doubled each time that it fails again
    /// [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    retry_after: Option<Duration>,
    /// The longest such pause [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    retry_at_most: Option<Duration>,
    /// Look so often whether the files of the configuration have changed, and apply it as SIGHUP does
    /// once they have stayed the same for so long; 0s for SIGHUP alone [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    watch: Option<Duration>,
    /// Name of this daemon: two with one name are one too many
    #[arg(long, value_name = "NAME", default_value = "up")]
    name: ProcessName,
    /// Check the configuration and this host, print what would be done, and exit
    #[arg(long, conflicts_with = "status")]
    dry_run: bool,
    /// Run nothing, but show how the members of the daemon that runs fare
    #[arg(long, conflicts_with = "replace")]
    status: bool,
    /// Show that as JSON
    #[arg(long, requires = "status")]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool, verbose: u8) -> anyhow::Result<Exit> {
    if args.status {
        return status::print(&args.name, args.json);
    }
    let (config, texts) = load(args)?;
    let mut loudness = if quiet { vec!["-q"] } else { Vec::new() };
    loudness.extend(std::iter::repeat_n("-v", verbose.into()));
    if args.dry_run {
        return dry_run(&config, Predecessor::find(&args.name)?.is_some());
    }
    if config.members.is_empty() {
        tracing::warn!("the configuration asks for nothing");
    }
    let kinds = config.members.iter().map(|member| member.kind.name);
    if let Some(missing) = privileges::missing_for(kinds) {
        tracing::warn!("some members will fail: they need root, or {missing}");
    }
    let dir = runtime_dir();
    let lock = only_one(&dir)?;
    let predecessor = Predecessor::find(&args.name)?;
    if let (Some(other), false) = (&predecessor, args.replace) {
        return Err(usage(format!(
            "process {} is '{}' already (expected --replace to take its place, or another --name)",
            other.pid(),
            args.name
        )));
    }
    let mut foreground = Foreground::new()?;
    foreground.heed_as_daemon()?;
    let board = Board::new(foreground.waker()?);
    let control =
        open_control("up", args.name.clone(), |registry| Board::register(&board, registry));
    let control = control.context("cachelane up cannot do without its control socket")?;
    drop(lock);
    let inbox = Inbox::open(&dir)?;
    foreground.wake_on(inbox.socket().context("cannot duplicate a file")?);
    let starter = Starter::new(inbox.path().to_owned(), loudness);
    let settings = Settings {
        silent_after: args.silent_after,
        retry_after: args.retry_after,
        retry_at_most: args.retry_at_most,
        watch: args.watch,
    };
    let mut daemon = Daemon::new(args.sources.sources(), settings, starter, inbox, board, control);
    if let Some(predecessor) = &predecessor {
        tracing::info!("taking the place of process {}", predecessor.pid());
        if predecessor.give_way()? == Gave::Ended {
            // Another one may have its place by now, or may be about to take it, too. Of several that look,
            // the last one finds nobody: each takes its control socket away before the next one looks.
            let lock = only_one(&dir)?;
            if let Some(other) = Predecessor::find(&args.name)? {
                drop(daemon);
                drop(lock);
                bail!("process {} has ended, and {} has its place", predecessor.pid(), other.pid());
            }
        }
    }
    daemon.begin(config, texts, predecessor, args.replace);
    end(&mut daemon, &mut foreground)
}

/// Keeps others from starting until it is dropped: whoever looks whether a daemon of its name runs is to
/// find one that starts.
fn only_one(dir: &Path) -> anyhow::Result<OwnedFd> {
    let lock = || {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        rustix::fs::flock(&dir, FlockOperation::LockExclusive)?;
        Ok::<_, std::io::Error>(dir)
    };
    lock().with_context(|| format!("cannot lock {}", dir.display()))
}

/// What the configuration asks for, if nothing is wrong with it, and what its files say.
fn load(args: &Args) -> anyhow::Result<(Config, Texts)> {
    let Loaded { config, texts, troubles, unchecked, .. } = args.sources.sources().load();
    unchecked.iter().for_each(|one| tracing::warn!("{one}"));
    let Some((last, others)) = troubles.split_last() else { return Ok((config, texts)) };
    others.iter().for_each(|trouble| out::complain(&trouble.to_string()));
    Err(usage(last.to_string()))
}

/// Follows the daemon until it has ended.
fn end(daemon: &mut Daemon, foreground: &mut Foreground) -> anyhow::Result<Exit> {
    let mut signals = 0;
    while let Ended::Signal(signal) = foreground.follow(None, daemon)? {
        signals += 1;
        tracing::info!("ending");
        passed::notify(&[NotifyState::Stopping]);
        daemon.end(signal == SIGINT || signals > 1);
    }
    Ok(Exit::Ok)
}

/// Has each member say what it would do.
fn dry_run(config: &Config, replaces: bool) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    for member in &config.members {
        let mut command = std::process::Command::new(process::program());
        command.arg0("cachelane");
        command.arg("-q").arg(member.kind.name).args(["--name", &member.name, "--dry-run"]);
        command.args((replaces && member.kind.is_replaced()).then_some("--replace"));
        let said = command.args(&member.args).output();
        let said = said.with_context(|| format!("{}: cannot be asked", member.name))?;
        let of = if said.status.success() { &said.stdout } else { &said.stderr };
        let text = String::from_utf8_lossy(of);
        out::lines(
            text.lines().map(|line| format!("{}: {}", member.name, crate::terminal::clean(line))),
        )?;
        if !said.status.success() {
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}
