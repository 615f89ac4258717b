//! `cachelane` processes in test hosts, as a user would run them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use knobs::Client;
use lab::{Host, Lab, Process};
use serde_json::Value;

/// How long one may take besides what it was asked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Starts the command. Its runtime directory is the lab's, not the host's /run/cachelane.
pub(super) fn start(lab: &Lab, host: &Host, args: &str, stdout: Stdio) -> anyhow::Result<Process> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let dir = format!("CACHELANE_RUNTIME_DIR={}", runtime_dir(lab).display());
    let command = host.command("env").arg(dir).arg(program).arg("--quiet");
    Ok(command.args(args.split_whitespace()).stdout(stdout).spawn()?)
}

/// Waits until a process answers on its control socket, which is the last thing that it opens.
pub(super) fn await_control(
    lab: &Lab,
    process: &mut Process,
    name: &str,
) -> anyhow::Result<(PathBuf, Client)> {
    let path = runtime_dir(lab).join(format!("{name}-{}.sock", process.pid()));
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(client) = Client::connect(&path) {
            return Ok((path, client));
        }
        if let Some(status) = process.try_wait()? {
            anyhow::bail!("cachelane {name} ended at once: {status}");
        }
        ensure!(Instant::now() < until, "cachelane {name} did not start in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a process prints at its end, if it was asked for JSON. It ends within this time by itself.
pub(super) fn report(mut process: Process, time: Duration) -> anyhow::Result<Value> {
    let status = process.wait_within(time + PATIENCE)?;
    ensure!(status.success(), "cachelane ended with {status}");
    let stdout = process.pipes().stdout.take().context("no output")?;
    serde_json::from_reader(stdout).context("its report")
}

/// Ends a process.
pub(super) fn end(mut process: Process, what: &str) -> anyhow::Result<()> {
    let status = process.stop(PATIENCE)?;
    ensure!(status.success(), "{what} ended with {status}");
    Ok(())
}

/// Where its processes have their control sockets.
pub(super) fn runtime_dir(lab: &Lab) -> PathBuf {
    lab.dir().join("run")
}
