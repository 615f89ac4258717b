//! Two hosts behind a Linux bridge, with the fast path at hand.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bridge::{Accelerator, Config, Counters, Reason, Table, Way};
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{Bridge, BridgeOptions, End, Host, Lab};
use sources::pmu::Pmu;

use crate::bench::experiment::Absent;

/// Before each measurement.
const WARM: Duration = Duration::from_millis(300);
/// How long the bridge may take to forward again after a change.
const PATIENCE: Duration = Duration::from_secs(20);
/// So long that nothing is forgotten while a bench runs.
const AGEING: Duration = Duration::from_secs(24 * 3600);
/// What br_netfilter does by itself where it is there: bridged packets pass the IP tables, and
/// the fast path leaves them to it.
const CALLS: [&str; 3] = ["iptables", "ip6tables", "arptables"];

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    Linux,
    Cachelane(Table),
}

/// The bridge, and the fast path with the table that is in use.
pub(crate) const ARMS: [(&str, Arm); 2] =
    [("linux bridge", Arm::Linux), ("cachelane", Arm::Cachelane(Table::Split))];

/// The bridge and its two members.
pub(crate) struct Net {
    /// None only while it is started anew.
    accelerator: Option<Accelerator>,
    pub(super) bridge: Bridge,
    /// For what `bridge` is to read.
    batch: PathBuf,
}

/// Frames on their way: where they are made, and where they end.
pub(super) struct Flow<'a> {
    pub(super) generator: &'a FrameGenerator,
    pub(super) sink: &'a FrameSink,
    /// The CPUs that make them; none: wherever the scheduler puts the thread.
    pub(super) cpus: Vec<Option<usize>>,
}

impl Net {
    /// Builds it. The bridge knows its two members, and the fast path is off.
    pub(crate) fn build(lab: &Lab) -> anyhow::Result<Net> {
        let hosts = [lab.host("a")?, lab.host("b")?];
        let options = BridgeOptions { ageing: AGEING, ..BridgeOptions::default() };
        let bridge = lab.bridge("bridge", &hosts.each_ref(), options)?;
        let host = &bridge.own.host;
        for call in CALLS {
            let name = format!("net.bridge.bridge-nf-call-{call}");
            // Without br_netfilter there is none.
            if host.sysctl(&name).is_ok() {
                host.set_sysctl(&name, "0")?;
            }
        }
        let accelerator = Some(accelerate(host)?);
        let net = Net { accelerator, bridge, batch: lab.dir().join("fdb") };
        net.teach("p0", net.a().mac.into())?;
        net.teach("p1", net.b().mac.into())?;
        Ok(net)
    }

    /// Where the bridge is.
    pub(super) fn host(&self) -> &Host {
        &self.bridge.own.host
    }

    /// Gives the bridge so many ports more, whose other ends are in `crowd`.
    pub(super) fn widen(&self, crowd: &Host, ports: usize) -> anyhow::Result<()> {
        let there = crowd.namespace_path().context("a host of its own")?;
        for host in [self.host(), crowd] {
            // A thousand hosts that introduce themselves to one another take a while.
            host.set_sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
        }
        let line = |port: usize| {
            format!(
                "link add c{port} type veth peer name d{port} netns {}\n\
                 link set c{port} master br0 up\n",
                there.display()
            )
        };
        let here: String = (0..ports).map(line).collect();
        let up: String = (0..ports).map(|port| format!("link set d{port} up\n")).collect();
        for (host, lines) in [(self.host(), here), (crowd, up)] {
            host.command("ip").args(["-batch", "-"]).input(lines).run()?;
        }
        Ok(())
    }

    /// The member on port p0.
    pub(crate) fn a(&self) -> &End {
        &self.bridge.members[0]
    }

    /// The member on port p1.
    pub(crate) fn b(&self) -> &End {
        &self.bridge.members[1]
    }

    /// Makes the bridge know these stations on a port.
    pub(super) fn teach(&self, port: &str, stations: Stations) -> anyhow::Result<()> {
        let entry = |mac| format!("fdb replace {mac} dev {port} master dynamic\n");
        let batch: String = stations.addresses().map(entry).collect();
        let file = &self.batch;
        fs::write(file, batch).with_context(|| format!("cannot write {}", file.display()))?;
        self.host().command("bridge").arg("-batch").arg(file).run()?;
        Ok(())
    }

    /// Starts the fast path anew, off: it reads the whole table again.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        // A bridge has one at a time.
        self.accelerator = None;
        self.accelerator = Some(accelerate(self.host())?);
        Ok(())
    }

    /// The fast path.
    pub(super) fn fast(&self) -> anyhow::Result<&Accelerator> {
        self.accelerator.as_ref().context("the fast path could not be started anew")
    }

    /// Says who forwards from now on.
    pub(crate) fn set(&self, arm: Arm) -> anyhow::Result<()> {
        let fast = self.fast()?;
        match arm {
            Arm::Linux => fast.set_fastpath(false)?,
            Arm::Cachelane(table) => {
                fast.set_table(table)?;
                fast.set_fastpath(true)?;
                fast.sync()?;
            }
        }
        Ok(())
    }

    /// Has the members send packets of their MTU, and take them as they come, as if between them
    /// were a wire.
    pub(super) fn cut_packets(&self) -> anyhow::Result<()> {
        for member in [self.a(), self.b()] {
            let ethtool = member.host.command("ethtool").args(["-K", &member.device]);
            ethtool.args(["tso", "off", "gso", "off", "gro", "off"]).run()?;
        }
        Ok(())
    }

    /// Why the fast path cannot send straight to both members here; none: it can.
    pub(crate) fn obstacle(&self) -> anyhow::Result<Option<String>> {
        let plan = self.fast()?.plan();
        let ports = plan.ports.iter().filter(|port| port.send != Way::Straight);
        let ports = ports.flat_map(|port| port.receive.iter().chain(&port.limits));
        Ok(plan.obstacles.iter().chain(ports).next().map(ToString::to_string))
    }

    /// Waits until frames that are under way go the arm's way.
    pub(super) fn settle(&self, arm: Arm) -> anyhow::Result<()> {
        let gone = || match arm {
            Arm::Linux => Ok(self.b().counters()?.rx_packets),
            Arm::Cachelane(_) => anyhow::Ok(self.fast()?.counters()?.forwarded()),
        };
        let (begin, before) = (Instant::now(), gone()?);
        while gone()? == before {
            if begin.elapsed() > PATIENCE {
                let why = self.obstacle()?.unwrap_or_else(|| "nothing stands against it".into());
                bail!(Absent(format!("{arm:?} forwards nothing: {why}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A generator of frames that port p0 receives.
    pub(super) fn generator(
        &self,
        from: impl Into<Stations>,
        to: impl Into<Stations>,
    ) -> anyhow::Result<FrameGenerator> {
        Ok(FrameGenerator::new(self.host(), &self.bridge.ports[0], from, to)?)
    }

    /// Measures a flow of frames under an arm, as [`Flow::measure`], and that it took the arm's way.
    pub(super) fn measure(
        &self,
        arm: Arm,
        flow: &Flow<'_>,
        window: Duration,
        pmu: Option<&Pmu>,
    ) -> anyhow::Result<Vec<f64>> {
        self.set(arm)?;
        let before = self.fast()?.counters()?;
        let values = flow.measure(window, pmu)?;
        let after = self.fast()?.counters()?;
        let fast = after.forwarded().wrapping_sub(before.forwarded());
        let all = fast + after.left_to_kernel().wrapping_sub(before.left_to_kernel());
        match arm {
            Arm::Linux => ensure!(fast == 0, "the fast path forwarded {fast} frames while off"),
            // Each station's first packet is the kernel's.
            Arm::Cachelane(_) => ensure!(
                fast as f64 > 0.8 * all as f64,
                Absent(format!(
                    "the fast path took {fast} of {all} frames: {}",
                    reasons(&before, &after)
                ))
            ),
        }
        Ok(values)
    }
}

impl Flow<'_> {
    /// What [`Ground::step`](super::Ground) gives: frames a second that arrive, and what the CPUs
    /// counted for each, where they count.
    pub(super) fn measure(&self, window: Duration, pmu: Option<&Pmu>) -> anyhow::Result<Vec<f64>> {
        let injection = self.generator.start(&self.cpus)?;
        thread::sleep(WARM);
        let counting = pmu.map(Pmu::start).transpose().context("the CPU's counters")?;
        let (arrived, started) = (self.sink.arrived()?, Instant::now());
        thread::sleep(window);
        let (arrived, elapsed) = (self.sink.arrived()? - arrived, started.elapsed());
        let counts = counting.map(|counting| counting.stop()).transpose()?;
        injection.stop()?;
        ensure!(arrived > 0, Absent("no frame arrived".into()));
        let packets = arrived as f64;
        let counts = counts.map(|c| [c.fills, c.cycles, c.instructions].map(|n| n / packets));
        let pps = packets / elapsed.as_secs_f64();
        Ok([pps].into_iter().chain(counts.into_iter().flatten()).collect())
    }
}

fn accelerate(host: &Host) -> anyhow::Result<Accelerator> {
    let config = Config { fastpath: false, ..Config::default() };
    Ok(host.run(|| Accelerator::start("br0", config))??)
}

/// What was left to the kernel path between two looks, by reason.
fn reasons(before: &Counters, after: &Counters) -> String {
    let count = |reason: &Reason| after.kernel(*reason).wrapping_sub(before.kernel(*reason));
    let counted = Reason::ALL.iter().filter(|reason| count(reason) > 0);
    let texts: Vec<_> =
        counted.map(|reason| format!("{} {}", reason.name(), count(reason))).collect();
    texts.join(", ")
}
