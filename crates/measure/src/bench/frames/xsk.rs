//! `cachelane xsk` on a veth, as its users run it, against a plain AF_XDP loop in C
//! (`peers/xdp_plain.c`), and forwarding between two veths under each value of the knob.
//!
//! All sockets are in copy mode, which is all that a veth has. What differs between the two modes of
//! sending is the other end: in *skb mode* it is a device as it comes, in *native copy mode* an XDP
//! program runs in its driver. Then the veth also takes frames that are no socket's: *live*, beside the
//! same plain loop.

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
use crate::bench::experiment::{Absent, Measure, Part, Time, ensure_root};
use crate::bench::peer::{Builder, Peer, XDP_PLAIN};
use crate::bench::places::Places;

/// Bytes of a packet: 64 with the check sequence.
const SIZE: &str = "60";
/// From when the sender runs until what arrives is measured.
const WARM: Duration = Duration::from_millis(300);

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Work {
    Send(Mode),
    /// What the plain loop does in native copy mode, by frames that the kernel makes.
    Live,
    Drop,
    Forward(AlienFree),
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Skb,
    Native,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Cachelane,
    Plain,
}

const PLAIN: &str = "plain loop";
const WHO: [(Who, &str); 2] = [(Who::Cachelane, "cachelane"), (Who::Plain, PLAIN)];
/// What both do, and the least that cachelane's should be of the plain loop's.
const OF_BOTH: [(&str, Work, f64); 4] = [
    ("xsk send skb mode", Work::Send(Mode::Skb), 1.10),
    ("xsk send copy mode", Work::Send(Mode::Native), 1.10),
    ("xsk send live", Work::Live, 2.5),
    ("xsk drop", Work::Drop, 1.0),
];

pub(super) fn part() -> Part<Ground> {
    let against_plain = OF_BOTH.map(|(work, _, least)| {
        let [of, to] = WHO.map(|(_, who)| format!("{work}, {who}"));
        Claim::ratio(format!("{work}: cachelane / plain loop"), of, to).bar(Bar::AtLeast(least))
    });
    let [recycle, defer, auto] = AlienFree::ALL;
    let knob = [recycle, defer].map(|other| {
        Claim::ratio(format!("xsk forward: auto / {other}"), forward(auto), forward(other))
    });
    let steps = OF_BOTH.len() * WHO.len() + AlienFree::ALL.len();
    let time = Time { once: 1.0, steps, windows: 1.0, more: 0.5 };
    Part::new("xsk", "cachelane xsk on a veth against a plain AF_XDP loop (needs root)", time)
        .claims(against_plain)
        .claims(knob)
        .stage(|ground: &Ground, found| {
            ensure_root()?;
            let net = Net::build(&ground.builder, &ground.places)?;
            let there = 1 + usize::from(net.plain.is_ok());
            if let Err(reason) = &net.plain {
                found.absent(PLAIN, reason);
            }
            let of_both = OF_BOTH.iter().flat_map(|(work, what, _)| {
                WHO[..there].iter().map(move |(who, name)| (format!("{work}, {name}"), *what, *who))
            });
            let forwarding =
                AlienFree::ALL.map(|mode| (forward(mode), Work::Forward(mode), Who::Cachelane));
            let cases: Vec<_> = of_both.chain(forwarding).collect();
            let step = |(name, ..): &(String, Work, Who)| ground.step(name.clone(), "pps");
            Ok(Measure::new(cases, step, move |(_, work, who), now| {
                ground.counting(now.window, |pps| pps, || net.measure(*work, *who, now.window))
            }))
        })
}

fn forward(mode: AlienFree) -> String {
    format!("xsk forward, {mode}")
}

/// The part of the experiment that the demo shows: measures packets a second in skb mode that
/// `cachelane xsk send` sends, or the plain loop.
pub(crate) fn sending() -> anyhow::Result<impl Fn(bool, Duration) -> anyhow::Result<f64>> {
    let builder = Builder::new()?;
    let net = Net::build(&builder, &Places::detect()?)?;
    if let Err(reason) = &net.plain {
        bail!(Absent(format!("the plain loop to compare with: {reason}")));
    }
    Ok(move |ours, window| {
        // Where the plain loop is.
        let _builder = &builder;
        net.send(Mode::Skb, "socket", if ours { Who::Cachelane } else { Who::Plain }, window)
    })
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
        Ok(Net {
            first: [first.a, first.b],
            second: [second.a, second.b],
            cpus: places.two(),
            plain: builder.build(&XDP_PLAIN),
            lab,
        })
    }

    /// Packets a second. There is no speed where there were none.
    fn measure(&self, work: Work, who: Who, window: Duration) -> anyhow::Result<f64> {
        let pps = match work {
            Work::Send(mode) => self.send(mode, "socket", who, window),
            Work::Live => self.send(Mode::Native, "live", who, window),
            Work::Drop => self.drop(who, window),
            Work::Forward(mode) => self.forward(mode, window),
        }?;
        ensure!(pps > 0.0, Absent("no packets".into()));
        Ok(pps)
    }

    fn send(&self, mode: Mode, engine: &str, who: Who, window: Duration) -> anyhow::Result<f64> {
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
                let args = self.send_args(from, engine);
                let sent = self.xsk(&from.host, &for_window(&args, window))?;
                packets_a_second(sent, "tx", window)
            }
        }
    }

    fn drop(&self, who: Who, window: Duration) -> anyhow::Result<f64> {
        let [from, to] = &self.first;
        let sender = self.xsk(&from.host, &self.send_args(from, "socket"))?;
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
        let sender = self.xsk(&source.host, &self.send_args(source, "socket"))?;
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

    fn send_args(&self, from: &End, engine: &str) -> String {
        format!("send {} --engine {engine} --size {SIZE} --cpus {}", from.device, self.cpus[0])
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
    Ok(command::report(process, window)?[way]["pps"].as_f64().unwrap_or_default())
}
