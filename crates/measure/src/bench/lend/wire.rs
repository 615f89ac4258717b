//! A veth, what sends over it, and who receives at its end: `cachelane lend` with borrowers, as
//! users run it, or AF_PACKET rings (`peers/af_packet.c`).
//!
//! As many packets as can be come as a network card's driver hands them on, in pages
//! ([`LiveSender`]), or as another host's socket sends them, in socket buffers; at a rate they come
//! from a socket. The sender has one CPU, on which the kernel's receiving half of the veth runs as
//! well; all that receives in user space has the other. Packets go to a hardware address that is not
//! the receiver's, so that its IP drops them at once where they are not lent.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use knobs::{Client, Current};
use lab::traffic::{LiveOptions, LiveSender};
use lab::{End, Lab, LinkOptions, Mac, Process};

use crate::bench::command::{self, PATIENCE};
use crate::bench::experiment::Absent;
use crate::bench::peer::Peer;

/// Workers that share the flows.
pub(super) const WORKERS: usize = 4;
/// Frames of a lender, how many of them its borrowers can have together, and the most of one.
const FRAMES: usize = 32_768;
const QUOTAS: usize = FRAMES / 2;
const MOST_LOANS: usize = 2048;
/// From when the sender runs until what arrives is measured.
const WARM: Duration = Duration::from_millis(300);

/// The hosts, and what runs on them.
pub(super) struct Wire {
    pub(super) from: End,
    pub(super) to: End,
    /// The sender's CPU, and the receivers'.
    pub(super) cpus: [usize; 2],
    pub(super) lab: Lab,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Bytes of a packet, without the check sequence.
    pub(super) size: usize,
    pub(super) pace: Pace,
}

/// How fast, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as it goes, as from a driver.
    Driver,
    /// As fast as it goes, from a socket.
    Socket,
    /// Packets a second, from a socket.
    Rate(u64),
    /// The same, and each says when it was made; they need [`SEQ_SIZE`] bytes.
    Stamped(u64),
}

/// The least that a packet with a stamp has.
pub(super) const SEQ_SIZE: usize = 64;

/// Where flows begin, by their source ports, and how many there are.
const FIRST_PORT: u16 = 1024;
const FLOWS: u16 = 256;
/// Whom packets are for: nobody there.
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Packets a second that borrowers have had and returned, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivered {
    pub(super) pps: f64,
    /// Busy CPU time of the whole machine for each of them, in seconds: the sender's as well.
    pub(super) cpu: f64,
}

impl Wire {
    pub(super) fn build(cpus: [usize; 2]) -> anyhow::Result<Wire> {
        let lab = Lab::new("bench-lend")?;
        let [a, b] = [lab.host("a")?, lab.host("b")?];
        let link = lab.link(&a, &b, LinkOptions::default())?;
        // NAPI, as every network card has it; with its XDP program a veth has it anyway.
        let gro = link.b.host.command("ethtool").args(["-K", &link.b.device, "gro", "on"]);
        gro.run()?;
        Ok(Wire { from: link.a, to: link.b, cpus, lab })
    }

    /// Sends until it is stopped.
    pub(super) fn send(&self, traffic: Traffic) -> anyhow::Result<Sender> {
        let (rate, pattern) = match traffic.pace {
            Pace::Driver => {
                let options = LiveOptions {
                    size: traffic.size,
                    to: NOBODY,
                    first_port: FIRST_PORT,
                    ports: FLOWS,
                    cpu: Some(self.cpus[0]),
                };
                let sender = LiveSender::start(&self.from, &options)?;
                std::thread::sleep(WARM);
                return Ok(Sender::Driver(sender));
            }
            Pace::Socket => (0, "zeros"),
            Pace::Rate(rate) => (rate, "zeros"),
            Pace::Stamped(rate) => (rate, "seq"),
        };
        let args = format!(
            "xsk send {} --engine socket --size {} --rate {rate} --pattern {pattern} \
             --sport {FIRST_PORT}-{} --dst-mac {NOBODY} --cpus {}",
            self.from.device,
            traffic.size,
            FIRST_PORT + FLOWS - 1,
            self.cpus[0]
        );
        let sender = command::start(&self.lab, &self.from.host, &args, Stdio::null())?;
        std::thread::sleep(WARM);
        Ok(Sender::Socket(sender))
    }

    /// Starts a lender at the other end for so many borrowers, with more options.
    pub(super) fn lend(&self, borrowers: usize, more: &str) -> anyhow::Result<Lending> {
        let socket = self.lab.dir().join("lend.sock");
        let args = format!(
            "lend {} --xdp native --quota {} --frames {FRAMES} --cpus {} --socket {}{more}",
            self.to.device,
            (QUOTAS / borrowers).min(MOST_LOANS),
            self.cpus[1],
            socket.display()
        );
        let mut process = command::start(&self.lab, &self.to.host, &args, Stdio::null())?;
        let (_, client) = command::await_control(&self.lab, &mut process, "lend")?;
        Ok(Lending { process, client, socket })
    }

    /// AF_PACKET rings at the other end, or why not.
    pub(super) fn rings(&self, binary: &Path, workers: usize) -> Result<Peer, String> {
        let (workers, cpu) = (workers.to_string(), self.cpus[1].to_string());
        let args = [self.to.device.clone(), workers, cpu];
        let start = || Peer::start(binary, &args);
        self.to.host.run(start).map_err(|error| error.to_string())?
    }

    /// A plain AF_XDP loop at the other end, or why not.
    pub(super) fn plain(&self, binary: &Path) -> Result<Peer, String> {
        let args = [&self.to.device, "0", "native", &self.cpus[1].to_string()].map(str::to_owned);
        let start = || Peer::start(binary, &args);
        self.to.host.run(start).map_err(|error| error.to_string())?
    }

    /// A program that borrows, on the receivers' CPU.
    pub(super) fn borrow(&self, mut command: Command) -> anyhow::Result<Borrowers> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let cpu = self.cpus[1];
        // What a pinned thread starts is pinned.
        let spawn = || {
            lanes::pin(cpu)?;
            command.spawn().context("a borrower")
        };
        Ok(Borrowers(std::thread::scope(|scope| scope.spawn(spawn).join()).expect("no panic")?))
    }
}

/// A lender that runs.
pub(super) struct Lending {
    process: Process,
    client: Client,
    pub(super) socket: PathBuf,
}

impl Lending {
    /// Waits until so many borrow.
    pub(super) fn await_borrowers(&mut self, count: usize) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.client.counter("lend.borrowers")? != count as u64 {
            ensure!(Instant::now() < until, "the borrowers do not come");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// How many packets are received and returned in this time.
    pub(super) fn returned_in(&mut self, window: Duration) -> anyhow::Result<f64> {
        let (before, started) = (self.client.counter("lend.returned")?, Instant::now());
        std::thread::sleep(window);
        let (after, elapsed) = (self.client.counter("lend.returned")?, started.elapsed());
        let figures = self.figures()?;
        ensure!(after > before, Absent(format!("nothing was lent: {figures}")));
        Ok((after - before) as f64 / elapsed.as_secs_f64())
    }

    /// How it stands, for who has to find out why.
    fn figures(&mut self) -> anyhow::Result<String> {
        let there = self.client.counters()?.into_iter();
        let there = there.filter(|reading| reading.value != Current::Value(0));
        let texts: Vec<_> = there.map(|r| format!("{} {}", r.name, r.value)).collect();
        Ok(texts.join(", "))
    }

    /// Ends it.
    pub(super) fn end(self) -> anyhow::Result<()> {
        command::end(self.process, "the lender")
    }
}

/// What sends.
pub(super) enum Sender {
    Driver(LiveSender),
    Socket(Process),
}

impl Sender {
    pub(super) fn end(self) -> anyhow::Result<()> {
        match self {
            Sender::Driver(sender) => Ok(sender.stop()?),
            Sender::Socket(process) => command::end(process, "the sender"),
        }
    }
}

/// A program that borrows, until dropped.
pub(super) struct Borrowers(Child);

impl Drop for Borrowers {
    fn drop(&mut self) {
        // It may have ended with its lender.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
