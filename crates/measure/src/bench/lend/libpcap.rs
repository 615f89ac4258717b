//! Packets that reach tcpdump, which writes them to /dev/null: lent, by `cachelane borrow -- tcpdump`, or
//! by libpcap's own AF_PACKET ring. As many as can be come, from a driver; tcpdump runs on the receivers'
//! CPU, and says itself what it captured.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStderr, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lab::Process;
use rustix::process::{Pid, Signal, kill_process};
use trial::bench::Bar;

use super::Ground;
use super::delivered::{costs, flood};
use super::wire::{Delivered, Pace, Wire};
use crate::bench::claim::Claim;
use crate::bench::command::PATIENCE;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time, ensure_root};

/// By which library tcpdump reads.
#[derive(Clone, Copy, Debug)]
enum By {
    Lend,
    Libpcap,
}

const BOTH: [By; 2] = [By::Lend, By::Libpcap];
/// What it is of, as claims say it, and as cases do.
const PPS: [&str; 2] = ["packets a second", "pps"];
const CPU: [&str; 2] = ["cpu time per packet", "cpu time"];

pub(super) fn part() -> Part<Ground> {
    let claim = |what: [&str; 2], bar| {
        let [of, to] = BOTH.map(|by| case(what, by));
        let name = format!("{} to tcpdump -w /dev/null: lend / libpcap's own", what[0]);
        Claim::ratio(name, of, to).bar(bar)
    };
    let claims = [claim(PPS, Bar::AtLeast(1.5)), claim(CPU, Bar::AtMost(1.0))];
    let time = Time { once: 1.0, steps: BOTH.len(), windows: 1.0, more: 2.0 };
    Part::new("libpcap", "tcpdump on loans, against its own libpcap (needs root)", time)
        .claims(claims)
        .stage(|ground: &Ground, _| {
            ensure_root()?;
            let wire = Wire::build(ground.places.two())?;
            let step = |by: &By| Step {
                name: format!("tcpdump, {}", by.name()),
                gives: vec![(case(PPS, *by), "pps"), (case(CPU, *by), "s")],
            };
            Ok(Measure::new(BOTH, step, move |by, now| {
                let Delivered { pps, cpu } = measure(&wire, *by, now.window)?;
                Ok(vec![pps, cpu])
            }))
        })
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Lend => "lend",
            By::Libpcap => "libpcap's own",
        }
    }
}

fn case([_, what]: [&str; 2], by: By) -> String {
    format!("tcpdump {what}, {}", by.name())
}

fn measure(wire: &Wire, by: By, window: Duration) -> anyhow::Result<Delivered> {
    let mut lending = None;
    let tcpdump = match by {
        By::Libpcap => Tcpdump::start(wire, &[], &wire.to.device)?,
        By::Lend => {
            let lender = lending.insert(wire.lend(1, "")?);
            let (program, socket) = (std::env::current_exe()?, lender.socket.display().to_string());
            let program = program.to_str().context("the path of this program is no text")?;
            let tcpdump =
                Tcpdump::start(wire, &[program, "borrow", &socket, "--mirror", "--"], "cachelane")?;
            lender.await_borrowers(1)?;
            tcpdump
        }
    };
    let sender = wire.send(flood(Pace::Driver))?;
    let measured = tcpdump.captures(window);
    sender.end()?;
    if let Some(lending) = lending {
        lending.end()?;
    }
    measured
}

/// A tcpdump that runs.
struct Tcpdump {
    process: Process,
    said: BufReader<ChildStderr>,
}

impl Tcpdump {
    /// Starts it on the receivers' CPU, by such a command if there is one, and waits until it listens.
    fn start(wire: &Wire, by: &[&str], device: &str) -> anyhow::Result<Tcpdump> {
        let cpu = wire.cpus[1].to_string();
        let command = wire.to.host.command("taskset").args(["-c", &cpu]).args(by);
        let command = command.args(["tcpdump", "-n", "-i", device, "-w", "/dev/null"]);
        let mut process = command.stderr(Stdio::piped()).spawn()?;
        let said = process.pipes().stderr.take().context("no pipe")?;
        let mut tcpdump = Tcpdump { process, said: BufReader::new(said) };
        tcpdump.line("listening on")?;
        Ok(tcpdump)
    }

    /// The next line with these words.
    fn line(&mut self, words: &str) -> anyhow::Result<String> {
        let mut all = String::new();
        loop {
            let from = all.len();
            if self.said.read_line(&mut all)? == 0 {
                let why = format!("tcpdump: {} (make peers)", all.trim());
                return Err(Absent(why).into());
            }
            if all[from..].contains(words) {
                return Ok(all[from..].to_owned());
            }
        }
    }

    /// How many packets it has captured.
    fn captured(&mut self) -> anyhow::Result<u64> {
        let pid = Pid::from_raw(self.process.pid().cast_signed()).context("a PID")?;
        kill_process(pid, Signal::USR1)?;
        let line = self.line("packets captured")?;
        let number = line.split_whitespace().find_map(|word| word.parse().ok());
        number.with_context(|| format!("tcpdump said {line:?}"))
    }

    /// Packets a second, and what they cost.
    fn captures(mut self, window: Duration) -> anyhow::Result<Delivered> {
        let delivered = costs(
            || {
                let (before, started) = (self.captured()?, Instant::now());
                std::thread::sleep(window);
                let (after, elapsed) = (self.captured()?, started.elapsed());
                ensure!(after > before, Absent("tcpdump captured nothing".into()));
                Ok((after - before) as f64 / elapsed.as_secs_f64())
            },
            window,
        )?;
        // With a signal, it ends by the signal or well.
        let _ = self.process.stop(PATIENCE)?;
        Ok(delivered)
    }
}
