//! `cachelane xsk` on a veth, as its users run it, against a plain AF_XDP loop in C
//! (`peers/xdp_plain.c`), and forwarding between two veths under each value of the knob.
//!
//! All sockets are in copy mode, which is all that a veth has. What differs between the two modes of
//! sending is the other end: in *skb mode* it is a device as it comes, in *native copy mode* an XDP
//! program runs in its driver.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{bail, ensure};
use frames::AlienFree;
use lab::{End, Host, Lab, LinkOptions, Process};
use trial::bench::Bar;
use xsk::{Attach, Device, ProgramOptions};

use super::Ground;
use crate::bench::claim::Claim;
use crate::bench::command;
use crate::bench::experiment::{Absent, Measure, Part, Time};
use crate::bench::peer::{Builder, Peer, Program};
use crate::bench::places::Places;

/// Bytes of a packet: 64 with the check sequence.
const SIZE: &str = "60";
/// From when the sender runs until what arrives is measured.
const WARM: Duration = Duration::from_millis(300);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Send(Mode, Who),
    Drop(Who),
    Forward(AlienFree),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Skb,
    Native,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Cachelane,
    Plain,
}

const CASES: [Case; 9] = [
    Case::Send(Mode::Skb, Who::Cachelane),
    Case::Send(Mode::Skb, Who::Plain),
    Case::Send(Mode::Native, Who::Cachelane),
    Case::Send(Mode::Native, Who::Plain),
    Case::Drop(Who::Cachelane),
    Case::Drop(Who::Plain),
    Case::Forward(AlienFree::Recycle),
    Case::Forward(AlienFree::Defer),
    Case::Forward(AlienFree::Auto),
];

pub(super) fn part() -> Part<Ground> {
    let against_plain = [
        ("xsk send skb mode", 1.15, [Who::Cachelane, Who::Plain].map(|w| Case::Send(Mode::Skb, w))),
        (
            "xsk send copy mode",
            1.15,
            [Who::Cachelane, Who::Plain].map(|w| Case::Send(Mode::Native, w)),
        ),
        ("xsk drop", 1.0, [Who::Cachelane, Who::Plain].map(Case::Drop)),
    ];
    let against_plain = against_plain.map(|(name, least, [of, to])| {
        let name = format!("{name}: cachelane / plain loop");
        Claim::ratio(name, of.name(), to.name()).bar(Bar::AtLeast(least))
    });
    let auto = Case::Forward(AlienFree::Auto).name();
    let knob = [AlienFree::Recycle, AlienFree::Defer].map(|other| {
        Claim::ratio(format!("xsk forward: auto / {other}"), &auto, Case::Forward(other).name())
    });
    let time = Time { once: 1.0, steps: CASES.len(), windows: 1.0, more: 0.5 };
    Part::new("xsk", "cachelane xsk on a veth against a plain AF_XDP loop (needs root)", time)
        .claims(against_plain)
        .claims(knob)
        .stage(|ground: &Ground, found| {
            let root = rustix::process::geteuid().is_root();
            ensure!(root, Absent("AF_XDP on test hosts needs root".into()));
            let net = Net::build(&ground.builder, &ground.places)?;
            let mut cases = CASES.to_vec();
            if let Err(reason) = &net.plain {
                found.absent(Who::Plain.name(), reason);
                cases.retain(|case| case.who() != Some(Who::Plain));
            }
            let step = |case: &Case| ground.step(case.name(), "pps");
            Ok(Measure::new(cases, step, move |case, now| {
                ground.counting(now.window, |pps| pps, || net.measure(*case, now.window))
            }))
        })
}

impl Case {
    fn name(self) -> String {
        match self {
            Case::Send(Mode::Skb, who) => format!("xsk send skb mode, {}", who.name()),
            Case::Send(Mode::Native, who) => format!("xsk send copy mode, {}", who.name()),
            Case::Drop(who) => format!("xsk drop, {}", who.name()),
            Case::Forward(mode) => format!("xsk forward, {mode}"),
        }
    }

    fn who(self) -> Option<Who> {
        match self {
            Case::Send(_, who) | Case::Drop(who) => Some(who),
            Case::Forward(_) => None,
        }
    }
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Cachelane => "cachelane",
            Who::Plain => "plain loop",
        }
    }
}

/// Sending in skb mode: the part of the experiment that the demo shows.
pub(crate) struct Sending {
    net: Net,
    /// Where the plain loop is.
    _builder: Builder,
}

impl Sending {
    /// Builds hosts and programs.
    pub(crate) fn build() -> anyhow::Result<Sending> {
        let builder = Builder::new()?;
        let net = Net::build(&builder, &Places::detect()?)?;
        if let Err(reason) = &net.plain {
            bail!(Absent(format!("the plain loop to compare with: {reason}")));
        }
        Ok(Sending { net, _builder: builder })
    }

    /// Packets a second that `cachelane xsk send` sends, or the plain loop.
    pub(crate) fn rate(&self, ours: bool, window: Duration) -> anyhow::Result<f64> {
        self.net.send(Mode::Skb, if ours { Who::Cachelane } else { Who::Plain }, window)
    }
}

/// Hosts in a row: a sender, one that forwards, a receiver.
struct Net {
    /// From the sender to the forwarder: the only link where nothing is forwarded.
    first: [End; 2],
    /// From the forwarder to the receiver.
    second: [End; 2],
    /// Where the first thread of every measurement runs, and the second one.
    cpus: [usize; 2],
    /// The plain loop's program.
    plain: Result<PathBuf, String>,
    lab: Lab,
}

impl Net {
    fn build(builder: &Builder, places: &Places) -> anyhow::Result<Net> {
        let lab = Lab::new("bench-xsk")?;
        let [a, m, b] = [lab.host("a")?, lab.host("m")?, lab.host("b")?];
        let first = lab.link(&a, &m, LinkOptions::default())?;
        let second = lab.link(&m, &b, LinkOptions::default())?;
        let near = places.near();
        Ok(Net {
            first: [first.a, first.b],
            second: [second.a, second.b],
            cpus: [near[0], near[near.len() - 1]],
            plain: builder.build(Program::XdpPlain),
            lab,
        })
    }

    /// Packets a second.
    fn measure(&self, case: Case, window: Duration) -> anyhow::Result<f64> {
        match case {
            Case::Send(mode, who) => self.send(mode, who, window),
            Case::Drop(who) => self.drop(who, window),
            Case::Forward(mode) => self.forward(mode, window),
        }
    }

    fn send(&self, mode: Mode, who: Who, window: Duration) -> anyhow::Result<f64> {
        let [from, to] = &self.first;
        // No socket is on its queues, so that it passes everything on to the kernel.
        let _program = match mode {
            Mode::Skb => None,
            Mode::Native => Some(to.host.run(|| {
                let options = ProgramOptions::default().attach(Attach::Native);
                xsk::Program::attach(&Device::find(&to.device)?, &options)
            })??),
        };
        match who {
            Who::Plain => Ok(1.0 / self.plain(from, "none", 0)?.run("tx", 1, window)?),
            Who::Cachelane => {
                let sent = self.xsk(&from.host, &for_window(&self.send_args(from), window))?;
                packets_a_second(sent, "tx", window)
            }
        }
    }

    fn drop(&self, who: Who, window: Duration) -> anyhow::Result<f64> {
        let [from, to] = &self.first;
        let sender = self.xsk(&from.host, &self.send_args(from))?;
        std::thread::sleep(WARM);
        let pps = match who {
            Who::Plain => Ok(1.0 / self.plain(to, "native", 1)?.run("rx", 1, window)?),
            Who::Cachelane => {
                let args = format!("drop {} --xdp native --cpus {}", to.device, self.cpus[1]);
                let dropped = self.xsk(&to.host, &for_window(&args, window))?;
                packets_a_second(dropped, "rx", window)
            }
        };
        command::end(sender, "the sender")?;
        pps
    }

    fn forward(&self, mode: AlienFree, window: Duration) -> anyhow::Result<f64> {
        let [source, left] = &self.first;
        let [right, _] = &self.second;
        let sender = self.xsk(&source.host, &self.send_args(source))?;
        std::thread::sleep(WARM);
        let [a, b] = self.cpus;
        // Told of two lanes, so that auto is not recycle by another name.
        let lanes = if a == b { String::new() } else { format!(" --lanes {a}|{b}") };
        let args = format!(
            "forward {} --to {} --split --xdp native --cpus {a},{b} --alien-free {mode}{lanes}",
            left.device, right.device
        );
        let forwarded = self.xsk(&left.host, &for_window(&args, window))?;
        let pps = packets_a_second(forwarded, "tx", window);
        command::end(sender, "the sender")?;
        pps
    }

    fn send_args(&self, from: &End) -> String {
        format!("send {} --size {SIZE} --cpus {}", from.device, self.cpus[0])
    }

    fn xsk(&self, host: &Host, args: &str) -> anyhow::Result<Process> {
        command::start(&self.lab, host, &format!("xsk {args} --json"), Stdio::piped())
    }

    fn plain(&self, end: &End, program: &str, cpu: usize) -> anyhow::Result<Peer> {
        let binary: &Path = self.plain.as_deref().map_err(|e| anyhow::anyhow!("{e}"))?;
        let args = [&end.device, "0", program, &self.cpus[cpu].to_string()].map(str::to_owned);
        end.host.run(|| Peer::start(binary, &args))?.map_err(|e| anyhow::anyhow!("plain loop: {e}"))
    }
}

fn for_window(args: &str, window: Duration) -> String {
    format!("{args} --for {}ms", window.as_millis().max(1))
}

/// What it says at its end, of the packets in one direction.
fn packets_a_second(process: Process, way: &str, window: Duration) -> anyhow::Result<f64> {
    // Nothing stands for a rate where there was no time.
    let pps = command::report(process, window)?[way]["pps"].as_f64().unwrap_or_default();
    ensure!(pps > 0.0, Absent("no packets".into()));
    Ok(pps)
}
